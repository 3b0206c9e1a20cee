"""The error of a thread that the kernel does not grant."""

NO_THREAD_REMEDY = (
    "raise the limit of processes (ulimit -u, or that of the container or the service), or of address space "
    "(ulimit -v)"
)

# The messages of Python and of C++.
_MESSAGES = ("can't start new thread", "Resource temporarily unavailable")


def is_no_thread(error: RuntimeError) -> bool:
    """True if the error says that no thread was granted. Other RuntimeErrors are bugs."""
    return any(message in str(error) for message in _MESSAGES)
