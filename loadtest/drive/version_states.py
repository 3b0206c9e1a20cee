"""Asks any server of the PredictionService for the states of one model's versions."""

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np

from loadtest.drive.version_series import content_of
from serving.base.protos import get_model_status_pb2, predict_pb2
from serving.base.tensor_proto import from_tensor_proto
from serving.client.stubs import ModelServiceStub, PredictionServiceStub
from serving.commands.ctr_model import request_inputs
from serving.commands.ctr_request import predict_request

_CALL_SECONDS = 5


def has_model_service(channel: grpc.Channel, model: str) -> bool:
    """Asks once, and returns False if the server does not implement GetModelStatus."""
    try:
        ModelServiceStub(channel).GetModelStatus(_status_request(model), timeout=_CALL_SECONDS)
    except grpc.RpcError as error:
        failed: Any = error
        return bool(failed.code() != grpc.StatusCode.UNIMPLEMENTED)
    return True


def states_by_status(channel: grpc.Channel, model: str) -> Callable[[], Mapping[int, str] | None]:
    """Looks by GetModelStatus: the states of all versions, or None without an answer."""
    stub = ModelServiceStub(channel)

    def look() -> Mapping[int, str] | None:
        try:
            response = stub.GetModelStatus(_status_request(model), timeout=_CALL_SECONDS)
        except grpc.RpcError:
            return None
        named = get_model_status_pb2.ModelVersionStatus.State.Name
        return {status.version: named(status.state) for status in response.model_version_status}

    return look


def states_by_answers(
    channel: grpc.Channel, model: str, last_dropped: Callable[[], int]
) -> Callable[[], Mapping[int, str] | None]:
    """Looks by Predict: the version that answers is AVAILABLE; other versions are not seen.

    `last_dropped` returns the newest version's number. If the reply's model_spec has no version, that
    number decides which of two versions gave the output `version`.
    """
    stub = PredictionServiceStub(channel)
    request = predict_request(model, request_inputs(0, 1))

    def look() -> Mapping[int, str] | None:
        try:
            response = stub.Predict(request, timeout=_CALL_SECONDS)
        except grpc.RpcError:
            return None
        version = answering_version(response, last_dropped())
        return None if version is None else {version: "AVAILABLE"}

    return look


def answering_version(response: predict_pb2.PredictResponse, last_dropped: int) -> int | None:
    """Reads the version of `model_spec`.

    If it is missing, finds the one of the last two versions whose content gives the output `version`; None
    if the reply has neither.
    """
    if response.model_spec.version.value:
        return int(response.model_spec.version.value)
    if "version" not in response.outputs:
        return None
    content = int(np.ravel(from_tensor_proto(response.outputs["version"]))[0])
    return last_dropped if content_of(last_dropped) == content else last_dropped - 1


def _status_request(model: str) -> get_model_status_pb2.GetModelStatusRequest:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = model
    return request
