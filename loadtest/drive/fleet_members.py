"""Members of a fleet that answer its coordinator as servers do, and run no model."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from serving.core.operator_api import FLEET_REPORT, GRANT

MODEL = "m"
_REQUEST_COUNT = 100_000


class FleetMember(grpc.GenericRpcHandler):
    """One member. It serves each version as soon as it is granted. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._granted: int | None = None
        self._order = 0
        self.found: tuple[int, ...] = (1,)

    def service(self, call_details: grpc.HandlerCallDetails) -> Any:
        path: Any = call_details.method
        answer = {FLEET_REPORT: self._report, GRANT: self._grant}.get(path)
        return None if answer is None else grpc.unary_unary_rpc_method_handler(answer)

    def _report(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        del context
        edge_count = len(json.loads(request)["latency_edges_ns"])
        # Gives the counts as many digits as those of a busy server.
        counts = [_REQUEST_COUNT // (edge_count + 1)] * (edge_count + 1)
        row = {
            "state": "AVAILABLE",
            "error_code": 0,
            "error_message": "",
            "request_count": sum(counts),
            "failed_count": 0,
            "latency_counts": counts,
        }
        with self._lock:
            granted = self._granted
            model = {
                "granted": granted,
                "order": self._order,
                "default_version": granted,
                "found": self.found,
                "blocked": {},
                "versions": {} if granted is None else {granted: row},
            }
        report = {"incarnation": 1, "is_draining": False, "free_bytes": 0, "models": {MODEL: model}}
        return json.dumps(report).encode()

    def _grant(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        del context
        grant = json.loads(request)
        with self._lock:
            if grant["order"] >= self._order:
                self._granted, self._order = grant["version"], grant["order"]
            return json.dumps({"version": self._granted, "order": self._order}).encode()


class FleetMembers:
    """Members on free ports of this machine, inside `with`."""

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(4)
        self.members = [FleetMember() for _ in range(count)]
        self._servers = [grpc.server(self._executor, handlers=[member]) for member in self.members]
        self.targets = [
            f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}" for server in self._servers
        ]

    def __enter__(self) -> "FleetMembers":
        for server in self._servers:
            server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for server in self._servers:
            server.stop(None)
        self._executor.shutdown()

    def drop_version(self, version: int) -> None:
        """Puts the files of a version on every member."""
        for member in self.members:
            member.found = (*member.found, version)
