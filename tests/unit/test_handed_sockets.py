"""Sockets that another process hands in: the variables, and this process's own sockets."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig
from serving.config.handed_sockets import (
    VARIABLES,
    HandedDescriptor,
    HandedSocket,
    handed_descriptors,
    with_handed_sockets,
)
from serving.config.server_config import HttpPort, ServerConfig
from serving.server import handed_sockets
from serving.server.handed_sockets import take_handed_sockets

PROCESS_ID = 7
CONFIG = ServerConfig(models=(), host="127.0.0.9", port=8500)


def environment(count: object = 1, names: str | None = None, pid: object = 7) -> dict[str, str]:
    given = {"LISTEN_PID": str(pid), "LISTEN_FDS": str(count)}
    return given if names is None else {**given, "LISTEN_FDNAMES": names}


def numbers_by_use(given: dict[str, str]) -> tuple[list[int], list[int]]:
    """Returns the numbers of gRPC's descriptors and of HTTP's."""
    found = handed_descriptors(given, PROCESS_ID)
    grpc = [descriptor.number for descriptor in found if not descriptor.is_rest]
    return grpc, [descriptor.number for descriptor in found if descriptor.is_rest]


# --- Variables ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ({}, ([], [])),
        ({"LISTEN_PID": "7"}, ([], [])),
        ({"LISTEN_FDS": "1"}, ([], [])),
        (environment(0), ([], [])),
        (environment(0, ""), ([], [])),
        (environment(2, pid=8), ([], [])),
        (environment("x", pid=8), ([], [])),
        (environment(2), ([3, 4], [])),
        (environment(1, ""), ([3], [])),
        (environment(1, "rest"), ([], [3])),
        (environment(3, "grpc:rest:grpc"), ([3, 5], [4])),
        (environment(3, "millpond.socket:unknown:rest.socket"), ([3, 4, 5], [])),
    ],
)
def test_descriptors_follow_number_and_names(
    given: dict[str, str], numbers: tuple[list[int], list[int]]
) -> None:
    assert numbers_by_use(given) == numbers


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (environment(pid="me"), "LISTEN_PID='me' is not a number"),
        (environment(-1), "LISTEN_FDS='-1' is not a number"),
        (environment("\u0663"), "LISTEN_FDS='\u0663' is not a number"),
        (environment(10**9), "hand in 256 sockets or fewer"),
        (environment(2, "grpc"), "LISTEN_FDNAMES=grpc has 1 names, and LISTEN_FDS=2"),
        (environment(2, "grpc:admin"), "descriptor 4 'admin'; name it grpc or rest"),
    ],
)
def test_wrong_variables_are_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        handed_descriptors(given, PROCESS_ID)


# --- Configuration --------------------------------------------------------------------------------


def tcp(number: int, port: int, *, is_rest: bool = False) -> HandedSocket:
    return HandedSocket(HandedDescriptor(number, is_rest=is_rest), host="127.0.0.1", port=port)


def unix(number: int, path: str, *, is_rest: bool = False) -> HandedSocket:
    return HandedSocket(HandedDescriptor(number, is_rest=is_rest), path=path)


def test_config_without_handed_in_sockets_is_the_same() -> None:
    assert with_handed_sockets(CONFIG, []) == CONFIG


def test_grpc_sockets_replace_host_and_port_of_grpc() -> None:
    config = with_handed_sockets(CONFIG, [unix(3, "/s"), tcp(4, 9000)])
    assert (config.host, config.port, config.grpc_descriptors) == ("127.0.0.1", 9000, (3, 4))
    assert (config.http_host, config.rest_api_port.number) == ("127.0.0.9", 8501)
    assert config.rest_api_port.descriptors == ()


def test_unix_sockets_alone_have_no_port() -> None:
    config = with_handed_sockets(CONFIG, [unix(3, "/s")])
    assert (config.host, config.port, config.grpc_descriptors) == ("unix:/s", 0, (3,))


def test_rest_socket_replaces_host_and_port_of_http() -> None:
    config = with_handed_sockets(CONFIG, [tcp(3, 9001, is_rest=True)])
    assert (config.host, config.port, config.grpc_descriptors) == ("127.0.0.9", 8500, ())
    assert config.rest_api_port == HttpPort(9001, host="127.0.0.1", descriptors=(3,))


def test_rest_sockets_may_be_unix_sockets() -> None:
    config = with_handed_sockets(CONFIG, [unix(3, "/s", is_rest=True), tcp(4, 9001, is_rest=True)])
    assert config.rest_api_port == HttpPort(9001, host="127.0.0.1", descriptors=(3, 4))
    config = with_handed_sockets(CONFIG, [unix(3, "/s", is_rest=True)])
    assert config.rest_api_port == HttpPort(0, host="unix:/s", descriptors=(3,))


@pytest.mark.parametrize(
    ("flags", "handed_in", "message"),
    [
        ({"grpc_socket_path": "/s"}, unix(3, "/s"), "--grpc_socket_path=/s is the path of"),
        ({"rest_api_port": HttpPort(None)}, tcp(3, 1, is_rest=True), "--rest_api_port=0 turns"),
        (
            {"rest_api_socket_path": "/s"},
            unix(3, "/s", is_rest=True),
            "--rest_api_socket_path=/s is the path of",
        ),
    ],
)
def test_contradicting_flags_are_refused(
    flags: dict[str, object], handed_in: HandedSocket, message: str
) -> None:
    config = ServerConfig(models=(), **flags)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match=message):
        with_handed_sockets(config, [handed_in])


# --- Sockets --------------------------------------------------------------------------------------

Take = Callable[[int], ServerConfig]


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Take:
    """Takes a descriptor of this process as if it were the third."""

    def take_one(number: int) -> ServerConfig:
        monkeypatch.setattr(
            handed_sockets, "handed_descriptors", lambda *_: (HandedDescriptor(number),)
        )
        return take_handed_sockets(CONFIG, {})

    return take_one


def test_taken_socket_stays_open_but_not_for_children(take: Take) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        held.set_inheritable(True)
        config = take(held.fileno())
        assert config.port == held.getsockname()[1]
        assert not os.get_inheritable(held.fileno())
        socket.create_connection(held.getsockname(), timeout=5).close()


@pytest.mark.parametrize("name", ["{}/s", "\0{}"])
def test_taken_unix_socket_has_its_path(take: Take, name: str, tmp_path: Path) -> None:
    address = name.format(tmp_path)
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(address)
        held.listen()
        assert take(held.fileno()).host == "unix:" + address.replace("\0", "@")


def test_descriptors_that_do_not_listen_are_refused(take: Take, tmp_path: Path) -> None:
    with socket.socket() as unbound, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        for held in (unbound, datagram):
            with pytest.raises(InvalidConfig, match=rf"descriptor {held.fileno()} .*not listen; "):
                take(held.fileno())
    not_a_socket = pytest.raises(InvalidConfig, match=r"handed in: Socket operation on non-socket")
    with (tmp_path / "file").open("w") as file, not_a_socket:
        take(file.fileno())
    with pytest.raises(InvalidConfig, match=r"Bad file descriptor; hand in listening stream"):
        take(999_999)


@pytest.mark.parametrize("process_id", [2**22 + 1, "me"], ids=["another process", "no number"])
def test_variables_never_reach_children(process_id: object) -> None:
    given = dict.fromkeys(VARIABLES, "1") | environment(pid=process_id) | {"KEPT": "1"}
    try:
        assert take_handed_sockets(CONFIG, given) == CONFIG
    except InvalidConfig:
        assert process_id == "me"
    assert given == {"KEPT": "1"}
