"""The reports of a server to its service manager, and its probes of its own ports."""

import socket
import threading

from serving.base.service_manager import ServiceManager
from serving.server import service_notices
from serving.server.service_notices import (
    ServiceNotices,
    ServiceState,
    answers_grpc,
    answers_http,
    local,
)


class RecordingManager(ServiceManager):
    def __init__(self, watchdog_seconds: float | None = 30.0) -> None:
        super().__init__({"NOTIFY_SOCKET": "/nowhere"})
        self._seconds = watchdog_seconds
        self.sent: list[dict[str, object]] = []

    @property
    def watchdog_seconds(self) -> float | None:
        return self._seconds

    def notify(self, **states: object) -> None:
        self.sent.append(states)


class World:
    def __init__(self, watchdog_seconds: float | None = 30.0) -> None:
        self.manager = RecordingManager(watchdog_seconds)
        self.state = ServiceState(is_ready=False, model_count=2, unavailable=["a", "b"])
        self.is_answering = True
        self.notices = ServiceNotices(self.manager, lambda: self.state, lambda: self.is_answering)

    def report(self) -> list[dict[str, object]]:
        self.manager.sent.clear()
        self.notices.report()
        return list(self.manager.sent)


def test_ready_and_status_are_reported_once():
    world = World(watchdog_seconds=None)
    status = {"STATUS": "0 of 2 models available; not available: a, b"}
    assert world.report() == [status]
    world.state = ServiceState(is_ready=True, model_count=2)
    assert world.report() == [{"STATUS": "2 of 2 models available"}, {"READY": 1}]
    assert world.report() == []


def test_watchdog_is_fed_only_while_server_answers():
    world = World()
    assert {"WATCHDOG": 1} in world.report()
    world.is_answering = False
    assert {"WATCHDOG": 1} not in world.report()


def test_stop_is_reported():
    world = World()
    world.notices.report_stop()
    assert world.manager.sent == [{"STOPPING": 1, "STATUS": "draining"}]


def test_reports_are_a_third_of_watchdog_time_apart():
    assert World(watchdog_seconds=6.0).notices.wait_seconds() == 2
    assert World(watchdog_seconds=300.0).notices.wait_seconds() == service_notices.STATUS_SECONDS
    manager = ServiceManager({})
    state = ServiceState(is_ready=True, model_count=0)
    assert ServiceNotices(manager, lambda: state, lambda: True).wait_seconds() is None


def test_status_names_three_models_at_most():
    state = ServiceState(is_ready=False, model_count=9, unavailable=list("abcde"))
    assert state.text == "4 of 9 models available; not available: a, b, c and 2 more"


def answering(reply: bytes) -> int:
    """Returns the port of a server that answers one connection with `reply`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(256)
            connection.sendall(reply)

    threading.Thread(target=answer, daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def test_probes_tell_answers_from_silence():
    ok, bad = b"HTTP/1.1 200 OK\r\n\r\nok\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"
    assert answers_http("127.0.0.1", answering(ok), has_tls=False)
    assert not answers_http("127.0.0.1", answering(bad), has_tls=False)
    assert answers_http("127.0.0.1", answering(bad), has_tls=True)
    assert not answers_http("127.0.0.1", answering(b"HTTP/1.1 503 Busy\r\n\r\n"), has_tls=False)
    assert answers_grpc("127.0.0.1", answering(b"\0\0\0\4\0\0\0\0\0"))
    assert not answers_grpc("127.0.0.1", answering(b""))


def test_port_without_server_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert not answers_http("127.0.0.1", port, has_tls=False)


def test_wildcards_are_reached_over_loopback():
    assert [local(host) for host in ("0.0.0.0", "::", "10.0.0.1")] == [
        "127.0.0.1",
        "::1",
        "10.0.0.1",
    ]
