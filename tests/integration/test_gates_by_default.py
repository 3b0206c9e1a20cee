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
from tests.integration.clients import Caller, array, caller_to, predict_request, wait_for_states
from tests.integration.conftest import StartServer
from tests.integration.exports import drop, let_settle
from tests.integration.logs import logged, wait_for_log

# The reservoir takes the first request of each power of two of bytes at once.
SIZES = [2**exponent for exponent in range(5, 17)]

MODE_OFF = '[default.gates]\nsignature = "off"\nself_warm_up = "off"\nfailed_share = "off"\n'


def export(path: Path, *, input_name: str = "x", size_min: int = 0, wide: bool = False) -> Path:
    """Exports `y = 2 * x`, which fails for fewer than `size_min` values.

    `wide` accepts any rank and has one more output.
    """
    import tensorflow as tf

    def serving_default(**inputs: Any) -> dict[str, Any]:
        x = inputs[input_name]
        is_large = tf.debugging.Assert(tf.size(x) >= size_min, ["too few values:", tf.size(x)])
        with tf.control_dependencies([is_large]):
            more = {"count": tf.size(x)} if wide else {}
            return {"y": x * tf.constant(2, tf.float32), **more}

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
    }


Start = Callable[..., ModelServer]


@pytest.fixture
def start(
    start_server: StartServer, exports: dict[str, Path], base_path: Path, tmp_path: Path
) -> Start:
    """Starts a server of version 1, which is sound, with these model settings if any."""

    def start_one(settings: str = "") -> ModelServer:
        drop(exports["sound"], base_path, 1)
        path = tmp_path / "settings.toml"
        path.write_text(settings)
        server = start_server(
            model_name="m",
            base_path=base_path,
            model_settings_file=str(path),
            model_config_file_poll_wait_seconds=0.1,
        )
        server.wait_until_available("m", 1)
        return server

    return start_one


def ask(caller: Caller, size: int, input_name: str = "x") -> int:
    """Returns the version that answers; its answer must be right."""
    x = np.arange(size, dtype=np.float32)
    response = caller.predict(predict_request("m", {input_name: x}))
    assert np.array_equal(array(response.outputs["y"]), x * 2)
    version: int = response.model_spec.version.value
    return version


def ask_all_sizes(server: ModelServer) -> None:
    with caller_to(server.target) as caller:
        for size in SIZES:
            ask(caller, size)


def assert_refused(server: ModelServer, gate: str, *words: str) -> None:
    """Waits until version 2 has ended because of `gate`, and version 1 answers every size."""
    with Client(server.admin_target) as client:
        wait_for_states(client, "m", {1: AVAILABLE, 2: END})
        (status,) = client.model_status("m", 2)
    assert status.error_code == StatusCode.FAILED_PRECONDITION
    for word in (f"gate '{gate}'", *words):
        assert word in status.error_message
    assert wait_for_log(server, "gate_not_passed", gate=gate, version=2)["mode"] == "enforce"
    with caller_to(server.target) as caller:
        assert {ask(caller, size) for size in SIZES} == {1}


def assert_published(server: ModelServer, version: int) -> None:
    with Client(server.admin_target) as client:
        wait_for_states(client, "m", {version: AVAILABLE})


def test_version_that_fails_every_live_request_ends(
    start: Start, exports: dict[str, Path], base_path: Path
):
    server = start()
    ask_all_sizes(server)
    drop(exports["fails all"], base_path, 2)
    assert_refused(server, "self_warm_up", "it fails all 12", "too few values")
    event = wait_for_log(server, "self_warmed_up", version=2)
    assert (event["level"], event["run_count"], event["failed_count"]) == ("error", 0, 12)
    drop(exports["sound"], base_path, 3)
    assert_published(server, 3)


def test_version_that_fails_too_large_a_share_ends(
    start: Start, exports: dict[str, Path], base_path: Path
):
    server = start()
    ask_all_sizes(server)
    drop(exports["fails two sizes"], base_path, 2)
    assert_refused(server, "failed_share", "it fails 2 of 12", "at most 0.1")
    assert wait_for_log(server, "self_warmed_up", version=2)["level"] == "warning"


def test_version_that_fails_a_small_share_is_published(
    start: Start, exports: dict[str, Path], base_path: Path
):
    server = start()
    ask_all_sizes(server)
    drop(exports["fails one size"], base_path, 2)
    assert_published(server, 2)
    event = wait_for_log(server, "self_warmed_up", version=2)
    assert (event["level"], event["failed_count"]) == ("warning", 1)


def test_version_with_a_renamed_input_ends(start: Start, exports: dict[str, Path], base_path: Path):
    server = start()
    drop(exports["renamed"], base_path, 2)
    assert_refused(server, "signature", "input 'x' is gone, input 'z' is new")


def test_wider_shapes_and_more_outputs_pass(
    start: Start, exports: dict[str, Path], base_path: Path
):
    server = start()
    ask_all_sizes(server)
    drop(exports["wide"], base_path, 2)
    assert_published(server, 2)
    assert logged(server, "gate_not_passed") == []


@pytest.mark.parametrize("mode", ["warn", "off"])
def test_failing_version_is_published_if_gates_allow(
    start: Start, exports: dict[str, Path], base_path: Path, mode: str
):
    server = start(MODE_OFF.replace("off", mode))
    ask_all_sizes(server)
    drop(exports["fails all"], base_path, 2)
    assert_published(server, 2)
    events = logged(server, "gate_not_passed", version=2)
    expected = ["self_warm_up", "failed_share", "drift"] if mode == "warn" else ["drift"]
    assert [event["gate"] for event in events] == expected
    assert wait_for_log(server, "self_warmed_up", version=2)["level"] == "error"


def test_refused_version_serves_once_its_gate_warns(
    start: Start, exports: dict[str, Path], base_path: Path, tmp_path: Path
):
    server = start()
    ask_all_sizes(server)
    drop(exports["fails two sizes"], base_path, 2)
    assert_refused(server, "failed_share")
    (tmp_path / "settings.toml").write_text("[default.gates]\nfailed_share_max = 0.5\n")
    assert_published(server, 2)
    (event,) = logged(server, "load_tried_again")
    assert event["reason"] == "the settings of gate 'failed_share' have changed"


def test_requests_predecessor_fails_do_not_count(
    start: Start, exports: dict[str, Path], base_path: Path, tmp_path: Path
):
    # Version 2 has other clients than version 1, and the requests of version 1 are still kept.
    server = start(MODE_OFF)
    ask_all_sizes(server)
    drop(exports["renamed"], base_path, 2)
    assert_published(server, 2)
    (tmp_path / "settings.toml").write_text("")
    wait_for_log(server, "config_changed")
    drop(exports["renamed"], base_path, 3)
    assert_published(server, 3)
    assert wait_for_log(server, "self_warmed_up", version=3)["failed_count"] == len(SIZES)
    assert logged(server, "gate_not_passed", version=3, gate="self_warm_up") == []


def test_returning_version_passes_with_any_signature(
    start: Start, exports: dict[str, Path], base_path: Path
):
    server = start(MODE_OFF)
    drop(exports["renamed"], base_path, 2)
    assert_published(server, 2)
    with caller_to(server.target) as caller, Client(server.admin_target) as client:
        wait_for_states(client, "m", {1: END, 2: AVAILABLE})
        ask(caller, 4, "z")
    with Client(server.admin_target) as client:
        assert client.rollback("m", is_cold_allowed=True).rolled_back == 2
        wait_for_states(client, "m", {1: AVAILABLE})
    assert logged(server, "gate_not_passed", version=1) == []


def test_versions_configured_together_may_differ(
    start_server: StartServer, exports: dict[str, Path], base_path: Path, tmp_path: Path
):
    for number, name in enumerate(("sound", "renamed", "fails all"), start=1):
        drop(exports[name], base_path, number)
    config = tmp_path / "models.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{base_path}" '
        "model_version_policy { all {} } } }"
    )
    server = start_server(model_config_file=str(config))
    with Client(server.admin_target) as client:
        wait_for_states(client, "m", {1: AVAILABLE, 2: AVAILABLE, 3: AVAILABLE})
    assert logged(server, "gate_not_passed") == []
