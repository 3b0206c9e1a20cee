import io
from collections.abc import Mapping

from rich.console import Console

from loadtest.commands.queues import VARIANTS
from loadtest.commands.variants import ROWS, Measured, Results, print_variants, variants_report
from tests.unit.loadtest_outcomes import outcome_of

REQUEST_COUNT = 600


def results(latency_ms: Mapping[str, float], rates: Mapping[str, list[float]]) -> Results:
    def measured(name: str) -> Measured:
        instants = [(ms, ms, ms + latency_ms.get(name, 1)) for ms in range(REQUEST_COUNT)]
        return Measured(rates.get(name, [1_000.0]), [outcome_of(instants)])

    return {(name, rows): measured(name) for name in VARIANTS for rows in ROWS}


def test_each_variant_is_compared_with_first():
    report = variants_report(results({"4 threads": 3}, {"4 threads": [500, 400, 900]}), 300)
    four = report["rows"][1]["4 threads"]
    assert four["requests_per_second"] == 500
    assert four["ratio_requests_per_second"] == 0.5
    assert (four["ratio_p50_ms"], four["ratio_p99_ms"]) == (3, 3)
    assert report["rows"][100]["default"]["ratio_p99_ms"] == 1


def test_percentiles_with_too_few_requests_are_refused():
    report = variants_report(results({}, {}), 300)
    assert report["rows"][1]["1 thread"]["p999_ms"] is None
    assert report["rows"][1]["1 thread"]["ratio_p999_ms"] is None


def test_table_names_every_variant_beside_the_first():
    console = Console(file=io.StringIO(), width=200)
    print_variants(variants_report(results({"4 threads": 2}, {}), 300), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(f"{name}: " in text for name in VARIANTS)
    assert (
        "4 threads: 1,000 requests/s at most (1.00 of default's); its latencies over default's: p50 2"
        in text
    )
