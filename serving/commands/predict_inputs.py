"""Makes the inputs of a request: from JSON as TensorFlow Serving's REST API takes it, or at random."""

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.base.errors import InvalidArgument
from serving.base.signatures import Signature, TensorSpec
from serving.base.tensor_proto import array_dtype, data_type_name

Array = npt.NDArray[Any]

# The size of the largest protobuf message.
_REQUEST_BYTES_MAX = 2**31 - 1


def inputs_from_json(document: Any, signature: Signature) -> dict[str, Array]:
    """Reads the body of a REST predict request, in the two forms that TensorFlow Serving documents.

    By column: `{"inputs": {name: values}}`, or `{"inputs": values}` for a signature with one input.
    By row: `{"instances": [{name: value}, …]}`, or a list of values for a signature with one input.
    Bytes are written `{"b64": …}`. Raises InvalidArgument, which names the input.
    """
    if not isinstance(document, dict) or ("inputs" in document) == ("instances" in document):
        raise InvalidArgument('the JSON must be an object with either "inputs" or "instances"')
    if "inputs" in document:
        columns = _by_name(document["inputs"], signature)
    else:
        columns = _columns(document["instances"], signature)
    _check_names(columns, signature)
    return {name: _array(name, values, signature.inputs[name]) for name, values in columns.items()}


def random_inputs(signature: Signature, rows: int, seed: int) -> dict[str, Array]:
    """Draws random inputs: floats of a normal distribution, and integers and texts from 0 to 9.

    The same seed gives the same inputs. Leaves out inputs with a default. If the first dimension of an input
    is open, it becomes `rows`; any other open dimension becomes 1. Raises InvalidArgument for a dtype that
    numpy does not have, or if the inputs do not fit a message.
    """
    _check_size(signature, rows)
    generator = np.random.default_rng(seed)
    # The inputs are drawn in the order of their names. The order of a protobuf map would not do, because it
    # differs from run to run.
    return {
        name: _random_array(generator, _concrete_shape(spec, rows), spec)
        for name, spec in sorted(signature.required_inputs.items())
    }


def _check_size(signature: Signature, rows: int) -> None:
    """Raises InvalidArgument if the inputs would not fit a message, before their memory is allocated."""
    size_bytes = sum(
        math.prod(_concrete_shape(spec, rows)) * array_dtype(spec.data_type).itemsize
        for spec in signature.required_inputs.values()
    )
    if size_bytes > _REQUEST_BYTES_MAX:
        raise InvalidArgument(
            f"{rows} rows are {size_bytes} bytes, and a request can hold {_REQUEST_BYTES_MAX}; "
            "ask for fewer rows"
        )


def _by_name(values: Any, signature: Signature) -> dict[str, Any]:
    """The values by the name of their input.

    Values without a name belong to the only input, or to the only input without a default.
    """
    if isinstance(values, dict) and not _is_base64(values):
        return values
    names = list(signature.inputs if len(signature.inputs) == 1 else signature.required_inputs)
    if len(names) != 1:
        raise InvalidArgument(f"name the inputs: the signature has {sorted(signature.inputs)}")
    return {names[0]: values}


def _columns(instances: Any, signature: Signature) -> dict[str, list[Any]]:
    """Turns a list of rows into columns: for each input, the list of its values."""
    if not isinstance(instances, list) or not instances:
        raise InvalidArgument('"instances" must be a list with at least one row')
    rows = [_by_name(instance, signature) for instance in instances]
    names = set(rows[0])
    for number, row in enumerate(rows, start=1):
        if set(row) != names:
            raise InvalidArgument(
                f"row {number} of instances names {sorted(row)}, row 1 {sorted(names)}"
            )
    return {name: [row[name] for row in rows] for name in rows[0]}


def _check_names(columns: Mapping[str, Any], signature: Signature) -> None:
    extra = sorted(set(columns) - set(signature.inputs))
    missing = sorted(set(signature.required_inputs) - set(columns))
    if extra or missing:
        raise InvalidArgument(
            f"the signature takes {sorted(signature.inputs)}: missing {missing}, extra {extra}"
        )


def _array(name: str, values: Any, spec: TensorSpec) -> Array:
    dtype = array_dtype(spec.data_type)
    try:
        array = np.array(_decoded(values), dtype)
    except (ValueError, TypeError, OverflowError, binascii.Error) as error:
        wanted = data_type_name(spec.data_type)
        raise InvalidArgument(f"input {name!r}: cannot be read as {wanted}: {error}") from error
    # For strings, dtype object is asked for. With it, numpy turns lists of different lengths into an array of
    # lists, which is refused here.
    if dtype.kind == "O" and any(isinstance(value, list) for value in array.ravel()):
        raise InvalidArgument(f"input {name!r}: its lists differ in length")
    return array


def _decoded(values: Any) -> Any:
    """Replaces each `{"b64": text}` by its bytes."""
    if isinstance(values, list):
        return [_decoded(value) for value in values]
    if _is_base64(values):
        return base64.b64decode(values["b64"], validate=True)
    if isinstance(values, dict) or values is None:
        raise ValueError(f"{values!r} is not a value")
    return values


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def _concrete_shape(spec: TensorSpec, rows: int) -> tuple[int, ...]:
    shape: Sequence[int | None] = (None,) if spec.shape is None else spec.shape
    open_size = [rows, *(1 for _ in shape[1:])]
    return tuple(
        default if size is None else size for size, default in zip(shape, open_size, strict=False)
    )


def _random_array(
    generator: np.random.Generator, shape: tuple[int, ...], spec: TensorSpec
) -> Array:
    dtype = array_dtype(spec.data_type)
    if dtype.kind == "O":
        return generator.integers(0, 10, shape).astype(np.str_).astype(object)
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return generator.integers(0, 10, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)
