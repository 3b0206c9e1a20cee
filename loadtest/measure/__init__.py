"""Runs and their figures."""
