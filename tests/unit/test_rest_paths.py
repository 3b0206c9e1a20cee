import contextlib
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import InvalidArgument
from serving.rest.paths import (
    VERSION_MAX,
    ListQuestion,
    StatusQuestion,
    parse_path,
)

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: "\ufffd" not in name)


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("GET", b"/v1/models/m", StatusQuestion("m")),
        ("HEAD", b"/v1/models/m", StatusQuestion("m")),
        ("GET", b"/v1/models/m/versions/0", StatusQuestion("m", 0)),
        ("GET", b"/v1/models/m/labels/l", StatusQuestion("m", None, "l")),
        ("GET", b"/v1/models", ListQuestion()),
        ("GET", b"/v1/models/", ListQuestion()),
    ],
)
def test_parse_path_accepts_documented_paths(method, path, route):
    assert parse_path(method, path) == route


@pytest.mark.parametrize("end", [b"", b"/metadata"])
def test_parse_path_refuses_a_version_of_64_bits(end):
    with pytest.raises(InvalidArgument, match="Failed to convert version"):
        parse_path("GET", b"/v1/models/m/versions/9223372036854775808" + end)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", b"/v1/models/m:predict"),
        ("POST", b"/v1/models/m"),
        ("PUT", b"/v1/models/m:predict"),
        ("POST", b"/v1/models/m:explain"),
        ("POST", b"/v1/models/:predict"),
        ("POST", b"/v1/models/m/versions/1/labels/l:predict"),
        ("POST", b"/v1/models/m/versions/-1:predict"),
        ("POST", b"/v1/models/m/versions/:predict"),
        ("POST", b"/v1/models/m:predict/"),
        ("GET", b"/v1/model/m"),
        ("GET", b"/v1/models/m/metadata/x"),
        ("DELETE", b"/v1/models"),
    ],
)
def test_parse_path_refuses_anything_else_by_naming_it(method, path):
    with pytest.raises(InvalidArgument) as raised:
        parse_path(method, path)
    start = f"Malformed request: {method} {path.decode()}; "
    assert raised.value.message.startswith(start)
    assert len(raised.value.message) > len(start)


@pytest.mark.parametrize(
    ("method", "path", "remedy"),
    [
        ("PUT", b"/v1/models/m", "use GET or POST"),
        ("GET", b"/v1/models/m:predict", "use POST for predict, classify and regress"),
        ("GET", b"/v1/nothing", "paths of models begin with /v1/models/NAME"),
        ("GET", b"/v1/models/m/versions/one", "a version is a whole number, like /versions/7"),
        ("POST", b"/v1/models/m/versions/-1:predict", "a version is a whole number"),
        ("POST", b"/v1/models/m", "POST a path that ends with :predict, :classify or :regress"),
        ("POST", b"/v1/models/m/versions/1", "POST a path that ends with :predict"),
        ("GET", b"/v1/models/m/metadata/x", "GET /v1/models/NAME"),
    ],
)
def test_malformed_request_names_fault(method: str, path: bytes, remedy: str):
    with pytest.raises(InvalidArgument) as raised:
        parse_path(method, path)
    assert f"; {remedy}" in raised.value.message


@pytest.mark.parametrize("digits", [str(VERSION_MAX + 1), "9" * 5_000])
@pytest.mark.parametrize(("method", "verb"), [("POST", ":predict"), ("GET", "")])
def test_parse_path_refuses_impossible_version(method, verb, digits):
    with pytest.raises(InvalidArgument, match=r"Failed to convert version: 9[0-9]+ to numeric"):
        parse_path(method, f"/v1/models/m/versions/{digits}{verb}".encode())


def test_parse_path_accepts_zero_padded_version():
    path = f"/v1/models/m/versions/{'0' * 5_000}{VERSION_MAX}".encode()
    assert parse_path("GET", path) == StatusQuestion("m", VERSION_MAX)


@given(name=NAMES, label=st.none() | NAMES)
def test_parse_path_decodes_any_name_and_label(name, label):
    part = "" if label is None else f"/labels/{quote(label, safe='')}"
    path = f"/v1/models/{quote(name, safe='')}{part}".encode()
    assert parse_path("GET", path) == StatusQuestion(name, None, label)


@given(name=NAMES, version=st.integers(0, VERSION_MAX))
def test_parse_path_finds_any_version(name, version):
    path = f"/v1/models/{quote(name, safe='')}/versions/{version}".encode()
    assert parse_path("GET", path) == StatusQuestion(name, version)


@given(method=st.sampled_from(["GET", "POST", "HEAD", "PUT"]), path=st.binary(max_size=60))
def test_parse_path_of_any_bytes_is_a_route_or_refused(method, path):
    with contextlib.suppress(InvalidArgument):
        assert isinstance(parse_path(method, b"/v1/" + path), tuple)
