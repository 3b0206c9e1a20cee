"""A server's life: opening, health, deadlines, cancelled calls, memory, and its end."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
    TIMEOUT_SECONDS,
    Caller,
    array,
    caller_to,
    health_status,
    predict_request,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel, drop, let_settle, write_warm_up
from tests.integration.held import LONG_SECONDS, Held
from tests.integration.logs import catch_up, wait_for_log
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import CORES, anonymous_mib, cpu_seconds, is_alive, mapped_files

SERVICES = (
    "",
    "ModelService",
    "PredictionService",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
)

_clock = SystemClock()


@pytest.fixture(scope="module")
def starts_warm() -> bool:
    """The start belongs to a life: these servers begin with the command line."""
    return False


@pytest.fixture(scope="module")
def shared_slow(module_host: ModelHost, slow_export: Path) -> HostedModel:
    """`slow` with version 1, for tests that swap nothing."""
    model = module_host.model(prefix="slow")
    drop(slow_export, model.base_path, 1)
    model.wait_until_available(1)
    return model


@pytest.fixture
def caller(module_host: ModelHost) -> Iterator[Caller]:
    with caller_to(module_host.server.target) as caller:
        yield caller


@pytest.fixture(scope="module")
def start_slow(
    start_module_server: StartServer, slow_export: Path, tmp_path_factory: pytest.TempPathFactory
) -> StartServer:
    """Starts a server of `slow` version 1 that a test ends."""

    def start(**flags: object) -> ModelServer:
        base_path = tmp_path_factory.mktemp("slow")
        drop(slow_export, base_path, 1)
        server = start_module_server(model_name="slow", base_path=base_path, **flags)
        server.wait_until_available("slow", 1)
        return server

    return start


def slow_request(name: str = "slow", seconds: float = LONG_SECONDS) -> Any:
    """Keeps a core busy for the given seconds."""
    return predict_request(name, {"seconds": np.float64(seconds)})


def quick_request(name: str = "slow") -> Any:
    return predict_request(name, {"x": np.int32(1)}, signature_name="quick")


def wait_until_busy(server: ModelServer) -> None:
    """Waits until the server has computed for a while since the call."""
    before = cpu_seconds(server.process_id)
    wait_until(lambda: cpu_seconds(server.process_id) > before + 0.2, "the request to run")


def wait_until_idle(server: ModelServer) -> None:
    """Waits until the server has used little processor time for a third of a second: a request keeps a
    core busy, and polls take a few percent of it.
    """
    last_seconds, since_ns = cpu_seconds(server.process_id), _clock.now_ns()

    def is_idle() -> bool:
        nonlocal last_seconds, since_ns
        now_seconds = cpu_seconds(server.process_id)
        if now_seconds - last_seconds > 0.1:
            last_seconds, since_ns = now_seconds, _clock.now_ns()
        return seconds_since(_clock, since_ns) > 0.33

    wait_until(is_idle, "the server to stop computing")


def ends(server: ModelServer) -> int:
    """Waits for the end of the process and returns its status; its fixture then has nothing to
    stop.
    """
    assert server._process is not None
    status = server._process.wait(TIMEOUT_SECONDS)
    server.kill()
    return status


def code_of(error: Any) -> Any:
    return error.code()


# --- A life -----------------------------------------------------------------------------------------


@dataclass
class Life:
    """Everything that a server of `scale` told from its start without a version to its end by SIGINT."""

    server: ModelServer
    first: Sequence[int]
    """The first status of the watches of the server, of `scale` and of an unknown model."""
    asked: Sequence[int]
    """The health of the server and of `scale`, to one call each."""
    events_without_version: Sequence[str]
    with_version: Sequence[int]
    """The next status of the watches of the server and of `scale`, when version 1 is there."""
    answer: Sequence[float]
    at_stop: Sequence[int]
    """Their status at the stop."""
    codes: Sequence[grpc.StatusCode]
    """The end of each watch."""
    status: int


@pytest.fixture(scope="module")
def life(
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Life:
    base_path = tmp_path_factory.mktemp("life")
    server = start_module_server(model_name="scale", base_path=base_path)
    with caller_to(server.target) as caller:
        asked = [caller.health(""), caller.health("scale")]
        watches = [caller.watch_health(service) for service in ("", "scale", "ekko")]
        first = [health_status(next(watch)) for watch in watches]
        catch_up(server)
        events = [event["event"] for event in server.events()]
        scale_model.write(base_path, 1)
        with_version = [health_status(next(watch)) for watch in watches[:2]]
        answer = caller.outputs("scale", {"x": np.ones(1, np.float32)})["y"].tolist()
        os.kill(server.process_id, signal.SIGINT)
        at_stop = [health_status(next(watch)) for watch in watches[:2]]
        codes = [end_of(watch) for watch in watches]
    status = ends(server)
    return Life(server, first, asked, events, with_version, answer, at_stop, codes, status)


def end_of(watch: Any) -> Any:
    """Returns the code with which a watch ends that has nothing more to tell."""
    with pytest.raises(grpc.RpcError) as ended:
        next(watch)
    return code_of(ended.value)


def test_server_listens_before_any_model_is_there(life: Life):
    assert life.asked == [NOT_SERVING, NOT_SERVING]
    assert "ready" not in life.events_without_version


def test_server_logs_port_chosen_for_zero(life: Life):
    listening, ready = (wait_for_log(life.server, event) for event in ("listening", "ready"))
    assert listening["port"] == ready["port"] == life.server.port > 0
    assert ready["models"] == ["scale"]
    assert life.answer == [2.0]


def test_health_watch_reports_changes_until_stop(life: Life):
    assert life.first == [NOT_SERVING, NOT_SERVING, SERVICE_UNKNOWN]
    assert life.with_version == [SERVING, SERVING]
    assert life.at_stop == [NOT_SERVING, NOT_SERVING]
    assert life.codes == [grpc.StatusCode.UNAVAILABLE] * 3


def test_sigint_ends_an_idle_server_with_zero(life: Life):
    assert life.status == 0
    assert wait_for_log(life.server, "stopping")["reason"] == "SIGINT"


def test_server_serves_without_standard_streams(
    base_path: Path, scale_model: ScaleModel, tmp_path: Path
):
    scale_model.write(base_path, 1)
    socket_path = tmp_path / "grpc.sock"
    closing = ("bash", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "bash", sys.executable, "-m", "serving")
    flags = ("--port=0", "--rest_api_port=0", "--admin_address=off", "--model_name=scale")
    paths = (f"--model_base_path={base_path}", f"--grpc_socket_path={socket_path}")
    server = subprocess.Popen((*closing, "serve", *flags, *paths))
    try:
        with Client(f"unix:{socket_path}") as client:
            client.wait_until_ready("scale", TIMEOUT_SECONDS)
        server.terminate()
        assert server.wait(TIMEOUT_SECONDS) == 0
    finally:
        server.kill()
        server.wait()


# --- Health -----------------------------------------------------------------------------------------


def export_held_by(held: Held, slow_export: Path, directory: Path) -> Path:
    """Returns a version of `slow` whose warm-up lasts until the release."""
    version = shutil.copytree(slow_export, directory)
    write_warm_up(version, "slow", [held.inputs], signature_name="held")
    return let_settle(version)


def test_health_follows_each_model_through_its_life(
    start_server: StartServer,
    slow_export: Path,
    scale_model: ScaleModel,
    held: Held,
    tmp_path: Path,
    write_config: WriteConfig,
):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    drop(export_held_by(held, slow_export, tmp_path / "held"), good, 1)

    def spoil(directory: Path) -> None:
        write_warm_up(directory, "scale", [{"y": np.zeros(1, np.float32)}])

    scale_model.write(bad, 1, prepare=spoil)
    server = start_server(model_config_file=write_config(tmp_path, {"good": good, "bad": bad}))
    with caller_to(server.target) as caller, Client(server.target) as client:
        wait_for_states(client, "good", {1: LOADING})
        assert caller.health("good") == NOT_SERVING
        held.release()
        wait_for_states(client, "bad", {1: END})
        wait_for_states(client, "good", {1: AVAILABLE})
        wait_until(lambda: caller.health("good") == SERVING, "the good model to be SERVING")
        assert caller.health("bad") == NOT_SERVING
        assert {caller.health(service) for service in SERVICES} == {NOT_SERVING}
        scale_model.write(bad, 2)
        wait_until(lambda: caller.health("") == SERVING, "the server to be SERVING")
        assert {caller.health(service) for service in (*SERVICES, "bad", "good")} == {SERVING}


def test_abandoned_health_watch_is_forgotten(shared_slow: HostedModel):
    for _ in range(50):
        with caller_to(shared_slow.server.target) as caller:
            watch = caller.watch_health(shared_slow.name)
            # The model's status may be AVAILABLE a moment before its health is SERVING.
            assert SERVING in map(health_status, watch)
            watch.cancel()
    with caller_to(shared_slow.server.target) as caller:
        assert caller.predict(quick_request(shared_slow.name)).model_spec.version.value == 1


def test_model_status_during_swap_orders_states(
    slow: HostedModel, slow_export: Path, caller: Caller, tmp_path: Path
):
    # The swap is held at both ends: the new version warms up until it is released, and the old one
    # is UNLOADING until its request is.
    (tmp_path / "new").mkdir()
    new, old = Held(tmp_path / "new"), Held(tmp_path)
    running = old.start(caller, slow.name)
    wait_until_busy(slow.server)
    drop(export_held_by(new, slow_export, tmp_path / "version"), slow.base_path, 2)
    seen: list[dict[int, Any]] = []
    is_held_while_unloading: list[bool] = []
    with Client(slow.server.target) as client:

        def is_over() -> bool:
            states = {status.version: status.state for status in client.model_status(slow.name)}
            if not seen or seen[-1] != states:
                seen.append(states)
            if states.get(2) == LOADING:
                new.release()
            if states.get(1) == UNLOADING and not is_held_while_unloading:
                is_held_while_unloading.append(not running.done())
                old.release()
            return states == {1: END, 2: AVAILABLE}

        wait_until(is_over, "the swap to end")
    assert is_held_while_unloading == [True]
    assert running.result().model_spec.version.value == 1
    states_of = {
        number: [states[number] for states in seen if number in states] for number in (1, 2)
    }
    assert [state for state, _ in itertools.groupby(states_of[1])] == [AVAILABLE, UNLOADING, END]
    # The version is in START for a moment, or not seen in it.
    (loading, available) = (state for state, _ in itertools.groupby(states_of[2]) if state != START)
    assert (loading, available) == (LOADING, AVAILABLE)
    # A version answers at every moment.
    assert all(AVAILABLE in states.values() for states in seen)


# --- Deadlines and cancelled calls --------------------------------------------------------------------


def test_expired_request_stops_computing(shared_slow: HostedModel, caller: Caller):
    with pytest.raises(grpc.RpcError) as ended:
        caller.predict(slow_request(shared_slow.name), timeout=0.5)
    assert code_of(ended.value) == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until_idle(shared_slow.server)
    assert caller.predict(quick_request(shared_slow.name)).model_spec.version.value == 1


def test_cancelled_request_stops_and_frees_version(
    slow: HostedModel, caller: Caller, slow_export: Path
):
    running = caller.start_predict(slow_request(slow.name), timeout=LONG_SECONDS)
    wait_until_busy(slow.server)
    running.cancel()
    wait_until_idle(slow.server)
    # The request held version 1, which can only end once the request is released.
    drop(slow_export, slow.base_path, 2)
    with Client(slow.server.target) as client:
        wait_for_states(client, slow.name, {1: END, 2: AVAILABLE})


def test_request_whose_client_dies_stops_computing(shared_slow: HostedModel):
    with caller_to(shared_slow.server.target) as caller:
        running = caller.start_predict(slow_request(shared_slow.name), timeout=LONG_SECONDS)
        wait_until_busy(shared_slow.server)
        assert not running.done()
    wait_until_idle(shared_slow.server)


def test_request_expired_in_queue_never_runs(shared_slow: HostedModel, held: Held, caller: Caller):
    # These requests fill every thread, so that the next request waits until its deadline has
    # passed.
    server = shared_slow.server
    thread_count = 4 * len(CORES)
    busy = [held.start(caller, shared_slow.name) for _ in range(2 * thread_count)]
    wait_until_busy(server)
    with caller_to(server.target) as other:
        waiting = other.start_predict(slow_request(shared_slow.name), timeout=0.3)
        assert waiting.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    held.release()
    for call in busy:
        call.result()
    # If the request had run, a core would be busy for a long time now.
    wait_until_idle(server)


def test_slow_requests_delay_nothing_else(
    slow: HostedModel, host: ModelHost, scale_model: ScaleModel, caller: Caller
):
    scale = host.model(prefix="scale")
    scale_model.write(scale.base_path, 1)
    scale.wait_until_available(1)
    # One slow request for each core: all request threads are busy.
    running = [caller.start_predict(slow_request(slow.name), timeout=LONG_SECONDS) for _ in CORES]
    wait_until_busy(slow.server)
    for _ in range(20):
        x = np.ones(1, np.float32)
        assert caller.outputs(scale.name, {"x": x})["y"].tolist() == [2.0]
        assert caller.health(scale.name) == SERVING
    scale_model.write(scale.base_path, 2)
    with Client(slow.server.target) as client:
        wait_for_states(client, scale.name, {1: END, 2: AVAILABLE})
    # All of these calls ended while the slow requests ran.
    assert not any(call.done() for call in running)
    for call in running:
        call.cancel()
    wait_until_idle(slow.server)


# --- How it ends ------------------------------------------------------------------------------------


def late_code(server: ModelServer) -> Any:
    """Returns the end of a request over a new connection."""
    with caller_to(server.target) as caller:
        return caller.start_predict(quick_request()).code()


@dataclass
class Drain:
    """A stop by SIGTERM while a request ran."""

    server: ModelServer
    health: Sequence[int]
    """The health of the model before the signal and after it."""
    late: Sequence[grpc.StatusCode]
    """The ends of new requests, up to the first one that is refused, while the first one ran."""
    was_running: bool
    answer: Any
    status: int


@pytest.fixture(scope="module")
def drain(start_slow: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Drain:
    server = start_slow(drain_seconds=LONG_SECONDS)
    held = Held(tmp_path_factory.mktemp("held"))
    with caller_to(server.target) as caller:
        wait_until(lambda: caller.health("slow") == SERVING, "the model's health")
        watch = caller.watch_health("slow")
        health = [health_status(next(watch))]
        running = held.start(caller)
        wait_until_busy(server)
        os.kill(server.process_id, signal.SIGTERM)
        # Health turns first, so that balancers send requests elsewhere; then the port refuses.
        health.append(health_status(next(watch)))
        late: list[grpc.StatusCode] = []

        def is_refused() -> bool:
            late.append(late_code(server))
            return late[-1] != grpc.StatusCode.OK

        wait_until(is_refused, "new requests to be refused")
        was_running = not running.done()
        held.release()
        answer = running.result()
    return Drain(server, health, late, was_running, answer, ends(server))


def test_sigterm_finishes_request_and_exits_zero(drain: Drain):
    assert drain.health == [SERVING, NOT_SERVING]
    assert drain.was_running
    assert array(drain.answer.outputs["rounds"]) > 0
    assert drain.status == 0
    assert wait_for_log(drain.server, "stopped")["is_complete"] is True


def test_sigterm_runs_no_late_request_in_vain(drain: Drain):
    """A late request is answered, or it has not run and may be sent to another server."""
    assert set(drain.late) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    ran_count = wait_for_log(drain.server, "version_unloaded")["request_count"]
    assert ran_count == 1 + drain.late.count(grpc.StatusCode.OK)


def test_sigterm_cancels_after_drain_and_exits_zero(start_slow: StartServer):
    server = start_slow(drain_seconds=1)
    with caller_to(server.target) as caller:
        running = caller.start_predict(slow_request(), timeout=LONG_SECONDS)
        wait_until_busy(server)
        started_ns = _clock.now_ns()
        os.kill(server.process_id, signal.SIGTERM)
        assert running.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert ends(server) == 0
        assert seconds_since(_clock, started_ns) >= 1
    assert wait_for_log(server, "requests_cut_short")["drain_seconds"] == 1


def test_second_signal_exits_at_once(start_slow: StartServer):
    server = start_slow(drain_seconds=LONG_SECONDS)
    with caller_to(server.target) as caller:
        running = caller.start_predict(slow_request(), timeout=LONG_SECONDS)
        wait_until_busy(server)
        os.kill(server.process_id, signal.SIGTERM)
        wait_for_log(server, "stopping")
        assert is_alive(server.process_id)
        assert not running.done()

        def has_ended() -> bool:
            # The signal is sent repeatedly, as a person does: one that comes at once counts as an
            # echo of the first.
            os.kill(server.process_id, signal.SIGINT)
            return not is_alive(server.process_id)

        wait_until(has_ended, "an end by SIGINT")
        assert ends(server) == 128 + signal.SIGINT


def test_sigterm_during_a_load_exits_zero(
    start_server: StartServer, slow_export: Path, held: Held, base_path: Path, tmp_path: Path
):
    drop(export_held_by(held, slow_export, tmp_path / "held"), base_path, 1)
    server = start_server(model_name="slow", base_path=base_path)
    with Client(server.target) as client:
        wait_for_states(client, "slow", {1: LOADING})
    os.kill(server.process_id, signal.SIGTERM)
    wait_for_log(server, "stopping")
    held.release()
    assert ends(server) == 0


# --- The process ------------------------------------------------------------------------------------

LARGE_MIB = 160


@dataclass
class Unloaded:
    """A server that has unloaded a version of `LARGE_MIB`."""

    server: ModelServer
    before_mib: float
    loaded_mib: float


@pytest.fixture(scope="module")
def unloaded(
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, bool], Unloaded]:
    """Servers of all allocators, which wait at the same time until memory is given back."""

    def made(allocator: str, arena: bool) -> Unloaded:
        base_path = tmp_path_factory.mktemp("large")
        scale_model.write(base_path, 1)
        server = start_module_server(
            model_name="scale", base_path=base_path, allocator=allocator, arena=arena
        )
        server.wait_until_available("scale", 1)
        before_mib = anonymous_mib(server.process_id)
        with Client(server.target) as client:
            scale_model.write(base_path, 2, offset_count=LARGE_MIB * 2**20 // 4)
            wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
            assert client.predict("scale", {"x": np.ones(1, np.float32)}).version == 2
            loaded_mib = anonymous_mib(server.process_id)
            scale_model.write(base_path, 3)
            wait_for_states(client, "scale", {2: END, 3: AVAILABLE})
        return Unloaded(server, before_mib, loaded_mib)

    servers = {kind: made(*kind) for kind in ALLOCATORS}
    return lambda *kind: servers[kind]


ALLOCATORS = (("jemalloc", True), ("jemalloc", False), ("glibc", False))


@pytest.mark.parametrize(("allocator", "arena"), ALLOCATORS)
def test_memory_of_an_unloaded_version_is_given_back(
    unloaded: Callable[[str, bool], Unloaded], allocator: str, arena: bool
):
    """TensorFlow's own pool (`mklcpu`) would keep all of it for ever."""
    found = unloaded(allocator, arena)
    process_id, before_mib = found.server.process_id, found.before_mib
    assert ("libjemalloc.so.2" in mapped_files(process_id)) == (allocator == "jemalloc")
    assert found.loaded_mib > before_mib + 0.9 * LARGE_MIB
    # jemalloc waits 10 s before it returns pages, in case they are needed again.
    wait_until(
        lambda: anonymous_mib(process_id) < before_mib + 0.25 * LARGE_MIB,
        f"{LARGE_MIB} MiB to be given back; before: {before_mib:.0f} MiB",
    )


def test_server_has_no_python_tensorflow_or_grpcio(shared_slow: HostedModel):
    files = mapped_files(shared_slow.server.process_id)
    assert any(name.startswith("libtensorflow_cc") for name in files)
    assert not any(name.startswith(("_pywrap_tensorflow", "cygrpc")) for name in files)


# --- Lines of native code -------------------------------------------------------------------------


def test_native_lines_of_a_running_server_are_events(server: ModelServer) -> None:
    """Native code writes to descriptor 2, which is a pipe here as it is there."""
    with Path(f"/proc/{server.process_id}/fd/2").open("w") as stderr:
        stderr.write("W0000 file.cc:1] something is odd\n")
    logged = wait_for_log(server, "native_log", line="W0000 file.cc:1] something is odd")
    assert logged["level"] == "info"
