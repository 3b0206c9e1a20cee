"""Decides which versions are loaded, routed to and unloaded, and carries those decisions out."""
