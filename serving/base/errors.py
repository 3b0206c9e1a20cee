"""One tree of errors, by audience: who has to do something about it.

`CallerError`    the request is wrong: whoever sent it changes it;
`OperatorError`  model files, flags or machine are wrong: whoever runs the server changes them;
`InternalError`  Millpond is wrong: whoever writes it does.

Each carries the gRPC code that a client sees, and a message with the value and the remedy.
"""

from enum import IntEnum


class StatusCode(IntEnum):
    """The gRPC status codes, by number; TensorFlow's are the same."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# A failed load is tried again where the same files may load a minute later: the disk or the network
# was at fault, or memory was short. UNKNOWN is what TensorFlow makes of I/O errors (EIO, ESTALE).
# Every other code says that the same files will fail again.
TRANSIENT_CODES = frozenset(
    {
        StatusCode.UNKNOWN,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.ABORTED,
        StatusCode.UNAVAILABLE,
    }
)


class MillpondError(Exception):
    """The root. Raise one of its descendants."""

    code: StatusCode = StatusCode.UNKNOWN

    def __init__(self, message: str, *, code: StatusCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code

    @property
    def is_transient(self) -> bool:
        """Whether the same thing may succeed later with nothing changed."""
        return self.code in TRANSIENT_CODES


class CallerError(MillpondError):
    """The request is wrong: the message tells its sender what to change."""


class OperatorError(MillpondError):
    """Model files, flags or machine are wrong: the message tells who runs the server what to do."""


class InternalError(MillpondError):
    """Millpond is wrong: a bug to report, with the log."""

    code = StatusCode.INTERNAL


class InvalidArgument(CallerError):
    """The request contradicts itself or the model's signature."""

    code = StatusCode.INVALID_ARGUMENT


class NotFound(CallerError):
    """No such model, version or file."""

    code = StatusCode.NOT_FOUND


class Unimplemented(CallerError):
    """Something that TensorFlow Serving knows and Millpond does not, or not yet."""

    code = StatusCode.UNIMPLEMENTED


class InvalidConfig(OperatorError):
    """A flag or a config file says something that cannot be done."""

    code = StatusCode.INVALID_ARGUMENT


class FailedPrecondition(OperatorError):
    """Something has to be put in place first, such as the rest of a half-copied version."""

    code = StatusCode.FAILED_PRECONDITION


class DataLoss(OperatorError):
    """A file is corrupt: copy it again, into the same version, or export it under a new one."""

    code = StatusCode.DATA_LOSS


class PermissionDenied(OperatorError):
    """The server's user may not read or write a file."""

    code = StatusCode.PERMISSION_DENIED


class ResourceExhausted(OperatorError):
    """Memory, disk or file descriptors ran out."""

    code = StatusCode.RESOURCE_EXHAUSTED


class DoesNotFitBeside(ResourceExhausted):
    """A version that would fit if the model's other versions were not there.

    `missing_bytes` is the memory that would be enough beside them.
    """

    def __init__(self, message: str, *, missing_bytes: int = 0) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


class Unavailable(OperatorError):
    """Not now: a disk, a network or a port that may be back later."""

    code = StatusCode.UNAVAILABLE


class Cancelled(OperatorError):
    """Stopped because it was no longer wanted."""

    code = StatusCode.CANCELLED


_CLASS_BY_CODE: dict[int, type[MillpondError]] = {
    error.code: error
    for error in (
        Cancelled,
        InvalidArgument,
        NotFound,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        Unimplemented,
        InternalError,
        Unavailable,
        DataLoss,
    )
}


def from_status(code: int, message: str) -> MillpondError:
    """The error for a status of the data plane (`_native.StatusError.args`).

    A code without a class of its own is the operator's to look at; a number that is no status code
    is our bug.
    """
    if code not in StatusCode._value2member_map_ or code == StatusCode.OK:
        return InternalError(f"{message} (status code {code} is no error code)")
    error_class = _CLASS_BY_CODE.get(code, OperatorError)
    return error_class(message, code=StatusCode(code))


def from_exception(error: BaseException) -> MillpondError:
    """The error for whatever was raised: ours as it is, the operating system's by kind.

    Everything else is our bug.
    """
    if isinstance(error, MillpondError):
        return error
    if isinstance(error, FileNotFoundError):
        return NotFound(str(error))
    if isinstance(error, PermissionError):
        return PermissionDenied(str(error))
    if isinstance(error, OSError):
        return Unavailable(str(error))
    if isinstance(error, MemoryError):
        return ResourceExhausted(f"out of memory: {error}")
    return InternalError(f"{type(error).__name__}: {error}")
