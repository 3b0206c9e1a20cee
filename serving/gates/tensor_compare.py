"""Compares answers: two PredictResponses to one request, output by output and value by value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf.message import DecodeError

from serving.base.deferred_module import DeferredModule
from serving.base.errors import InvalidArgument
from serving.base.protos import predict_pb2, tensor_pb2, types_pb2
from serving.base.tensor_proto import (
    array_dtype,
    data_type_name,
    from_tensor_proto,
    to_tensor_proto,
)
from warmup.prediction_log import METHODS, WARM_UP_KINDS, Log

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = DeferredModule("numpy")

Outputs: TypeAlias = Mapping[str, tensor_pb2.TensorProto]

# numpy has no quantised dtypes; the proto encodes their values like values of the plain dtypes.
_PLAIN_TYPES = {
    types_pb2.DT_QINT8: types_pb2.DT_INT8,
    types_pb2.DT_QUINT8: types_pb2.DT_UINT8,
    types_pb2.DT_QINT16: types_pb2.DT_INT16,
    types_pb2.DT_QUINT16: types_pb2.DT_UINT16,
    types_pb2.DT_QINT32: types_pb2.DT_INT32,
}

_RESPONSES = {METHODS[kind]: type(getattr(Log(), kind).response) for kind in WARM_UP_KINDS}

# The most characters of one value in a message, because strings can be pages long.
_VALUE_CHARS_MAX = 40


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The allowed difference of two floats: the wider of the two limits, as in `math.isclose`.

    `relative` refers to the larger number. Values of float16 and bfloat16 may differ by `small_units` of their last
    place, if that is more. Integers, booleans and strings must be equal.
    """

    relative: float
    absolute: float
    small_units: int = 0

    def of(self, data_type: int) -> Tolerance:
        """The tolerance for values of a `types_pb2.DataType`."""
        unit = _SMALL_UNITS.get(data_type, 0)
        return replace(self, relative=max(self.relative, self.small_units * unit))


# The last place of a 16-bit float, as a share of its value at most.
_SMALL_UNITS = {types_pb2.DT_HALF: 2**-10, types_pb2.DT_BFLOAT16: 2**-7}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences between two answers.

    `faults` do not depend on the tolerance: missing outputs, another dtype or shape, new NaNs.
    `value_count` values could be compared, and `changed_count` of them differ by more than the
    tolerance. `first_change` shows the first of them.
    """

    faults: tuple[str, ...] = ()
    added_outputs: tuple[str, ...] = ()
    value_count: int = 0
    changed_count: int = 0
    first_change: str = ""


def compare_responses(expected: bytes, actual: bytes, tolerance: Tolerance) -> Comparison:
    """Compares two serialized PredictResponses.

    Raises protobuf's DecodeError if one of them cannot be parsed.
    """
    return compare_outputs(
        predict_pb2.PredictResponse.FromString(expected).outputs,
        predict_pb2.PredictResponse.FromString(actual).outputs,
        tolerance,
    )


def compare_outputs(expected: Outputs, actual: Outputs, tolerance: Tolerance) -> Comparison:
    """Compares each output of `expected` with the output of the same name in `actual`."""
    missing = [f"output {name!r} is missing" for name in sorted(set(expected) - set(actual))]
    by_output = [
        _compare_tensors(name, expected[name], actual[name], tolerance)
        for name in sorted(set(expected) & set(actual))
    ]
    return Comparison(
        faults=(*missing, *(fault for tensor in by_output for fault in tensor.faults)),
        added_outputs=tuple(sorted(set(actual) - set(expected))),
        value_count=sum(tensor.value_count for tensor in by_output),
        changed_count=sum(tensor.changed_count for tensor in by_output),
        first_change=next((t.first_change for t in by_output if t.first_change), ""),
    )


def _compare_tensors(
    name: str,
    expected: tensor_pb2.TensorProto,
    actual: tensor_pb2.TensorProto,
    tolerance: Tolerance,
) -> Comparison:
    if expected.dtype != actual.dtype:
        was, is_now = data_type_name(expected.dtype), data_type_name(actual.dtype)
        return Comparison(faults=(f"output {name!r} is {is_now}, was {was}",))
    if not _has_values(expected.dtype):
        return Comparison()
    try:
        was_array, is_array = _array(expected), _array(actual)
    except InvalidArgument as error:
        return Comparison(faults=(f"output {name!r}: {error}",))
    if was_array.shape != is_array.shape:
        shapes = f"has shape {list(is_array.shape)}, had {list(was_array.shape)}"
        return Comparison(faults=(f"output {name!r} {shapes}",))
    return _compare_values(name, was_array, is_array, tolerance.of(expected.dtype))


def _compare_values(
    name: str, was: npt.NDArray[Any], now: npt.NDArray[Any], tolerance: Tolerance
) -> Comparison:
    was, now = _wide(was).ravel(), _wide(now).ravel()
    new_nan_count = int(np.count_nonzero(_is_nan(now) & ~_is_nan(was)))
    changed = np.flatnonzero(~_is_close(was, now, tolerance))
    nan_fault = f"output {name!r} is NaN in {new_nan_count} of {now.size} values"
    return Comparison(
        faults=(nan_fault,) if new_nan_count else (),
        value_count=now.size,
        changed_count=changed.size,
        first_change=_change(name, int(changed[0]), was, now) if changed.size else "",
    )


def _change(name: str, index: int, was: npt.NDArray[Any], now: npt.NDArray[Any]) -> str:
    return f"output {name!r} value {index} is {_text(now[index])}, was {_text(was[index])}"


def _text(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, (float, complex)) else str(value)
    return text if len(text) <= _VALUE_CHARS_MAX else text[:_VALUE_CHARS_MAX] + "…"


def _is_close(
    was: npt.NDArray[Any], now: npt.NDArray[Any], tolerance: Tolerance
) -> npt.NDArray[np.bool_]:
    is_equal = np.asarray(was == now, np.bool_)
    if was.dtype.kind not in "fc":
        return is_equal
    # inf - inf is NaN, and comparisons with NaN are False, as needed here.
    with np.errstate(all="ignore"):
        distance = np.abs(was - now)
        larger = np.maximum(np.abs(was), np.abs(now))
        allowed = np.maximum(larger * tolerance.relative, tolerance.absolute)
        is_near = np.isfinite(larger) & (distance <= allowed)
        is_close: npt.NDArray[np.bool_] = is_equal | is_near | (_is_nan(was) & _is_nan(now))
    return is_close


def _is_nan(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if values.dtype.kind not in "fc":
        return np.zeros(values.shape, np.bool_)
    is_nan: npt.NDArray[np.bool_] = np.isnan(values)
    return is_nan


def _wide(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Floats of any size as float64, for exact differences; ml_dtypes have kind V or f."""
    if values.dtype.kind == "c":
        return values.astype(np.complex128)
    if values.dtype.kind in "fV":
        return values.astype(np.float64)
    return values


def values_of(proto: tensor_pb2.TensorProto) -> npt.NDArray[Any] | None:
    """The values of a tensor, floats of any size as float64; None if numpy cannot hold them."""
    if not _has_values(proto.dtype):
        return None
    try:
        return _wide(_array(proto))
    except InvalidArgument:
        return None


def has_non_finite(outputs: Outputs) -> bool:
    """True if a value is NaN or infinite."""
    arrays = map(values_of, outputs.values())
    return any(
        array is not None and array.dtype.kind in "fc" and not np.isfinite(array).all()
        for array in arrays
    )


def _has_values(data_type: int) -> bool:
    try:
        array_dtype(_PLAIN_TYPES.get(data_type, data_type))
    except InvalidArgument:
        return False
    return True


def _array(proto: tensor_pb2.TensorProto) -> npt.NDArray[Any]:
    plain_type = _PLAIN_TYPES.get(proto.dtype)
    if plain_type is None:
        return from_tensor_proto(proto)
    plain = tensor_pb2.TensorProto()
    plain.CopyFrom(proto)
    plain.dtype = plain_type
    return from_tensor_proto(plain)


def read_outputs(method: str, response: bytes) -> Outputs | None:
    """Reads the outputs of a serialized response of `method`; None if it cannot be parsed."""
    try:
        return outputs_of(_RESPONSES[method].FromString(response))
    except DecodeError:
        return None


def outputs_of(response: Any) -> Outputs:
    """The outputs of a response message of Predict, Classify, Regress or MultiInference."""
    if isinstance(response, predict_pb2.PredictResponse):
        outputs: Outputs = response.outputs
        return outputs
    if not hasattr(response, "results"):
        return _of_result(response.result)
    return {
        f"task {index} {name}": tensor
        for index, result in enumerate(response.results)
        for name, tensor in _of_result(_of_task(result)).items()
    }


def _of_task(result: Any) -> Any:
    kind = result.WhichOneof("result")
    return getattr(result, kind) if kind else None


def _of_result(result: Any) -> Outputs:
    if hasattr(result, "regressions"):
        return {"values": _floats(one.value for one in result.regressions)}
    examples = [one.classes for one in result.classifications] if result is not None else []
    classes = [scored for example in examples for scored in example]
    labels = np.array([scored.label.encode() for scored in classes], object)
    return {
        "class counts": to_tensor_proto(np.array([len(example) for example in examples], np.int64)),
        "labels": to_tensor_proto(labels),
        "scores": _floats(scored.score for scored in classes),
    }


def _floats(values: Any) -> tensor_pb2.TensorProto:
    return to_tensor_proto(np.fromiter(values, np.float32))
