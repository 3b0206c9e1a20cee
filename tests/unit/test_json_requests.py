import pytest

from serving.base.errors import InvalidArgument
from serving.base.json_requests import parse_object


def test_an_object_is_parsed():
    assert parse_object(b'{"model": "m"}') == {"model": "m"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"n": ' + b"9" * 5_000 + b"}", "not valid JSON"),
        (b"[]", "must be a JSON object, but it is list"),
    ],
)
def test_non_object_is_fault_of_caller(text: bytes, why: str):
    with pytest.raises(InvalidArgument, match=why):
        parse_object(text)
