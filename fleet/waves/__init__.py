"""Decides which server of a fleet loads which version. Pure functions on values."""
