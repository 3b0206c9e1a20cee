"""The requests of a load and the servers that get it, as values: drawn before a run begins."""
