"""MultiInference on an export of TensorFlow 2, in which each signature has its own input
placeholder. Refusals and orders of tasks are in `tests/native/multi_inference_test.cc`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving import ModelServer
from serving.client.stubs import PredictionServiceStub
from tests.integration.clients import TIMEOUT_SECONDS, Caller, channel_to, refusal
from tests.integration.example_exports import CLASSIFY, REGRESS
from tests.integration.example_requests import classes, classification, multi_inference, regression
from tests.integration.exports import let_settle
from tests.integration.model_host import ModelHost

INVALID = grpc.StatusCode.INVALID_ARGUMENT

# Each signature waits for a value that the other puts into a queue: they end only in one common
# run.
MEETING = ("meet_left", REGRESS), ("meet_right", REGRESS)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tf2_examples(tmp_path_factory.mktemp("exports") / "tf2_examples")


@pytest.fixture(scope="module")
def server(module_host: ModelHost, export: Path) -> ModelServer:
    return module_host.model(name="m").serve(export, 4).server


@pytest.fixture
def channel(server: ModelServer) -> Iterator[grpc.Channel]:
    with channel_to(server.target) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> PredictionServiceStub:
    return PredictionServiceStub(channel)


def export_tf2_examples(directory: Path) -> Path:
    """Saves a module of TensorFlow 2 with signatures that parse the features `x` and `y` of an
    Example.

    `classify` has the scores x and y of "low" and "high", `regress` is x * 2 + y, and `strict` is x
    without a default. `meet_left` and `meet_right` each put a number into a queue that the other
    takes it from. `let_go` puts one into both.
    """
    import tensorflow as tf

    raw = tf.raw_ops
    module = tf.Module()
    module.weights = tf.Variable([2.0] * 100_000)

    def features(examples: Any, default: float | None = 0.0) -> tuple[Any, Any]:
        feature = tf.io.FixedLenFeature([], tf.float32, default_value=default)
        parsed = tf.io.parse_example(examples, {"x": feature, "y": feature})
        return parsed["x"], parsed["y"]

    def queue(name: str) -> Any:
        return raw.FIFOQueueV2(component_types=[tf.float32], shared_name=name)

    def put(name: str) -> Any:
        return raw.QueueEnqueueV2(handle=queue(name), components=[1.0])

    def meet(inputs: Any, own: str, other: str) -> dict[str, Any]:
        with tf.control_dependencies([put(other)]):
            (taken,) = raw.QueueDequeueV2(handle=queue(own), component_types=[tf.float32])
        return {"outputs": features(inputs)[0] * tf.reshape(taken, [])}

    def classify(inputs: Any) -> dict[str, Any]:
        x, y = features(inputs)
        labels = tf.tile(tf.constant([["low", "high"]]), [tf.shape(x)[0], 1])
        return {"classes": labels, "scores": tf.stack([x, y], axis=1)}

    def regress(inputs: Any) -> dict[str, Any]:
        x, y = features(inputs)
        return {"outputs": x * tf.reduce_mean(module.weights) + y}

    def let_go(x: Any) -> dict[str, Any]:
        with tf.control_dependencies([put("left"), put("right")]):
            return {"y": tf.identity(x)}

    examples = tf.TensorSpec([None], tf.string, "inputs")
    signatures = {
        "classify": tf.function(classify, [examples]),
        "regress": tf.function(regress, [examples]),
        "strict": tf.function(lambda inputs: {"outputs": features(inputs, None)[0]}, [examples]),
        "meet_left": tf.function(lambda inputs: meet(inputs, "left", "right"), [examples]),
        "meet_right": tf.function(lambda inputs: meet(inputs, "right", "left"), [examples]),
        "serving_default": tf.function(let_go, [tf.TensorSpec([None], tf.float32, "x")]),
    }
    tf.saved_model.save(module, str(directory), signatures)
    return let_settle(directory)


def values(result: Any) -> list[float]:
    return [entry.value for entry in result.regressions]


def test_signatures_have_placeholders_of_their_own(channel: grpc.Channel):
    from serving.base.protos import get_model_metadata_pb2

    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "m"
    packed = Caller(channel).metadata(request).metadata["signature_def"]
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(signatures)
    names = [
        signatures.signature_def[name].inputs["inputs"].name
        for name in ("classify", "regress", "meet_left", "meet_right")
    ]
    assert len(set(names)) == 4, names


def test_answers_are_those_of_single_requests(stub: PredictionServiceStub):
    single_classes = stub.Classify(classification("classify"), timeout=TIMEOUT_SECONDS).result
    single_values = stub.Regress(regression("regress"), timeout=TIMEOUT_SECONDS).result
    for tasks in (
        [("classify", CLASSIFY), ("regress", REGRESS)],
        [("regress", REGRESS), ("classify", CLASSIFY)],
    ):
        response = stub.MultiInference(multi_inference(*tasks), timeout=TIMEOUT_SECONDS)
        assert [r.model_spec.signature_name for r in response.results] == [n for n, _ in tasks]
        by_name = {result.model_spec.signature_name: result for result in response.results}
        assert classes(by_name["classify"].classification_result) == classes(single_classes)
        assert values(by_name["regress"].regression_result) == values(single_values)


def test_all_signatures_are_one_run(channel: grpc.Channel, stub: PredictionServiceStub):
    try:
        for _ in range(3):
            response = stub.MultiInference(multi_inference(*MEETING), timeout=TIMEOUT_SECONDS)
            left, right = (values(result.regression_result) for result in response.results)
            assert (
                left
                == right
                == values(stub.Regress(regression_of_x(), timeout=TIMEOUT_SECONDS).result)
            )
    finally:
        # A run that waits for the other signature ends.
        Caller(channel).outputs("m", {"x": np.zeros(1, np.float32)})


def regression_of_x() -> Any:
    """Returns a request whose answers are the feature x of each Example."""
    return regression("strict")


def test_an_error_of_one_signature_is_the_answer(stub: PredictionServiceStub):
    request = multi_inference(("regress", REGRESS), ("strict", REGRESS))
    assert len(stub.MultiInference(request, timeout=TIMEOUT_SECONDS).results) == 2
    del request.input.example_list.examples[0].features.feature["x"]
    code, message = refusal(lambda: stub.MultiInference(request, timeout=TIMEOUT_SECONDS))
    assert code == INVALID, message
    alone = regression("strict")
    alone.input.CopyFrom(request.input)
    assert refusal(lambda: stub.Regress(alone, timeout=TIMEOUT_SECONDS))[0] == code


def test_memory_is_returned_after_joint_runs(
    host: ModelHost, stub: PredictionServiceStub, export: Path
):
    model = host.model(prefix="joint").serve(export, 1)
    tasks = ("classify", CLASSIFY), ("regress", REGRESS)
    request = multi_inference(*tasks, model=model.name)
    before = stub.MultiInference(request, timeout=TIMEOUT_SECONDS)
    model.serve(export, 2)
    assert model.wait_for_log("version_unloaded", version=1)["arena_live_bytes"] == 0
    after = stub.MultiInference(request, timeout=TIMEOUT_SECONDS)
    assert [result.model_spec.version.value for result in before.results] == [1, 1]
    assert [result.model_spec.version.value for result in after.results] == [2, 2]
