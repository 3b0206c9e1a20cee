"""A client of a model server: numpy in, numpy out, errors of Millpond's tree. No TensorFlow import."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy.typing as npt

from serving.admin_service import ALLOW, LIST_MODELS, PROMOTE, ROLLBACK
from serving.capture_service import CAPTURE_WARM_UP
from serving.config import ModelConfig
from serving.config_document import GET_CONFIG, parse_config
from serving.errors import MillpondError, Unavailable, from_status
from serving.model_settings_file import SettingsByModel
from serving.protos import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_pb2,
    predict_pb2,
)
from serving.servable import ServableState
from serving.stubs import ModelServiceStub, PredictionServiceStub
from serving.succession import Rollback
from serving.tensor_proto import from_tensor_proto, to_tensor_proto
from warmup.records import decode_records
from warmup.signature_defs import INIT_OP_SIGNATURE

Array = npt.NDArray[Any]

# What grpcio says where it gives up itself.
_DEADLINE_MESSAGE = "Deadline Exceeded"

# What servers of gRPC, in C++ and in Python, say of a method that they do not have.
_NO_METHOD_MESSAGES = frozenset({"", "Method not found!"})

# Models take and give large tensors; the server has its own limit.
_CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True, kw_only=True)
class VersionStatus:
    """One version as the server reports it. `error_code` is a gRPC code's number, 0 where all is well."""

    version: int
    state: ServableState
    error_code: int = 0
    error_message: str = ""


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of a signature. `data_type` is a `types_pb2.DataType`; None: any size, any rank."""

    data_type: int
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Signature:
    """What a servable takes and gives under one name."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


@dataclass(frozen=True)
class Prediction:
    """An answer, and the version that gave it."""

    version: int
    outputs: Mapping[str, Array]


class Client:
    """One server over one channel. Safe to use from any thread; `close` it or use `with`.

    Every call raises a MillpondError: Unavailable where the server cannot be reached, otherwise
    with the code and the message that the server gave.
    """

    def __init__(self, target: str) -> None:
        """`target` is `HOST:PORT` or `unix:PATH`."""
        self._target = target
        self._channel = grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)
        self._prediction_service = PredictionServiceStub(self._channel)
        self._model_service = ModelServiceStub(self._channel)
        self._list_models: Any = self._channel.unary_unary(LIST_MODELS)
        self._capture_warm_up: Any = self._channel.unary_unary(CAPTURE_WARM_UP)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel; running calls are cancelled."""
        self._channel.close()

    def predict(
        self,
        name: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        version: int | None = None,
        signature_name: str = "",
        output_filter: Sequence[str] = (),
        timeout_seconds: float = 60,
    ) -> Prediction:
        """Sends one request. Without `version` the newest available one answers."""
        request = predict_pb2.PredictRequest(
            model_spec=_model_spec(name, version, signature_name), output_filter=output_filter
        )
        for input_name, values in inputs.items():
            request.inputs[input_name].CopyFrom(to_tensor_proto(values))
        response = self.predict_message(request, timeout_seconds=timeout_seconds)
        outputs = {key: from_tensor_proto(tensor) for key, tensor in response.outputs.items()}
        return Prediction(response.model_spec.version.value, outputs)

    def predict_message(
        self, request: predict_pb2.PredictRequest, *, timeout_seconds: float = 60
    ) -> predict_pb2.PredictResponse:
        """Sends a request as it is, and gives the response as it comes."""
        return self._call(self._prediction_service.Predict, request, timeout_seconds)

    def capture_warm_up(
        self, name: str, *, count_max: int, timeout_seconds: float = 60
    ) -> Iterator[bytes]:
        """The records, at most `count_max`, of a warm-up file of the model's recent live requests.

        A Millpond RPC. Raises NotFound, and FailedPrecondition where there are none.
        """
        request = json.dumps({"model": name, "count_max": count_max}).encode()
        reply = self._call(self._capture_warm_up, request, timeout_seconds)
        return decode_records(reply, f"the reply of {self._target}")

    def model_status(
        self, name: str, version: int | None = None, *, timeout_seconds: float = 10
    ) -> tuple[VersionStatus, ...]:
        """The versions of a model that the server knows, or the one asked for; ascending."""
        request = get_model_status_pb2.GetModelStatusRequest(model_spec=_model_spec(name, version))
        response = self._call(self._model_service.GetModelStatus, request, timeout_seconds)
        statuses = (
            VersionStatus(
                version=status.version,
                state=ServableState(status.state),
                error_code=status.status.error_code,
                error_message=status.status.error_message,
            )
            for status in response.model_version_status
        )
        return tuple(sorted(statuses, key=lambda status: status.version))

    def signatures(
        self, name: str, version: int | None = None, *, timeout_seconds: float = 10
    ) -> dict[str, Signature]:
        """The signatures of a version by name, those that a client may run."""
        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=_model_spec(name, version), metadata_field=["signature_def"]
        )
        response = self._call(self._prediction_service.GetModelMetadata, request, timeout_seconds)
        signature_defs = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signature_defs)
        return {
            key: signature_of(definition)
            for key, definition in signature_defs.signature_def.items()
            if key != INIT_OP_SIGNATURE
        }

    def describe(self, *, timeout_seconds: float = 10) -> dict[str, Any]:
        """All that the server says of its models and its config files: the JSON of Millpond's ListModels."""
        reply: dict[str, Any] = json.loads(self._call(self._list_models, b"", timeout_seconds))
        return reply

    def describe_models(self, *, timeout_seconds: float = 10) -> dict[str, Any]:
        """All that the server says of each model, by name."""
        reply = self.describe(timeout_seconds=timeout_seconds)
        return {model["name"]: model for model in reply["models"]}

    def rollback(
        self, name: str, *, is_cold_allowed: bool = False, timeout_seconds: float = 10
    ) -> Rollback:
        """Puts the version before the one that answers back; the next request is answered by it.

        A Millpond RPC. Raises NotFound, and FailedPrecondition where none is in memory, unless
        `is_cold_allowed`: then it is loaded from disk while the present one goes on.
        """
        request = {"model": name, "is_cold_allowed": is_cold_allowed}
        return Rollback(**self._admin(ROLLBACK, request, timeout_seconds))

    def promote(self, name: str, *, timeout_seconds: float = 10) -> int:
        """The model's canary answers everything from now on; its version. FailedPrecondition without."""
        version: int = self._admin(PROMOTE, {"model": name}, timeout_seconds)["version"]
        return version

    def allow(self, name: str, version: int, *, timeout_seconds: float = 10) -> None:
        """Lets a version that was rolled back serve again. FailedPrecondition where it may."""
        self._admin(ALLOW, {"model": name, "version": version}, timeout_seconds)

    def config(
        self, *, timeout_seconds: float = 10
    ) -> tuple[tuple[ModelConfig, ...], SettingsByModel]:
        """The models as they are configured now, and the settings of these and of those to come."""
        get_config: Any = self._channel.unary_unary(GET_CONFIG)
        return parse_config(self._call(get_config, b"", timeout_seconds))

    def reload_config(self, config: bytes, *, timeout_seconds: float = 70) -> None:
        """Has the server serve what `config`, a serialized ModelServerConfig, says.

        Raises InvalidArgument, and nothing has changed; FailedPrecondition where the models were
        changed and a new one failed, UNKNOWN where one has not come yet: the server answers a
        little before `timeout_seconds` are over, and after a minute at most.
        """
        request = model_management_pb2.ReloadConfigRequest()
        request.config.ParseFromString(config)
        self._call(self._model_service.HandleReloadConfigRequest, request, timeout_seconds)

    def _admin(self, method: str, request: Mapping[str, Any], timeout_seconds: float) -> Any:
        call: Any = self._channel.unary_unary(method)
        return json.loads(self._call(call, json.dumps(request).encode(), timeout_seconds))

    def list_models(self, *, timeout_seconds: float = 10) -> dict[str, tuple[VersionStatus, ...]]:
        """Every model and its versions. A Millpond RPC: TensorFlow Serving has none for it."""
        reply = json.loads(self._call(self._list_models, b"", timeout_seconds))
        return {
            model["name"]: tuple(
                VersionStatus(
                    version=version["version"],
                    state=ServableState[version["state"]],
                    error_code=version["error_code"],
                    error_message=version["error_message"],
                )
                for version in model["versions"]
            )
            for model in reply["models"]
        }

    def _call(self, method: Any, request: Any, timeout_seconds: float) -> Any:
        try:
            return method(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise self._error(error, timeout_seconds) from error

    def _error(self, error: grpc.RpcError, timeout_seconds: float) -> MillpondError:
        # grpcio raises one object that is the error and the call; its types know the error only.
        call: Any = error
        if call.code() == grpc.StatusCode.UNAVAILABLE:
            return Unavailable(
                f"no server answers at {self._target} ({call.details()}); "
                "is it running, and is this its host and port?"
            )
        message = call.details()
        if message == _DEADLINE_MESSAGE:
            message = f"no answer from {self._target} in {timeout_seconds:g} s"
        elif call.code() == grpc.StatusCode.UNIMPLEMENTED and message in _NO_METHOD_MESSAGES:
            message = (
                f"the server at {self._target} does not know this call; "
                "is it Millpond's, and as new as this command?"
            )
        return from_status(call.code().value[0], message)


def signature_of(definition: Any) -> Signature:
    """The signature that a SignatureDef defines."""
    return Signature(_tensor_specs(definition.inputs), _tensor_specs(definition.outputs))


def _model_spec(name: str, version: int | None, signature_name: str = "") -> model_pb2.ModelSpec:
    spec = model_pb2.ModelSpec(name=name, signature_name=signature_name)
    if version is not None:
        spec.version.value = version
    return spec


def _tensor_specs(infos: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """`infos` is a map of TensorInfo."""
    return {name: TensorSpec(info.dtype, _shape(info)) for name, info in infos.items()}


def _shape(info: Any) -> tuple[int | None, ...] | None:
    # A TensorInfo that says nothing of a shape takes any.
    if not info.HasField("tensor_shape") or info.tensor_shape.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in info.tensor_shape.dim)
