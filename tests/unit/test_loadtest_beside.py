import io
import math
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtest.commands.beside import (
    QUIET,
    BesideRun,
    DisturbedSegment,
    beside_report,
    kinds_of,
    print_beside,
)
from loadtest.drive.demo_server import config_file
from loadtest.drive.disturbances import DISTURBANCES, ENDLESS, ENDLESS_GRPC, GROUPS, Site
from loadtest.drive.life_slow_model import SLOW_MODEL_NAME, slow_request
from loadtest.drive.raw_http2 import PREFACE
from loadtest.plan.plan import Reply
from serving.base.clock import SystemClock
from serving.config.model_config_file import read_model_config_file
from tests.unit.loadtest_outcomes import one_latency_each, outcome_of, segment_span, segmented_run

SEGMENT_MS = 6_000
IDLE, SLOW, PAGE = "gRPC idle", "HTTP slow loris", "page"


def run_of(kinds: Sequence[str], latencies_ms: Sequence[float], **changes: Any) -> BesideRun:
    """Returns one request each ms, in consecutive segments with one latency each."""
    segments = [
        DisturbedSegment(kind, segment_span(n, SEGMENT_MS), 0.001 * n, 0.01 * n, n * 10**6, n)
        for n, kind in enumerate(kinds)
    ]
    run = segmented_run(one_latency_each(SEGMENT_MS, latencies_ms), segments)
    return replace(run, **changes)


def test_disturbances_lie_between_quiet_segments():
    assert kinds_of([IDLE, PAGE], 2) == (*(QUIET, IDLE, QUIET, PAGE) * 2, QUIET)


def test_group_stands_for_each_disturbance_once():
    assert kinds_of(["page", "monitoring"], 1) == (
        *(QUIET, "page", QUIET, "page and scrape", QUIET, "scrape"),
        QUIET,
    )
    assert all(name in DISTURBANCES for group in GROUPS.values() for name in group)


@pytest.mark.parametrize(
    ("name", "beginning", "part"),
    [
        (ENDLESS, b"POST /v1/models/slow:predict HTTP/1.1\r\n", b"Infinity"),
        (ENDLESS_GRPC, PREFACE, slow_request(math.inf).SerializeToString()),
    ],
)
def test_endless_requests_ask_the_slow_model(
    tmp_path: Path, name: str, beginning: bytes, part: bytes
) -> None:
    file = config_file(tmp_path, {"a": tmp_path / "a", SLOW_MODEL_NAME: tmp_path / "slow"})
    assert [model.name for model in read_model_config_file(file)] == ["a", SLOW_MODEL_NAME]
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        site = Site(
            target=address,
            url=f"http://{address}",
            message=b"",
            rest_body=b"",
            rest_rate=0,
            seconds=1,
            clock=SystemClock(),
        )
        with DISTURBANCES[name].start(site):
            clients = [server.accept()[0] for _ in range(8)]
            for client in clients:
                with client:
                    sent = client.recv(4_096)
                    assert sent.startswith(beginning)
                    assert part in sent


def test_ratio_compares_with_all_quiet_segments():
    kinds = beside_report(run_of(kinds_of([IDLE, SLOW], 1), [1, 1.5, 1, 3, 1]), 300)["kinds"]
    assert kinds[IDLE]["ratio"] == {"p50_ms": 1.5, "p99_ms": 1.5, "p999_ms": 1.5}
    assert kinds[SLOW]["ratio"]["p99_ms"] == 3
    assert [kinds[kind]["closed_count"] for kind in (QUIET, IDLE, SLOW)] == [0 + 2 + 4, 1, 3]
    assert [kinds[kind]["server_mb_max"] for kind in (QUIET, IDLE, SLOW)] == [4, 1, 3]
    assert [kinds[kind]["http_core_share"] for kind in (QUIET, SLOW)] == [0.002, 0.003]


def test_medians_over_segments_ignore_one_outlier():
    shown = beside_report(run_of(kinds_of([PAGE], 3), [1, 1, 1, 7, 1, 1, 1]), 300)["kinds"][PAGE]
    assert shown["ratio_of_medians"]["p999_ms"] == 1
    assert shown["ratio"]["p999_ms"] == 7


@pytest.mark.parametrize("latencies_ms", [[2, 1, 1], [1, 1, 2]])
def test_chance_is_spread_of_quiet_segments(latencies_ms: list[float]):
    report = beside_report(run_of(kinds_of([PAGE], 1), latencies_ms), 300)
    assert report["ratio_by_chance"]["p999_ms"] == 2


def test_chance_of_one_quiet_segment_is_unknown():
    report = beside_report(run_of((QUIET, PAGE), [1, 1]), 300)
    assert report["ratio_by_chance"]["p999_ms"] is None


def test_table_shows_ratio_goal_and_cost():
    console = Console(file=io.StringIO(), width=300)
    print_beside(beside_report(run_of(kinds_of([IDLE], 1), [1, 1.5, 1]), 300), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "gRPC idle: p50 1.500, p99 1.500, p999 1.500 times quiet (goal: p99 1.2)" in text
    assert "HTTP threads 0.10% of a core, request threads wait for 1.00% of a core" in text
    assert "1.0 MB private memory, 1 connections closed" in text
    assert "quiet: HTTP threads" in text


def test_failed_requests_are_counted():
    replies = [Reply(0, 0, b""), Reply(0, 14, b"gone")]
    instants = [(1, 1, 2), (6_001, 6_001, 6_002)]
    failed = outcome_of(instants, codes=[0, 14], replies=replies, reply_of=[0, 1])
    report = beside_report(run_of((QUIET, PAGE), [1, 1], outcome=failed), 300)
    assert (report["errors"], report["error_messages"]) == (1, ["1 x 14: gone"])
    assert report["latency"][PAGE]["p999_ms"] is None
