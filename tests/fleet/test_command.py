import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.commands.status_text import print_models
from serving.commands.cli import main

MODEL: dict[str, Any] = {
    "stable": 1,
    "previous": None,
    "is_paused": False,
    "waits_for": "",
    "rollout": {
        "version": 2,
        "wave": 1,
        "wave_count": 3,
        "serving_count": 0,
        "needed_count": 1,
        "setbacks": ["b"],
        "request_count": 340,
        "failed_count": 3,
        "is_promoted": False,
        "warned": {},
        "doubt": "",
        "causes": {"b": "no memory for it"},
        "judgement": {"request_count": 10_000, "seconds": 60.0, "passed_seconds": 12.0},
        "compared": {
            "wave": {"request_count": 340, "failed_count": 0, "p99_ms": 3.1, "p999_ms": 4.0},
            "control": {"request_count": 900, "failed_count": 0, "p99_ms": 3.0, "p999_ms": 4.0},
        },
    },
    "blocked_versions": [{"version": 9, "by": "canary", "reason": "p999 is 3 times"}],
    "without_files": [],
    "found_versions": [1, 2],
    "ignored_by": [],
    "versions": [
        {
            "version": 1,
            "server_count": 2,
            "default_count": 2,
            "request_count": 10,
            "failed_count": 0,
            "p99_ms": 1.5,
            "p999_ms": 2.25,
        }
    ],
}
SERVER = {"name": "a", "state": "live", "seen_seconds": 0.4, "versions": {"ctr": 1}}
STATUS: dict[str, Any] = {"models": {"ctr": MODEL}, "servers": [SERVER]}


class Coordinator(http.server.BaseHTTPRequestHandler):
    """Answers with STATUS, or refuses; remembers the requests."""

    requests: list[tuple[str, object]] = []  # noqa: RUF012
    refusal: tuple[int, str] | None = None

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _answer(self, body: object) -> None:
        Coordinator.requests.append((self.path, body))
        code, value = 200, json.dumps(STATUS)
        if Coordinator.refusal is not None:
            code, value = Coordinator.refusal[0], json.dumps({"error": Coordinator.refusal[1]})
        self.send_response(code)
        self.end_headers()
        self.wfile.write(value.encode())

    def log_message(self, *arguments: object) -> None:
        """Logs nothing."""


@pytest.fixture
def coordinator() -> Iterator[str]:
    Coordinator.requests, Coordinator.refusal = [], None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Coordinator)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"--target=127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_fleet_status_prints_rollout_and_servers(
    coordinator: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "status", coordinator]) == 0
    printed = capsys.readouterr().out
    assert "ctr: version 2 is in wave 1 of 3, on 0 of 1 servers" in printed
    assert (
        "ctr: it is judged after 10000 requests or 60 s; so far 0 of 340 requests failed in 12 s"
        in printed
    )
    assert "ctr: its p99 is 3.1 ms; 3.0 ms with version 1" in printed
    assert "ctr: it failed on b: no memory for it" in printed
    assert "ctr: version 9 is blocked by its judgement: p999 is 3 times" in printed
    assert "millpond fleet allow ctr VERSION" in printed
    assert "a\tlive\t0.4 s ago\tctr 1" in printed


def test_fleet_versions_prints_requests(
    coordinator: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "versions", coordinator]) == 0
    assert "ctr\t1\t2\t2\t10\t0\t1.5\t2.2" in capsys.readouterr().out


def test_fleet_status_as_json(coordinator: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "status", "--json", coordinator]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_fleet_operation_is_sent(coordinator: str) -> None:
    assert main(["fleet", "abort", "ctr", "--reason=slow", coordinator]) == 0
    assert main(["fleet", "allow", "ctr", "9", coordinator]) == 0
    assert [body for _, body in Coordinator.requests] == [
        {"operation": "abort", "model": "ctr", "version": None, "reason": "slow"},
        {"operation": "allow", "model": "ctr", "version": 9, "reason": ""},
    ]


@pytest.mark.parametrize("code", [400, 403, 404])
def test_fleet_refusal_is_printed(
    coordinator: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Coordinator.refusal = (code, "no version is on its way")
    assert main(["fleet", "abort", "ctr", coordinator]) == 1
    assert "no version is on its way" in capsys.readouterr().err


def test_fleet_without_coordinator_has_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "status", "--target=127.0.0.1:1"]) == 1
    assert "millpond fleet start" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["h:x", "h:1:x", "h :1", "h/p:\n"])
def test_fleet_wrong_address_has_a_remedy(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "status", f"--target={address}"]) == 1
    assert "HOST:PORT" in capsys.readouterr().err


def test_warned_gates_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rollout = {**MODEL["rollout"], "warned": {"s2": "gate drift: NaN in 100 of 100 values"}}
    print_models({"m": {**MODEL, "rollout": rollout}})
    printed = capsys.readouterr().out
    assert "m: a gate has warned on s2: gate drift: NaN in 100 of 100 values" in printed


def test_target_may_be_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "door"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(10_000).startswith(b"GET /fleet/status")
            body = json.dumps(STATUS).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)

    thread = threading.Thread(target=answer)
    thread.start()
    assert main(["fleet", "status", f"--target=unix:{path}"]) == 0
    thread.join()
    listener.close()


def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("MILLPOND_RUN_DIRECTORY", str(directory))
    return directory


def test_operation_without_a_coordinator_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_directory(tmp_path, monkeypatch)
    assert main(["fleet", "pause", "ctr"]) == 1
    assert "no coordinator of this user has a socket in" in capsys.readouterr().err


def test_two_coordinators_must_be_chosen_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run_directory(tmp_path, monkeypatch)
    listeners = []
    for name in ("8700-1.fleet", "8701-2.fleet"):
        listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listeners[-1].bind(str(directory / name))
        listeners[-1].listen()
    assert main(["fleet", "status"]) != 0
    assert f"--target=unix:{directory}/8700-1.fleet or --target=unix:" in capsys.readouterr().err
    for listener in listeners:
        listener.close()


def test_servers_without_files_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    many = [f"s{number:02}" for number in range(12)]
    print_models({"ctr": {**MODEL, "without_files": many, "ignored_by": ["b"]}})
    printed = capsys.readouterr().out
    assert "s00, s01, s02, s03, s04, s05, s06, s07, s08, s09 and 2 more" in printed
    assert "state is lost: b\n" in printed


@pytest.mark.parametrize(
    ("passed_seconds", "is_promoted", "line"),
    [
        (None, False, "m: the judgement begins when all these servers serve it"),
        (
            2.0,
            False,
            "m: it is stable after 60 s, unless more than 10% of its requests fail; so far 3 of 340 "
            "requests failed in 2 s",
        ),
        (2.0, True, "m: it is stable after 60 s; so far 3 of 340 requests failed in 2 s"),
    ],
)
def test_rollout_shows_how_far_it_is(
    *,
    passed_seconds: float | None,
    is_promoted: bool,
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    judgement = {"request_count": 0, "seconds": 60.0, "passed_seconds": passed_seconds}
    changed = {"judgement": judgement, "compared": None, "is_promoted": is_promoted}
    rollout = {**MODEL["rollout"], **changed}
    print_models({"m": {**MODEL, "rollout": rollout}})
    assert line in capsys.readouterr().out.splitlines()


def test_rollout_shows_why_it_is_compared_once_more(capsys: pytest.CaptureFixture[str]) -> None:
    rollout = {**MODEL["rollout"], "doubt": "its p90 is high"}
    print_models({"m": {**MODEL, "rollout": rollout}})
    assert "m: it is compared once more: its p90 is high" in capsys.readouterr().out.splitlines()


def test_wave_without_requests_says_that_it_passes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = MODEL["rollout"]["compared"]
    compared = {**rows, "wave": {**rows["wave"], "request_count": 0}}
    print_models({"m": {**MODEL, "rollout": {**MODEL["rollout"], "compared": compared}}})
    assert "m: a wave without requests passes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stable", "previous", "line"),
    [
        (None, None, "m: no version is stable yet"),
        (3, None, "m: stable version 3, and none to roll back to"),
        (3, 2, "m: stable version 3, before it 2"),
    ],
)
def test_stable_version_is_shown_with_the_one_before(
    stable: int | None, previous: int | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_models({"m": {**MODEL, "stable": stable, "previous": previous, "rollout": None}})
    assert capsys.readouterr().out.splitlines()[0] == line


def test_first_version_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    print_models({"m": {**MODEL, "stable": None}})
    printed = capsys.readouterr().out
    assert "m: a first version is not compared with another one" in printed
    assert "its p99" not in printed


def test_coordinator_needs_a_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "status", "--target=fleet.example"]) == 1
    assert "--target=fleet.example is not HOST:PORT" in capsys.readouterr().err


def test_operation_shows_no_reason_of_before(
    coordinator: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = {**MODEL, "waits_for": "an operator has paused it"}
    monkeypatch.setitem(STATUS["models"], "ctr", paused)
    assert main(["fleet", "resume", "ctr", coordinator]) == 0
    assert "waits" not in capsys.readouterr().out
