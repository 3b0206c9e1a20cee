"""Decides which servers of a fleet run, and on which nodes. Pure functions on values."""
