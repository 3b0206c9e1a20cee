import io
from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.console import Console

from loadtest.commands.p999 import (
    Measured,
    first_in_window,
    is_in_its_bucket,
    load_report,
    p999_bucket_ms,
    plan_of,
    print_load,
    quantile_ms,
    run_figures,
)
from loadtest.measure.processor_time import CoreShares
from loadtest.measure.server_pages import Metrics
from loadtest.plan.ctr_load import CtrLoad
from serving.base.errors import InvalidConfig
from tests.unit.loadtest_outcomes import outcome_of, steady_outcome

LABELS = 'model="ctr",version="1",method="Predict"'
QUANTILES_SECONDS = {"0.5": 0.0009, "0.99": 0.0009, "0.999": 0.00091}
NULL = steady_outcome(6_000, latency_ms=0.1)


def page(counts: Mapping[str, int], quantiles: Mapping[str, float] = QUANTILES_SECONDS) -> Metrics:
    """Returns a scrape; `counts` is cumulative by edge in seconds, and its last value is the total."""
    lines = ["# TYPE serving_request_latency_seconds histogram"]
    for edge, count in counts.items():
        labels = f'{LABELS},code="OK",le="{edge}"'
        lines.append(f"serving_request_latency_seconds_bucket{{{labels}}} {count}")
    lines.append("# TYPE serving_requests_total counter")
    lines.append(f'serving_requests_total{{{LABELS},code="OK"}} {list(counts.values())[-1]}')
    lines.append("# TYPE serving_request_latency_quantile_seconds summary")
    for quantile, seconds in quantiles.items():
        labels = f'{LABELS},quantile="{quantile}"'
        lines.append(f"serving_request_latency_quantile_seconds{{{labels}}} {seconds}")
    return Metrics.parse("\n".join(lines) + "\n")


BEFORE = page({"0.0008": 5, "0.001": 100, "0.00125": 100, "+Inf": 100}, {})
AFTER = page({"0.0008": 5, "0.001": 6_097, "0.00125": 6_098, "+Inf": 6_100})


def measured(after: Metrics = AFTER, *, is_in_window: bool = True) -> Measured:
    """Returns a run of 6,000 requests of 1 ms."""
    cores = CoreShares(server=0.5, generator=0.05, other=0.01, stolen=0)
    return Measured(steady_outcome(6_000), BEFORE, after, is_in_window, cores)


def test_run_figures_show_server_client_difference():
    shown = run_figures(measured(), NULL)
    assert shown["server"] == {"p50_ms": 0.9, "p99_ms": 0.9, "p999_ms": 0.91}
    assert shown["clients"] == {"p50_ms": 1, "p99_ms": 1, "p999_ms": 1}
    assert shown["difference"] == {"p50_ms": 0.1, "p99_ms": 0.1, "p999_ms": 0.09}
    assert shown["null"]["p50_ms"] == 0.1
    assert (shown["server_count"], shown["clients_count"]) == (6_000, 6_000)


def test_refused_requests_have_no_part_in_figures():
    refused = f'serving_request_latency_quantile_seconds{{{LABELS},quantile="0.5"}} 9\n'
    of_no_version = Metrics.parse(refused.replace('version="1"', 'version=""'))
    assert quantile_ms(of_no_version, "0.5") is None
    outcome = outcome_of(
        [(ms, ms, ms + 1) for ms in range(600)] + [(600, 600, 9_000)], [0] * 600 + [8]
    )
    shown = run_figures(replace(measured(), outcome=outcome), NULL)
    assert (shown["clients"]["p99_ms"], shown["clients_count"]) == (1, 601)


def test_p999_lies_in_bucket_of_own_requests():
    # Rank 5,994 of the 6,000 after the page before.
    assert p999_bucket_ms(BEFORE, AFTER) == (0.8, 1.0)
    slower = page({"0.0008": 5, "0.001": 6_093, "0.00125": 6_094, "+Inf": 6_100})
    assert p999_bucket_ms(BEFORE, slower) == (1.0, 1.25)
    assert p999_bucket_ms(BEFORE, BEFORE) is None


def test_quantile_and_bucket_agree_within_error():
    def agrees(p999_ms: float | None) -> bool:
        return is_in_its_bucket(
            {"server": {"p999_ms": p999_ms}, "server_p999_bucket_ms": (0.8, 1.0)}
        )

    assert [agrees(0.79), agrees(0.795), agrees(1.007), agrees(1.01), agrees(None)] == [
        *(False, True, True, False, False)
    ]


def test_run_beyond_window_has_only_bucket():
    shown = run_figures(measured(is_in_window=False), NULL)
    assert shown["server"]["p999_ms"] is shown["difference"]["p999_ms"] is None
    assert shown["server_p999_bucket_ms"] == (0.8, 1.0)


def test_run_is_repeated_until_window_covers_it():
    beyond, within = measured(is_in_window=False), measured()
    later = iter([beyond, within, measured()])
    assert first_in_window(later) is within
    assert len(list(later)) == 1
    last = measured(is_in_window=False)
    assert first_in_window(iter([beyond, last])) is last


def test_a_request_that_is_missing_on_one_side_is_seen():
    fewer = page({"0.001": 6_099, "+Inf": 6_099})
    report = load_report(700, [measured(), measured(fewer)], [NULL, NULL])
    assert report["is_exact"] is False
    assert load_report(700, [measured()], [NULL])["is_exact"] is True


def test_table_shows_both_sides_and_remainder():
    console = Console(file=io.StringIO(), width=200)
    report = load_report(700, [measured()] * 3, [NULL] * 3)
    print_load(report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "700 requests/s, 18,000 requests, medians of 3 runs" in text
    assert "0.910" in text
    assert (
        "beyond that of a server that does nothing: -0.010 ms, stated error 0.007 ms"
        in " ".join(text.split())
    )
    assert "agrees in 3 of 3 runs" in " ".join(text.split())


def test_rate_too_low_for_p999_is_refused():
    load = CtrLoad("ctr", rows=1, table_rows=10, seed=1)
    with pytest.raises(InvalidConfig, match=r"300 requests/s for 7 s are too few.*--rate=800"):
        plan_of("constant", load, 300, 1)
    assert len(plan_of("constant", load, 800, 1).offsets_ns) == 5_600
