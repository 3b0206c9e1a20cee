"""The longest times that the stop of a server waits for each of its parts."""

UNLOAD_TIMEOUT_SECONDS = 10.0
"""How long a stop waits, after the requests, for loads to end and versions to be freed. A load ends
at its next stage; the process's end frees the versions that are left."""

SOURCE_TIMEOUT_SECONDS = 0.1
"""How long a stop waits for each source and each watch of config files: a poll takes milliseconds,
or hangs on a dead disk."""

BLOCKED_VERSIONS_TIMEOUT_SECONDS = 2.0
"""How long a stop waits for unwritten blocked versions: a kilobyte, or a dead disk."""

CAPTURE_TIMEOUT_SECONDS = 2.0
"""How long a stop waits for the recent requests to be written: megabytes, or a dead disk."""

TRACING_TIMEOUT_SECONDS = 2.0
"""How long a stop waits for the last spans to go out: one POST, or a collector that is gone."""

PROFILER_TIMEOUT_SECONDS = 2.0
"""How long a stop waits for a trace to be written, after the drain has waited for its reply."""
