"""Kubernetes' API over HTTP on a port of 127.0.0.1, for the official client: a front of `FakeCluster`."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fleet.kubernetes.cluster import ApiFailed, Gone, Object
from tests.kubernetes.fake_cluster import Deed, FakeCluster, bookmark

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[a-z0-9.]+)/v1)/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?"
)
_REASONS = {403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired"}


class FakeApiServer(ThreadingHTTPServer):
    """Serves one namespace. `is_cut` makes it close each connection without an answer."""

    daemon_threads = True

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cluster = cluster
        self.is_cut = False
        self.is_stopping = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints no stack for a client that was killed, or that was cut."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def write_kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig file for this server, in JSON, which is YAML too."""
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                    "users": [{"name": "fake", "user": {"token": "secret"}}],
                    "contexts": [
                        {
                            "name": "fake",
                            "context": {
                                "cluster": "fake",
                                "user": "fake",
                                "namespace": self.cluster.namespace,
                            },
                        }
                    ],
                    "current-context": "fake",
                }
            )
        )
        return path


@contextmanager
def serving_api(cluster: FakeCluster) -> Iterator[FakeApiServer]:
    """Serves until the end of the block."""
    server = FakeApiServer(cluster)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        with cluster.changed:
            server.is_stopping = True
            cluster.changed.notify_all()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeApiServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        del format, args

    def do_GET(self) -> None:
        self._answer("get")

    def do_POST(self) -> None:
        self._answer("create")

    def do_PUT(self) -> None:
        self._answer("update")

    def _answer(self, verb: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.is_cut:
            self.close_connection = True
            self.connection.close()
            return
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        match = _PATH.fullmatch(url.path)
        try:
            if match is None or match["namespace"] != self.server.cluster.namespace:
                raise ApiFailed(f"nothing is at {url.path}", 404)
            if verb == "get" and not match["name"]:
                self._pods(match["resource"], query)
                return
            self._reply(201 if verb == "create" else 200, self._done(verb, match, body))
        except ApiFailed as error:
            self._reply(error.status, _status(error))

    def _done(self, verb: str, match: re.Match[str], body: bytes) -> Object:
        cluster, resource, name = self.server.cluster, match["resource"], match["name"]
        item: dict[str, Any] = json.loads(body) if body else {}
        if verb == "update" and item["metadata"]["name"] != name:
            raise ApiFailed("the name of the object does not match the name on the URL", 400)
        calls: Mapping[tuple[str, str], Any] = {
            ("get", "leases"): lambda: cluster.read_lease(name),
            ("create", "leases"): lambda: cluster.create_lease(item),
            ("update", "leases"): lambda: cluster.replace_lease(item),
            ("get", "configmaps"): lambda: cluster.read_config_map(name),
            ("create", "configmaps"): lambda: cluster.create_config_map(item),
            ("update", "configmaps"): lambda: cluster.replace_config_map(item),
            ("create", "events"): lambda: _posted(cluster, item),
        }
        groups = {"leases": "coordination.k8s.io", "configmaps": None, "events": "events.k8s.io"}
        if (verb, resource) not in calls or groups[resource] != match["group"]:
            raise ApiFailed(f"the server does not {verb} {resource}", 405)
        found: Object | None = calls[verb, resource]()
        if found is None:
            raise ApiFailed(f"{resource} {name!r} not found", 404)
        return found

    def _pods(self, resource: str, query: Mapping[str, str]) -> None:
        if resource != "pods":
            raise ApiFailed(f"the server does not list {resource}", 405)
        selector = query.get("labelSelector", "")
        if query.get("watch") in ("True", "true"):
            self._watch(selector, query)
            return
        pods, version = self.server.cluster.list_pods(selector)
        begin, limit = int(query.get("continue", 0)), int(query.get("limit", 0)) or len(pods) or 1
        metadata = {"resourceVersion": version}
        if begin + limit < len(pods):
            metadata["continue"] = str(begin + limit)
        page = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata}
        self._reply(200, {**page, "items": pods[begin : begin + limit]})

    def _watch(self, selector: str, query: Mapping[str, str]) -> None:
        cluster = self.server.cluster
        cluster.check(Deed("watch", "", "pods"))
        version = int(query["resourceVersion"])
        deadline = time.monotonic() + float(query["timeoutSeconds"])  # noqa: TID251 (a real server)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                events, last = cluster.pod_events_since(selector, version)
                for event in events:
                    self._chunk(event)
                version = last
                with cluster.changed:
                    left = deadline - time.monotonic()  # noqa: TID251 (a real server)
                    if left <= 0 or self.server.is_stopping or self.server.is_cut:
                        break
                    # Nothing can have happened since without a new version.
                    if cluster.pod_events_since(selector, version)[1] == version:
                        cluster.changed.wait(min(left, 0.5))
            self._chunk(bookmark(version))
        except Gone as error:
            self._chunk({"type": "ERROR", "object": _status(error)})
        except OSError:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: Object) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()

    def _reply(self, status: int, document: Object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _posted(cluster: FakeCluster, event: Object) -> Object:
    cluster.create_event(event)
    return event


def _status(error: ApiFailed) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": str(error),
        "reason": _REASONS.get(error.status, "Unknown"),
        "code": error.status,
    }
