"""Reasons why a server cannot listen, on this machine's own sockets."""

import errno
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig, MillpondError, Unavailable
from serving.config.listen_addresses import ListenAddresses, listen_error, reason_for_not_listening
from serving.rpc.rare_calls import AnsweredCall, RareCallThreads
from serving.server.admin_listener import AdminListener
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.servers import FakeGrpcServer


def error_of(host: str = "127.0.0.1", port: int = 0, socket_path: object = "") -> MillpondError:
    """Returns the error of these addresses, which must have one."""
    error = listen_error(ListenAddresses(host=host, port=port, socket_path=str(socket_path)))
    assert error is not None
    return error


def test_grpc_addresses_bracket_ipv6_host():
    addresses = ListenAddresses(host="::1", port=8500, socket_path="/run/m.sock")
    assert addresses.of_grpc == ["[::1]:8500", "unix:/run/m.sock"]


def test_handed_in_sockets_replace_tcp_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = ListenAddresses(
            host="127.0.0.1",
            port=taken.getsockname()[1],
            socket_path="/run/m.sock",
            descriptors=(3, 4),
        )
        assert addresses.of_grpc == ["fd:3", "fd:4", "unix:/run/m.sock"]
        assert listen_error(replace(addresses, socket_path="")) is None


def test_free_addresses_have_no_error_and_stay_free(tmp_path: Path):
    addresses = ListenAddresses(host="127.0.0.1", port=0, socket_path=str(tmp_path / "m.sock"))
    assert listen_error(addresses) is None
    assert list(tmp_path.iterdir()) == []


def test_port_that_is_taken_names_itself_alone(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = error_of(port=port, socket_path=tmp_path / "m.sock")
    assert type(error) is Unavailable
    assert str(error) == (
        f"cannot listen on 127.0.0.1:{port}: port {port} is already in use; "
        "set --port to another port, or to 0 for a free one"
    )


def test_host_that_is_not_this_machines_may_become_so():
    # This range is for documentation only (RFC 5737).
    error = error_of("192.0.2.1", 8500)
    assert type(error) is Unavailable
    assert "192.0.2.1:8500: --host=192.0.2.1 is not an address of this machine" in str(error)


@pytest.mark.parametrize(
    ("number", "error_class"), [(socket.EAI_NONAME, InvalidConfig), (socket.EAI_AGAIN, Unavailable)]
)
def test_unresolved_host_is_named_with_reason(
    number: int, error_class: type[MillpondError], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*arguments: object, **options: object) -> list[object]:
        raise socket.gaierror(number, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    error = error_of("nobody", 8500)
    assert type(error) is error_class
    assert "--host=nobody cannot be resolved (Name or service not known)" in str(error)


def test_privileged_port_names_remedy(monkeypatch: pytest.MonkeyPatch):
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    error = error_of(port=80)
    assert type(error) is InvalidConfig
    assert "this user may not use port 80; set --port to another" in str(error)


def test_socket_in_missing_directory_is_reported(tmp_path: Path):
    error = error_of(socket_path=tmp_path / "none" / "m.sock")
    assert type(error) is InvalidConfig
    assert f"--grpc_socket_path={tmp_path}/none/m.sock: {tmp_path}/none is not a directory" in str(
        error
    )


@pytest.mark.parametrize(("length_bytes", "is_too_long"), [(107, False), (108, True)])
def test_socket_path_may_have_107_bytes(length_bytes: int, is_too_long: bool, tmp_path: Path):
    path = "/tmp/" + "ä" * ((length_bytes - 5) // 2) + "x" * ((length_bytes - 5) % 2)
    addresses = ListenAddresses(host="127.0.0.1", port=0, socket_path=path)
    error = listen_error(addresses)
    assert (
        "has 108 bytes, and the path of a UNIX socket may have 107" in str(error)
    ) == is_too_long


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_socket_path_of_other_file_is_reported(make: object, tmp_path: Path):
    path = tmp_path / "m.sock"
    make(path)  # type: ignore[operator]
    assert "the path has a file that is not a socket" in str(error_of(socket_path=path))


def test_leftover_socket_is_replaced(tmp_path: Path):
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    addresses = ListenAddresses(host="127.0.0.1", port=0, socket_path=str(path))
    assert listen_error(addresses) is None


def test_socket_in_read_only_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Root may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert f"may not write into {tmp_path}" in str(error_of(socket_path=tmp_path / "m.sock"))


def test_two_obstacles_are_both_reported(tmp_path: Path):
    error = error_of("192.0.2.1", 8500, tmp_path / "none" / "m.sock")
    assert type(error) is InvalidConfig
    assert str(error).count("cannot listen on") == 2


def test_other_start_errors_stay_unchanged():
    addresses = ListenAddresses(host="192.0.2.1", port=8500)
    with pytest.raises(InvalidConfig, match=r"^flag$"), reason_for_not_listening(addresses):
        raise InvalidConfig("flag")
    with (
        pytest.raises(Unavailable, match="not an address of this machine"),
        reason_for_not_listening(addresses),
    ):
        raise Unavailable("cannot listen")


def test_admin_port_in_use_is_reported_with_its_flag():
    def refuse(addresses: object) -> FakeGrpcServer:
        return FakeGrpcServer(start_error=Unavailable("cannot listen"))

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listener = AdminListener(
            f"127.0.0.1:{port}",
            data_port=8500,
            make_grpc=refuse,
            calls=RareCallThreads({}, on_answered=list[AnsweredCall]().append, clock=FakeClock()),
            status_error=StatusError,
        )
        with pytest.raises(Unavailable) as caught:
            listener.start()
    assert str(caught.value) == (
        f"--admin_address=127.0.0.1:{port}: port {port} is already in use; set --admin_address to "
        "another address, to unix:PATH, or to off"
    )
