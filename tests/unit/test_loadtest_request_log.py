from pathlib import Path

import pytest
from rich.console import Console

from loadtest.commands.request_log import (
    LOGGED,
    NONE,
    config_text,
    kinds_of,
    print_request_log,
    records_of,
    request_log_report,
)
from loadtest.measure.segments import Segment, SegmentedRun
from loadtest.measure.server_pages import Metrics
from serving.config.model_config_file import parse_model_config
from tests.unit.loadtest_outcomes import one_latency_each, segment_span, segmented_run

SEGMENT_MS = 600
PAGE = """
serving_request_log_sampled_total{model="ctr"} 100
serving_request_log_written_total{model="ctr"} 90
serving_request_log_dropped_total{model="ctr",reason="queue_full"} 7
serving_request_log_dropped_total{model="ctr",reason="disk"} 2
"""


def run_of(round_count: int, logged_ms: float) -> SegmentedRun[Segment]:
    """Returns one request each ms, of `logged_ms` in logged segments and of 1 ms in others."""
    kinds = kinds_of(round_count)
    segments = [Segment(kind, segment_span(n, SEGMENT_MS)) for n, kind in enumerate(kinds)]
    latencies = [logged_ms if kind == LOGGED else 1 for kind in kinds]
    return segmented_run(one_latency_each(SEGMENT_MS, latencies), segments)


def test_each_round_has_both_kinds_in_turning_order():
    assert kinds_of(3) == [NONE, LOGGED, LOGGED, NONE, NONE, LOGGED]


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_config_has_the_sampling_rate(rate: float):
    text = config_text(Path("/models/ctr"), rate, Path("/tmp/log"))
    (model,) = parse_model_config(text, "a test")
    assert (model.name, str(model.base_path)) == ("ctr", "/models/ctr")
    assert (model.logging.sampling_rate if model.logging else 0) == rate


def test_record_that_no_counter_has_is_lost():
    assert records_of(Metrics.parse(PAGE)) == {
        "sampled": 100,
        "written": 90,
        "dropped": 9,
        "lost": 1,
    }


def test_report_compares_logged_segments_with_others():
    report = request_log_report(run_of(20, 1.5), {"lost": 0}, 1_000, 0.1, seed=1)
    assert report["ratio"]["p999_ms"]["ratio"] == 1.5
    assert report["ratio"]["p999_ms"]["verdict"] == "missed"
    assert (report["round_count"], report["errors"]) == (20, 0)


def test_report_refuses_percentiles_of_few_requests():
    report = request_log_report(run_of(2, 1.5), {"lost": 0}, 1_000, 0.1, seed=1)
    assert "requests missing" in report["ratio"]["p999_ms"]["refused"]
    console = Console(width=160, record=True)
    print_request_log(report, console)
    text = console.export_text()
    assert "p999 logged over none: 3800 requests missing of 5000" in text
    assert "p99 logged over none: 1.500, by chance from" in text
