"""The listener for operators: a second, small gRPC server of the data plane's class.

It has its own port, threads and queue, so operators are answered even if the data port is overloaded. It
answers once the first configuration is applied, while models are still being loaded. It answers the methods
of the data port too, because `millpond capture --with_responses` sends predictions.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from serving.base.errors import OperatorError, Unavailable
from serving.config.listen_addresses import bind_reason
from serving.data_plane.requests import GrpcServer
from serving.data_plane.status_errors import statuses_as_errors
from serving.rpc.rare_calls import RareCallThreads
from serving.server.admin_sockets import AdminSocket, default_socket_path

OFF, AUTO = "off", "auto"
"""Two values of --admin_address. Any other value is `unix:PATH` or `HOST:PORT`."""

UNIX_PREFIX = "unix:"

DRAIN_SECONDS = 1.0
"""The longest that a stop waits for operators' calls. Most calls take milliseconds.

A call that waits longer, for a model that loads, would wait in vain.
"""

_log = structlog.get_logger(__name__)


class AdminListener:
    """Listens for operators. It is started and stopped once, and `answer` is called in between.

    `address` is --admin_address. `make_grpc` makes the gRPC server for the given addresses, and `calls` has
    the threads that answer its calls. `status_error` is the error class of the data plane.
    """

    def __init__(
        self,
        address: str,
        *,
        data_port: int,
        make_grpc: Callable[[Sequence[str]], GrpcServer],
        calls: RareCallThreads,
        status_error: type[Exception],
    ) -> None:
        self._wanted = address
        self._data_port = data_port
        self._make_grpc = make_grpc
        self._calls = calls
        self._status_error = status_error
        self._socket: AdminSocket | None = None
        self._grpc: GrpcServer | None = None

    def start(self) -> None:
        """Listens. Calls wait until `answer` is called.

        Raises InvalidConfig or Unavailable if the address of --admin_address cannot be used.
        Without --admin_address the reason is logged as a warning.
        """
        if self._wanted == OFF:
            return
        try:
            address = self._listen()
        except OperatorError as error:
            self.stop()
            if self._wanted != AUTO:
                raise
            _log.warning("admin_off", reason=error.message, remedy="give --admin_address")
            return
        if address is None:
            _log.warning(
                "admin_off",
                reason="no run directory can be used",
                remedy="set MILLPOND_RUN_DIRECTORY to a directory of mode 0700, or give "
                "--admin_address=unix:PATH",
            )
            return
        _log.info("admin_listening", address=address)

    def answer(self) -> None:
        """Answers calls from now on. Does nothing if nothing listens."""
        if self._grpc is not None:
            self._calls.start(self._grpc.take_rare_call)

    def stop(self) -> None:
        """Ends the calls and the threads, and removes the socket. Does nothing if nothing was started."""
        if self._grpc is not None:
            self._grpc.shutdown(DRAIN_SECONDS)
            self._calls.stop()
        if self._socket is not None:
            self._socket.release()

    def _listen(self) -> str | None:
        if self._wanted != AUTO and not self._wanted.startswith(UNIX_PREFIX):
            self._start_on_port(self._wanted)
            return self._wanted
        path = self._socket_path()
        if path is None:
            return None
        self._socket = AdminSocket(path)
        self._start_grpc(self._socket.claim())
        self._socket.publish()
        return f"{UNIX_PREFIX}{path}"

    def _socket_path(self) -> Path | None:
        if self._wanted == AUTO:
            return default_socket_path(self._data_port, os.getpid())
        return Path(self._wanted.removeprefix(UNIX_PREFIX))

    def _start_on_port(self, address: str) -> None:
        """Listens on HOST:PORT. Raises Unavailable with the reason and the flag to change."""
        try:
            self._start_grpc(address)
        except Unavailable as error:
            host, _, port = address.rpartition(":")
            reason = bind_reason(host.strip("[]"), int(port)) or error.message
            raise Unavailable(
                f"--admin_address={address}: {reason}; set --admin_address to another address, to "
                "unix:PATH, or to off"
            ) from error

    def _start_grpc(self, address: str) -> None:
        grpc = self._make_grpc([address])
        with statuses_as_errors(self._status_error):
            grpc.start()
        self._grpc = grpc
