"""The actor that owns the process of one server: it starts, watches, drains and stops the server."""

import os
import random
import socket
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import ray.util

from fleet.lead.member_client import member_client
from fleet.ray.bound_process import bound
from fleet.ray.priority import take_usual_priority
from fleet.replicas.replicas import NO_PORTS
from serving.base.errors import FailedPrecondition
from serving.server.model_server import ModelServer

START_SECONDS = 300.0
"""The longest that a server takes until it listens, on a busy node that starts Python slowly.

A server listens before it loads its models.
"""

STOP_SECONDS = 3_600.0
"""The longest wait for a server to stop. The flag --drain_seconds ends its drain earlier."""

# The ports that a server may get. Other programs rarely have them, because the kernel gives outgoing
# connections ports from 32768 on, and Kubernetes' NodePorts begin at 30000.
_OWN_PORTS = range(20_000, 30_000)
_ATTEMPT_COUNT = 100


def node_address() -> str:
    """The address of this process's node."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def port_flags(host: str, ports: Sequence[int]) -> dict[str, int]:
    """The flags for the ports of gRPC and HTTP: `ports` if they are free, or else ports of _OWN_PORTS.

    The kernel gives no port of _OWN_PORTS to an outgoing connection. So no such connection can keep the next
    launch from getting the same port.
    """
    flags: dict[str, int] = {}
    for name, wanted in zip(("port", "rest_api_port"), ports, strict=True):
        is_there = wanted and _is_free(host, wanted)
        if port := wanted if is_there else _free_port(host, flags.values()):
            flags[name] = port
    return flags


def _free_port(host: str, taken: Collection[int]) -> int:
    """Finds a port that is free and not in `taken`; 0 if none of _ATTEMPT_COUNT random ports is."""
    for port in random.sample(_OWN_PORTS, _ATTEMPT_COUNT):
        if port not in taken and _is_free(host, port):
            return port
    return 0


def _is_free(host: str, port: int) -> bool:
    # Another process may take the port before the server does. Then this launch fails, and the next launch
    # tries again.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # The server sets this option too. With it, a port is free even if the kernel still remembers an
        # earlier connection.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class ServerActor:
    """Owns one server of a fleet, which is a child of the actor's process.

    The kernel kills the server when this process ends, so a server that hangs does not outlive its actor.

    The server's admin listener is a UNIX socket, so the fleet reaches it only through this actor. `drain`
    waits on one thread of the actor, and the other methods answer meanwhile.
    """

    def __init__(
        self, flags: Mapping[str, Any], log_path: str, ports: Sequence[int] = NO_PORTS
    ) -> None:
        """Starts the server, on these ports for gRPC and HTTP if they are free.

        Raises Unavailable, with the end of the server's log, if the server does not listen in time.
        """
        take_usual_priority()
        # Ray limits the threads of its workers by this variable, which must not limit the server.
        os.environ.pop("OMP_NUM_THREADS", None)
        self._host = node_address()
        if log_path:
            os.makedirs(os.path.dirname(log_path), exist_ok=True)
        self._server = ModelServer(
            **{**port_flags(self._host, ports), **flags, "host": self._host, "fleet_member": True},
            log_path=log_path or None,
            start_timeout_seconds=START_SECONDS,
            stop_timeout_seconds=STOP_SECONDS,
            command=bound([sys.executable, "-m", "serving"]),
        )
        # The kernel kills the server when the thread that started it ends. So that thread is kept.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="server-parent")
        self._starter.submit(self._server.start).result()
        self._client = member_client(self._server.admin_target)
        self._drain_lock = threading.Lock()

    def look(self) -> dict[str, Any]:
        """The server's addresses for clients, its process id, its exit status and the path of its log."""
        url = ""
        # A server without HTTP raises FailedPrecondition for its URL.
        with suppress(FailedPrecondition):
            url = self._server.url
        return {
            "grpc": f"{self._host}:{self._server.port}",
            "http": f"{self._host}:{url.rpartition(':')[2]}" if url else "",
            "process_id": self._server.process_id,
            "exit_status": self._server.exit_status,
            "log_path": str(self._server.log_path),
        }

    def fleet_report(
        self, latency_edges_ns: Sequence[int], timeout_seconds: float
    ) -> dict[str, Any]:
        """See `Client.fleet_report`."""
        return self._client.fleet_report(latency_edges_ns, timeout_seconds=timeout_seconds)

    def grant(
        self, name: str, version: int | None, order: int, timeout_seconds: float
    ) -> int | None:
        """See `Client.grant`."""
        return self._client.grant(name, version, order, timeout_seconds=timeout_seconds)

    def drain(self) -> None:
        """Drains and stops the server, as SIGTERM does, and returns when it has ended. Raises Unavailable.

        Returns at once if the server drains already.
        """
        # Each new coordinator calls this again. Only the first call waits, because each call that waits takes
        # one of the actor's few threads.
        if self._drain_lock.acquire(blocking=False):
            try:
                self._server.stop()
            finally:
                self._drain_lock.release()
