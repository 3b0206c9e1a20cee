"""The variable of the environment by which a server ends with the process that started it."""

from collections.abc import Mapping

STOP_AT_STDIN_EOF = "MILLPOND_STOP_AT_STDIN_EOF"
"""If it is 1, the server stops as at SIGTERM when its standard input closes. So it never outlives the
process that holds the other end. `ModelServer` and a supervisor set it."""


def stops_at_stdin_eof(environment: Mapping[str, str]) -> bool:
    return environment.get(STOP_AT_STDIN_EOF) == "1"
