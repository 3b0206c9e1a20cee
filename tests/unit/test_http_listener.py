"""The sockets of HTTP that the data plane takes over, on this machine's own sockets."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette

from serving.base.errors import InvalidConfig
from serving.config.server_config import HttpPort
from serving.http.front import HttpFront
from serving.http.listener import HttpListener
from tests.unit.fakes.servers import FakeGrpcServer

ANY = HttpPort(0)
OFF = HttpPort(None)


class World:
    """Listeners over a fake data plane, and what it was given to listen on."""

    def __init__(self) -> None:
        self.server = FakeGrpcServer()
        self.front = HttpFront(
            Starlette(), self.server.take_http_call, blocking_thread_count=1, nice=0
        )

    def started(self, port: HttpPort, socket_path: object = "") -> HttpListener:
        listener = HttpListener(
            host="127.0.0.1",
            port=port,
            socket_path=str(socket_path),
            server=self.server,
            front=self.front,
        )
        listener.start()
        return listener

    def kinds(self) -> list[str]:
        return [address.partition(":")[0] for address in self.server.http_addresses]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.server.shutdown_http(0)
    world.front.stop()
    assert world.front.join()


def test_socket_path_is_served_beside_the_port(world: World, tmp_path: Path) -> None:
    listener = world.started(ANY, tmp_path / "m.sock")
    assert world.kinds() == ["unix", "own-fd"]
    assert listener.port


def test_without_a_port_the_socket_alone_is_served(world: World, tmp_path: Path) -> None:
    listener = world.started(OFF, tmp_path / "m.sock")
    assert world.server.http_addresses == [f"unix:{tmp_path / 'm.sock'}"]
    assert listener.port is None


def test_without_both_nothing_is_served(world: World) -> None:
    assert world.started(OFF).port is None
    assert world.server.log == []


def test_bad_socket_path_is_refused_before_binding(world: World, tmp_path: Path) -> None:
    file = tmp_path / "m.sock"
    file.write_text("")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(InvalidConfig, match=r"--rest_api_socket_path=.*not a socket; delete it"):
        world.started(ANY, file)
    assert os.listdir("/proc/self/fd") == before


def test_port_is_that_of_the_handed_in_tcp_socket(world: World, tmp_path: Path) -> None:
    with (
        socket.socket(socket.AF_UNIX) as unix,
        socket.create_server(("127.0.0.1", 0)) as tcp,
    ):
        unix.bind(str(tmp_path / "held.sock"))
        unix.listen()
        port = HttpPort(0, descriptors=(os.dup(unix.fileno()), os.dup(tcp.fileno())))
        assert world.started(port).port == tcp.getsockname()[1]
        assert world.kinds() == ["fd", "fd"]


def test_handed_in_unix_socket_has_no_port(world: World, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "held.sock"))
        unix.listen()
        assert world.started(HttpPort(0, descriptors=(os.dup(unix.fileno()),))).port is None
        assert world.kinds() == ["fd"]
