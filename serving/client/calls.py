"""The calls of a client, as values: the request, and the function that reads the response. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

import numpy.typing as npt

from serving.base.protos import model_pb2, predict_pb2
from serving.base.signatures import Signature
from serving.client import messages
from serving.client.channels import (
    CLASSIFY,
    MODEL_METADATA,
    MODEL_STATUS,
    PREDICT,
    REGRESS,
    ChooseMethod,
)
from serving.client.features import Features
from serving.client.results import (
    Classification,
    Prediction,
    Regression,
    VersionStatus,
)

Reply = TypeVar("Reply")

_RECEIVER = ("version", "label", "signature_name")
"""The options that are part of a request."""


def _as_received(response: Any) -> Any:
    return response


@dataclass(frozen=True, kw_only=True)
class Call(Generic[Reply]):
    """One call. Without `timeout_seconds` it has the client's deadline."""

    method: ChooseMethod
    request: Any
    read: Callable[[Any], Reply] = _as_received
    """Reads the reply in a response; by default the response is the reply."""
    timeout_seconds: float | None = None
    metadata: Mapping[str, str] | None = None


class SendOptions(TypedDict, total=False):
    """The optional arguments of every request that a version answers.

    `metadata` are gRPC headers, such as the header that requests a canary. `timeout_seconds` is the
    deadline; by default the client's. `timeout` is the same, by the name that gRPC's stubs have for it.
    """

    metadata: Mapping[str, str] | None
    timeout_seconds: float | None
    timeout: float | None


class CallOptions(SendOptions, total=False):
    """The optional arguments of predict, classify and regress.

    Without `version` or `label` the model's default version answers.
    """

    version: int | None
    label: str
    signature_name: str


def predict(
    name: str,
    inputs: Mapping[str, npt.ArrayLike],
    output_filter: Sequence[str],
    options: CallOptions,
) -> Call[Prediction]:
    """Makes the call of Predict. Raises InvalidArgument, which names the input."""
    spec, sending = _split(name, options)
    request = messages.predict_request(spec, inputs, output_filter)
    return Call(
        method=PREDICT,
        request=request,
        read=messages.prediction,
        **sending,
    )


def predict_message(
    request: predict_pb2.PredictRequest,
    options: SendOptions,
) -> Call[predict_pb2.PredictResponse]:
    """Makes the call of Predict with a request as it is, and a response as it is."""
    return Call(
        method=PREDICT,
        request=request,
        **_sending(options, SendOptions),
    )


def classify(
    name: str,
    examples: Sequence[Features],
    context: Features | None,
    options: CallOptions,
) -> Call[Classification]:
    """Makes the call of Classify. Raises InvalidArgument, which names the feature."""
    spec, sending = _split(name, options)
    request = messages.classify_request(spec, examples, context)
    return Call(
        method=CLASSIFY,
        request=request,
        read=messages.classification,
        **sending,
    )


def regress(
    name: str,
    examples: Sequence[Features],
    context: Features | None,
    options: CallOptions,
) -> Call[Regression]:
    """Makes the call of Regress. Raises InvalidArgument, which names the feature."""
    spec, sending = _split(name, options)
    request = messages.regress_request(spec, examples, context)
    return Call(
        method=REGRESS,
        request=request,
        read=messages.regression,
        **sending,
    )


def model_status(
    name: str, version: int | None, timeout_seconds: float
) -> Call[tuple[VersionStatus, ...]]:
    """Makes the call of GetModelStatus for one version, or for all versions."""
    return Call(
        method=MODEL_STATUS,
        request=messages.status_request(messages.model_spec(name, version=version)),
        read=messages.statuses,
        timeout_seconds=timeout_seconds,
    )


def signatures(
    name: str, version: int | None, label: str, timeout_seconds: float
) -> Call[dict[str, Signature]]:
    """Makes the call of GetModelMetadata."""
    return Call(
        method=MODEL_METADATA,
        request=messages.metadata_request(messages.model_spec(name, version=version, label=label)),
        read=messages.signatures,
        timeout_seconds=timeout_seconds,
    )


def _split(name: str, options: CallOptions) -> tuple[model_pb2.ModelSpec, dict[str, Any]]:
    """Splits the options into the receiver of a request, and those that are not part of the request."""
    sending = _sending(options, CallOptions)
    receiver = {key: sending.pop(key) for key in _RECEIVER if key in sending}
    return messages.model_spec(name, **receiver), sending


def _sending(options: SendOptions, kind: type) -> dict[str, Any]:
    """Renames `timeout` in the options.

    Raises TypeError for an option that is not of `kind`, as Python does.
    """
    known = sorted(kind.__annotations__)
    for key in options.keys() - {*known}:
        raise TypeError(f"a call has no option {key!r}; options: {', '.join(known)}")
    sending: dict[str, Any] = {**options}
    if "timeout" in sending:
        if "timeout_seconds" in sending:
            raise TypeError("timeout and timeout_seconds of a call mean the same; give one of them")
        sending["timeout_seconds"] = sending.pop("timeout")
    return sending
