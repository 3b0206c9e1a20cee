"""Statistics of the open inference protocol, made of the data plane's records. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serving.base.errors import StatusCode
from serving.data_plane.request_statistics import MethodStatistics
from serving.data_plane.servables import BatchFigures

METHODS_WITHOUT_RUN = frozenset({"GetModelMetadata"})
"""Methods of a version that do not run the model, and so do not count as inferences."""

_PHASES = {
    "compute_input": "decode",
    "compute_infer": "run",
    "compute_output": "encode",
}


def model_statistics(
    rows: Iterable[MethodStatistics],
    name: str,
    batches_by_version: Mapping[int, Sequence[BatchFigures]],
) -> list[dict[str, Any]]:
    """A row for each version: requests of all protocols since the version was loaded.

    As in Triton, an inference is a row of a request, and an execution is a run of the model, which
    requests may share. `batches_by_version` has the figures of each signature that is batched.
    `last_inference` is 0, which means unknown, because its instant is not recorded.
    """
    by_version: dict[int, list[MethodStatistics]] = {version: [] for version in batches_by_version}
    for row in rows:
        is_run = row.model == name and row.method not in METHODS_WITHOUT_RUN
        if is_run and not row.is_ended and row.version in by_version:
            by_version[row.version].append(row)
    return [
        _document(name, version, by_version[version], batches_by_version[version])
        for version in sorted(by_version)
    ]


def _document(
    name: str, version: int, rows: Sequence[MethodStatistics], batches: Sequence[BatchFigures]
) -> dict[str, Any]:
    codes = [(row, code) for row in rows for code in row.count_by_code]
    success = _durations(row.latency(code) for row, code in codes if code == StatusCode.OK)
    fail = _durations(row.latency(code) for row, code in codes if code != StatusCode.OK)
    phases = {
        field: _durations(row.phase(phase) for row in rows) for field, phase in _PHASES.items()
    }
    return {
        "name": name,
        "version": str(version),
        "last_inference": 0,
        "inference_count": sum(row.row_count for row in rows),
        "execution_count": _run_count(success["count"], batches),
        "inference_stats": {"success": success, "fail": fail, "queue": _queue(rows), **phases},
    }


def _run_count(request_count: int, batches: Sequence[BatchFigures]) -> int:
    """The runs of that many requests, some of which shared runs, as `batches` show.

    Warm-ups are counted in `batches` only, once as a run and once as a request.
    """
    saved = sum(figures.request_count - figures.run_count for figures in batches)
    # A batch is counted when it has run, but its requests only when they are answered.
    return max(0, request_count - saved)


def _queue(rows: Sequence[MethodStatistics]) -> dict[str, int]:
    """The waits of requests, for a thread and for the others of their batches."""
    queue = _durations(row.phase("queue") for row in rows)
    batch = _durations(row.phase("batch") for row in rows)
    return {"count": queue["count"], "ns": queue["ns"] + batch["ns"]}


def _durations(latencies: Iterable[Any]) -> dict[str, int]:
    """The sums of `latencies`, which are LatencyFigures."""
    figures = list(latencies)
    return {
        "count": sum(item.count for item in figures),
        "ns": sum(item.sum_ns for item in figures),
    }
