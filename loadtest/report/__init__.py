"""The figures as JSON, tables and pictures."""
