"""The composition root: makes the parts of a server, starts them and stops them."""
