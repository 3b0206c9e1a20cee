"""The sockets that a supervisor holds."""

import os
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from serving.base.errors import InvalidConfig, Unavailable
from serving.config.flags import parse_flags
from serving.config.server_config import ServerConfig, server_config
from serving.supervisor.child_process import HeldSocket
from serving.supervisor.held_sockets import hold_sockets


def config(*flags: str) -> ServerConfig:
    given = ["--model_name=m", "--model_base_path=/m", "--host=127.0.0.1", "--port=0", *flags]
    return server_config(parse_flags(given))


class Held:
    """Closes the sockets at the end of the test, and knows which were opened."""

    def __init__(self) -> None:
        self.opened: list[socket.socket] = []
        self.bound: list[tuple[str, int]] = []
        self.fault: Exception | None = None

    def bind(self, host: str, port: int) -> list[Any]:
        self.bound.append((host, port))
        if self.fault is not None and port:
            raise self.fault
        self.opened.append(socket.socket())
        return [self.opened[-1]]

    def names(self, config: ServerConfig, environment: Mapping[str, str] = {}) -> list[str]:
        held = hold_sockets(config, environment, self.bind)
        for item in held:
            if item.descriptor > 4:
                os.close(item.descriptor)
        return [item.name for item in held]


def test_both_ports_are_opened():
    held = Held()
    assert held.names(config("--rest_api_port=auto")) == ["grpc", "rest"]
    assert held.bound == [("127.0.0.1", 0), ("127.0.0.1", 0)]


def test_http_that_is_off_has_no_socket():
    assert Held().names(config("--rest_api_port=0")) == ["grpc"]


def test_socket_that_is_handed_in_replaces_port():
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "grpc"}
    held = hold_sockets(config("--rest_api_port=0"), environment, Held().bind)
    assert held == [HeldSocket(3, "grpc")]


def test_required_http_port_that_is_taken_ends_start():
    held = Held()
    held.fault = Unavailable("taken")
    with pytest.raises(Unavailable, match="taken"):
        held.names(config("--rest_api_port=8501"))


def test_taken_grpc_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises((Unavailable, InvalidConfig), match=f"port {port} is already in use"):
            hold_sockets(config(f"--port={port}"), {}, Held().bind)
