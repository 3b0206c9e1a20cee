"""Serves the live page over HTTP: its files, and the data that an open page polls."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.http.app import json_response
from serving.monitoring.page_data import PageData, PageQuestion

PAGE_DIRECTORY = Path(__file__).parent / "page"

ALIVE = MappingProxyType({"status": "alive"})

# Other files in the directory (licences) are not served.
_MEDIA_TYPES = MappingProxyType(
    {
        ".css": "text/css; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)

# Model names and error messages come from outside. If such text ever got into the page as markup, it
# must not run, load or send anything.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_SECURITY_HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
)


@dataclass(frozen=True)
class PageFile:
    """One file as it is sent. `etag` is a hash of its bytes."""

    content: bytes
    media_type: str
    etag: str


def read_page_files(directory: Path = PAGE_DIRECTORY) -> Mapping[str, PageFile]:
    """Reads the page's files by their path below the directory, such as `uplot/uPlot.min.css`."""
    files = {}
    for path in sorted(directory.rglob("*")):
        media_type = _MEDIA_TYPES.get(path.suffix)
        if media_type is not None and path.is_file():
            content = path.read_bytes()
            etag = f'"{sha256(content).hexdigest()[:16]}"'
            name = path.relative_to(directory).as_posix()
            files[name] = PageFile(content, media_type, etag)
    return MappingProxyType(files)


def page_routes(data: PageData) -> list[Route]:
    """Makes `GET /`, `GET /static/…` and `GET /v1/page`. Reads all files now, and never later."""
    return [*file_routes(read_page_files()), Route("/v1/page", partial(_poll, data))]


def file_routes(files: Mapping[str, PageFile]) -> list[Route]:
    """`GET /` and `GET /static/…` for all files.

    `GET /` is index.html for browsers, which ask for text/html. Any other client gets the liveness of
    KServe's first protocol, whose probe sends no header that asks for JSON.
    """
    index = files["index.html"]

    async def get_index(request: Request) -> Response:
        if "text/html" in request.headers.get("Accept", "").lower():
            response = _file_response(index, request)
        else:
            response = json_response(dict(ALIVE))
        response.headers["Vary"] = "Accept"
        return response

    return [Route("/", get_index), Route("/static/{name:path}", partial(_get_static, files))]


def _poll(data: PageData, request: Request) -> Response:
    """Answers a poll, on a thread beside the event loop: a page's first poll takes 5 ms."""
    query = request.query_params
    question = PageQuestion(
        model=query.get("model"),
        cursor=query.get("cursor", ""),
        swaps_tag=query.get("swaps_tag", ""),
    )
    return poll_response(data.answer(question))


def poll_response(document: Mapping[str, Any]) -> Response:
    """The answer to a poll of a page."""
    # As ASCII: a message may hold a file name that is not UTF-8.
    content = json.dumps(document, separators=(",", ":"))
    headers = {"Cache-Control": "no-store", **_SECURITY_HEADERS}
    return Response(content, media_type="application/json", headers=headers)


async def _get_static(files: Mapping[str, PageFile], request: Request) -> Response:
    file = files.get(request.path_params["name"])
    if file is None:
        raise HTTPException(404)
    return _file_response(file, request)


def _file_response(file: PageFile, request: Request) -> Response:
    # With "no-cache" a browser checks each file by its ETag, so that after an upgrade of the server it
    # does not mix files of two versions.
    headers = {"Cache-Control": "no-cache", "ETag": file.etag, **_SECURITY_HEADERS}
    known = {tag.strip() for tag in request.headers.get("If-None-Match", "").split(",")}
    if file.etag in known or f"W/{file.etag}" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
