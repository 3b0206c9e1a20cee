from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import NotFound
from serving.kserve.paths import Question, parse_path


@pytest.mark.parametrize(
    ("method", "path", "question"),
    [
        ("GET", b"/v2", Question("server_metadata")),
        ("GET", b"/v2/", Question("server_metadata")),
        ("GET", b"/v2/health/live", Question("live")),
        ("HEAD", b"/v2/health/ready", Question("ready")),
        ("GET", b"/v2/models/m", Question("model_metadata", "m")),
        ("GET", b"/v2/models/a%2Fb/versions/3", Question("model_metadata", "a/b", "3")),
        ("GET", b"/v2/models/m/ready", Question("model_ready", "m")),
        ("GET", b"/v2/models/m/versions/3/config", Question("model_config", "m", "3")),
        ("POST", b"/v2/models/m/infer", Question("infer", "m")),
        ("POST", b"/v2/models/m/versions/stable/infer", Question("infer", "m", "stable")),
        ("POST", b"/v2/repository/index", Question("index")),
        ("GET", b"/v2/models/stats", Question("statistics")),
        ("GET", b"/v2/models/m/stats", Question("statistics", "m")),
        ("GET", b"/v2/models/m/versions/3/stats", Question("statistics", "m", "3")),
        ("POST", b"/v2/repository/models/m/load", Question("load", "m")),
        ("POST", b"/v2/repository/models/m/unload", Question("unload", "m")),
    ],
)
def test_path_is_a_question(method: str, path: bytes, question: Question) -> None:
    assert parse_path(method, path) == question


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", b"/v2/models/m"),
        ("GET", b"/v2/models/m/infer"),
        ("GET", b"/v2/repository/models/m/unload"),
        ("GET", b"/v2/models//ready"),
        ("POST", b"/v2/models/m/stats"),
        ("GET", b"/v2x"),
    ],
)
def test_path_of_nothing_is_refused_by_name(method: str, path: bytes) -> None:
    with pytest.raises(NotFound, match="nothing is at"):
        parse_path(method, path)


@given(st.sampled_from(["GET", "POST", "PUT"]), st.binary(max_size=60))
def test_any_path_is_a_question_or_refused(method: str, tail: bytes) -> None:
    # NotFound is the only error.
    with suppress(NotFound):
        assert parse_path(method, b"/v2/" + tail).what
