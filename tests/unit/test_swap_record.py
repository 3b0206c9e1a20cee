"""Values of a swap: its problem, and the stage in which it waits."""

from dataclasses import replace
from typing import Any

import pytest

from serving.base.clock import NS_PER_SECOND
from serving.core.servable import GateVerdict, LoadStage
from serving.monitoring.swap_record import (
    SwapResult,
    load_stages,
    log_fields,
    problem_of,
    record_document,
)
from tests.unit.fakes.page import span_latency, status, swap

SECOND = NS_PER_SECOND
DRIFT = GateVerdict(gate="drift", mode="warn", is_passed=False, reason="NaN")
FAILED = {"self_warm_up_request_count": 12.0, "self_warm_up_failed_count": 3.0}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"figures": {**FAILED, "self_warm_up_failed_count": 0.0}}, ""),
        ({"figures": FAILED}, "3 of 12 replayed live requests failed"),
        (
            {"figures": {"changes_variables": 1.0, "unrepeatable_count": 0.0}},
            "a request may change a variable, so no gate compared its answers",
        ),
        (
            {
                "figures": {"changes_variables": 1.0, "unrepeatable_count": 5.0},
                "notes": {"unrepeatable_reason": "node 'n' fills a table"},
            },
            "5 live requests warmed the version up only in part: node 'n' fills a table; "
            "a request may change a variable, so no gate compared its answers",
        ),
        ({"verdicts": (DRIFT,)}, "gate 'drift' (warn): NaN"),
        ({"verdicts": (replace(DRIFT, is_passed=True),)}, ""),
        ({"verdicts": (DRIFT,), "result": SwapResult.REFUSED}, ""),
        ({"figures": FAILED, "result": None}, ""),
    ],
)
def test_problem_of_a_version_that_was_published(changes: dict[str, Any], problem: str) -> None:
    record = swap("m", 2, SECOND, **changes)
    assert problem_of(record) == problem
    assert record_document(record)["problem"] == problem


def seconds_by_stage(work_began_at_ns: int, load_started_at_ns: int | None) -> dict[str, float]:
    waiting = replace(
        status("m", 2),
        detected_at_ns=SECOND,
        found_at_ns=2 * SECOND,
        work_began_at_ns=work_began_at_ns,
        stage_seconds={LoadStage.CHECK: 1.0} if work_began_at_ns else {},
        stage_ended_at_ns={LoadStage.CHECK: work_began_at_ns + SECOND},
    )
    return {stage.name: stage.seconds for stage in load_stages(waiting, load_started_at_ns)}


def test_wait_lasts_until_a_loader_thread_begins() -> None:
    expected = {"settle": 1, "wait": 7, "check": 1}
    assert seconds_by_stage(9 * SECOND, 3 * SECOND) == expected


def test_wait_before_a_loader_thread_begins() -> None:
    assert seconds_by_stage(0, 3 * SECOND) == {"settle": 1, "wait": 1}
    assert seconds_by_stage(0, None) == {"settle": 1}


def test_part_without_requests_has_no_quantiles() -> None:
    record = swap("m", 2, SECOND, before=span_latency(0), during=span_latency(0))
    latency = record_document(record)["latency"]
    quantiles = ("p50_seconds", "p99_seconds", "p999_seconds", "max_seconds")
    assert [latency["before"][name] for name in quantiles] == [None] * 4
    assert [latency["after"][name] for name in quantiles] == [0.0011, 0.0034, 0.006, 0.021]
    assert "latency_seconds_p999_during" not in log_fields(record)
    assert "latency_seconds_p999_during" in log_fields(replace(record, during=span_latency(1)))
