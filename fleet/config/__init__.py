"""The TOML file of a fleet as values."""
