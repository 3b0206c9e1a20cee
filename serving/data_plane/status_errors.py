"""Errors of the data plane, as errors of Python."""

from collections.abc import Iterator
from contextlib import contextmanager

from serving.base.errors import from_status


@contextmanager
def statuses_as_errors(status_error: type[Exception]) -> Iterator[None]:
    """Raises the data plane's `StatusError` as the MillpondError of its code."""
    try:
        yield
    except status_error as error:
        code, message = error.args
        raise from_status(code, message) from error
