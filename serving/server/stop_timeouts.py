"""The longest times for which the stop of a server waits for each of its parts."""

UNLOAD_TIMEOUT_SECONDS = 10.0
"""The longest wait, after the requests, for loads to end and for versions to be freed.

A load ends at its next stage. The end of the process frees the versions that are left.
"""

SOURCE_TIMEOUT_SECONDS = 0.1
"""The longest wait for each source and each watch of files. A poll takes milliseconds unless its disk hangs."""

BLOCKED_VERSIONS_TIMEOUT_SECONDS = 2.0
"""The longest wait until the blocked versions are written. They are a kilobyte, so only a disk that hangs needs it."""

CAPTURE_TIMEOUT_SECONDS = 2.0
"""The longest wait until the recent requests are written. They are megabytes, so only a disk that hangs needs it."""

REQUEST_LOG_TIMEOUT_SECONDS = 5.0
"""How long a stop waits for the queued records of request logs: up to 64 MB, or a dead disk."""

AUTOTUNING_TIMEOUT_SECONDS = 0.5
"""The longest wait for the thread of autotuning. Its process is killed, and its run under way is the last."""

GPU_SENSORS_TIMEOUT_SECONDS = 0.5
"""The longest wait for the look at the GPU's sensors. It takes a millisecond unless the driver hangs."""

TRACING_TIMEOUT_SECONDS = 2.0
"""The longest wait until the last spans are sent. That is one POST, so only a collector that is gone needs it."""

PROFILER_TIMEOUT_SECONDS = 2.0
"""The longest wait until a profiler's trace is written, after the drain has waited for its reply."""
