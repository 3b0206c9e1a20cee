"""Applies a changed configuration and changed certificates to a running server."""
