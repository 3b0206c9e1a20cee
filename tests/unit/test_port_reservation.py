import socket
from dataclasses import replace

import pytest

from serving.base.errors import Unavailable
from serving.config.listen_addresses import ListenAddresses
from serving.server.port_reservation import PortReservation


def addresses(port: int) -> ListenAddresses:
    return ListenAddresses(host="127.0.0.1", port=port)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def listen_as_grpc(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


def test_reservation_of_a_taken_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port} is already in use"):
            PortReservation.take(addresses(port))


def test_reserved_port_refuses_connections() -> None:
    port = free_port()
    reservation = PortReservation.take(addresses(port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    reservation.close()


def test_reserved_port_is_taken_for_a_second_server() -> None:
    port = free_port()
    reservation = PortReservation.take(addresses(port))
    with pytest.raises(Unavailable, match="already in use"):
        PortReservation.take(addresses(port))
    reservation.close()
    PortReservation.take(addresses(port)).close()


def test_reservation_that_lets_go_lets_grpc_listen() -> None:
    port = free_port()
    reservation = PortReservation.take(addresses(port))
    reservation.let_go()
    with listen_as_grpc(port):
        reservation.close()
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_reservation_takes_port_in_time_wait() -> None:
    # The end that closes first keeps the connection in TIME_WAIT.
    with listen_as_grpc(0) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = listener.accept()
        accepted.close()
        assert client.recv(1) == b""
        client.close()
    reservation = PortReservation.take(addresses(port))
    reservation.let_go()
    listen_as_grpc(port).close()
    reservation.close()


def test_handed_in_port_needs_no_reservation() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        handed_in = replace(addresses(held.getsockname()[1]), descriptors=(held.fileno(),))
        reservation = PortReservation.take(handed_in)
        reservation.let_go()
        reservation.close()


def test_reservation_leaves_port_zero_to_grpc() -> None:
    reservation = PortReservation.take(addresses(0))
    reservation.let_go()
    reservation.close()
