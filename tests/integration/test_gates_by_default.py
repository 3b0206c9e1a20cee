"""Gates without any settings: a version that fails its predecessor's requests is not published."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from serving.manager.blocked_version_rows import FILE_NAME, read_blocked_versions
from tests.integration.clients import Caller, array, caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import drop, let_settle
from tests.integration.logs import logged, wait_for_a_poll
from tests.integration.model_host import HostedModel, ModelHost

# The reservoir takes the first request of each power of two of bytes at once, if it is not busy.
SIZES = [2**exponent for exponent in range(5, 17)]


def refusing(mode: str) -> dict[str, Any]:
    """Returns the settings of a model whose refusing gates have this mode."""
    return {"gates": dict.fromkeys(("signature", "self_warm_up", "failed_share"), mode)}


def export(
    path: Path,
    *,
    input_name: str = "x",
    size_min: int = 0,
    wide: bool = False,
    factor: float = 2.0,
) -> Path:
    """Exports `y = factor * x`, which fails for fewer than `size_min` values.

    `wide` accepts any rank and has one more output.
    """
    import tensorflow as tf

    def serving_default(**inputs: Any) -> dict[str, Any]:
        x = inputs[input_name]
        is_large = tf.debugging.Assert(tf.size(x) >= size_min, ["too few values:", tf.size(x)])
        with tf.control_dependencies([is_large]):
            more = {"count": tf.size(x)} if wide else {}
            return {"y": x * tf.constant(factor, tf.float32), **more}

    spec = tf.TensorSpec(None if wide else [None], tf.float32, input_name)
    signature = tf.function(serving_default).get_concrete_function(**{input_name: spec})
    tf.saved_model.save(tf.Module(), str(path), signatures={"serving_default": signature})
    return let_settle(path)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("by-default")
    return {
        "sound": export(directory / "sound"),
        "renamed": export(directory / "renamed", input_name="z"),
        "fails all": export(directory / "all", size_min=SIZES[-1] + 1),
        "fails two sizes": export(directory / "two", size_min=SIZES[2]),
        "fails one size": export(directory / "one", size_min=SIZES[1]),
        "wide": export(directory / "wide", wide=True),
        "nan": export(directory / "nan", factor=float("nan")),
    }


AddModel = Callable[..., HostedModel]


@pytest.fixture
def add(host: ModelHost, exports: dict[str, Path]) -> AddModel:
    """Adds a model of version 1, which is sound, with these settings if any."""

    def add_one(settings: dict[str, Any] | None = None) -> HostedModel:
        return host.model(prefix="gated", settings=settings).serve(exports["sound"])

    return add_one


def ask(caller: Caller, model: HostedModel, size: int, input_name: str = "x") -> int:
    """Returns the version that answers; its answer must be right."""
    x = np.arange(size, dtype=np.float32)
    response = caller.predict(predict_request(model.name, {input_name: x}))
    assert np.array_equal(array(response.outputs["y"]), x * 2)
    version: int = response.model_spec.version.value
    return version


def ask_all_sizes(model: HostedModel) -> None:
    """Returns when the model's reservoir holds a request of each size."""
    with caller_to(model.server.target) as caller:
        for count, size in enumerate(SIZES, start=1):
            ask(caller, model, size)
            model.wait_until_kept(count)


def assert_refused(model: HostedModel, gate: str, *words: str) -> None:
    """Waits until version 2 has ended because of `gate`, and version 1 answers every size."""
    model.wait_for_states({1: AVAILABLE, 2: END})
    with Client(model.server.target) as client:
        (status,) = client.model_status(model.name, 2)
    assert status.error_code == StatusCode.FAILED_PRECONDITION
    for word in (f"gate '{gate}'", *words):
        assert word in status.error_message
    assert model.wait_for_log("gate_not_passed", gate=gate, version=2)["mode"] == "enforce"
    with caller_to(model.server.target) as caller:
        assert {ask(caller, model, size) for size in SIZES} == {1}


def test_version_that_fails_every_live_request_ends(add: AddModel, exports: dict[str, Path]):
    model = add()
    ask_all_sizes(model)
    drop(exports["fails all"], model.base_path, 2)
    assert_refused(model, "self_warm_up", "it fails all 12", "too few values")
    event = model.wait_for_log("self_warmed_up", version=2)
    assert (event["level"], event["run_count"], event["failed_count"]) == ("error", 0, 12)
    drop(exports["sound"], model.base_path, 3)
    model.wait_for_states({3: AVAILABLE})


def test_version_that_fails_too_large_a_share_ends(add: AddModel, exports: dict[str, Path]):
    model = add()
    ask_all_sizes(model)
    drop(exports["fails two sizes"], model.base_path, 2)
    assert_refused(model, "failed_share", "it fails 2 of 12", "at most 0.1")
    assert model.wait_for_log("self_warmed_up", version=2)["level"] == "warning"


def test_version_that_fails_a_small_share_is_published(add: AddModel, exports: dict[str, Path]):
    model = add()
    ask_all_sizes(model)
    drop(exports["fails one size"], model.base_path, 2)
    model.wait_for_states({2: AVAILABLE})
    event = model.wait_for_log("self_warmed_up", version=2)
    assert (event["level"], event["failed_count"]) == ("warning", 1)


def test_version_with_a_renamed_input_ends(add: AddModel, exports: dict[str, Path]):
    model = add()
    drop(exports["renamed"], model.base_path, 2)
    assert_refused(model, "signature", "input 'x' is gone, input 'z' is new")


def test_wider_shapes_and_more_outputs_pass(add: AddModel, exports: dict[str, Path]):
    model = add()
    ask_all_sizes(model)
    drop(exports["wide"], model.base_path, 2)
    model.wait_for_states({2: AVAILABLE})
    assert model.logged("gate_not_passed") == []


@pytest.mark.parametrize("mode", ["warn", "off"])
def test_failing_version_is_published_if_gates_allow(
    add: AddModel, exports: dict[str, Path], mode: str
):
    model = add(refusing(mode))
    ask_all_sizes(model)
    drop(exports["fails all"], model.base_path, 2)
    model.wait_for_states({2: AVAILABLE})
    assert model.wait_for_log("self_warmed_up", version=2)["level"] == "error"
    # Each gate has logged its verdict by then.
    model.wait_for_log("version_available", version=2)
    events = model.logged("gate_not_passed", version=2)
    expected = ["self_warm_up", "failed_share", "drift"] if mode == "warn" else ["drift"]
    assert [event["gate"] for event in events] == expected


def test_refused_version_serves_once_its_gate_warns(add: AddModel, exports: dict[str, Path]):
    model = add()
    ask_all_sizes(model)
    drop(exports["fails two sizes"], model.base_path, 2)
    assert_refused(model, "failed_share")
    model.configure({"gates": {"failed_share_max": 0.5}})
    model.wait_for_states({2: AVAILABLE})
    event = model.only_logged("load_tried_again")
    assert event["reason"] == "the settings of gate 'failed_share' have changed"


def test_requests_predecessor_fails_do_not_count(add: AddModel, exports: dict[str, Path]):
    # Version 2 has other clients than version 1, and the requests of version 1 are still kept.
    model = add(refusing("off"))
    ask_all_sizes(model)
    drop(exports["renamed"], model.base_path, 2)
    model.wait_for_states({2: AVAILABLE})
    model.configure()
    drop(exports["renamed"], model.base_path, 3)
    model.wait_for_states({3: AVAILABLE})
    assert model.wait_for_log("self_warmed_up", version=3)["failed_count"] == len(SIZES)
    assert model.logged("gate_not_passed", version=3, gate="self_warm_up") == []


def test_rollback_passes_over_a_refused_version(add: AddModel, exports: dict[str, Path]):
    model = add()
    drop(exports["renamed"], model.base_path, 2)
    assert_refused(model, "signature")
    drop(exports["wide"], model.base_path, 3)
    model.wait_for_states({1: END, 3: AVAILABLE})
    with caller_to(model.server.target) as caller, Client(model.server.admin_target) as client:
        client.rollback(model.name, is_cold_allowed=True)
        model.wait_for_states({1: AVAILABLE, 3: END})
        assert ask(caller, model, 4) == 1


def test_withdrawal_passes_over_a_refused_version(add: AddModel, exports: dict[str, Path]):
    model = add()
    drop(exports["renamed"], model.base_path, 2)
    assert_refused(model, "signature")
    drop(exports["wide"], model.base_path, 3)
    model.wait_for_states({1: END, 3: AVAILABLE})
    (model.base_path / "3").rename(model.base_path / "withdrawn")
    model.wait_for_states({1: AVAILABLE, 3: END})
    with caller_to(model.server.target) as caller:
        assert ask(caller, model, 4) == 1


@pytest.mark.parametrize("end", [ModelServer.stop, ModelServer.kill])
def test_refused_version_stays_out_after_restart(
    start_server: StartServer,
    exports: dict[str, Path],
    base_path: Path,
    tmp_path: Path,
    end: Callable[[ModelServer], None],
):
    def start() -> ModelServer:
        return start_server(model_base_path=base_path, state_directory=tmp_path / "state")

    drop(exports["sound"], base_path, 1)
    first = start()
    first.wait_until_available("default", 1)
    x = np.arange(8, dtype=np.float32)
    with caller_to(first.target) as caller:
        for size in (1, 2, 4, 8):
            caller.predict(predict_request("default", {"x": x[:size]}))
    drop(exports["nan"], base_path, 2)
    path = tmp_path / "state" / FILE_NAME
    wait_until(lambda: "default" in read_blocked_versions(path), "the block of version 2")
    end(first)
    second = start()
    second.wait_until_available("default", 1)
    wait_for_a_poll(second, base_path, "default")
    with caller_to(second.target) as caller, Client(second.admin_target) as client:
        response = caller.predict(predict_request("default", {"x": x}))
        assert response.model_spec.version.value == 1
        described = client.describe_models()["default"]
    assert (described["default_version"], described["blocked"]) == (1, [2])
    assert [event["version"] for event in logged(second, "load_started")] == [1]


def test_returning_version_passes_with_any_signature(add: AddModel, exports: dict[str, Path]):
    model = add(refusing("off"))
    drop(exports["renamed"], model.base_path, 2)
    model.wait_for_states({1: END, 2: AVAILABLE})
    with caller_to(model.server.target) as caller, Client(model.server.admin_target) as client:
        ask(caller, model, 4, "z")
        assert client.rollback(model.name, is_cold_allowed=True).rolled_back == 2
    model.wait_for_states({1: AVAILABLE})
    assert model.logged("gate_not_passed", version=1) == []


def test_versions_configured_together_may_differ(
    host: ModelHost, exports: dict[str, Path], base_path: Path
):
    for number, name in enumerate(("sound", "renamed", "fails all"), start=1):
        drop(exports[name], base_path, number)
    model = host.model(base_path, prefix="together", config="model_version_policy { all {} }")
    model.wait_for_states({1: AVAILABLE, 2: AVAILABLE, 3: AVAILABLE})
    assert model.logged("gate_not_passed") == []
