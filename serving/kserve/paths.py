"""Paths of the open inference protocol over HTTP. Pure."""

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from serving.base.errors import NotFound

_VERSIONED = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_GET = re.compile(rf"{_VERSIONED}(?P<action>/ready|/config|/stats)?")
_CONTROL = re.compile(r"/v2/repository/models/(?P<model>[^/]+)/(?P<action>load|unload)")
_SERVER = {
    "/v2": "server_metadata",
    "/v2/": "server_metadata",
    "/v2/models/stats": "statistics",
    "/v2/health/live": "live",
    "/v2/health/ready": "ready",
}
_MODEL = {
    None: "model_metadata",
    "/ready": "model_ready",
    "/config": "model_config",
    "/stats": "statistics",
}


class Route(NamedTuple):
    """The action, model and version that a path names.

    `version` is a number or a label; "" if the path names no version.
    """

    action: str
    model: str = ""
    version: str = ""


# Cached, because clients repeat a few paths. The cache is so small that long paths take little memory.
@lru_cache(maxsize=256)
def parse_path(http_method: str, raw_path: bytes) -> Route:
    """Parses `raw_path`, as received, without the query. Raises NotFound for an unknown path."""
    path = raw_path.decode("ascii", "replace")
    if http_method in ("GET", "HEAD"):
        if path in _SERVER:
            return Route(_SERVER[path])
        if (found := _GET.fullmatch(path)) is not None:
            return Route(_MODEL[found["action"]], *_model_of(found))
    if http_method == "POST":
        if path == "/v2/repository/index":
            return Route("index")
        if (found := _CONTROL.fullmatch(path)) is not None:
            return Route(found["action"], unquote(found["model"]))
    raise NotFound(f"nothing is at {http_method} {path}")


def _model_of(found: re.Match[str]) -> tuple[str, str]:
    return unquote(found["model"]), unquote(found["version"] or "")
