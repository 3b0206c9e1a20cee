"""`loadtest peers`: its environments, the check of replies, and the tables."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from loadtest.commands.peers import LOOPS, environments, peers_report, print_peers
from loadtest.drive import peer_environments
from loadtest.drive.peer_client import is_right_reply
from loadtest.drive.peer_environments import PEERS, last_line, prepare_environment
from loadtest.measure import peer_turns
from loadtest.measure.peer_turns import (
    Contestant,
    PeerMeasured,
    PeerResults,
    millpond_contestants,
    peer_contestants,
    run_peer_rounds,
)
from loadtest.measure.processor_time import CoreShares
from loadtest.plan.loops import ClosedLoop
from serving.base.errors import Unavailable
from tests.unit.fakes.clocks import FakeClock

REFERENCE = np.array([[0.25], [0.5]])
ONE = LOOPS[0]


def reply_of(*ctr: float) -> bytes:
    return json.dumps({"predictions": [{"ctr": [value], "version": 1} for value in ctr]}).encode()


def test_peer_with_batches_has_two_rows():
    rows = peer_contestants("ray", PEERS["ray"], Path("/e/bin/python"), Path("/m/1"))
    assert list(rows) == ["ray", "ray, batches"]
    assert rows["ray"].command.endswith(
        "/e/bin/python -m loadtest.drive.peers.ray_peer /m/1 {port}"
    )
    assert rows["ray, batches"].command == f"{rows['ray'].command} batch"
    assert list(peer_contestants("fastapi", PEERS["fastapi"], Path("/p"), Path("/m"))) == [
        "fastapi"
    ]


def test_millpond_answers_over_both_protocols():
    rows = millpond_contestants(Path("/m"))
    assert [
        (name, row.path != "", "--enable_batching" in row.command) for name, row in rows.items()
    ] == [
        ("millpond REST", True, False),
        ("millpond REST, batches", True, True),
        ("millpond gRPC", False, False),
        ("millpond gRPC, batches", False, True),
    ]


def test_last_line_of_pip_is_not_a_warning():
    text = "Collecting x\nERROR: No matching distribution found for x\nWARNING: You are old\n\n"
    assert last_line(text) == "ERROR: No matching distribution found for x"
    assert last_line("") == "no output"


def test_peer_that_is_not_installable_is_left_out():
    def prepare(name: str, directory: Path) -> Path:
        if name == "ray":
            raise Unavailable("ray: ERROR: no wheel")
        return directory / name / "bin" / "python"

    said: list[str] = []
    pythons, missing = environments(["ray", "fastapi"], Path("/d"), said.append, prepare)
    assert pythons == {"fastapi": Path("/d/peers/fastapi/bin/python")}
    assert missing == {"ray": "ray: ERROR: no wheel"}
    assert "not installed: ray: ERROR: no wheel" in said


def test_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    commands: list[str] = []

    def run(command: list[str], name: str) -> str:
        commands.append(" ".join(command))
        (tmp_path / name).mkdir(exist_ok=True)
        return ""

    monkeypatch.setattr(peer_environments, "_run", run)
    python = prepare_environment("ray", tmp_path)
    assert python == prepare_environment("ray", tmp_path) == tmp_path / "ray/bin/python"
    venv, install = commands
    assert "-m venv" in venv
    assert "ray[serve]>=2.50,<3 tensorflow==2" in install


def test_reply_is_right_within_tolerance():
    assert is_right_reply(reply_of(0.25, 0.500001), REFERENCE)
    bare = json.dumps([{"ctr": [0.25]}, {"ctr": [0.5]}]).encode()
    assert is_right_reply(bare, REFERENCE)


@pytest.mark.parametrize(
    "reply",
    [reply_of(0.5, 0.25), reply_of(0.25), reply_of(0.25, 0.5, 0.5), b"{}", b"[1]", b"no JSON"],
)
def test_reply_of_other_rows_is_wrong(reply: bytes):
    assert not is_right_reply(reply, REFERENCE)


def test_failing_server_is_left_out_of_further_rounds(monkeypatch: pytest.MonkeyPatch):
    turns: list[str] = []

    def take_turn(name: str, *arguments: object) -> None:
        turns.append(name)
        if name == "bad":
            raise Unavailable("it ended")

    monkeypatch.setattr(peer_turns, "_take_turn", take_turn)
    results = run_peer_rounds(
        {"bad": Contestant("x {port}", "/"), "good": Contestant("y {port}", "/")},
        LOOPS,
        table_rows=10,
        round_count=2,
        seconds=1,
        clock=FakeClock(),
        say=lambda text: None,
    )
    assert turns == ["bad", "good", "good"]
    assert results.failures == {"bad": "it ended"}


def results() -> PeerResults:
    measured = PeerMeasured([100, 300, 200], [1_000_000] * 600)
    cores = [CoreShares(0.9, 0.2, 0.5, 0.0), CoreShares(0.7, 0.2, 0.3, 0.0)]
    return PeerResults({("ray", ONE): measured}, {"bentoml": "it ended"}, {"ray": 2}, cores)


def test_report_has_medians_and_pooled_percentiles():
    report = peers_report(results(), {"ray": "2.60"}, {"litserve": "no wheel"})
    shown = report["servers"]["ray"]["1:1"]
    assert (shown["requests_per_second"], shown["p99_ms"], shown["p999_ms"]) == (200, 1, None)
    assert report["not_installed"] == {"litserve": "no wheel"}


def test_tables_name_what_was_not_measured():
    console = Console(file=io.StringIO(), width=200)
    print_peers(peers_report(results(), {"ray": "2.60"}, {"litserve": "no wheel"}), console)
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["│", "ray", "│", "200", "│", "1.00", "│", "1.00", *["│", "-"] * 3, "│"] in lines
    text = console.file.getvalue()
    assert "not installed: litserve: no wheel" in text
    assert "failures: bentoml: it ended" in text
    assert "versions: ray 2.60" in text
    assert "wrong answers: {'ray': 2}" in text
    assert "server 0.80, generator 0.20, others 0.40, stolen 0.00; DISTURBED" in text


def test_report_without_a_turn_has_no_cores():
    assert peers_report(PeerResults(), {}, {})["cores"] is None


def test_loads_are_one_and_hundred_rows():
    assert tuple(ClosedLoop(rows, n, n) for rows in (1, 100) for n in (1, 16)) == LOOPS
