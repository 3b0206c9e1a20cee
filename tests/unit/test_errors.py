import pytest

from serving.base.errors import (
    CallerError,
    Cancelled,
    DataLoss,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    InvalidConfig,
    MillpondError,
    NotFound,
    OperatorError,
    PermissionDenied,
    ResourceExhausted,
    StatusCode,
    Unavailable,
    Unimplemented,
    from_exception,
    from_status,
)


@pytest.mark.parametrize(
    ("error", "audience"),
    [
        (InvalidArgument, CallerError),
        (NotFound, CallerError),
        (Unimplemented, CallerError),
        (InvalidConfig, OperatorError),
        (FailedPrecondition, OperatorError),
        (DataLoss, OperatorError),
        (PermissionDenied, OperatorError),
        (ResourceExhausted, OperatorError),
        (Unavailable, OperatorError),
        (Cancelled, OperatorError),
    ],
)
def test_error_class_has_one_audience(
    error: type[MillpondError], audience: type[MillpondError]
) -> None:
    others = {CallerError, OperatorError, InternalError} - {audience}
    assert issubclass(error, audience)
    assert not any(issubclass(error, other) for other in others)


@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
def test_from_status_keeps_code_and_message(code: StatusCode) -> None:
    error = from_status(int(code), "why")
    assert (error.code, error.message, str(error)) == (code, "why", "why")


def test_from_status_code_with_class_gives_that_class() -> None:
    assert type(from_status(15, "bad")) is DataLoss


@pytest.mark.parametrize("code", [0, 17, -1])
def test_from_status_unknown_number_is_internal(code: int) -> None:
    error = from_status(code, "why")
    assert isinstance(error, InternalError)
    assert str(code) in error.message


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (DataLoss("x"), DataLoss),
        (FileNotFoundError(2, "no such file", "/m/1"), NotFound),
        (PermissionError(13, "denied", "/m/1"), PermissionDenied),
        (OSError(5, "I/O error"), Unavailable),
        (MemoryError(), ResourceExhausted),
        (ValueError("x"), InternalError),
    ],
)
def test_from_exception_gives_class_by_kind(
    raised: Exception, expected: type[MillpondError]
) -> None:
    assert type(from_exception(raised)) is expected


@pytest.mark.parametrize(
    ("code", "is_transient"),
    [
        (StatusCode.UNAVAILABLE, True),
        (StatusCode.UNKNOWN, True),
        (StatusCode.ABORTED, True),
        (StatusCode.RESOURCE_EXHAUSTED, True),
        (StatusCode.DEADLINE_EXCEEDED, True),
        (StatusCode.DATA_LOSS, False),
        (StatusCode.OUT_OF_RANGE, False),
        (StatusCode.NOT_FOUND, False),
        (StatusCode.INVALID_ARGUMENT, False),
        (StatusCode.FAILED_PRECONDITION, False),
        (StatusCode.UNIMPLEMENTED, False),
        (StatusCode.PERMISSION_DENIED, False),
        (StatusCode.INTERNAL, False),
        (StatusCode.CANCELLED, False),
    ],
)
def test_error_code_shows_if_retry_may_help(code: StatusCode, is_transient: bool) -> None:
    assert MillpondError("x", code=code).is_transient is is_transient
