"""One module a command of `millpond`, each with `run(arguments) -> exit status`."""
