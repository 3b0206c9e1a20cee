"""The server's configuration: flags, config files and their validation."""
