"""The command `millpond fleet`."""
