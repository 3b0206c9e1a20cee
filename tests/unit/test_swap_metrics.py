"""A scraper's view of each model's last swap."""

from collections.abc import Sequence

from serving.base.clock import NS_PER_SECOND
from serving.monitoring.swap_metrics import swap_metrics
from serving.monitoring.swap_record import SwapRecord, SwapResult
from tests.unit.fakes.metrics import swap_of
from tests.unit.fakes.page import span_latency

LATENCY = "serving_swap_latency_seconds"


def samples_of(newest_first: Sequence[SwapRecord], name: str) -> dict[tuple[str, ...], float]:
    """Returns the values by label values, in the order of the family's labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for samples in swap_metrics(newest_first)
        for sample in samples.metric.samples
        if sample.name == name
    }


def test_swap_shows_seconds_and_requests_per_part():
    swaps = [swap_of("m")]
    assert samples_of(swaps, "serving_swap_seconds") == {("m",): 2.0}
    latencies = samples_of(swaps, LATENCY)
    assert latencies["m", "before", "0.999"] == 0.01
    assert latencies["m", "during", "0.999"] == 0.012
    assert latencies["m", "during", "0.5"] == 0.0011
    assert latencies["m", "during", "0.99"] == 0.0034
    assert latencies["m", "during", "1.0"] == 0.021
    assert samples_of(swaps, "serving_swap_requests") == {
        ("m", "before"): 3_000,
        ("m", "during"): 1_000,
        ("m", "after"): 0,
    }


def test_part_without_requests_has_no_latency():
    parts = {part for _, part, _ in samples_of([swap_of("m", after=span_latency(0))], LATENCY)}
    assert parts == {"before", "during"}


def test_swap_without_requests_has_only_its_seconds():
    none = span_latency(0)
    swaps = [swap_of("m", before=none, during=none, after=none)]
    assert samples_of(swaps, "serving_swap_requests") == {}
    assert samples_of(swaps, "serving_swap_seconds") == {("m",): 2.0}


def test_newest_swap_of_each_model_is_shown():
    newest_first = [
        swap_of("m", during=span_latency(7)),
        swap_of("other", during=span_latency(8)),
        swap_of("m", during=span_latency(9)),
    ]
    requests = samples_of(newest_first, "serving_swap_requests")
    assert requests["m", "during"] == 7
    assert requests["other", "during"] == 8


def test_running_swap_shows_known_and_previous_seconds():
    loading = swap_of("m", ended_at_ns=None, during=None, after=None, before=span_latency(5))
    newest_first = [loading, swap_of("m")]
    assert samples_of(newest_first, "serving_swap_requests") == {("m", "before"): 5}
    assert samples_of(newest_first, "serving_swap_seconds") == {("m",): 2.0}


def test_waiting_swap_keeps_previous_swap_visible():
    waiting = swap_of(
        "m", load_started_at_ns=None, ended_at_ns=None, before=None, during=None, after=None
    )
    newest_first = [waiting, swap_of("m")]
    assert samples_of(newest_first, "serving_swap_requests")["m", "during"] == 1_000


def test_expired_version_keeps_swap_visible():
    unload = swap_of(
        "m", result=SwapResult.UNLOADED, ended_at_ns=20 * NS_PER_SECOND, during=span_latency(5)
    )
    newest_first = [unload, swap_of("m")]
    assert samples_of(newest_first, "serving_swap_seconds") == {("m",): 2.0}
    assert samples_of(newest_first, "serving_swap_requests")["m", "during"] == 1_000


def test_swap_of_a_delta_shows_read_and_kept_bytes():
    figures = {"restored_bytes": 112, "kept_bytes": 10_400}
    reason = {"delta_restored_in_full": "t: held"}
    newest_first = [
        swap_of("kept", figures=figures),
        swap_of("full", figures=figures, notes=reason),
        swap_of("started", figures=figures, notes=reason, previous_version=None),
    ]
    reads = samples_of(newest_first, "serving_swap_read_bytes")
    assert (reads["kept", "disk"], reads["kept", "memory"]) == (112, 10_400)
    in_full = samples_of(newest_first, "serving_swap_delta_restored_in_full")
    assert in_full == {("kept",): 0, ("full",): 1, ("started",): 0}
    assert samples_of([swap_of("plain")], "serving_swap_read_bytes") == {}
