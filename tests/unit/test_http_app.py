import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import anyio
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from serving.base.errors import InternalError, InvalidArgument, StatusCode, Unavailable
from serving.http.app import HttpSettings, http_status, make_http_app


async def ok(request: Request) -> Response:
    del request
    return Response(b"ok")


async def length(request: Request) -> Response:
    return Response(str(len(await request.body())))


def raising(error: Exception) -> Route:
    async def handler(request: Request) -> Response:
        raise error

    return Route("/raises", handler)


def client_of(*routes: BaseRoute, **settings: float) -> TestClient:
    app = make_http_app(list(routes), HttpSettings(**settings))  # type: ignore[arg-type]
    # An unanswered error is raised in the test.
    return TestClient(app, raise_server_exceptions=True)


# --- Missing routes and failing handlers ----------------------------------------------------------


@pytest.mark.parametrize("path", ["/nothing", "/ok/", "/ok/more"])
def test_unknown_path_is_404_with_an_error_as_json(path: str) -> None:
    response = client_of(Route("/ok", ok)).get(path)
    assert response.status_code == 404
    assert response.json() == {"error": f"nothing is at {path}"}
    assert response.headers["content-type"] == "application/json"


def test_other_method_is_405_with_allow() -> None:
    response = client_of(Route("/ok", ok, methods=["POST"])).get("/ok")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json() == {"error": "/ok does not allow GET"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidArgument("no such label 'x'"), 400),
        (Unavailable("not now"), 503),
        (HTTPException(418, "teapot"), 418),
    ],
)
def test_handler_refusal_is_answered_not_logged(error: Exception, status: int) -> None:
    with capture_logs() as logs:
        response = client_of(raising(error)).get("/raises")
    assert response.status_code == status
    assert response.json() == {"error": getattr(error, "message", None) or error.detail}  # type: ignore[attr-defined]
    assert logs == []


@pytest.mark.parametrize("error", [ValueError("secret"), InternalError("bug in here")])
def test_bug_in_a_handler_is_500_and_logged_once(error: Exception) -> None:
    with capture_logs() as logs:
        response = client_of(raising(error)).get("/raises")
    assert response.status_code == 500
    assert "secret" not in response.json()["error"]
    assert [(log["event"], log["path"]) for log in logs] == [("http_handler_failed", "/raises")]
    assert logs[0]["exc_info"] is error


def test_handler_error_after_start_cuts_response() -> None:
    async def handler(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begin"
            raise ValueError("halfway")

        return StreamingResponse(parts())

    with pytest.raises(ValueError, match="halfway"):
        client_of(Route("/", handler)).get("/")


@pytest.mark.parametrize("code", list(StatusCode))
def test_http_status_is_200_only_for_ok(code: StatusCode) -> None:
    assert (http_status(code) == 200) is (code is StatusCode.OK)


# --- Bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("byte_count", "status"), [(10, 200), (11, 413)])
def test_body_limit_holds_for_declared_lengths(byte_count: int, status: int) -> None:
    client = client_of(Route("/", length, methods=["POST"]), body_bytes_max=10)
    assert client.post("/", content=b"x" * byte_count).status_code == status


@pytest.mark.parametrize(("parts", "status"), [([b"x" * 5] * 2, 200), ([b"x" * 5] * 3, 413)])
def test_body_limit_holds_for_chunked_bodies(parts: Sequence[bytes], status: int) -> None:
    client = client_of(Route("/", length, methods=["POST"]), body_bytes_max=10)
    response = client.post("/", content=iter(parts))
    assert response.status_code == status
    if status == 413:
        assert "larger than 10 bytes" in response.json()["error"]
        assert response.headers["connection"] == "close"


def test_slow_handler_is_answered_with_504() -> None:
    async def handler(request: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    response = client_of(Route("/slow", handler), timeout_seconds=0.01).get("/slow")
    assert response.status_code == 504
    assert response.json() == {
        "error": "GET /slow took longer than 0.01 s (--rest_api_timeout_in_ms)"
    }


def test_response_that_has_begun_may_go_on() -> None:
    async def handler(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first "
            # Longer than the timeout, which only runs until the first bytes.
            with anyio.move_on_after(0.05):
                await asyncio.Event().wait()
            yield b"last"

        return StreamingResponse(parts())

    response = client_of(Route("/", handler), timeout_seconds=0.01).get("/")
    assert response.text == "first last"


def test_handler_that_blocks_runs_on_another_thread() -> None:
    threads: list[str] = []

    async def quick(request: Request) -> Response:
        threads.append(threading.current_thread().name)
        return Response(b"")

    def blocking(request: Request) -> Response:
        threads.append(threading.current_thread().name)
        return Response(b"")

    with client_of(Route("/quick", quick), Route("/blocking", blocking)) as client:
        client.get("/quick")
        client.get("/blocking")
    assert threads[0] != threads[1]
