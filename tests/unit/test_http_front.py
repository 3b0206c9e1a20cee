"""The requests over HTTP that Python answers, without the data plane."""

import queue
import threading
from collections.abc import Iterator

import anyio.to_thread
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.http.front import HttpFront, scope_of
from tests.unit.fakes.servers import FakeGrpcServer, FakeRareCall

TIMEOUT_SECONDS = 30


def call(method: str, target: bytes, body: bytes = b"") -> FakeRareCall:
    made = FakeRareCall("page", body)
    made.http_method, made.target = method, target
    made.headers = [(b"accept", b"text/html")]
    return made


class World:
    """A front, whose application shows what it gets."""

    def __init__(self) -> None:
        self.grpc = FakeGrpcServer()
        self.held = threading.Event()
        routes = [
            Route("/show", self.show, methods=["GET", "POST"]),
            Route("/held", self.hold),
            Route("/bug", self.fail),
        ]
        app = Starlette(routes=routes)
        self.front = HttpFront(app, self.grpc.take_http_call, blocking_thread_count=2, nice=0)

    async def show(self, request: Request) -> Response:
        body = (await request.body()).decode()
        client = request.client
        shown = {"query": request.query_params["q"], "body": body}
        shown |= {"accept": request.headers["accept"], "client": client.host if client else ""}
        return JSONResponse(shown, 201, {"X-Shown": "yes"})

    def hold(self, request: Request) -> Response:
        del request
        assert self.held.wait(TIMEOUT_SECONDS)
        return Response("held")

    def fail(self, request: Request) -> Response:
        raise RuntimeError(request.url.path)

    def ask(self, asked: FakeRareCall, *, is_probe: bool = False) -> FakeRareCall:
        self.grpc.call_http(asked, is_probe=is_probe)
        assert asked.is_answered.wait(TIMEOUT_SECONDS)
        return asked


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.front.start()
    yield world
    world.held.set()
    world.grpc.shutdown_http(0)
    world.front.stop()
    assert world.front.join(TIMEOUT_SECONDS)


def test_request_reaches_the_application_whole(world: World) -> None:
    [(status, headers, body)] = world.ask(call("POST", b"/show?q=a%20b", b"{}")).http_answers
    assert status == 201
    assert headers[b"x-shown"] == b"yes"
    assert b"content-length" not in headers
    assert body == b'{"query":"a b","body":"{}","accept":"text/html","client":"127.0.0.1"}'


def test_page_that_waits_holds_up_no_other(world: World) -> None:
    held = call("GET", b"/held")
    world.grpc.call_http(held)
    for is_probe in (False, True):
        world.ask(call("GET", b"/show?q=1"), is_probe=is_probe)
    assert not held.is_answered.is_set()
    world.held.set()
    assert held.is_answered.wait(TIMEOUT_SECONDS)


def test_bug_is_500_and_harms_no_next_request(world: World) -> None:
    assert world.ask(call("GET", b"/bug")).http_answers[0][0] == 500
    assert world.ask(call("GET", b"/show?q=1")).http_answers[0][0] == 201


def test_threads_end_with_the_data_planes_last_request() -> None:
    world = World()
    world.front.start()
    world.grpc.shutdown_http(0)
    assert world.front.join(TIMEOUT_SECONDS)


def test_front_that_ends_while_its_loops_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    takers = queue.SimpleQueue[threading.Thread]()
    limiter = anyio.to_thread.current_default_thread_limiter

    def take(is_probe: bool, timeout_seconds: float) -> None:
        del is_probe, timeout_seconds
        takers.put(threading.current_thread())
        raise StopIteration

    def limiter_once_a_taker_has_ended() -> anyio.CapacityLimiter:
        takers.get(timeout=TIMEOUT_SECONDS).join(TIMEOUT_SECONDS)
        return limiter()

    # The first step of a loop.
    monkeypatch.setattr(
        anyio.to_thread, "current_default_thread_limiter", limiter_once_a_taker_has_ended
    )
    front = HttpFront(Starlette(), take, blocking_thread_count=1, nice=0)
    front.start()
    assert front.join(TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:127.0.0.1:50000", ("127.0.0.1", 50_000)),
        ("ipv6:%5B::1%5D:5", ("::1", 5)),
        ("unix:", ("", 0)),
        ("other:", None),
    ],
)
def test_scope_names_the_client(peer: str, client: tuple[str, int] | None) -> None:
    asked = call("GET", b"/v1/models/a%2Fb?x=1#f")
    asked.peer = peer
    scope = scope_of(asked)
    assert scope["client"] == client
    assert (scope["path"], scope["raw_path"]) == ("/v1/models/a/b", b"/v1/models/a%2Fb")
    assert scope["query_string"] == b"x=1"
