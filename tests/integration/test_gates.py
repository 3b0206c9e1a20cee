"""Gates: a version that would fail its predecessor's clients ends, and the predecessor serves on."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.base.errors import StatusCode
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import to_tensor_proto
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import (
    Caller,
    array,
    caller_to,
    is_right,
    predict_request,
    wait_for_states,
    wait_until,
)
from tests.integration.exports import drop, let_settle
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.steady_clients import SteadyClients
from warmup.prediction_log import WARM_UP_FILE, Log, write_logs

X = np.array([1.0, 2.5, -3.0], np.float32)

# Far above the time of the predecessor, and above the noise of a machine.
SLOW_SECONDS = 0.1


class GatedModels:
    """Versions of `y = x * factor`, each exported once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def export(self, name: str, *, factor: float, seconds: float = 0) -> Path:
        """Exports the version.

        `seconds` is its least time of computing, whatever the machine's speed.
        """
        import tensorflow as tf

        def serving_default(x: Any) -> dict[str, Any]:
            end = tf.timestamp() + seconds
            turns = tf.while_loop(
                lambda turn: tf.timestamp() < end,
                lambda turn: (turn + 1,),
                (tf.constant(0, tf.int64),),
            )
            with tf.control_dependencies(turns if seconds else []):
                return {"y": x * tf.constant(factor, tf.float32)}

        spec = tf.TensorSpec([None], tf.float32, "x")
        signature = tf.function(serving_default).get_concrete_function(x=spec)
        path = self._directory / name
        tf.saved_model.save(tf.Module(), str(path), signatures={"serving_default": signature})
        return let_settle(path)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    models = GatedModels(tmp_path_factory.mktemp("gated"))
    return {
        "doubles": models.export("doubles", factor=2),
        "triples": models.export("triples", factor=3),
        "nan": models.export("nan", factor=float("nan")),
        "slow": models.export("slow", factor=2, seconds=SLOW_SECONDS),
    }


AddGated = Callable[..., HostedModel]


@pytest.fixture
def add_gated(host: ModelHost) -> AddGated:
    """Adds a model with these gates, such as `drift="enforce"`."""
    return lambda **gates: host.model(prefix="gated", settings={"gates": gates})


@contextmanager
def serving_first(model: HostedModel) -> Iterator[tuple[SteadyClients, Client]]:
    """Runs clients of version 1 until the end of `with`; every answer must be right."""
    model.wait_until_available(1)
    server = model.server
    steady = SteadyClients(server.target, [(predict_request(model.name, {"x": X}), _fault)])
    with steady.running() as clients, Client(server.admin_target) as client:
        clients.wait_for_answers_of(1, 10)
        yield clients, client
    assert clients.failures == []


def _fault(response: Any) -> str:
    """Version 1 doubles its input, like all other versions that pass the gates here."""
    return "" if is_right(array(response.outputs["y"]), X * 2) else f"wrong answer: {response}"


def record(x: Any, golden: Any = None, input_name: str = "x") -> Log:
    log = Log()
    log.predict_log.request.CopyFrom(predict_request("gated", {input_name: x}))
    if golden is not None:
        log.predict_log.response.outputs["y"].CopyFrom(to_tensor_proto(golden))
    return log


def drop_with(export: Path, base_path: Path, version: int, *records: Log) -> None:
    """Drops a version with these records in its warm-up file."""
    beside = drop(export, base_path, f"{version}.prepared")
    path = beside / WARM_UP_FILE
    path.parent.mkdir(exist_ok=True)
    write_logs(path, list(records))
    let_settle(beside).rename(base_path / str(version))


def assert_refused(model: HostedModel, client: Client, gate: str, *words: str) -> None:
    """Waits until version 2 has ended because of `gate`, and version 1 is available."""
    wait_for_states(client, model.name, {1: AVAILABLE, 2: END})
    (status,) = client.model_status(model.name, 2)
    assert status.error_code == StatusCode.FAILED_PRECONDITION
    for word in (f"gate '{gate}'", *words):
        assert word in status.error_message
    event = model.wait_for_log("gate_not_passed", gate=gate, version=2)
    assert (event["level"], event["mode"]) == ("error", "enforce")
    assert model.wait_for_log("load_failed", version=2)["will_retry"] is False


# --- Enforced -------------------------------------------------------------------------------------


def test_nan_answers_to_live_requests_end_version(add_gated: AddGated, exports: dict[str, Path]):
    model = add_gated(drift="enforce")
    drop(exports["doubles"], model.base_path, 1)
    with serving_first(model) as (clients, client):
        drop(exports["nan"], model.base_path, 2)
        assert_refused(model, client, "drift", "output 'y' is NaN in 3 of 3 values")
        clients.wait_for_answers_of(1, 10)


def test_missed_golden_answer_ends_version(add_gated: AddGated, exports: dict[str, Path]):
    model = add_gated(golden="enforce")
    drop(exports["doubles"], model.base_path, 1)
    with serving_first(model) as (clients, client):
        drop_with(exports["triples"], model.base_path, 2, record(X, golden=X * 2), record(X))
        assert_refused(model, client, "golden", "1 of 1 golden answers", "is 3, was 2")
        drop_with(exports["doubles"], model.base_path, 3, record(X, golden=X * 2))
        clients.wait_for_answers_of(3, 10)


def test_version_that_is_slower_than_allowed_ends(add_gated: AddGated, exports: dict[str, Path]):
    model = add_gated(latency="enforce")
    drop(exports["doubles"], model.base_path, 1)
    with serving_first(model) as (clients, client):
        drop_with(exports["slow"], model.base_path, 2, record(X))
        assert_refused(model, client, "latency", "times the predecessor's")
        clients.wait_for_answers_of(1, 10)


def test_shadow_failures_end_version(add_gated: AddGated, exports: dict[str, Path]):
    model = add_gated(
        drift="off", finite="off", shadow="enforce", shadow_request_count=5, shadow_seconds=20
    )
    drop(exports["doubles"], model.base_path, 1)
    model.wait_until_available(1)
    numbers = itertools.count()
    # Steady clients are left out: the reservoir would keep little besides their repeated request.
    server = model.server
    with Client(server.admin_target) as client, caller_to(server.target) as caller:
        drop(exports["nan"], model.base_path, 2)
        wait_until(
            lambda: _ask(caller, model, next(numbers)) and model.logged("load_failed", version=2),
            "version 2 to be refused while clients ask for ever new things",
        )
        assert_refused(model, client, "shadow", "NaN")
        event = model.wait_for_log("gate_not_passed", gate="shadow")
        assert event["answer_count"] == 5


def _ask(caller: Caller, model: HostedModel, number: int) -> bool:
    """Version 1 answers one more request, unlike all before it."""
    x = np.array([number], np.float32)
    response: predict_pb2.PredictResponse = caller.predict(predict_request(model.name, {"x": x}))
    assert response.model_spec.version.value == 1
    return is_right(array(response.outputs["y"]), x * 2)


# --- Convergence ----------------------------------------------------------------------------------


def test_steady_version_repeats_records_until_proven(add_gated: AddGated, exports: dict[str, Path]):
    model = add_gated()
    drop_with(exports["doubles"], model.base_path, 1, record(X), record(X * 2))
    model.wait_until_available(1)
    with Client(model.server.admin_target) as client:
        (version,) = client.describe_models()[model.name]["versions"]
    (verdict,) = [item for item in version["verdicts"] if item["gate"] == "convergence"]
    assert verdict["is_passed"]
    assert verdict["mode"] == "warn"
    assert verdict["figures"]["pass_count"] >= 2


@pytest.mark.parametrize(("mode", "state"), [("off", AVAILABLE), ("enforce", END)])
def test_enforced_warm_up_ends_version_with_bad_record(
    add_gated: AddGated, exports: dict[str, Path], mode: str, state: Any
):
    model = add_gated(warm_up=mode)
    drop_with(exports["doubles"], model.base_path, 1, record(X), record(X, input_name="nonsense"))
    with Client(model.server.admin_target) as client:
        wait_for_states(client, model.name, {1: state})
    model.wait_for_log("version_available" if state is AVAILABLE else "load_failed", version=1)
    assert bool(model.logged("gate_not_passed", gate="warm_up")) == (mode == "enforce")
