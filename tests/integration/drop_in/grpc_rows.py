"""Requests of TensorFlow Serving's clients over gRPC, with the answers they must get, as a table.

The models are those of `export_models.py`. `mends` describes a defect of TensorFlow Serving that
Millpond does not copy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from serving.base.protos import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
    tensor_pb2,
    tensor_shape_pb2,
    types_pb2,
)
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from serving.client.features import examples_input

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED

AVAILABLE = 30


@dataclass(frozen=True)
class Refused:
    """An error with this code and a message that contains each of the fragments."""

    code: grpc.StatusCode
    fragments: tuple[str, ...]


@dataclass(frozen=True)
class Said:
    """A response from which `pick` extracts `value`."""

    pick: Callable[[Any], Any]
    value: Any


@dataclass(frozen=True)
class GrpcRow:
    """One request; `method` names a method of one of the stock stubs."""

    name: str
    method: str
    request: Any
    expected: Refused | Said
    mends: str = ""


def spec(name: str, **more: Any) -> model_pb2.ModelSpec:
    """Returns a ModelSpec: `version` is a number, other fields go by their names."""
    version = more.pop("version", None)
    message = model_pb2.ModelSpec(name=name, **more)
    if version is not None:
        message.version.value = version
    return message


def predict(
    model_spec: model_pb2.ModelSpec | None,
    inputs: Mapping[str, Any],
    output_filter: Sequence[str] = (),
) -> predict_pb2.PredictRequest:
    """Returns a PredictRequest from arrays or TensorProtos."""
    request = predict_pb2.PredictRequest(model_spec=model_spec, output_filter=output_filter)
    for name, values in inputs.items():
        is_message = isinstance(values, tensor_pb2.TensorProto)
        request.inputs[name].CopyFrom(values if is_message else to_tensor_proto(values))
    return request


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def float_val(shape: Sequence[int], *values: float) -> tensor_pb2.TensorProto:
    """Returns a typed tensor with fewer values than its shape has, as `tf.make_tensor_proto` makes
    it for few values.
    """
    dims = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in shape]
    return tensor_pb2.TensorProto(
        dtype=types_pb2.DT_FLOAT,
        tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=dims),
        float_val=values,
    )


def outputs(version: int, **values: Any) -> Said:
    """Returns the expectation of exactly these outputs from that version."""
    return Said(_version_and_outputs, (version, values))


def _version_and_outputs(response: Any) -> Any:
    arrays = {key: from_tensor_proto(value).tolist() for key, value in response.outputs.items()}
    return response.model_spec.version.value, arrays


def classify(model_spec: model_pb2.ModelSpec, examples: Any, context: Any = None) -> Any:
    return classification_pb2.ClassificationRequest(
        model_spec=model_spec, input=examples_input(examples, context)
    )


def classes(*of_examples: list[tuple[str, float]]) -> Said:
    return Said(
        lambda response: [
            [(one.label, one.score) for one in classified.classes]
            for classified in response.result.classifications
        ],
        list(of_examples),
    )


def regress(model_spec: model_pb2.ModelSpec, examples: Any, context: Any = None) -> Any:
    return regression_pb2.RegressionRequest(
        model_spec=model_spec, input=examples_input(examples, context)
    )


def values(*of_examples: float) -> Said:
    return Said(
        lambda response: [one.value for one in response.result.regressions], list(of_examples)
    )


def multi_inference(examples: Any, *tasks: tuple[model_pb2.ModelSpec, str]) -> Any:
    return inference_pb2.MultiInferenceRequest(
        tasks=[
            inference_pb2.InferenceTask(model_spec=task, method_name=method)
            for task, method in tasks
        ],
        input=examples_input(examples),
    )


def inference_results(response: Any) -> Any:
    return [
        (
            result.model_spec.signature_name,
            result.WhichOneof("result"),
            [one.value for one in result.regression_result.regressions]
            or [one.classes[0].score for one in result.classification_result.classifications],
        )
        for result in response.results
    ]


def metadata(model_spec: model_pb2.ModelSpec, *fields: str) -> Any:
    return get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec=model_spec, metadata_field=fields
    )


def described(response: Any) -> Any:
    """Returns the version and, for each signature, its method and the dtypes and shapes of its
    inputs.
    """
    definitions = get_model_metadata_pb2.SignatureDefMap()
    response.metadata["signature_def"].Unpack(definitions)
    return response.model_spec.version.value, {
        name: (
            definition.method_name,
            {
                key: (info.dtype, [dim.size for dim in info.tensor_shape.dim])
                for key, info in definition.inputs.items()
            },
        )
        for name, definition in definitions.signature_def.items()
        if name != "__saved_model_init_op"
    }


def status(model_spec: model_pb2.ModelSpec) -> Any:
    return get_model_status_pb2.GetModelStatusRequest(model_spec=model_spec)


def states(response: Any) -> Any:
    return [
        (one.version, one.state, one.status.error_code, one.status.error_message)
        for one in response.model_version_status
    ]


def reload_config(*models: tuple[str, str]) -> Any:
    """Returns a reload of models by name and base path.

    It lacks the server's own models, so the server must refuse it.
    """
    request = model_management_pb2.ReloadConfigRequest()
    for name, base_path in models:
        request.config.model_config_list.config.add(
            name=name, base_path=base_path, model_platform="tensorflow"
        )
    return request


HALF = spec("half_plus_two")
X = {"x": floats(1, 2, 5)}
EXAMPLES = [{"x": 1.0}, {"x": 2.0}]
PREDICT_METHOD = "tensorflow/serving/predict"
CLASSIFY_METHOD = "tensorflow/serving/classify"
REGRESS_METHOD = "tensorflow/serving/regress"
_ON_EXAMPLES = {"inputs": (types_pb2.DT_STRING, [-1])}

PREDICT_ROWS = [
    GrpcRow("half_plus_two", "Predict", predict(HALF, X), outputs(123, y=[2.5, 3.0, 4.5])),
    GrpcRow(
        "half_plus_three",
        "Predict",
        predict(spec("half_plus_three"), X),
        outputs(124, y=[3.5, 4.0, 5.5]),
    ),
    GrpcRow(
        "signature_by_its_name",
        "Predict",
        predict(spec("half_plus_two", signature_name="serving_default"), X),
        outputs(123, y=[2.5, 3.0, 4.5]),
    ),
    GrpcRow(
        "version_by_number",
        "Predict",
        predict(spec("labelled", version=1), X),
        outputs(1, y=[1.5, 2.0, 3.5]),
    ),
    GrpcRow(
        "version_by_label",
        "Predict",
        predict(spec("labelled", version_label="stable"), X),
        outputs(1, y=[1.5, 2.0, 3.5]),
    ),
    GrpcRow(
        "without_version_the_latest",
        "Predict",
        predict(spec("labelled"), X),
        outputs(2, y=[2.5, 3.0, 4.5]),
    ),
    GrpcRow(
        "typed_values_fill_up_the_shape",
        "Predict",
        predict(HALF, {"x": float_val([3], 1, 2)}),
        outputs(123, y=[2.5, 3.0, 3.0]),
    ),
    GrpcRow("no_rows", "Predict", predict(HALF, {"x": floats()}), outputs(123, y=[])),
    GrpcRow(
        "all_outputs",
        "Predict",
        predict(spec("sums"), {"a": floats(3), "b": floats(1)}),
        outputs(1, sum=[4.0], difference=[2.0]),
    ),
    GrpcRow(
        "output_filter",
        "Predict",
        predict(spec("sums"), {"a": floats(3), "b": floats(1)}, ["sum"]),
        outputs(1, sum=[4.0]),
    ),
    GrpcRow(
        "strings",
        "Predict",
        predict(spec("texts"), {"text": np.array([b"a\x00b", b""], object)}, ["raw_bytes"]),
        outputs(1, raw_bytes=[b"a\x00b", b""]),
    ),
    GrpcRow(
        "examples_to_predict",
        "Predict",
        predict(
            spec("half_plus_two", signature_name="regress_x_to_y"),
            {
                "inputs": np.array(
                    [
                        one.SerializeToString()
                        for one in examples_input(EXAMPLES).example_list.examples
                    ],
                    object,
                )
            },
        ),
        outputs(123, outputs=[[2.5], [3.0]]),
    ),
    *(
        GrpcRow(
            f"dtype_{name}",
            "Predict",
            predict(spec("dtypes", signature_name=name), {"x": np.array([0, 1], dtype)}),
            outputs(1, y=np.array([0, 1], dtype).tolist()),
        )
        for name, dtype in {
            **{name: np.dtype(name) for name in ("bool", "int8", "int16", "int32", "int64")},
            **{name: np.dtype(name) for name in ("uint8", "uint32", "uint64")},
            **{name: np.dtype(name) for name in ("float16", "float32", "float64")},
        }.items()
    ),
    GrpcRow(
        "no_model_spec",
        "Predict",
        predict(None, X),
        Refused(INVALID_ARGUMENT, ("Missing ModelSpec",)),
    ),
    GrpcRow(
        "no_name",
        "Predict",
        predict(spec("", signature_name="serving_default"), X),
        Refused(INVALID_ARGUMENT, ("ModelSpec has no name specified",)),
    ),
    GrpcRow(
        "unknown_model",
        "Predict",
        predict(spec("nobody"), X),
        Refused(NOT_FOUND, ("Servable not found for request: Latest(nobody)",)),
    ),
    GrpcRow(
        "unknown_version",
        "Predict",
        predict(spec("half_plus_two", version=5), X),
        Refused(NOT_FOUND, ("Servable not found for request: Specific(half_plus_two, 5)",)),
    ),
    GrpcRow(
        "unknown_label",
        "Predict",
        predict(spec("half_plus_two", version_label="gold"), X),
        Refused(INVALID_ARGUMENT, ("Unrecognized servable version label: gold",)),
    ),
    GrpcRow(
        "unknown_signature",
        "Predict",
        predict(spec("half_plus_two", signature_name="nothing"), X),
        Refused(FAILED_PRECONDITION, ('Serving signature key "nothing" not found',)),
    ),
    GrpcRow(
        "no_inputs",
        "Predict",
        predict(HALF, {}),
        Refused(INVALID_ARGUMENT, ("Missing but required: {x}",)),
    ),
    GrpcRow(
        "extra_input",
        "Predict",
        predict(HALF, {**X, "z": floats(1)}),
        Refused(INVALID_ARGUMENT, ("Sent extra: {z}",)),
    ),
    GrpcRow(
        "input_of_another_name",
        "Predict",
        predict(HALF, {"z": floats(1)}),
        Refused(INVALID_ARGUMENT, ("Sent extra: {z}", "Missing but required: {x}")),
    ),
    GrpcRow(
        "input_of_another_dtype",
        "Predict",
        predict(HALF, {"x": np.array([1], np.int64)}),
        Refused(INVALID_ARGUMENT, ("x", "float", "int64")),
    ),
    GrpcRow(
        "unknown_output",
        "Predict",
        predict(HALF, X, ["z"]),
        Refused(INVALID_ARGUMENT, ("z",)),
    ),
    GrpcRow(
        "output_asked_for_twice",
        "Predict",
        predict(HALF, X, ["y", "y"]),
        Refused(INVALID_ARGUMENT, ("y",)),
    ),
    GrpcRow(
        "tensor_content_too_short",
        "Predict",
        predict(
            HALF,
            {
                "x": tensor_pb2.TensorProto(
                    dtype=types_pb2.DT_FLOAT,
                    tensor_shape=tensor_shape_pb2.TensorShapeProto(
                        dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=3)]
                    ),
                    tensor_content=b"\0" * 8,
                )
            },
        ),
        Refused(INVALID_ARGUMENT, ("x", "8")),
    ),
]

CLASSIFY_REGRESS_ROWS = [
    GrpcRow(
        "regress",
        "Regress",
        regress(spec("half_plus_two", signature_name="regress_x_to_y"), EXAMPLES),
        values(2.5, 3.0),
    ),
    GrpcRow(
        "regress_another_signature",
        "Regress",
        regress(spec("half_plus_two", signature_name="regress_x_to_y2"), EXAMPLES),
        values(3.5, 4.0),
    ),
    GrpcRow(
        "regress_with_context",
        "Regress",
        regress(spec("half_plus_two", signature_name="regress_x2_to_y3"), EXAMPLES, {"x2": 4.0}),
        values(5.0, 5.0),
    ),
    GrpcRow(
        "regress_says_its_version",
        "Regress",
        regress(
            spec("labelled", version_label="stable", signature_name="regress_x_to_y"), EXAMPLES
        ),
        Said(
            lambda response: (
                response.model_spec.name,
                response.model_spec.version.value,
                response.model_spec.signature_name,
            ),
            ("labelled", 1, "regress_x_to_y"),
        ),
    ),
    GrpcRow(
        "classify_scores_without_labels",
        "Classify",
        classify(spec("half_plus_two", signature_name="classify_x_to_y"), EXAMPLES),
        classes([("", 2.5)], [("", 3.0)]),
    ),
    GrpcRow(
        "classify_scores_with_labels",
        "Classify",
        classify(spec("kinds"), [{"x": 0.5, "id": 2, "name": b"cat"}, {"x": 0.25}]),
        classes([("cat", 0.5), ("id", 2.0)], [("", 0.25), ("id", 0.0)]),
    ),
    GrpcRow(
        "classify_no_examples",
        "Classify",
        classify(spec("kinds"), []),
        Refused(INVALID_ARGUMENT, ("Input is empty",)),
    ),
    GrpcRow(
        "regress_without_input",
        "Regress",
        regression_pb2.RegressionRequest(
            model_spec=spec("half_plus_two", signature_name="regress_x_to_y")
        ),
        Refused(INVALID_ARGUMENT, ("Input is empty",)),
    ),
    GrpcRow(
        "regress_on_a_predict_signature",
        "Regress",
        regress(HALF, EXAMPLES),
        Refused(INVALID_ARGUMENT, ("serving_default",)),
    ),
    GrpcRow(
        "regress_unknown_signature",
        "Regress",
        regress(spec("half_plus_two", signature_name="nothing"), EXAMPLES),
        # TensorFlow Serving answers Predict with FAILED_PRECONDITION here; its methods differ.
        Refused(INVALID_ARGUMENT, ("nothing",)),
    ),
    GrpcRow(
        "regress_example_without_the_feature",
        "Regress",
        regress(spec("half_plus_two", signature_name="regress_x_to_y"), [{"other": 1.0}]),
        Refused(INVALID_ARGUMENT, ("x",)),
    ),
    GrpcRow(
        "classify_unknown_model",
        "Classify",
        classify(spec("nobody"), EXAMPLES),
        Refused(NOT_FOUND, ("Servable not found for request: Latest(nobody)",)),
    ),
    GrpcRow(
        "classify_without_model_spec",
        "Classify",
        classification_pb2.ClassificationRequest(input=examples_input(EXAMPLES)),
        Refused(INVALID_ARGUMENT, ("Missing ModelSpec",)),
    ),
    GrpcRow(
        "multi_inference",
        "MultiInference",
        multi_inference(
            EXAMPLES,
            (spec("half_plus_two", signature_name="regress_x_to_y"), REGRESS_METHOD),
            (spec("half_plus_two", signature_name="classify_x_to_y"), CLASSIFY_METHOD),
        ),
        Said(
            inference_results,
            [
                ("regress_x_to_y", "regression_result", [2.5, 3.0]),
                ("classify_x_to_y", "classification_result", [2.5, 3.0]),
            ],
        ),
    ),
    GrpcRow(
        "multi_inference_of_two_models",
        "MultiInference",
        multi_inference(
            EXAMPLES,
            (spec("half_plus_two", signature_name="regress_x_to_y"), REGRESS_METHOD),
            (spec("half_plus_three", signature_name="regress_x_to_y"), REGRESS_METHOD),
        ),
        Refused(INVALID_ARGUMENT, ("half_plus_two", "half_plus_three")),
    ),
    GrpcRow(
        "multi_inference_same_signature_twice",
        "MultiInference",
        multi_inference(
            EXAMPLES,
            *[(spec("half_plus_two", signature_name="regress_x_to_y"), REGRESS_METHOD)] * 2,
        ),
        Refused(INVALID_ARGUMENT, ("regress_x_to_y",)),
    ),
    GrpcRow(
        "multi_inference_of_predict",
        "MultiInference",
        multi_inference(EXAMPLES, (HALF, PREDICT_METHOD)),
        Refused(UNIMPLEMENTED, (PREDICT_METHOD,)),
    ),
    GrpcRow(
        "multi_inference_without_tasks",
        "MultiInference",
        multi_inference(EXAMPLES),
        Refused(INVALID_ARGUMENT, ("task",)),
    ),
]

METADATA_ROWS = [
    GrpcRow(
        "metadata",
        "GetModelMetadata",
        metadata(HALF, "signature_def"),
        Said(
            described,
            (
                123,
                {
                    "serving_default": (PREDICT_METHOD, {"x": (types_pb2.DT_FLOAT, [-1])}),
                    "regress_x_to_y": (REGRESS_METHOD, _ON_EXAMPLES),
                    "regress_x_to_y2": (REGRESS_METHOD, _ON_EXAMPLES),
                    "regress_x2_to_y3": (REGRESS_METHOD, _ON_EXAMPLES),
                    "classify_x_to_y": (CLASSIFY_METHOD, _ON_EXAMPLES),
                },
            ),
        ),
    ),
    GrpcRow(
        "metadata_of_a_label",
        "GetModelMetadata",
        metadata(spec("labelled", version_label="stable"), "signature_def"),
        Said(lambda response: response.model_spec.version.value, 1),
    ),
    GrpcRow(
        "metadata_without_field",
        "GetModelMetadata",
        metadata(HALF),
        Refused(INVALID_ARGUMENT, ("metadata_field",)),
    ),
    GrpcRow(
        "metadata_of_another_field",
        "GetModelMetadata",
        metadata(HALF, "weights"),
        Refused(INVALID_ARGUMENT, ("weights",)),
    ),
    GrpcRow(
        "metadata_of_nobody",
        "GetModelMetadata",
        metadata(spec("nobody"), "signature_def"),
        Refused(NOT_FOUND, ("nobody",)),
    ),
    GrpcRow(
        "metadata_without_model_spec",
        "GetModelMetadata",
        get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"]),
        Refused(INVALID_ARGUMENT, ("Missing ModelSpec",)),
    ),
]

STATUS_ROWS = [
    GrpcRow(
        "status",
        "GetModelStatus",
        status(HALF),
        Said(states, [(123, AVAILABLE, 0, "")]),
    ),
    GrpcRow(
        "status_of_all_versions_newest_first",
        "GetModelStatus",
        status(spec("labelled")),
        Said(states, [(2, AVAILABLE, 0, ""), (1, AVAILABLE, 0, "")]),
    ),
    GrpcRow(
        "status_of_a_version",
        "GetModelStatus",
        status(spec("labelled", version=1)),
        Said(states, [(1, AVAILABLE, 0, "")]),
    ),
    GrpcRow(
        "status_of_a_label",
        "GetModelStatus",
        status(spec("labelled", version_label="stable")),
        Said(states, [(1, AVAILABLE, 0, "")]),
        mends="a label in the spec is ignored: all versions are returned",
    ),
    GrpcRow(
        "status_of_an_unknown_label",
        "GetModelStatus",
        status(spec("labelled", version_label="gold")),
        Refused(INVALID_ARGUMENT, ("gold",)),
        mends="a label in the spec is ignored: all versions are returned",
    ),
    GrpcRow(
        "status_of_an_unknown_version",
        "GetModelStatus",
        status(spec("labelled", version=7)),
        Refused(NOT_FOUND, ("labelled", "7")),
    ),
    GrpcRow(
        "status_of_nobody",
        "GetModelStatus",
        status(spec("nobody")),
        Refused(NOT_FOUND, ("nobody",)),
    ),
    GrpcRow(
        "status_without_model_spec",
        "GetModelStatus",
        get_model_status_pb2.GetModelStatusRequest(),
        Refused(INVALID_ARGUMENT, ("Missing ModelSpec",)),
    ),
]

RELOAD_ROWS = [
    GrpcRow(
        "reload_of_nothing_is_refused",
        "HandleReloadConfigRequest",
        model_management_pb2.ReloadConfigRequest(),
        Refused(INVALID_ARGUMENT, ("no model_config_list in it",)),
    ),
    GrpcRow(
        "reload_of_one_name_twice",
        "HandleReloadConfigRequest",
        reload_config(("twice", "/models/a"), ("twice", "/models/b")),
        Refused(INVALID_ARGUMENT, ("twice",)),
        mends="the running config is stored before all of the new one is checked",
    ),
    GrpcRow(
        "reload_of_a_relative_base_path",
        "HandleReloadConfigRequest",
        reload_config(("m", "models/a")),
        Refused(INVALID_ARGUMENT, ("models/a", "absolute")),
    ),
]

ROWS = [*PREDICT_ROWS, *CLASSIFY_REGRESS_ROWS, *METADATA_ROWS, *STATUS_ROWS, *RELOAD_ROWS]
