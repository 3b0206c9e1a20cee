"""The inputs and outputs of a servable, as plain values made from a SignatureDef."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INIT_OP_SIGNATURE = "__saved_model_init_op"
"""TensorFlow saves the init op as a signature too, which clients may not run."""


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of a signature. `data_type` is a `types_pb2.DataType`.

    None as a dimension is any size, None as the shape is any rank.
    """

    data_type: int
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a servable under one name."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    # The inputs that have a default, so that a request need not send them.
    optional_inputs: frozenset[str] = frozenset()

    @property
    def required_inputs(self) -> Mapping[str, TensorSpec]:
        """The inputs that each request sends."""
        return {
            name: spec for name, spec in self.inputs.items() if name not in self.optional_inputs
        }


def signature_of(definition: Any) -> Signature:
    """Makes a signature from a SignatureDef."""
    return Signature(
        _tensor_specs(definition.inputs),
        _tensor_specs(definition.outputs),
        frozenset(definition.defaults) & frozenset(definition.inputs),
    )


def _tensor_specs(infos: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """`infos` is a map of TensorInfo."""
    return {name: TensorSpec(info.dtype, _shape(info)) for name, info in infos.items()}


def _shape(info: Any) -> tuple[int | None, ...] | None:
    # A TensorInfo without a shape accepts any shape.
    if not info.HasField("tensor_shape") or info.tensor_shape.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in info.tensor_shape.dim)
