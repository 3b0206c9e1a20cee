"""Synthesis: makes warm-up records from a version's signatures alone.

For the first version of a model, or a version with a new signature. Real requests (`millpond
capture`) are better if there are any: they have the clients' shapes, outputs and values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.base.errors import InvalidArgument, InvalidConfig, MillpondError, NotFound
from serving.base.protos import get_model_metadata_pb2
from serving.base.signatures import Signature, TensorSpec, signature_of
from serving.base.tensor_proto import array_dtype, to_tensor_proto
from warmup.prediction_log import Log

# Their only input is serialized Examples, whose features are not in the signature.
_EXAMPLE_METHODS = {
    "tensorflow/serving/classify",
    "tensorflow/serving/regress",
    "tensorflow/serving/multi_inference",
}


@dataclass(frozen=True, kw_only=True)
class SynthesisSettings:
    """The properties of requests that a signature leaves open."""

    batch_sizes: Sequence[int] = (1,)
    # Size of each open dimension that is not the first.
    open_size: int = 1
    # The largest integer value. Most integers are ids, which must be within the model's tables.
    int_max: int = 1
    # The count of requests for each signature and batch size; they differ in their values.
    count: int = 1
    # The same seed gives the same requests.
    seed: int = 0


@dataclass(frozen=True)
class Synthesis:
    """The logs, and the reason for each signature that was left out."""

    logs: Sequence[Log]
    left_out: Mapping[str, str]


def synthesize(
    definitions: Mapping[str, Any],
    name: str,
    settings: SynthesisSettings,
    signature_names: Sequence[str] = (),
) -> Synthesis:
    """Makes requests to model `name` for the signatures of `definitions` (SignatureDefs). Pure.

    The requests do not send inputs that have a default.
    Without `signature_names`, uses all signatures and leaves out the ones for which requests cannot
    be made. Raises NotFound (no such signature), InvalidArgument (requests cannot be made for a
    named signature), InvalidConfig (requests cannot be made for any signature).
    """
    for wanted in signature_names:
        _check_can_be_made(wanted, definitions)
    left_out = {key: _obstacle(definition) for key, definition in definitions.items()}
    generator = np.random.default_rng(settings.seed)
    logs = [
        _log(name, key, inputs)
        for key in signature_names or sorted(definitions)
        if not left_out[key]
        for inputs in _requests(generator, signature_of(definitions[key]), settings)
    ]
    left_out = {key: obstacle for key, obstacle in left_out.items() if obstacle}
    if not logs:
        raise InvalidConfig(f"requests cannot be synthesized for any signature: {left_out}")
    return Synthesis(logs, {} if signature_names else left_out)


def made_up_request(
    signature_def_map: bytes, name: str, signature_name: str, *, rows: int = 1
) -> bytes | None:
    """Makes a serialized PredictRequest of `rows` rows for a signature of a SignatureDefMap.

    None if values cannot be made up for it.
    """
    definitions = get_model_metadata_pb2.SignatureDefMap.FromString(signature_def_map).signature_def
    try:
        settings = SynthesisSettings(batch_sizes=(rows,))
        made = synthesize(definitions, name, settings, [signature_name])
    except MillpondError:
        return None
    request: bytes = made.logs[0].predict_log.request.SerializeToString()
    return request


def _check_can_be_made(name: str, definitions: Mapping[str, Any]) -> None:
    if name not in definitions:
        raise NotFound(f"no signature {name!r}; there are {sorted(definitions)}")
    obstacle = _obstacle(definitions[name])
    if obstacle:
        raise InvalidArgument(f"signature {name!r}: {obstacle}")


def _obstacle(definition: Any) -> str:
    """The reason why requests cannot be made for a SignatureDef; "" if they can."""
    if definition.method_name in _EXAMPLE_METHODS:
        return "takes serialized Examples, of unknown features; capture live requests"
    for name, info in sorted(definition.inputs.items()):
        if name in definition.defaults:
            continue
        if info.WhichOneof("encoding") not in ("name", None):
            return f"input {name!r} is not a dense tensor"
        try:
            array_dtype(info.dtype)
        except InvalidArgument as error:
            return f"input {name!r}: {error}"
    return ""


def _requests(
    generator: np.random.Generator, signature: Signature, settings: SynthesisSettings
) -> list[dict[str, npt.NDArray[Any]]]:
    # By name, because a map has no order and the same seed should give the same requests.
    specs = sorted(signature.required_inputs.items())
    batch_sizes = settings.batch_sizes if any(_has_batch(spec) for _, spec in specs) else (1,)
    return [
        {
            key: _values(generator, _shape(spec, batch_size, settings), spec, settings)
            for key, spec in specs
        }
        for batch_size in batch_sizes
        # Without inputs all requests are the same.
        for _ in range(settings.count if specs else 1)
    ]


def _has_batch(spec: TensorSpec) -> bool:
    return spec.shape is None or spec.shape[:1] == (None,)


def _shape(spec: TensorSpec, batch_size: int, settings: SynthesisSettings) -> tuple[int, ...]:
    if spec.shape is None:
        return (batch_size,)
    open_sizes = [batch_size, *(settings.open_size for _ in spec.shape[1:])]
    return tuple(
        open_size if size is None else size
        for size, open_size in zip(spec.shape, open_sizes, strict=False)
    )


def _values(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    spec: TensorSpec,
    settings: SynthesisSettings,
) -> npt.NDArray[Any]:
    dtype = array_dtype(spec.data_type)
    if dtype.kind == "O":
        return np.full(shape, b"a", object)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        largest = min(settings.int_max, int(np.iinfo(dtype).max))
        return generator.integers(0, largest, shape, endpoint=True, dtype=np.uint64).astype(dtype)
    return generator.random(shape).astype(dtype)


def _log(name: str, signature_name: str, inputs: Mapping[str, npt.NDArray[Any]]) -> Log:
    log = Log()
    request = log.predict_log.request
    request.model_spec.name = name
    request.model_spec.signature_name = signature_name
    for key, values in inputs.items():
        request.inputs[key].CopyFrom(to_tensor_proto(values))
    return log
