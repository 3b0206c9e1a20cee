"""SignatureDefs and SavedModels for tests, written down without TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.base.protos import get_model_metadata_pb2, meta_graph_pb2, saved_model_pb2, types_pb2

FLOAT, INT64, STRING = types_pb2.DT_FLOAT, types_pb2.DT_INT64, types_pb2.DT_STRING

# A dtype and a shape. -1 is an open dimension; the shape None stands for any.
Tensor = tuple[int, Sequence[int] | None]


def signature_def(
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor] | None = None,
    method_name: str = "tensorflow/serving/predict",
) -> Any:
    """Returns a signature; without `outputs` it returns `y`, float32[?]."""
    definition = meta_graph_pb2.SignatureDef(method_name=method_name)
    for infos, tensors in (
        (definition.inputs, inputs),
        (definition.outputs, outputs or {"y": (FLOAT, (-1,))}),
    ):
        for name, (data_type, shape) in tensors.items():
            infos[name].dtype = data_type
            infos[name].name = f"{name}:0"
            if shape is None:
                infos[name].tensor_shape.unknown_rank = True
                continue
            infos[name].tensor_shape.SetInParent()
            for size in shape:
                infos[name].tensor_shape.dim.add(size=size)
    return definition


def write_saved_model(
    directory: Path, definitions: Mapping[str, Any], tags: Sequence[str] = ("serve",)
) -> Path:
    """Writes a version with these signatures and without a graph."""
    saved_model = saved_model_pb2.SavedModel()
    meta_graph = saved_model.meta_graphs.add()
    meta_graph.meta_info_def.tags.extend(tags)
    for name, definition in definitions.items():
        meta_graph.signature_def[name].CopyFrom(definition)
    directory.mkdir(parents=True)
    (directory / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    return directory


def mixed_signatures(name: str = "serving_default") -> bytes:
    """Returns a serialized SignatureDefMap with tensors of five dtypes."""
    signature_map = get_model_metadata_pb2.SignatureDefMap()
    inputs = {"words": (STRING, (-1,)), "any": (INT64, None), "one": (FLOAT, ())}
    outputs = {"y": (types_pb2.DT_COMPLEX64, (-1, 3)), "z": (types_pb2.DT_BFLOAT16, (2,))}
    signature_map.signature_def[name].CopyFrom(signature_def(inputs, outputs))
    serialized: bytes = signature_map.SerializeToString()
    return serialized
