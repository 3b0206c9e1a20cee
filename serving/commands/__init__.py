"""The commands of `millpond`. `cli.COMMANDS` has their modules and functions."""
