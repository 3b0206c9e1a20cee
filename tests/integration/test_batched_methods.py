"""Batches of each method over the wire: requests share runs, and each client gets its own rows."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving.client import Client
from serving.client.stubs import PredictionServiceStub
from tests.integration.batches import CLIENT_COUNT, FLAGS, take_run_seconds
from tests.integration.clients import TIMEOUT_SECONDS, channel_to, wait_until
from tests.integration.example_exports import CLASSIFY, REGRESS, example
from tests.integration.example_requests import (
    classes,
    classification,
    multi_inference,
    regression,
    values,
)
from tests.integration.exports import let_settle
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.steady_clients import SteadyThreads

Ask = Callable[[grpc.Channel], Any]
"""Sends a request and returns what its answer has."""

# The first batches after a load are checked against single runs. This number of answers ends that.
ANSWER_COUNT = 400


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports signatures whose runs last: `classify` has the scores x and y of "low" and "high",
    `regress` is x * 2 + y, and the default one is the sum of each row of `x`.
    """
    import tensorflow as tf

    def features(examples: Any) -> tuple[Any, Any]:
        feature = tf.io.FixedLenFeature([], tf.float32, default_value=0.0)
        parsed = tf.io.parse_example(examples, {"x": feature, "y": feature})
        return parsed["x"], parsed["y"]

    def classify(inputs: Any) -> dict[str, Any]:
        x, y = features(inputs)
        labels = tf.tile(tf.constant([["low", "high"]]), [tf.shape(x)[0], 1])
        with tf.control_dependencies(take_run_seconds()):
            return {"classes": labels, "scores": tf.stack([x, y], axis=1)}

    def regress(inputs: Any) -> dict[str, Any]:
        x, y = features(inputs)
        with tf.control_dependencies(take_run_seconds()):
            return {"outputs": x * 2 + y}

    def serving_default(x: Any) -> dict[str, Any]:
        with tf.control_dependencies(take_run_seconds()):
            return {"y": tf.reduce_sum(x, axis=1)}

    examples = tf.TensorSpec([None], tf.string, "inputs")
    signatures = {
        "classify": tf.function(classify, [examples]),
        "regress": tf.function(regress, [examples]),
        "serving_default": tf.function(
            serving_default, [tf.TensorSpec([None, None], tf.float32, "x")]
        ),
    }
    path = tmp_path_factory.mktemp("methods") / "export"
    tf.saved_model.save(tf.Module(), str(path), signatures)
    return let_settle(path)


@pytest.fixture(scope="module")
def host_flags() -> Mapping[str, object]:
    return {**FLAGS, "enable_batching": True}


@pytest.fixture(scope="module")
def model(module_host: ModelHost, export: Path) -> HostedModel:
    """The model `m`, to which all requests here go."""
    return module_host.model(name="m").serve(export)


# Each client has a request of 1 or 2 rows with its number, so that no two answers are alike.


def rows_of(number: int) -> list[tuple[float, float]]:
    """Returns x and y of each row of a client's request."""
    return [(float(number), 0.25)] if number % 2 else [(float(number), 0.5), (number + 100.0, 1.0)]


def examples_of(number: int) -> list[Any]:
    return [example(x=x, y=y) for x, y in rows_of(number)]


def classes_of(number: int) -> Any:
    return [[("low", x), ("high", y)] for x, y in rows_of(number)]


def values_of(number: int) -> list[float]:
    return [2 * x + y for x, y in rows_of(number)]


def classify(number: int) -> tuple[Ask, Any]:
    request = classification("classify", examples=examples_of(number))

    def ask(channel: grpc.Channel) -> Any:
        return classes(
            PredictionServiceStub(channel).Classify(request, timeout=TIMEOUT_SECONDS).result
        )

    return ask, classes_of(number)


def regress(number: int) -> tuple[Ask, Any]:
    request = regression("regress", examples=examples_of(number))

    def ask(channel: grpc.Channel) -> Any:
        return values(PredictionServiceStub(channel).Regress(request, timeout=TIMEOUT_SECONDS))

    return ask, values_of(number)


def multi(number: int, model: str = "m") -> tuple[Ask, Any]:
    request = multi_inference(("classify", CLASSIFY), ("regress", REGRESS), model=model)
    request.input.CopyFrom(regression(examples=examples_of(number)).input)

    def ask(channel: grpc.Channel) -> Any:
        both = (
            PredictionServiceStub(channel).MultiInference(request, timeout=TIMEOUT_SECONDS).results
        )
        regressions = both[1].regression_result.regressions
        return classes(both[0].classification_result), [entry.value for entry in regressions]

    return ask, (classes_of(number), values_of(number))


def infer(number: int) -> tuple[Ask, Any]:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    x = np.array(rows_of(number), np.float32)
    request = service_pb2.ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(x.tobytes())

    def ask(channel: grpc.Channel) -> Any:
        response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
            request, timeout=TIMEOUT_SECONDS
        )
        return np.frombuffer(response.raw_output_contents[0], np.float32).tolist()

    return ask, [x + y for x, y in rows_of(number)]


class Askers(SteadyThreads):
    """Threads that send over one connection, so that a server reads several requests at once."""

    def __init__(self, channel: grpc.Channel, make: Callable[[int], tuple[Ask, Any]]) -> None:
        super().__init__(CLIENT_COUNT)
        self._channel = channel
        self._make = make

    def run(self, number: int) -> None:
        ask, expected = self._make(number)
        while not self.is_stopping:
            try:
                answer = ask(self._channel)
            except grpc.RpcError as error:
                self.failures.append(str(error))
                continue
            if answer == expected:
                self.answer_counts[0] += 1
            else:
                self.failures.append(f"client {number}: {answer} and not {expected}")


def joined_count(admin: Client, signature: str) -> int:
    """Returns the requests of version 1 that were answered by the runs of others."""
    versions = admin.describe_models()["m"]["versions"]
    (version,) = [version for version in versions if version["version"] == 1]
    return sum(
        state["request_count"] - state["run_count"]
        for state in version["batching"]
        if state["signature"] == signature
    )


@pytest.mark.parametrize(
    ("make", "signature"),
    [(classify, "classify"), (regress, "regress"), (multi, ""), (infer, "serving_default")],
    ids=["classify", "regress", "multi_inference", "model_infer"],
)
def test_method_shares_runs(
    model: HostedModel, make: Callable[[int], tuple[Ask, Any]], signature: str
):
    with channel_to(model.server.target) as channel, Client(model.server.admin_target) as admin:
        before = joined_count(admin, signature)
        askers = Askers(channel, make)
        with askers.running():
            askers.wait_for_answers_of(0, ANSWER_COUNT)
            joined = before + ANSWER_COUNT / 2
            wait_until(lambda: joined_count(admin, signature) > joined, "requests in shared runs")
        assert askers.failures == []


def test_joint_batches_are_run_on_the_next_version(host: ModelHost, export: Path):
    model = host.model(prefix="joint").serve(export)
    with channel_to(model.server.target) as channel:
        askers = Askers(channel, partial(multi, model=model.name))
        with askers.running():
            askers.wait_for_answers_of(0, ANSWER_COUNT)
        assert askers.failures == []
    model.serve(export, 2)
    warmed = model.only_logged("batches_warmed_up")
    assert (warmed["version"], warmed["count"] > 0) == (2, True)
