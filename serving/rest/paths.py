"""Paths of TensorFlow Serving's REST API. Pure.

They match in upper and lower case, and their names are URL-decoded: a model may be called `a/b`.
"""

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from serving.base.errors import InvalidArgument

VERSION_MAX = 2**63 - 1

_MODEL = r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_RUN = re.compile(rf"{_MODEL}:(?P<verb>predict|classify|regress)", re.IGNORECASE)
_ASK = re.compile(_MODEL, re.IGNORECASE)
_METADATA = re.compile(rf"{_MODEL}/metadata", re.IGNORECASE)
_BELOW_MODELS = re.compile(r"/v1/models/[^/:]", re.IGNORECASE)
_BAD_VERSION = re.compile(r"/v1/models/[^/:]+/versions/(?![0-9]+([:/]|$)).*", re.IGNORECASE)
_LIST = re.compile(r"/v1/models/?", re.IGNORECASE)


class StatusQuestion(NamedTuple):
    """GET of a model, or of one version."""

    model: str
    version: int | None = None
    label: str | None = None


class ListQuestion(NamedTuple):
    """GET of all models."""


Route = StatusQuestion | ListQuestion


# Cached, because clients repeat a few paths. The cache is so small that long paths take little memory.
@lru_cache(maxsize=256)
def parse_path(http_method: str, raw_path: bytes) -> Route:
    """Parses the route of a request. `raw_path` is as received, without the query.

    Raises InvalidArgument for an unknown path, or a version that is not a number of 63 bits. The data
    plane answers runs and metadata, so that only those with such a version come here.
    """
    path = raw_path.decode("ascii", "replace")
    if http_method == "POST":
        if (run := _RUN.fullmatch(path)) is not None:
            _version_of(run)
    elif http_method in ("GET", "HEAD"):
        if _LIST.fullmatch(path):
            return ListQuestion()
        found = _ASK.fullmatch(path)
        if found is not None:
            return StatusQuestion(*_version_of(found))
        if (metadata := _METADATA.fullmatch(path)) is not None:
            _version_of(metadata)
    raise InvalidArgument(f"Malformed request: {http_method} {path}; {_fault(http_method, path)}")


def _fault(http_method: str, path: str) -> str:
    """The fault of a request that the API does not have, with advice on the right request."""
    if http_method not in ("GET", "HEAD", "POST"):
        return "use GET or POST"
    if _RUN.fullmatch(path):
        return "use POST for predict, classify and regress"
    if not _BELOW_MODELS.match(path):
        return "paths of models begin with /v1/models/NAME"
    if _BAD_VERSION.fullmatch(path):
        return "a version is a whole number, like /versions/7; a label is /labels/NAME"
    if http_method == "POST":
        return "POST a path that ends with :predict, :classify or :regress"
    return "GET /v1/models/NAME[/versions/N or /labels/NAME], or that path with /metadata"


def _version_of(found: re.Match[str]) -> tuple[str, int | None, str | None]:
    """Reads the model, its version and its label."""
    label = None if found["label"] is None else unquote(found["label"])
    return unquote(found["model"]), _number(found["version"]), label


def _number(digits: str | None) -> int | None:
    if digits is None:
        return None
    # The length is checked first, because int() refuses 4,300 digits with an error of its own.
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(VERSION_MAX)) or int(significant) > VERSION_MAX:
        raise InvalidArgument(
            f"Failed to convert version: {significant[:40]} to numeric; the highest is {VERSION_MAX}"
        )
    return int(significant)
