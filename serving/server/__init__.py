"""The composition root: builds the server from its parts, starts it and stops it."""
