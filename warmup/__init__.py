"""Warm-up data: requests that a version answers before anyone else may ask it."""
