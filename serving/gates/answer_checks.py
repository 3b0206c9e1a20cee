"""Finds answers that are never meant, by comparing a version's with its predecessor's. Pure.

Whatever a model was trained on, clients cannot use a NaN in the place of a number, an output that is the
same for every input, or a missing output. Nothing here has a tolerance to be tuned: a retrained model may
change each value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

from google.protobuf.message import DecodeError

from serving.base.deferred_module import DeferredModule
from serving.base.errors import InvalidArgument
from serving.base.protos import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
    types_pb2,
)
from serving.base.tensor_proto import from_tensor_proto
from serving.gates.answer_watch import Answer
from serving.gates.tensor_compare import Outputs, values_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = DeferredModule("numpy")

CONSTANT_INPUT_COUNT_MIN = 10
"""The fewest distinct inputs on which an output can be found constant. With fewer, a sound classifier
may well give one class to all of them."""

CONSTANT_SHARE_MAX = 0.5
"""An output varies if at most this share of the distinct inputs has one and the same value. A
predecessor that gives most inputs the same value says little about the rest."""

INFINITE_RATIO_MAX = 2
"""Infinite values may be meant, as in a mask of logits. If the predecessor's output has the same
infinity, a version may have it at other places, up to this many times as often."""

INPUT_COUNT_MAX = 256
"""The most distinct inputs that are compared for one output: a request may have a million rows."""

# Sums of the same numbers in different orders differ by rounding. Values that differ by less than this many
# units of the dtype's precision, relative to the output's largest value, count as the same.
_ROUNDING_UNITS = 4

_PRECISIONS = {
    # These dtypes are so coarse that a few units would be the whole range, so their values must be equal.
    types_pb2.DT_FLOAT8_E5M2: 0,
    types_pb2.DT_FLOAT8_E4M3FN: 0,
    types_pb2.DT_BFLOAT16: 2**-7,
    types_pb2.DT_HALF: 2**-10,
    types_pb2.DT_FLOAT: 2**-23,
    types_pb2.DT_COMPLEX64: 2**-23,
    types_pb2.DT_DOUBLE: 2**-52,
    types_pb2.DT_COMPLEX128: 2**-52,
}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One request's answers: of a new version, and of its predecessor, None if it has none."""

    answer: Answer
    before: Outputs | None


# --- Outputs that are missing ---------------------------------------------------------------------


def missing_output_faults(compared: Sequence[Compared]) -> list[str]:
    """The outputs that the predecessor's answer to the same request has, and the new version's does not."""
    names = {
        name for pair in compared for name in set(pair.before or ()) - set(pair.answer.outputs)
    }
    return [f"output {name!r} is missing" for name in sorted(names)]


# --- NaN and infinity -----------------------------------------------------------------------------

_KINDS = ("NaN", "inf", "-inf")


@dataclass
class _Tally:
    """Counts of one kind of value in one output, over all compared answers."""

    now_count: int = 0
    before_count: int = 0
    # The values of that kind for which the predecessor's value at the same place is not.
    new_count: int = 0
    value_count: int = 0


def non_finite_faults(compared: Sequence[Compared]) -> list[str]:
    """The outputs with NaN or infinite values at places at which the predecessor's values are finite.

    Without a predecessor each such value counts.
    """
    tallies: dict[tuple[str, str], _Tally] = defaultdict(_Tally)
    for pair in compared:
        for name, tensor in pair.answer.outputs.items():
            now = values_of(tensor)
            if now is None or now.dtype.kind not in "fc":
                continue
            tensor_before = (pair.before or {}).get(name)
            before = None if tensor_before is None else values_of(tensor_before)
            for kind in _KINDS:
                _count(tallies[name, kind], kind, now, before)
    return [
        f"output {name!r} is {kind} in {tally.new_count} of {tally.value_count} values"
        for (name, kind), tally in sorted(tallies.items())
        if _is_fault(kind, tally)
    ]


def _is_fault(kind: str, tally: _Tally) -> bool:
    if kind == "NaN" or tally.before_count == 0:
        return tally.new_count > 0
    return tally.now_count > INFINITE_RATIO_MAX * tally.before_count


def _count(
    tally: _Tally, kind: str, now: npt.NDArray[Any], before: npt.NDArray[Any] | None
) -> None:
    is_now = _is_of_kind(kind, now)
    now_count = int(np.count_nonzero(is_now))
    tally.value_count += now.size
    tally.now_count += now_count
    if before is None:
        tally.new_count += now_count
        return
    was = _is_of_kind(kind, before)
    before_count = int(np.count_nonzero(was))
    tally.before_count += before_count
    if was.shape == is_now.shape:
        tally.new_count += int(np.count_nonzero(is_now & ~was))
    elif before_count == 0:
        tally.new_count += now_count


def _is_of_kind(kind: str, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if values.dtype.kind not in "fc":
        return np.zeros(values.shape, np.bool_)
    if kind == "NaN":
        return np.asarray(np.isnan(values))
    if values.dtype.kind == "c":  # has no sign: both infinities count as the first of them
        return (
            np.isinf(values) & ~np.isnan(values) if kind == "inf" else np.zeros(values.shape, bool)
        )
    return np.asarray(values == (np.inf if kind == "inf" else -np.inf))


# --- Constant outputs -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Value:
    """The value of one output for one input."""

    values: npt.NDArray[Any]
    data_type: int
    answer: Answer

    @property
    def key(self) -> tuple[int, int]:
        """Equal for equal values."""
        return self.data_type, _digest(self.values)


_Output: TypeAlias = tuple[str, str]  # signature, output
_ByInput: TypeAlias = dict[int, _Value]


def constant_suspects(answers: Sequence[Answer]) -> list[Answer]:
    """The answers with an output that is the same for each of enough distinct inputs.

    The predecessor has to be asked about these, because its output may be as constant.
    """
    suspects = {
        id(value.answer): value.answer
        for by_input in _constant_outputs(answers).values()
        for value in by_input.values()
    }
    return list(suspects.values())


def constant_faults(compared: Sequence[Compared]) -> list[str]:
    """The outputs that are the same for all distinct inputs while the predecessor's vary.

    An input is an Example with its context. In a Predict request it is a row, if each input and the output
    have a first dimension of the same size, and otherwise the whole request. Equal inputs count once, so a
    version that is asked the same again and again is never found constant. CONSTANT_INPUT_COUNT_MIN and
    CONSTANT_SHARE_MAX are the rule.
    """
    answered = [pair for pair in compared if pair.before is not None]
    was = _by_output([replace(pair.answer, outputs=pair.before or {}) for pair in answered])
    constant = _constant_outputs([pair.answer for pair in answered])
    return [
        f"output {name!r} of signature {signature!r} is the same for {len(by_input)} distinct inputs, "
        "and the predecessor's varies"
        for (signature, name), by_input in constant.items()
        if _varies(list(was.get((signature, name), {}).values()))
    ]


def distinct_input_count(answers: Sequence[Answer]) -> int:
    """The largest number of distinct inputs for which one output was computed."""
    return max(map(len, _by_output(answers).values()), default=0)


def _constant_outputs(answers: Sequence[Answer]) -> dict[_Output, _ByInput]:
    return {
        output: by_input
        for output, by_input in sorted(_by_output(answers).items())
        if len(by_input) >= CONSTANT_INPUT_COUNT_MIN and _is_constant(list(by_input.values()))
    }


def _is_constant(values: Sequence[_Value]) -> bool:
    if values[0].values.size == 0:
        return False
    if not _are_comparable_floats(values):
        return len({value.key for value in values}) == 1
    # Values that are not finite are left to `non_finite_faults`.
    return all(np.isfinite(v.values).all() for v in values) and _share_of_middle(values) == 1


def _varies(values: Sequence[_Value]) -> bool:
    """True if at most CONSTANT_SHARE_MAX of the values are one and the same."""
    if len(values) < CONSTANT_INPUT_COUNT_MIN:
        return False
    if _are_comparable_floats(values):
        return _share_of_middle(values) <= CONSTANT_SHARE_MAX
    ((_, count),) = Counter(value.key for value in values).most_common(1)
    return count <= CONSTANT_SHARE_MAX * len(values)


def _are_comparable_floats(values: Sequence[_Value]) -> bool:
    forms = {(value.values.shape, value.data_type) for value in values}
    return len(forms) == 1 and values[0].data_type in _PRECISIONS


def _share_of_middle(values: Sequence[_Value]) -> float:
    """The share of the values that are the middle one in each element, up to rounding.

    If more than half of the values are the same, that value is the middle one.
    """
    stacked = np.stack([value.values for value in values])
    if stacked.dtype.kind == "c":
        stacked = np.stack([stacked.real, stacked.imag], axis=-1)
    middle = np.sort(stacked, axis=0)[len(values) // 2]
    with np.errstate(invalid="ignore"):  # inf - inf
        noise = _ROUNDING_UNITS * _PRECISIONS[values[0].data_type] * np.abs(stacked).max(axis=0)
        is_near = (stacked == middle) | (np.abs(stacked - middle) <= noise)
    return float(is_near.all(axis=tuple(range(1, is_near.ndim))).mean())


# --- Inputs and outputs of a request --------------------------------------------------------------


def _by_output(answers: Sequence[Answer]) -> dict[_Output, _ByInput]:
    """The value of each output for each distinct input, by a digest of the input."""
    found: dict[_Output, _ByInput] = defaultdict(dict)
    for answer in answers:
        request = _read_request(answer)
        if request is None:
            continue
        signature, inputs = request
        rows = _row_count(inputs)
        for name, data_type, values in _outputs(answer):
            by_input = found[signature, name]
            for digest, part in _parts(rows, inputs, values):
                if len(by_input) == INPUT_COUNT_MAX:
                    break
                value = _Value(values=part, data_type=data_type, answer=answer)
                by_input.setdefault(digest, value)
    return dict(found)


_Request: TypeAlias = tuple[str, list["npt.NDArray[Any]"]]  # signature, inputs


def _read_request(answer: Answer) -> _Request | None:
    """Reads signature and inputs of a request; None if it cannot be read."""
    try:
        if answer.method == "Predict":
            return _read_predict(answer.request)
        if answer.method == "MultiInference":
            multi = inference_pb2.MultiInferenceRequest.FromString(answer.request)
            names = [_signature_name(task.model_spec) for task in multi.tasks]
            return ", ".join(names), [_examples(multi.input)]
        kind = _EXAMPLE_REQUESTS.get(answer.method)
        if kind is None:
            return None
        request = kind.FromString(answer.request)
    except (DecodeError, InvalidArgument):
        return None
    return _signature_name(request.model_spec), [_examples(request.input)]


_EXAMPLE_REQUESTS: Mapping[str, Any] = {
    "Classify": classification_pb2.ClassificationRequest,
    "Regress": regression_pb2.RegressionRequest,
}


def _read_predict(serialized: bytes) -> _Request:
    request = predict_pb2.PredictRequest.FromString(serialized)
    inputs = [from_tensor_proto(request.inputs[name]) for name in sorted(request.inputs)]
    return _signature_name(request.model_spec), inputs


def _signature_name(model_spec: Any) -> str:
    name: str = model_spec.signature_name
    return name or "serving_default"


def _examples(sent: Any) -> npt.NDArray[Any]:
    """The Examples of an Input, each with a digest of the context that they share."""
    if sent.WhichOneof("kind") == "example_list_with_context":
        with_context = sent.example_list_with_context
        examples, context = with_context.examples, hash(_as_bytes(with_context.context))
    else:
        examples, context = sent.example_list.examples, 0
    rows = np.empty(len(examples), object)
    rows[:] = [_as_bytes(example) + b"%d" % context for example in examples]
    return rows


def _as_bytes(example: Any) -> bytes:
    # Features are a map, whose order differs between equal Examples.
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


def _outputs(answer: Answer) -> Iterator[tuple[str, int, npt.NDArray[Any]]]:
    """Yields name, data type and values of each output. The classes of an Example are one value."""
    for name, tensor in answer.outputs.items():
        values = values_of(tensor)
        if values is None:
            continue
        task = name.removesuffix("scores")
        counts = answer.outputs.get(f"{task}class counts")
        if answer.method == "Predict" or name.endswith("values"):
            yield name, tensor.dtype, values
        elif name.endswith("scores") and counts is not None:
            labels = values_of(answer.outputs[f"{task}labels"])
            sizes = values_of(counts)
            if labels is not None and sizes is not None and sizes.size:
                yield f"{task}classes", *_classes(sizes, labels, values)


def _classes(
    sizes: npt.NDArray[Any], labels: npt.NDArray[Any], scores: npt.NDArray[Any]
) -> tuple[int, npt.NDArray[Any]]:
    """The labels and scores of each Example as one value, with its data type.

    Labels alone may well be the same for all Examples, and so may scores that a signature does not have.
    """
    # So few bits that the numbers of two labels never differ by as little as counts as rounding.
    codes = np.fromiter((crc32(label) & 0xFFFF for label in labels), np.float64, labels.size)
    coded = np.stack([codes, scores.astype(np.float64)], axis=-1)
    if (sizes == sizes[0]).all():
        return types_pb2.DT_FLOAT, coded.reshape(sizes.size, -1)
    parts = np.split(coded, np.cumsum(sizes)[:-1])
    return types_pb2.DT_INT64, np.array([_digest(part) for part in parts], np.int64)


def _row_count(inputs: Sequence[npt.NDArray[Any]]) -> int | None:
    """The first dimension of all inputs; None if they differ in it."""
    sizes = {array.shape[0] if array.ndim else None for array in inputs}
    return sizes.pop() if len(sizes) == 1 else None


def _parts(
    rows: int | None, inputs: Sequence[npt.NDArray[Any]], values: npt.NDArray[Any]
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yields the digest of each input with the output's value for it."""
    if rows is None or not values.ndim or values.shape[0] != rows:
        yield hash(tuple(map(_digest, inputs))), values
        return
    for row in range(rows):
        part = slice(row, row + 1)
        yield hash(tuple(_digest(array[part]) for array in inputs)), values[part]


def _digest(array: npt.NDArray[Any]) -> int:
    content = tuple(array.ravel().tolist()) if array.dtype.kind == "O" else array.tobytes()
    return hash((array.shape, array.dtype.str, content))
