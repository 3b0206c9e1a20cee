from serving.data_plane.servables import BatchFigures
from serving.kserve.statistics import model_statistics
from tests.unit.fakes.metrics import FakeMethod

OK, INVALID_ARGUMENT = 0, 3


def method(name: str, **fields: object) -> FakeMethod:
    return FakeMethod(method=name, version=3, **fields)  # type: ignore[arg-type]


def test_statistics_count_all_methods_that_run_model() -> None:
    rows = [
        method(
            "Predict",
            row_count=40,
            latencies_ns={OK: [10, 20], INVALID_ARGUMENT: [5]},
            phases_ns={"queue": [1, 1, 1], "decode": [2], "run": [7, 8], "encode": [3]},
        ),
        method("RestModelInfer", row_count=2, latencies_ns={OK: [30]}, phases_ns={"run": [9]}),
        method("GetModelMetadata", row_count=1, latencies_ns={OK: [1_000]}),
    ]
    assert model_statistics(rows, "m", {3: []}) == [
        {
            "name": "m",
            "version": "3",
            "last_inference": 0,
            "inference_count": 42,
            "execution_count": 3,
            "inference_stats": {
                "success": {"count": 3, "ns": 60},
                "fail": {"count": 1, "ns": 5},
                "queue": {"count": 3, "ns": 3},
                "compute_input": {"count": 1, "ns": 2},
                "compute_infer": {"count": 3, "ns": 24},
                "compute_output": {"count": 1, "ns": 3},
            },
        }
    ]


def test_requests_that_share_a_run_are_one_execution() -> None:
    rows = [method("Predict", row_count=100, latencies_ns={OK: [1] * 10})]
    # Eight requests in two runs; the other requests ran alone, and two runs were warm-up.
    batches = [BatchFigures(run_count=2 + 2, request_count=8 + 2)]
    (row,) = model_statistics(rows, "m", {3: batches})
    assert (row["execution_count"], row["inference_count"]) == (4, 100)


def test_wait_for_a_batch_is_wait_in_the_queue() -> None:
    rows = [method("Predict", latencies_ns={OK: [9]}, phases_ns={"queue": [2], "batch": [5]})]
    (row,) = model_statistics(rows, "m", {3: []})
    assert row["inference_stats"]["queue"] == {"count": 1, "ns": 7}


def test_statistics_omit_other_versions_and_past_lives() -> None:
    rows = [
        FakeMethod(version=2, latencies_ns={OK: [1]}),
        FakeMethod(version=3, latencies_ns={OK: [1]}, is_ended=True),
        FakeMethod(model="other", version=3, latencies_ns={OK: [1]}),
    ]
    (row,) = model_statistics(rows, "m", {3: []})
    assert row["inference_stats"]["success"] == {"count": 0, "ns": 0}


def test_statistics_have_a_row_for_each_version() -> None:
    assert [row["version"] for row in model_statistics([], "m", {10: [], 2: []})] == ["2", "10"]
