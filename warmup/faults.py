"""Faults of a warm-up file, each of which would keep its version from being loaded."""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from serving.base.errors import DataLoss, InvalidArgument
from serving.base.signatures import Signature, TensorSpec
from serving.base.tensor_proto import array_dtype, from_tensor_proto
from warmup.inspection import describe_tensor
from warmup.prediction_log import PREDICT, RECORD_COUNT_MAX, WARM_UP_KINDS, Log, kind_of, parse_log
from warmup.records import read_records

DEFAULT_SIGNATURE = "serving_default"

_METHOD_NAMES = {
    "classify_log": "tensorflow/serving/classify",
    "regress_log": "tensorflow/serving/regress",
}

# The largest size of a protobuf message. A TensorProto may declare a large shape in a few bytes.
TENSOR_BYTES_MAX = 2**31


def find_faults(path: Path, signatures: Mapping[str, Signature]) -> Iterator[str]:
    """Yields a line for each fault of the warm-up file of a version with these signatures.

    Continues after a fault as long as the framing is sound. Raises OSError.
    """
    number = 0
    try:
        for number, record in enumerate(read_records(path), start=1):
            yield from (
                f"record {number}: {fault}"
                for fault in _record_faults(number, record, path, signatures)
            )
    except DataLoss as error:
        yield str(error)
    if number == 0:
        yield f"{path}: no sound record; synthesize or capture some, or delete the file"
    if number > RECORD_COUNT_MAX:
        yield f"{path}: {number} records, but a server accepts {RECORD_COUNT_MAX}; keep a sample of the traffic"


def log_faults(log: Log, signatures: Mapping[str, Signature]) -> Iterator[str]:
    """Yields the reasons why a version with these signatures could not replay a log. Pure."""
    kind = kind_of(log)
    if kind not in WARM_UP_KINDS:
        yield f"is {kind or 'empty'}, which no server replays; write a {PREDICT}"
    elif kind == PREDICT:
        yield from _predict_faults(log.predict_log, signatures)
    else:
        yield from _example_faults(getattr(log, kind).request, kind, signatures)


def _record_faults(
    number: int, record: bytes, path: Path, signatures: Mapping[str, Signature]
) -> Iterator[str]:
    try:
        log = parse_log(number, record, path)
    except DataLoss:
        yield "is not a PredictionLog; write it again"
    else:
        yield from log_faults(log, signatures)


def _predict_faults(log: Any, signatures: Mapping[str, Signature]) -> Iterator[str]:
    name = log.request.model_spec.signature_name or DEFAULT_SIGNATURE
    if name not in signatures:
        yield f"no signature {name!r}; the version has {sorted(signatures)}"
        return
    signature = signatures[name]
    yield from _missing_faults(log.request.inputs, signature)
    yield from _tensor_faults("input", log.request.inputs, signature.inputs, name)
    yield from _filter_faults(list(log.request.output_filter), signature)
    yield from _tensor_faults("output", log.response.outputs, signature.outputs, name)


def _example_faults(request: Any, kind: str, signatures: Mapping[str, Signature]) -> Iterator[str]:
    """Yields the faults of a request whose inputs are tf.Examples, on one or several signatures."""
    if kind == "multi_inference_log":
        asked = [(task.model_spec, task.method_name) for task in request.tasks]
    else:
        asked = [(request.model_spec, _METHOD_NAMES[kind])]
    if not asked:
        yield "has no tasks"
    for model_spec, method_name in asked:
        name = model_spec.signature_name or DEFAULT_SIGNATURE
        if name not in signatures:
            yield f"no signature {name!r}; the version has {sorted(signatures)}"
        else:
            yield from _example_signature_faults(name, method_name, signatures[name])
    examples = getattr(request.input, request.input.WhichOneof("kind") or "example_list").examples
    if not examples:
        yield "its input is empty; add an example"


def _example_signature_faults(name: str, method_name: str, signature: Signature) -> Iterator[str]:
    outputs = set(signature.outputs)
    if list(signature.inputs) != ["inputs"]:
        yield f"signature {name!r} takes {sorted(signature.inputs)}, not Examples as 'inputs'"
    elif method_name == _METHOD_NAMES["classify_log"]:
        if len(outputs) > 2 or not outputs & {"classes", "scores"}:
            yield f"signature {name!r} returns {sorted(outputs)}, not 'classes' or 'scores'"
    elif method_name == _METHOD_NAMES["regress_log"]:
        if outputs != {"outputs"}:
            yield f"signature {name!r} returns {sorted(outputs)}, not 'outputs'"
    else:
        yield f"method_name {method_name!r} is unknown; known: {sorted(_METHOD_NAMES.values())}"


def _missing_faults(inputs: Mapping[str, Any], signature: Signature) -> Iterator[str]:
    for name in sorted(set(signature.required_inputs) - set(inputs)):
        yield f"input {name!r} is missing"


def _filter_faults(output_filter: list[str], signature: Signature) -> Iterator[str]:
    for name in sorted(set(output_filter)):
        if name not in signature.outputs:
            yield f"output_filter {name!r} is not an output; outputs are {sorted(signature.outputs)}"
        elif output_filter.count(name) > 1:
            yield f"output_filter {name!r} is named twice"


def _tensor_faults(
    what: str, tensors: Mapping[str, Any], specs: Mapping[str, TensorSpec], signature_name: str
) -> Iterator[str]:
    for name, tensor in sorted(tensors.items()):
        if name not in specs:
            yield f"{what} {name!r} is not in signature {signature_name!r}, which has {sorted(specs)}"
        elif not _fits(tensor, specs[name]):
            expected = describe_tensor(specs[name].data_type, specs[name].shape)
            got = describe_tensor(tensor.dtype, _sizes(tensor))
            yield f"{what} {name!r}: expected {expected}, got {got}"
        elif damage := _damage(tensor):
            yield f"{what} {name!r}: {damage}"


def _fits(tensor: Any, spec: TensorSpec) -> bool:
    if tensor.dtype != spec.data_type:
        return False
    if spec.shape is None:
        return True
    sizes = _sizes(tensor)
    return len(sizes) == len(spec.shape) and all(
        wanted in (None, size) for wanted, size in zip(spec.shape, sizes, strict=True)
    )


def _sizes(tensor: Any) -> list[int]:
    return [dim.size for dim in tensor.tensor_shape.dim]


def _damage(tensor: Any) -> str:
    """The way in which shape and values contradict each other; "" if they agree, or if numpy lacks the
    dtype.
    """
    try:
        item_bytes = array_dtype(tensor.dtype).itemsize
    except InvalidArgument:
        return ""
    tensor_bytes = prod(_sizes(tensor)) * item_bytes
    if tensor_bytes > TENSOR_BYTES_MAX:
        return f"takes {tensor_bytes} bytes, above {TENSOR_BYTES_MAX}"
    try:
        from_tensor_proto(tensor)
    except InvalidArgument as error:
        return str(error)
    return ""
