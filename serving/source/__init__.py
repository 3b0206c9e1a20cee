"""Finds the versions of each model on disk."""
