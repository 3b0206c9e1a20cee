import pytest

from loadtest.measure.latency import NS_PER_MS, TooFewRequests, medians, percentile_ms


@pytest.mark.parametrize(
    ("per_mille", "expected_ms"), [(500, 2_500), (990, 4_950), (999, 4_995), (1, 5)]
)
def test_percentile_bounds_its_share_of_latencies(per_mille: int, expected_ms: float):
    latencies_ns = [NS_PER_MS * ms for ms in range(5_000, 0, -1)]
    assert percentile_ms(latencies_ns, per_mille) == expected_ms


@pytest.mark.parametrize(("per_mille", "required"), [(500, 10), (990, 500), (999, 5_000)])
def test_percentile_of_few_requests_names_shortfall(per_mille: int, required: int):
    with pytest.raises(TooFewRequests, match=f"1 requests missing of {required}"):
        percentile_ms([1] * (required - 1), per_mille)
    assert percentile_ms([NS_PER_MS] * required, per_mille) == 1


def test_medians_per_key_are_none_if_one_is_refused():
    runs = [{"p50_ms": n, "p999_ms": p999_ms} for n, p999_ms in enumerate([9, None, 8], 1)]
    assert medians(runs, ("p50_ms", "p999_ms")) == {"p50_ms": 2, "p999_ms": None}
    assert medians([], ("p50_ms",)) == {"p50_ms": None}
