"""Gates without any settings: NaN, infinity, a constant and a missing output are not published."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import Caller, array, caller_to, predict_request, wait_until
from tests.integration.exports import drop, let_settle
from tests.integration.model_host import HostedModel, ModelHost
from warmup.prediction_log import WARM_UP_FILE, Log, write_logs

ROWS = 12

Answer = Callable[[Any], Any]


def export(path: Path, *answers: Answer, dtype: str = "float32") -> Path:
    """Exports a model of `x`, float32[?,2], whose outputs `y0`, `y1`, … are the answers in `dtype`."""
    import tensorflow as tf

    # A variable, so that nothing is folded into the graph.
    module = tf.Module()
    module.scale = tf.Variable(2.0)

    def serving_default(x: Any) -> dict[str, Any]:
        computed = [answer(x * module.scale) for answer in answers]
        return {f"y{number}": tf.cast(y, dtype) for number, y in enumerate(computed)}

    spec = tf.TensorSpec([None, 2], tf.float32, "x")
    signature = tf.function(serving_default).get_concrete_function(x=spec)
    tf.saved_model.save(module, str(path), signatures={"serving_default": signature})
    return let_settle(path)


def sound(x: Any) -> Any:
    return x


def nan(x: Any) -> Any:
    return x * float("nan")


def rare_nan(x: Any) -> Any:
    import tensorflow as tf

    return tf.where(x > 20, float("nan"), x)


def infinite(x: Any) -> Any:
    return x / (x - x)


def constant(x: Any) -> Any:
    return x * 0 + 0.25


def inputs(first: int) -> Any:
    return np.arange(first, first + 2 * ROWS, dtype=np.float32).reshape(ROWS, 2) + 1


def ask(caller: Caller, model: HostedModel, first: int = 0) -> Any:
    """Returns the response to ROWS distinct rows."""
    return caller.predict(predict_request(model.name, {"x": inputs(first)}))


def serve(host: ModelHost, first: Path, **gates: str) -> HostedModel:
    """Serves version 1, which has answered a request."""
    model = host.model(prefix="meant", settings={"gates": gates} if gates else None).serve(first)
    with caller_to(model.server.target) as caller:
        ask(caller, model)
    return model


def assert_refused(model: HostedModel, gate: str, words: str) -> None:
    model.wait_for_states({1: AVAILABLE, 2: END})
    with Client(model.server.target) as client:
        (status,) = client.model_status(model.name, 2)
    assert status.error_code == StatusCode.FAILED_PRECONDITION
    assert f"gate '{gate}': " in status.error_message
    assert words in status.error_message
    assert model.wait_for_log("gate_not_passed", gate=gate, version=2)["mode"] == "enforce"
    with caller_to(model.server.target) as caller:
        assert ask(caller, model).model_spec.version.value == 1


@pytest.mark.parametrize(
    "dtype", ["half", "bfloat16", "float32", "float64", "complex64", "complex128"]
)
def test_nan_version_is_refused_by_default(host: ModelHost, tmp_path: Path, dtype: str):
    model = serve(host, export(tmp_path / "sound", sound, dtype=dtype))
    drop(export(tmp_path / "nan", nan, dtype=dtype), model.base_path, 2)
    assert_refused(model, "finite", "output 'y0' is NaN in 24 of 24 values")


@pytest.mark.parametrize(
    ("answer", "gate", "words"),
    [
        (rare_nan, "finite", "output 'y0' is NaN in 14 of 24 values"),
        (infinite, "finite", "output 'y0' is inf in 24 of 24 values"),
        (constant, "constant", "output 'y0' of signature 'serving_default' is the same for 12"),
    ],
)
def test_version_that_is_never_meant_is_refused(
    host: ModelHost, tmp_path: Path, answer: Answer, gate: str, words: str
):
    model = serve(host, export(tmp_path / "sound", sound, sound))
    drop(export(tmp_path / "bad", answer, sound), model.base_path, 2)
    assert_refused(model, gate, words)


def test_version_without_an_output_is_refused(host: ModelHost, tmp_path: Path):
    model = serve(host, export(tmp_path / "sound", sound, sound), signature="warn")
    drop(export(tmp_path / "bad", sound), model.base_path, 2)
    assert_refused(model, "outputs", "output 'y1' is missing")


@pytest.mark.parametrize(("answer", "gate"), [(nan, "finite"), (constant, "constant")])
@pytest.mark.parametrize("mode", ["warn", "off"])
def test_version_is_published_if_its_gate_allows(
    host: ModelHost, tmp_path: Path, answer: Answer, gate: str, mode: str
):
    model = serve(host, export(tmp_path / "sound", sound), **{gate: mode})
    drop(export(tmp_path / "bad", answer), model.base_path, 2)
    model.wait_for_states({2: AVAILABLE})
    # The gate has logged its verdict by then.
    model.wait_for_log("version_available", version=2)
    assert len(model.logged("gate_not_passed", gate=gate)) == (mode == "warn")


def test_equal_requests_prove_no_constant(host: ModelHost, tmp_path: Path):
    model = host.model(prefix="meant").serve(export(tmp_path / "sound", sound))
    with caller_to(model.server.target) as caller:
        for _ in range(2 * ROWS):
            caller.predict(predict_request(model.name, {"x": inputs(0)[:1]}))
    drop(export(tmp_path / "constant", constant), model.base_path, 2)
    model.wait_for_states({2: AVAILABLE})
    assert model.logged("gate_not_passed", gate="constant") == []


def test_first_version_with_nan_serves_with_a_problem(host: ModelHost, tmp_path: Path):
    version = export(tmp_path / "nan", nan)
    record = Log()
    record.predict_log.request.CopyFrom(predict_request("any", {"x": inputs(0)}))
    (version / WARM_UP_FILE).parent.mkdir(exist_ok=True)
    write_logs(version / WARM_UP_FILE, [record])
    model = host.model(prefix="meant").serve(let_settle(version))
    event = model.wait_for_log("gate_not_passed", gate="finite")
    assert (event["level"], event["mode"]) == ("warning", "warn")
    wait_until(
        lambda: "is NaN in 24 of 24 values, and it has no predecessor" in str(model.logged("swap")),
        "the problem of the swap",
    )


def test_answers_of_a_sound_version_are_passed_on(host: ModelHost, tmp_path: Path):
    model = serve(host, export(tmp_path / "sound", sound, constant))
    drop(export(tmp_path / "retrained", lambda x: x * 3, constant), model.base_path, 2)
    model.wait_for_states({2: AVAILABLE})
    assert model.logged("gate_not_passed") == []
    with caller_to(model.server.target) as caller:
        assert np.array_equal(array(ask(caller, model, 5).outputs["y0"]), inputs(5) * 6)
