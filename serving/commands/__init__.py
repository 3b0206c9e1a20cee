"""The commands of `millpond`. The table `cli.COMMANDS` names the function of each command."""
