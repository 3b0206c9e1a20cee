"""Makes requests from plain values, and plain values from responses, for all clients. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from serving.base.errors import InvalidArgument
from serving.base.protos import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)
from serving.base.signatures import INIT_OP_SIGNATURE, Signature, signature_of
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from serving.client.features import Features, examples_input
from serving.client.results import (
    Classification,
    Prediction,
    Regression,
    ScoredClass,
    VersionStatus,
)
from serving.core.servable import AVAILABLE, ServableState


def model_spec(
    name: str, *, version: int | None = None, label: str = "", signature_name: str = ""
) -> model_pb2.ModelSpec:
    """Makes the model_spec of a request. Raises InvalidArgument for both a version and a label."""
    if version is not None and label:
        raise InvalidArgument(
            f"model {name!r}: version {version} and label {label!r} "
            "cannot both be given; leave one out"
        )
    spec = model_pb2.ModelSpec(name=name, signature_name=signature_name)
    if version is not None:
        spec.version.value = version
    elif label:
        spec.version_label = label
    return spec


def predict_request(
    spec: model_pb2.ModelSpec, inputs: Mapping[str, npt.ArrayLike], output_filter: Sequence[str]
) -> predict_pb2.PredictRequest:
    """Makes the request. Raises InvalidArgument, which names the input, if a value is not a tensor."""
    request = predict_pb2.PredictRequest(model_spec=spec, output_filter=output_filter)
    for name, values in inputs.items():
        try:
            request.inputs[name].CopyFrom(to_tensor_proto(values))
        except (InvalidArgument, ValueError) as error:
            raise InvalidArgument(f"input {name!r}: {error}") from error
    return request


def prediction(response: predict_pb2.PredictResponse) -> Prediction:
    """Reads the outputs as arrays."""
    outputs = {name: from_tensor_proto(tensor) for name, tensor in response.outputs.items()}
    return Prediction(response.model_spec.version.value, outputs)


def classify_request(
    spec: model_pb2.ModelSpec, examples: Sequence[Features], context: Features | None
) -> classification_pb2.ClassificationRequest:
    """Makes the request. Raises InvalidArgument, which names the feature, for an unsuitable value."""
    return classification_pb2.ClassificationRequest(
        model_spec=spec, input=examples_input(examples, context)
    )


def classification(response: classification_pb2.ClassificationResponse) -> Classification:
    """Reads labels and scores."""
    classes = tuple(
        tuple(ScoredClass(scored.label, scored.score) for scored in one.classes)
        for one in response.result.classifications
    )
    return Classification(response.model_spec.version.value, classes)


def regress_request(
    spec: model_pb2.ModelSpec, examples: Sequence[Features], context: Features | None
) -> regression_pb2.RegressionRequest:
    """Makes the request. Raises InvalidArgument, which names the feature, for an unsuitable value."""
    return regression_pb2.RegressionRequest(
        model_spec=spec, input=examples_input(examples, context)
    )


def regression(response: regression_pb2.RegressionResponse) -> Regression:
    """Reads the values."""
    values = np.array([one.value for one in response.result.regressions], np.float32)
    return Regression(response.model_spec.version.value, values)


def status_request(spec: model_pb2.ModelSpec) -> get_model_status_pb2.GetModelStatusRequest:
    """Makes the request for the version of `spec`, or for all versions."""
    return get_model_status_pb2.GetModelStatusRequest(model_spec=spec)


def statuses(
    response: get_model_status_pb2.GetModelStatusResponse,
) -> tuple[VersionStatus, ...]:
    """Reads the statuses, ascending by version."""
    unsorted = (
        VersionStatus(
            version=status.version,
            state=ServableState(status.state),
            error_code=status.status.error_code,
            error_message=status.status.error_message,
        )
        for status in response.model_version_status
    )
    return tuple(sorted(unsorted, key=lambda status: status.version))


def is_ready(seen: Sequence[VersionStatus], version: int | None) -> bool:
    """True if `version` is AVAILABLE; with None, if any version is."""
    return any(status.state is AVAILABLE and version in (None, status.version) for status in seen)


def metadata_request(spec: model_pb2.ModelSpec) -> get_model_metadata_pb2.GetModelMetadataRequest:
    """Makes the request for the signatures, the only field of metadata."""
    return get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec=spec, metadata_field=["signature_def"]
    )


def signatures(response: get_model_metadata_pb2.GetModelMetadataResponse) -> dict[str, Signature]:
    """Reads the signatures that a client may run, by name."""
    definitions = get_model_metadata_pb2.SignatureDefMap()
    response.metadata["signature_def"].Unpack(definitions)
    return {
        name: signature_of(definition)
        for name, definition in definitions.signature_def.items()
        if name != INIT_OP_SIGNATURE
    }
