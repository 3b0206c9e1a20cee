from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import NotFound
from serving.kserve.paths import Route, parse_path


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("GET", b"/v2", Route("server_metadata")),
        ("GET", b"/v2/", Route("server_metadata")),
        ("GET", b"/v2/health/live", Route("live")),
        ("HEAD", b"/v2/health/ready", Route("ready")),
        ("GET", b"/v2/models/m", Route("model_metadata", "m")),
        ("GET", b"/v2/models/a%2Fb/versions/3", Route("model_metadata", "a/b", "3")),
        ("GET", b"/v2/models/m/ready", Route("model_ready", "m")),
        ("GET", b"/v2/models/m/versions/3/config", Route("model_config", "m", "3")),
        ("POST", b"/v2/repository/index", Route("index")),
        ("GET", b"/v2/models/stats", Route("statistics")),
        ("GET", b"/v2/models/m/stats", Route("statistics", "m")),
        ("GET", b"/v2/models/m/versions/3/stats", Route("statistics", "m", "3")),
        ("POST", b"/v2/repository/models/m/load", Route("load", "m")),
        ("POST", b"/v2/repository/models/m/unload", Route("unload", "m")),
    ],
)
def test_path_is_a_route(method: str, path: bytes, route: Route) -> None:
    assert parse_path(method, path) == route


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
def test_any_path_is_a_route_or_refused(method: str, tail: bytes) -> None:
    # NotFound is the only error.
    with suppress(NotFound):
        assert parse_path(method, b"/v2/" + tail).action
