"""Pages served like the real ones, by uvicorn on its own thread: the live page over fake figures."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from serving.base.clock import NS_PER_SECOND, Clock
from serving.monitoring.page_data import PageData
from serving.monitoring.page_routes import page_routes
from tests.integration.clients import TIMEOUT_SECONDS
from tests.unit.fakes.monitored import FakeParts


@contextmanager
def serve_page(
    scene: FakeParts, clock: Clock, port: int = 0, *, started_seconds_ago: float = 3_600
) -> Iterator[str]:
    """Yields the page's address.

    It answers inside the context; afterwards nothing listens there.
    """
    started_wall_ns = clock.wall_ns() - round(started_seconds_ago * NS_PER_SECOND)
    data = PageData(scene.parts(clock), started_wall_ns=started_wall_ns)
    with serve_routes(page_routes(data), port) as address:
        yield address


@contextmanager
def serve_routes(routes: Sequence[BaseRoute], port: int = 0) -> Iterator[str]:
    """Yields the address of these routes, which answer inside the context."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    # Connections wait in the backlog until the server is ready.
    listener.listen()
    app = Starlette(routes=routes)
    # A poll under way is answered, however long that takes: a browser would log an error.
    patience_seconds = round(TIMEOUT_SECONDS)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=patience_seconds)
    )
    thread = threading.Thread(target=server.run, args=([listener],), name="page")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(2 * patience_seconds)
        listener.close()
        assert not thread.is_alive()
