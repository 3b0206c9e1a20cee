"""A server's life: opening, health, deadlines, cancelled calls, memory, and its end."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving import ModelServer
from serving.base.clock import SystemClock, seconds_since
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LOADING, START, UNLOADING
from tests.integration.clients import (
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    Caller,
    array,
    caller_to,
    health_status,
    predict_request,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel, drop, write_warm_up
from tests.integration.logs import wait_for_log
from tests.integration.processes import anonymous_mib, cpu_seconds, is_alive, mapped_files

# Limit for steps of milliseconds, on a slow machine with busy neighbours.
SOON_SECONDS = 30
# A request of this length is still running when a test that waits "soon" gives up.
LONG_SECONDS = 200

_clock = SystemClock()


@pytest.fixture
def slow_base_path(slow_export: Path, base_path: Path) -> Path:
    drop(slow_export, base_path, 1)
    return base_path


@pytest.fixture
def slow_server(start_server: StartServer, slow_base_path: Path) -> ModelServer:
    server = start_server(model_name="slow", base_path=slow_base_path)
    server.wait_until_available("slow", 1)
    return server


@pytest.fixture
def slow_caller(slow_server: ModelServer) -> Iterator[Caller]:
    with caller_to(slow_server.target) as caller:
        yield caller


def slow_request(seconds: float) -> Any:
    """Keeps a core busy for the given seconds."""
    return predict_request("slow", {"seconds": np.float64(seconds)})


def quick_request() -> Any:
    return predict_request("slow", {"x": np.int32(1)}, signature_name="quick")


def wait_until_busy(server: ModelServer) -> None:
    """Waits until the server has computed for a while since the call."""
    before = cpu_seconds(server.process_id)
    wait_until(lambda: cpu_seconds(server.process_id) > before + 0.2, "the request to run")


def wait_until_idle(server: ModelServer, timeout_seconds: float) -> None:
    """Waits until the server has used almost no processor time for a third of a second."""
    last_seconds, since_ns = cpu_seconds(server.process_id), _clock.now_ns()

    def is_idle() -> bool:
        nonlocal last_seconds, since_ns
        now_seconds = cpu_seconds(server.process_id)
        if now_seconds - last_seconds > 0.05:
            last_seconds, since_ns = now_seconds, _clock.now_ns()
        return seconds_since(_clock, since_ns) > 0.33

    wait_until(is_idle, "the server to stop computing", timeout_seconds)


def ends(server: ModelServer) -> int:
    """Waits for the end of the process and returns its status; its fixture then has nothing to
    stop.
    """
    assert server._process is not None
    status = server._process.wait(SOON_SECONDS)
    server.kill()
    return status


# --- Opening ----------------------------------------------------------------------------------------


def test_server_logs_port_chosen_for_zero(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path)
    listening, ready = wait_for_log(server, "listening"), wait_for_log(server, "ready")
    assert listening["port"] == ready["port"] == server.port > 0
    assert ready["models"] == ["scale"]
    with caller_to(f"127.0.0.1:{listening['port']}") as caller:
        assert caller.outputs("scale", {"x": np.ones(1, np.float32)})["y"].tolist() == [2.0]


def test_server_listens_before_any_model_is_there(start_server: StartServer, base_path: Path):
    server = start_server(model_name="scale", base_path=base_path)
    with caller_to(server.target) as caller:
        assert (caller.health(""), caller.health("scale")) == (NOT_SERVING, NOT_SERVING)
    assert [event["event"] for event in server.events()].count("ready") == 0


# --- Health -----------------------------------------------------------------------------------------


def test_health_follows_each_model_through_its_life(
    start_server: StartServer,
    slow_export: Path,
    scale_model: ScaleModel,
    tmp_path: Path,
    write_config: WriteConfig,
):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    version = shutil.copytree(slow_export, tmp_path / "slow")
    write_warm_up(version, "slow", [{"seconds": np.float64(0.7)}])
    drop(version, good, 1)

    def spoil(directory: Path) -> None:
        write_warm_up(directory, "scale", [{"y": np.zeros(1, np.float32)}])

    scale_model.write(bad, 1, prepare=spoil)
    server = start_server(model_config_file=write_config(tmp_path, {"good": good, "bad": bad}))
    with caller_to(server.target) as caller, Client(server.target) as client:
        wait_for_states(client, "good", {1: LOADING})
        assert caller.health("good") == NOT_SERVING
        wait_for_states(client, "bad", {1: END})
        wait_for_states(client, "good", {1: AVAILABLE})
        wait_until(lambda: caller.health("good") == SERVING, "the good model to be SERVING")
        assert caller.health("bad") == NOT_SERVING
        services = ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService")
        assert {caller.health(service) for service in services} == {NOT_SERVING}
        scale_model.write(bad, 2)
        wait_until(lambda: caller.health("") == SERVING, "the server to be SERVING")
        assert {caller.health(service) for service in (*services, "bad", "good")} == {SERVING}


def test_health_watch_reports_changes_until_stop(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    server = start_server(model_name="scale", base_path=base_path)
    with caller_to(server.target) as caller:
        watches = {service: caller.watch_health(service) for service in ("", "scale", "ekko")}
        first = {service: health_status(next(watch)) for service, watch in watches.items()}
        assert first == {"": NOT_SERVING, "scale": NOT_SERVING, "ekko": SERVICE_UNKNOWN}
        scale_model.write(base_path, 1)
        assert health_status(next(watches["scale"])) == SERVING
        assert health_status(next(watches[""])) == SERVING
        os.kill(server.process_id, signal.SIGTERM)
        assert health_status(next(watches["scale"])) == NOT_SERVING
        assert health_status(next(watches[""])) == NOT_SERVING
        for watch in watches.values():
            with pytest.raises(grpc.RpcError) as ended:
                next(watch)
            assert code_of(ended.value) == grpc.StatusCode.UNAVAILABLE
    assert ends(server) == 0


def code_of(error: Any) -> Any:
    return error.code()


def test_abandoned_health_watch_is_forgotten(slow_server: ModelServer):
    for _ in range(50):
        with caller_to(slow_server.target) as caller:
            watch = caller.watch_health("slow")
            # The model's status may be AVAILABLE a moment before its health is SERVING.
            assert SERVING in map(health_status, watch)
            watch.cancel()
    with caller_to(slow_server.target) as caller:
        assert caller.predict(quick_request()).model_spec.version.value == 1


def test_model_status_during_swap_orders_states(
    slow_server: ModelServer, slow_export: Path, slow_base_path: Path, tmp_path: Path
):
    # The swap is slow at both ends. The new version warms up and is compared with the old one, each
    # by that record, and the old version finishes a request afterwards.
    version = shutil.copytree(slow_export, tmp_path / "second")
    write_warm_up(version, "slow", [{"seconds": np.float64(0.3)}])
    with caller_to(slow_server.target) as caller, Client(slow_server.target) as client:
        running = caller.start_predict(slow_request(4))
        # The old version is UNLOADING until this request ends, however slow the machine is.
        holding = caller.start_predict(slow_request(LONG_SECONDS))
        wait_until_busy(slow_server)
        drop(version, slow_base_path, 2)
        seen: list[dict[int, Any]] = []

        def is_over() -> bool:
            states = {status.version: status.state for status in client.model_status("slow")}
            if not seen or seen[-1] != states:
                seen.append(states)
            if states.get(1) == UNLOADING and running.done():
                holding.cancel()
            return states == {1: END, 2: AVAILABLE}

        wait_until(is_over, "the swap to end")
        assert running.result().model_spec.version.value == 1
    new = [states[2] for states in seen if 2 in states and states[2] != START]
    old = [states[1] for states in seen]
    assert list(dict.fromkeys(new)) == [LOADING, AVAILABLE]
    assert list(dict.fromkeys(old)) == [AVAILABLE, UNLOADING, END]
    # A version answers at every moment.
    assert all(AVAILABLE in states.values() for states in seen)


# --- Deadlines and cancelled calls --------------------------------------------------------------------


def test_expired_request_stops_computing(slow_server: ModelServer, slow_caller: Caller):
    with pytest.raises(grpc.RpcError) as ended:
        slow_caller.predict(slow_request(LONG_SECONDS), timeout=0.5)
    assert code_of(ended.value) == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until_idle(slow_server, SOON_SECONDS)
    assert slow_caller.predict(quick_request()).model_spec.version.value == 1


def test_cancelled_request_stops_and_frees_version(
    slow_server: ModelServer, slow_caller: Caller, slow_export: Path, slow_base_path: Path
):
    running = slow_caller.start_predict(slow_request(LONG_SECONDS), timeout=LONG_SECONDS)
    wait_until_busy(slow_server)
    running.cancel()
    wait_until_idle(slow_server, SOON_SECONDS)
    # The request held version 1, which can only end once the request is released.
    drop(slow_export, slow_base_path, 2)
    with Client(slow_server.target) as client:
        wait_for_states(client, "slow", {1: END, 2: AVAILABLE})


def test_request_whose_client_dies_stops_computing(slow_server: ModelServer):
    with caller_to(slow_server.target) as caller:
        running = caller.start_predict(slow_request(LONG_SECONDS), timeout=LONG_SECONDS)
        wait_until_busy(slow_server)
        assert not running.done()
    wait_until_idle(slow_server, SOON_SECONDS)


def test_request_expired_in_queue_never_runs(start_server: StartServer, slow_base_path: Path):
    # These requests fill every thread, so that the next request waits until its deadline has
    # passed.
    server = start_server(
        model_name="slow", base_path=slow_base_path, grpc_completion_queue_count=1
    )
    server.wait_until_available("slow", 1)
    busy_seconds = 1.5
    thread_count = 4 * (os.cpu_count() or 1)
    with caller_to(server.target) as caller, caller_to(server.target) as other:
        busy = [caller.start_predict(slow_request(busy_seconds)) for _ in range(2 * thread_count)]
        wait_until_busy(server)
        waiting = other.start_predict(slow_request(LONG_SECONDS), timeout=0.3)
        assert waiting.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        for call in busy:
            call.result()
        # If the request had run, a core would be busy for a long time now.
        wait_until_idle(server, SOON_SECONDS)


def test_slow_requests_delay_nothing_else(
    start_server: StartServer,
    slow_base_path: Path,
    scale_model: ScaleModel,
    tmp_path: Path,
    write_config: WriteConfig,
):
    scale_path = tmp_path / "scale"
    scale_path.mkdir()
    scale_model.write(scale_path, 1)
    config = write_config(tmp_path, {"slow": slow_base_path, "scale": scale_path})
    server = start_server(model_config_file=config)
    server.wait_until_available("slow", 1)
    server.wait_until_available("scale", 1)
    # One slow request for each core: all request threads are busy.
    with caller_to(server.target) as caller, Client(server.target) as client:
        running = [
            caller.start_predict(slow_request(LONG_SECONDS), timeout=LONG_SECONDS)
            for _ in range(os.cpu_count() or 1)
        ]
        wait_until_busy(server)
        for _ in range(20):
            x = np.ones(1, np.float32)
            assert caller.outputs("scale", {"x": x})["y"].tolist() == [2.0]
            assert caller.health("scale") == SERVING
        scale_model.write(scale_path, 2)
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
        # All of these calls ended while the slow requests ran.
        assert not any(call.done() for call in running)
        for call in running:
            call.cancel()
        wait_until_idle(server, SOON_SECONDS)


# --- How it ends ------------------------------------------------------------------------------------


def late_code(server: ModelServer) -> Any:
    """Returns the end of a request over a new connection."""
    with caller_to(server.target) as caller:
        return caller.start_predict(quick_request(), timeout=60).code()


def test_sigterm_finishes_request_and_exits_zero(start_server: StartServer, slow_base_path: Path):
    server = start_server(model_name="slow", base_path=slow_base_path, drain_seconds=60)
    server.wait_until_available("slow", 1)
    with caller_to(server.target) as caller:
        watch = caller.watch_health("slow")
        assert health_status(next(watch)) == SERVING
        running = caller.start_predict(slow_request(8))
        wait_until_busy(server)
        os.kill(server.process_id, signal.SIGTERM)
        assert health_status(next(watch)) == NOT_SERVING
        # Health turns first, so that balancers send requests elsewhere; then the port refuses.
        wait_until(lambda: late_code(server) != grpc.StatusCode.OK, "new requests to be refused")
        assert not running.done()
        answer = running.result()
        assert array(answer.outputs["rounds"]) > 0
    assert ends(server) == 0
    assert wait_for_log(server, "stopped")["is_complete"] is True


def test_sigterm_runs_no_late_request_in_vain(slow_server: ModelServer):
    """A late request is answered, or it has not run and may be sent to another server."""
    with caller_to(slow_server.target) as caller:
        running = caller.start_predict(slow_request(1.5), timeout=60)
        wait_until_busy(slow_server)
        os.kill(slow_server.process_id, signal.SIGTERM)
        late = [late_code(slow_server)]
        while not running.done():
            late.append(late_code(slow_server))
        assert running.code() == grpc.StatusCode.OK
    assert ends(slow_server) == 0
    assert set(late) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    ran_count = wait_for_log(slow_server, "version_unloaded")["request_count"]
    assert ran_count == 1 + late.count(grpc.StatusCode.OK)


def test_sigterm_cancels_after_drain_and_exits_zero(
    start_server: StartServer, slow_base_path: Path
):
    server = start_server(model_name="slow", base_path=slow_base_path, drain_seconds=1)
    server.wait_until_available("slow", 1)
    with caller_to(server.target) as caller:
        running = caller.start_predict(slow_request(LONG_SECONDS), timeout=LONG_SECONDS)
        wait_until_busy(server)
        started_ns = _clock.now_ns()
        os.kill(server.process_id, signal.SIGTERM)
        assert running.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert ends(server) == 0
        assert seconds_since(_clock, started_ns) >= 1
    assert wait_for_log(server, "requests_cut_short")["drain_seconds"] == 1


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_exits_at_once(
    start_server: StartServer, slow_base_path: Path, second: signal.Signals
):
    server = start_server(model_name="slow", base_path=slow_base_path, drain_seconds=LONG_SECONDS)
    server.wait_until_available("slow", 1)
    with caller_to(server.target) as caller:
        running = caller.start_predict(slow_request(LONG_SECONDS), timeout=LONG_SECONDS)
        wait_until_busy(server)
        os.kill(server.process_id, signal.SIGTERM)
        wait_for_log(server, "stopping")
        assert is_alive(server.process_id)
        assert not running.done()

        def has_ended() -> bool:
            # The signal is sent repeatedly, as a person does: one that comes at once counts as an
            # echo of the first.
            os.kill(server.process_id, second)
            return not is_alive(server.process_id)

        wait_until(has_ended, f"an end by {second.name}")
        assert ends(server) == 128 + second


def test_sigterm_during_a_load_exits_zero(
    start_server: StartServer, slow_export: Path, base_path: Path, tmp_path: Path
):
    version = shutil.copytree(slow_export, tmp_path / "slow")
    write_warm_up(version, "slow", [{"seconds": np.float64(1)}])
    drop(version, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path)
    with Client(server.target) as client:
        wait_for_states(client, "slow", {1: LOADING})
    os.kill(server.process_id, signal.SIGTERM)
    assert ends(server) == 0


def test_sigint_ends_an_idle_server_soon_with_zero(slow_server: ModelServer):
    os.kill(slow_server.process_id, signal.SIGINT)
    assert ends(slow_server) == 0
    assert wait_for_log(slow_server, "stopping")["reason"] == "SIGINT"


# --- The process ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocator", "arena"), [("jemalloc", True), ("jemalloc", False), ("glibc", False)]
)
def test_memory_of_an_unloaded_version_is_given_back(
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    allocator: str,
    arena: bool,
):
    """TensorFlow's own pool (`mklcpu`) would keep all of it for ever."""
    version_mib = 160
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path, allocator=allocator, arena=arena)
    server.wait_until_available("scale", 1)
    assert ("libjemalloc.so.2" in mapped_files(server.process_id)) == (allocator == "jemalloc")
    before_mib = anonymous_mib(server.process_id)
    with Client(server.target) as client:
        scale_model.write(base_path, 2, offset_count=version_mib * 2**20 // 4)
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
        assert client.predict("scale", {"x": np.ones(1, np.float32)}).version == 2
        assert anonymous_mib(server.process_id) > before_mib + 0.9 * version_mib
        scale_model.write(base_path, 3)
        wait_for_states(client, "scale", {2: END, 3: AVAILABLE})
        # jemalloc waits 10 s before it returns pages, in case they are needed again.
        wait_until(
            lambda: anonymous_mib(server.process_id) < before_mib + 0.25 * version_mib,
            f"{version_mib} MiB to be given back; before: {before_mib:.0f} MiB",
        )


def test_server_has_no_python_tensorflow_or_grpcio(slow_server: ModelServer):
    files = mapped_files(slow_server.process_id)
    assert any(name.startswith("libtensorflow_cc") for name in files)
    assert not any(name.startswith(("_pywrap_tensorflow", "cygrpc")) for name in files)
