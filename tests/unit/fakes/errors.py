"""Errors of the data plane and of loads."""

from serving.base.errors import DataLoss, FailedPrecondition, MillpondError, Unavailable


class StatusError(Exception):
    """Like `_native.StatusError`: its args are a code and a message."""


def transient(message: str = "disk is away") -> MillpondError:
    """Returns an error that a retry may resolve."""
    return Unavailable(message)


def permanent(message: str = "bad checksum") -> MillpondError:
    """Returns an error that the same files will raise again."""
    return DataLoss(message)


def refused_by_a_gate(message: str = "NaN") -> MillpondError:
    """Returns the error of a version that an enforced gate has refused."""
    return FailedPrecondition(message)
