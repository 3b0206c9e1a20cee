"""Connections to a server's HTTP port for tests that send bytes of their own."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS


def address_of(server: ModelServer) -> tuple[str, int]:
    parts = urlsplit(server.url)
    return parts.hostname or "", parts.port or 0


@contextmanager
def socket_to(server: ModelServer) -> Iterator[socket.socket]:
    with socket.create_connection(address_of(server), TIMEOUT_SECONDS) as connection:
        yield connection
