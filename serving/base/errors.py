"""One tree of errors, by audience: the people who can correct the cause.

`CallerError`    the request is wrong: its sender corrects it;
`OperatorError`  model files, flags or the machine are wrong: the server's operator corrects them;
`InternalError`  Millpond is wrong: its developers correct it.

Each error has the gRPC code that a client sees, and a message with the value and the remedy.
"""

from enum import IntEnum

from serving.base.name_text import encodable


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


# A failed load is tried again if the same files may load a minute later, because the disk or the
# network was at fault, or memory was short. TensorFlow reports I/O errors (EIO, ESTALE) as UNKNOWN.
# With every other code the same files will fail again.
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
    """The root of the tree. Raise one of its descendants."""

    code: StatusCode = StatusCode.UNKNOWN

    def __init__(self, message: str, *, code: StatusCode | None = None) -> None:
        # The message may name a path, and is sent to clients.
        self.message = encodable(message)
        super().__init__(self.message)
        if code is not None:
            self.code = code

    @property
    def is_transient(self) -> bool:
        """True if the same operation may succeed later with nothing changed."""
        return self.code in TRANSIENT_CODES


class CallerError(MillpondError):
    """The request is wrong: the message is for its sender."""


class OperatorError(MillpondError):
    """Model files, flags or the machine are wrong: the message is for the server's operator."""


class InternalError(MillpondError):
    """Millpond is wrong: a bug to report, with the log."""

    code = StatusCode.INTERNAL


class InvalidArgument(CallerError):
    """The request contradicts itself or the model's signature."""

    code = StatusCode.INVALID_ARGUMENT


class NotFound(CallerError):
    """The model, version or file does not exist."""

    code = StatusCode.NOT_FOUND


class FilesGone(NotFound):
    """The directory of a version was gone when its load ended. Once it is back, the same files may load."""


class Unimplemented(CallerError):
    """The request uses a feature of TensorFlow Serving that Millpond does not have, or not yet."""

    code = StatusCode.UNIMPLEMENTED


class InvalidConfig(OperatorError):
    """A flag or a config file has a value that is invalid or cannot be applied."""

    code = StatusCode.INVALID_ARGUMENT


class FailedPrecondition(OperatorError):
    """Something must be done first, such as copying the rest of a half-copied version."""

    code = StatusCode.FAILED_PRECONDITION


class DataLoss(OperatorError):
    """A file is corrupt: copy it again into the same version, or export a new version."""

    code = StatusCode.DATA_LOSS


class PermissionDenied(OperatorError):
    """The server's user may not read or write a file."""

    code = StatusCode.PERMISSION_DENIED


class ResourceExhausted(OperatorError):
    """Memory, disk space or file descriptors ran out."""

    code = StatusCode.RESOURCE_EXHAUSTED


class DoesNotFitBeside(ResourceExhausted):
    """A version does not fit beside the model's other versions, but would fit alone.

    `missing_bytes` is the additional memory with which it would fit beside them.
    """

    def __init__(self, message: str, *, missing_bytes: int = 0) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


class FitsNowhere(ResourceExhausted):
    """A version needs more memory than all versions together may take: no unload makes room for it."""

    @property
    def is_transient(self) -> bool:
        return False


class Unavailable(OperatorError):
    """A disk, a network or a port is not available now, but may be later."""

    code = StatusCode.UNAVAILABLE


class Cancelled(OperatorError):
    """Stopped, because the result is no longer needed."""

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
    """Makes the error for a status of the data plane (`_native.StatusError.args`).

    A code without a class of its own becomes an OperatorError. A number that is not an error code is a bug
    of Millpond, an InternalError.
    """
    if code not in StatusCode._value2member_map_ or code == StatusCode.OK:
        return InternalError(f"{message} (status code {code} is not an error code)")
    error_class = _CLASS_BY_CODE.get(code, OperatorError)
    return error_class(message, code=StatusCode(code))


def from_exception(error: BaseException) -> MillpondError:
    """Makes the MillpondError for any exception.

    Returns a MillpondError as it is, and converts errors of the operating system by their class. Any other
    exception is a bug of Millpond, an InternalError.
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
