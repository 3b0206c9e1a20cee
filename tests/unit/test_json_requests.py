import pytest

from serving.base.errors import InvalidArgument
from serving.base.json_requests import parse_object


def test_an_object_is_parsed():
    assert parse_object(b'{"model": "m"}') == {"model": "m"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"n": ' + b"9" * 5_000 + b"}", "no JSON"),
        (b"[]", "no JSON object but list"),
    ],
)
def test_what_is_no_object_is_the_callers_fault(text: bytes, why: str):
    with pytest.raises(InvalidArgument, match=why):
        parse_object(text)
