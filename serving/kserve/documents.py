"""The open inference protocol's JSON documents about models. Its protobuf has the same names. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from serving.base.errors import FailedPrecondition
from serving.base.name_text import listed
from serving.base.protos import get_model_metadata_pb2, types_pb2
from serving.core.servable import AVAILABLE, END, LOADING, START, ServableState, ServableStatus
from serving.rpc.health import why_unavailable

PLATFORM = "tensorflow_savedmodel"
BACKEND = "tensorflow"
SERVER_NAME = "millpond"
DEFAULT_SIGNATURE = "serving_default"

EXTENSIONS = (
    *("binary_tensor_data", "model_configuration", "model_repository", "parameters"),
    "statistics",
)

UNLOADED_BY_HAND = (
    "unloaded by a request (RepositoryModelUnload); RepositoryModelLoad serves it again"
)

# As in native/inference/infer_datatype.h; scripts/check_seam.py compares the tables.
DATATYPES = {
    types_pb2.DT_BOOL: "BOOL",
    types_pb2.DT_UINT8: "UINT8",
    types_pb2.DT_UINT16: "UINT16",
    types_pb2.DT_UINT32: "UINT32",
    types_pb2.DT_UINT64: "UINT64",
    types_pb2.DT_INT8: "INT8",
    types_pb2.DT_INT16: "INT16",
    types_pb2.DT_INT32: "INT32",
    types_pb2.DT_INT64: "INT64",
    types_pb2.DT_HALF: "FP16",
    types_pb2.DT_FLOAT: "FP32",
    types_pb2.DT_DOUBLE: "FP64",
    types_pb2.DT_STRING: "BYTES",
    types_pb2.DT_BFLOAT16: "BF16",
}

_STATES: Mapping[ServableState, str] = {
    START: "LOADING",
    LOADING: "LOADING",
    AVAILABLE: "READY",
    ServableState.UNLOADING: "UNLOADING",
    END: "UNAVAILABLE",
}


def server_metadata(version: str) -> dict[str, Any]:
    """The metadata of a server with this version."""
    return {"name": SERVER_NAME, "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(name: str, versions: Iterable[int], signature_def_map: bytes) -> dict[str, Any]:
    """The metadata of the default signature. `versions` are the versions that answer.

    A shape has -1 for a dimension of any size, and is [-1] if the number of dimensions is open.
    Raises FailedPrecondition if the model has no default signature.
    """
    inputs, outputs = _tensors(name, signature_def_map)
    return {
        "name": name,
        "versions": [str(version) for version in sorted(versions)],
        "platform": PLATFORM,
        "inputs": [_tensor(*item) for item in inputs],
        "outputs": [_tensor(*item) for item in outputs],
    }


def model_config(name: str, signature_def_map: bytes) -> dict[str, Any]:
    """The part of Triton's configuration that clients read. Raises as `model_metadata`.

    `max_batch_size` 0 means that the shapes are whole, their first dimension included.
    """
    inputs, outputs = _tensors(name, signature_def_map)
    optional = _signature(name, signature_def_map).defaults
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "max_batch_size": 0,
        "input": [_config_input(item, optional) for item in inputs],
        "output": [_config_tensor(*item) for item in outputs],
    }


def repository_index(
    names: Iterable[str],
    statuses: Mapping[str, tuple[ServableStatus, ...]],
    unloaded: Collection[str],
    *,
    is_ready_only: bool,
) -> list[dict[str, Any]]:
    """Makes a row for each version of each configured model, and one row for a model without versions.

    `unloaded` are the models that a client has unloaded.
    """
    rows = [
        row
        for name in sorted(names)
        for row in _index_rows(name, statuses.get(name, ()), is_unloaded=name in unloaded)
    ]
    return [row for row in rows if row["state"] == "READY" or not is_ready_only]


def _index_rows(
    name: str, versions: tuple[ServableStatus, ...], *, is_unloaded: bool
) -> list[dict[str, Any]]:
    if not versions:
        reason = UNLOADED_BY_HAND if is_unloaded else (why_unavailable(()) or "")
        return [_index_row(name, "", "UNAVAILABLE", reason)]
    return [
        _index_row(
            name,
            str(status.id.version),
            _STATES[status.state],
            _reason(status, is_unloaded=is_unloaded),
        )
        for status in versions
    ]


def _index_row(name: str, version: str, state: str, reason: str) -> dict[str, Any]:
    return {"name": name, "version": version, "state": state, "reason": reason}


def _reason(status: ServableStatus, *, is_unloaded: bool) -> str:
    if status.health.message:
        return status.health.message
    if status.state is not END:
        return ""
    return UNLOADED_BY_HAND if is_unloaded else "unloaded"


_Tensor = tuple[str, int, list[int]]


def _tensors(name: str, signature_def_map: bytes) -> tuple[list[_Tensor], list[_Tensor]]:
    signature = _signature(name, signature_def_map)
    return _sorted_tensors(signature.inputs), _sorted_tensors(signature.outputs)


def _signature(name: str, signature_def_map: bytes) -> Any:
    signatures = get_model_metadata_pb2.SignatureDefMap.FromString(signature_def_map).signature_def
    if DEFAULT_SIGNATURE not in signatures:
        known = listed(sorted(signatures))
        raise FailedPrecondition(
            f"model {name!r} has no signature {DEFAULT_SIGNATURE!r}, which the protocol describes; "
            f"ModelInfer takes other signatures by its parameter signature_name: {known}"
        )
    return signatures[DEFAULT_SIGNATURE]


def _sorted_tensors(tensor_infos: Mapping[str, Any]) -> list[_Tensor]:
    # Composite tensors, such as a RaggedTensor, cannot be asked for.
    return [
        (name, info.dtype, _shape(info))
        for name, info in sorted(tensor_infos.items())
        if info.WhichOneof("encoding") in ("name", None)
    ]


def _shape(info: Any) -> list[int]:
    if info.tensor_shape.unknown_rank or not info.HasField("tensor_shape"):
        return [-1]
    return [dimension.size for dimension in info.tensor_shape.dim]


def _tensor(name: str, dtype: int, shape: list[int]) -> dict[str, Any]:
    # A dtype without a name in the protocol has TensorFlow's name. ModelInfer refuses it.
    datatype = DATATYPES.get(dtype) or types_pb2.DataType.Name(dtype).removeprefix("DT_")
    return {"name": name, "datatype": datatype, "shape": shape}


def _config_input(tensor: _Tensor, optional: Collection[str]) -> dict[str, Any]:
    """Describes an input, and marks it if a request need not send it, because it has a default."""
    return _config_tensor(*tensor) | ({"optional": True} if tensor[0] in optional else {})


def _config_tensor(name: str, dtype: int, shape: list[int]) -> dict[str, Any]:
    datatype = DATATYPES.get(dtype, "INVALID")
    data_type = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return {"name": name, "data_type": data_type, "dims": shape}
