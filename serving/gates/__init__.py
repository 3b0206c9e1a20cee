"""The checks that a loaded version passes before it serves."""
