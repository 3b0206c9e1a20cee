"""Inspection: the content of a warm-up file, one row a record."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.base.errors import InvalidArgument
from serving.base.tensor_proto import array_dtype, data_type_name
from warmup.prediction_log import PREDICT, Log, has_response, kind_of, parse_log
from warmup.records import read_records

EXAMPLE_KINDS = ("classify_log", "regress_log", "multi_inference_log")


@dataclass(frozen=True, kw_only=True)
class RecordSummary:
    """One record. `number` counts from 1; `size_bytes` is without the framing."""

    number: int
    kind: str
    model: str
    signature: str
    inputs: Sequence[str]
    """Texts like `x float32[8,13]`, sorted by name; `examples[8]` for a kind with Examples."""
    output_filter: Sequence[str]
    size_bytes: int
    has_response: bool


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The sums over a whole file. `kinds` counts the records of each kind."""

    record_count: int
    size_bytes: int
    response_count: int
    kinds: dict[str, int]


def inspect(path: Path) -> Iterator[RecordSummary]:
    """Yields a summary of each record of a warm-up file, of any kind.

    Raises DataLoss if the file is damaged, after yielding the records before the damage; OSError.
    """
    for number, record in enumerate(read_records(path), start=1):
        yield summary_of(number, parse_log(number, record, path), len(record))


def summary_of(number: int, log: Log, size_bytes: int) -> RecordSummary:
    """Describes one log. Pure."""
    kind = kind_of(log)
    request = getattr(log, kind).request if kind in (PREDICT, *EXAMPLE_KINDS) else None
    specs = _model_specs(kind, request)
    return RecordSummary(
        number=number,
        kind=kind,
        model=",".join(sorted({spec.name for spec in specs})),
        signature=",".join(spec.signature_name for spec in specs),
        inputs=_inputs(kind, request),
        output_filter=sorted(log.predict_log.request.output_filter),
        size_bytes=size_bytes,
        has_response=has_response(log),
    )


def totals_of(summaries: Iterable[RecordSummary]) -> Totals:
    """Adds up the summaries. Pure."""
    rows = list(summaries)
    return Totals(
        record_count=len(rows),
        size_bytes=sum(row.size_bytes for row in rows),
        response_count=sum(row.has_response for row in rows),
        kinds=dict(Counter(row.kind for row in rows)),
    )


def describe_tensor(data_type: int, shape: Sequence[int | None] | None) -> str:
    """Describes a tensor like `float32[?,3]`, as the server's messages do; `[...]` for an unknown shape."""
    if shape is None:
        return f"{_dtype_name(data_type)}[...]"
    sizes = ",".join("?" if size is None else str(size) for size in shape)
    return f"{_dtype_name(data_type)}[{sizes}]"


def _dtype_name(data_type: int) -> str:
    try:
        dtype = array_dtype(data_type)
    except InvalidArgument:
        return data_type_name(data_type)
    return "string" if dtype.kind == "O" else dtype.name


def _model_specs(kind: str, request: Any) -> list[Any]:
    if request is None:
        return []
    if kind == "multi_inference_log":
        return [task.model_spec for task in request.tasks]
    return [request.model_spec]


def _inputs(kind: str, request: Any) -> list[str]:
    if request is None:
        return []
    if kind != PREDICT:
        return [f"examples[{_example_count(request.input)}]"]
    return [
        f"{name} {describe_tensor(tensor.dtype, [dim.size for dim in tensor.tensor_shape.dim])}"
        for name, tensor in sorted(request.inputs.items())
    ]


def _example_count(examples: Any) -> int:
    """Counts the Examples in a tensorflow.serving.Input."""
    kind = examples.WhichOneof("kind")
    return len(getattr(examples, kind).examples) if kind else 0
