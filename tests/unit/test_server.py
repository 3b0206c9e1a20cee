import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tritonclient.grpc import service_pb2

from serving.base.early_stop import STOP_SIGNALS
from serving.base.errors import FailedPrecondition, InvalidConfig, StatusCode, Unavailable
from serving.base.protos import get_model_status_pb2, model_management_pb2
from serving.config.lab_settings import LabSettings
from serving.config.server_config import HttpPort, ServerConfig
from serving.core.config_document import parse_config
from serving.core.model_config import ModelConfig
from serving.core.model_settings import ModelSettings
from serving.core.operator_api import (
    ALLOW,
    CAPTURE_WARM_UP,
    GET_CONFIG,
    LIST_MODELS,
    PROMOTE,
    RELOAD_CONFIG,
    ROLLBACK,
)
from serving.core.servable import AVAILABLE, END, ServableId, ServableState
from serving.data_plane.plane import RuntimeOptions
from serving.data_plane.requests import GrpcServerOptions
from serving.kserve.inference_service import REPOSITORY_MODEL_LOAD
from serving.manager.state_monitor import Statuses
from serving.rpc.model_service import GET_MODEL_STATUS
from serving.rpc.profiler_service import METHODS as PROFILER_METHODS
from serving.server.numa import usable_nodes
from serving.server.server import Server
from serving.server.stop_signals import ECHO_SECONDS, StopSignals
from serving.source.poller_pool import PollerPool
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.servers import FakeGrpcServer, FakeRareCall
from tests.unit.fakes.tracing import FakeExporter, FakeRequestSpan, FakeSpanBuffer, FakeTraceContext
from tests.unit.worlds.whole_server import drop

RARE_METHODS = [
    *(GET_MODEL_STATUS, CAPTURE_WARM_UP, RELOAD_CONFIG, GET_CONFIG),
    *(LIST_MODELS, ROLLBACK, PROMOTE, ALLOW),
    *(
        f"/inference.GRPCInferenceService/{method}"
        for method in (
            *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata"),
            *(
                "ModelConfig",
                "ModelStatistics",
                "RepositoryIndex",
                "RepositoryModelLoad",
                "RepositoryModelUnload",
            ),
        )
    ),
    *PROFILER_METHODS,
]


def config_for(*base_paths: Path, **settings: object) -> ServerConfig:
    models = tuple(ModelConfig(name=path.name, base_path=str(path)) for path in base_paths)
    # Only the tests of ports take ports of the machine.
    settings = {"rest_api_port": HttpPort(None), "port": 0, "listen_before_ready": True, **settings}
    # Operator calls come over the one fake server.
    settings = {"admin_address": "off", "admin_on_data_port": "true", **settings}
    return ServerConfig(models=models, **settings)  # type: ignore[arg-type]


def has_state(model: str, state: ServableState) -> Callable[[Statuses], bool]:
    return lambda statuses: any(status.state is state for status in statuses.get(model, ()))


@pytest.fixture
def plane() -> FakePlane:
    return FakePlane()


# --- Start to stop --------------------------------------------------------------------------------


def test_server_serves_base_path_and_stops(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m", drain_seconds=3.0), native=plane)
    with capture_logs() as logs:
        server.start()
        assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
        assert plane.serving_map.versions("m") == [7]
        assert server.stop()
    assert plane.grpc.log[:3] == ["start", "ask_http_to_go", "shutdown 3"]
    assert plane.serving_map.versions("m") == []
    assert all(servable.is_destroyed for servable in plane.servables)
    events = [log["event"] for log in logs]
    assert events.index("listening") < events.index("version_available") < events.index("stopped")


def test_server_leaves_no_thread_behind(tmp_path: Path, plane: FakePlane) -> None:
    before = set(threading.enumerate())
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m"), native=plane)
    server.start()
    assert server.stop()
    assert set(threading.enumerate()) <= before


def test_server_reports_listening_and_ready(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "a", 1)
    notified: list[str] = []
    ready = threading.Event()

    def on_ready(port: int) -> None:
        notified.append(f"ready {port}")
        ready.set()

    server = Server(
        config_for(tmp_path / "a", tmp_path / "b", file_system_poll_wait_seconds=0.01),
        native=plane,
        on_listening=lambda port: notified.append(f"listening {port}"),
        on_ready=on_ready,
    )
    server.start()
    assert server.monitor.wait_until(has_state("a", AVAILABLE), timeout_seconds=30)
    assert notified == ["listening 12345"]
    drop(tmp_path / "b", 1)
    assert ready.wait(30)
    server.stop()
    assert notified == ["listening 12345", "ready 12345"]


def test_server_imports_all_before_a_port_is_open(
    tmp_path: Path, plane: FakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(tmp_path / "m", 1)
    server = Server(config_for(tmp_path / "m"), native=plane)
    http_ports: list[int | None] = []
    monkeypatch.setattr(
        "serving.server.server.load_deferred_modules",
        lambda: http_ports.append(server.http_port),
    )
    server.start()
    server.stop()
    assert http_ports == [None]


def test_server_health_follows_models_until_drain(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m"), native=plane)
    serving = threading.Event()
    real_set_health = plane.grpc.set_health

    def set_health(service: str, is_serving: bool) -> None:
        real_set_health(service, is_serving)
        if all(plane.grpc.health.values()):
            serving.set()

    plane.grpc.set_health = set_health  # type: ignore[method-assign]
    server.start()
    assert serving.wait(30)
    names = {"PredictionService", "ModelService"}
    long_names = {f"tensorflow.serving.{name}" for name in names}
    assert set(plane.grpc.health) == {"", "m", *names, *long_names}
    server.stop()
    assert not any(plane.grpc.health.values())


def test_server_bad_base_path_spares_other_models(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "good", 1)
    (tmp_path / "bad").write_text("no directory")
    server = Server(config_for(tmp_path / "bad", tmp_path / "good"), native=plane)
    server.start()
    assert server.monitor.wait_until(has_state("good", AVAILABLE), timeout_seconds=30)
    assert server.stop()


def test_server_answers_rare_calls(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m"), native=plane)
    server.start()
    server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "m"
    call = FakeRareCall(GET_MODEL_STATUS, request.SerializeToString())
    plane.grpc.call(call)
    assert call.is_answered.wait(30)
    server.stop()
    assert plane.grpc.options.rare_methods == RARE_METHODS
    (answer,) = call.answers
    assert isinstance(answer, bytes)
    (status,) = get_model_status_pb2.GetModelStatusResponse.FromString(answer).model_version_status
    assert (status.version, status.state) == (7, AVAILABLE)


def test_server_failing_load_is_ready_and_not_serving(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    plane.failures["restore"] = StatusError(15, "bad checksum")
    ready = threading.Event()
    server = Server(config_for(tmp_path / "m"), native=plane, on_ready=lambda port: ready.set())
    with capture_logs() as logs:
        server.start()
        assert ready.wait(30)
        server.stop()
    (line,) = (log for log in logs if log["event"] == "ready")
    assert (line["log_level"], line["unavailable"]) == ("warning", ["m"])
    status = server.monitor.status(ServableId("m", 7))
    assert status is not None
    assert (status.health.code, status.health.message) == (StatusCode.DATA_LOSS, "bad checksum")
    assert plane.grpc.health["m"] is False


def test_server_reloads_version_mended_in_place(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    plane.failures["restore"] = StatusError(15, "bad checksum")
    server = Server(config_for(tmp_path / "m", file_system_poll_wait_seconds=0.01), native=plane)
    server.start()
    assert server.monitor.wait_until(has_state("m", END), timeout_seconds=30)
    del plane.failures["restore"]
    (tmp_path / "m" / "7" / "saved_model.pb").write_bytes(b"mended graph")
    os.utime(tmp_path / "m" / "7" / "saved_model.pb", (0, 0))
    assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
    assert server.stop()


def test_failed_version_makes_its_source_due(
    tmp_path: Path, plane: FakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base path may be at rest, so that no poll would see that its files are mended."""
    drop(tmp_path / "m", 7)
    plane.failures["restore"] = StatusError(15, "bad checksum")
    woken = threading.Event()
    wake = PollerPool.wake

    def note(pollers: PollerPool, key: str, group: str | None = None) -> None:
        if (key, group) == ("m", None):
            woken.set()
        wake(pollers, key, group)

    monkeypatch.setattr(PollerPool, "wake", note)
    server = Server(config_for(tmp_path / "m", file_system_poll_wait_seconds=60), native=plane)
    server.start()
    assert woken.wait(30)
    assert server.stop()


# --- Other configurations -------------------------------------------------------------------------


def reload_request(*base_paths: Path, labels: Mapping[str, int] | None = None) -> bytes:
    request = model_management_pb2.ReloadConfigRequest()
    for path in base_paths:
        model = request.config.model_config_list.config.add(name=path.name, base_path=str(path))
        for label, version in (labels or {}).items():
            model.version_labels[label] = version
    serialized: bytes = request.SerializeToString()
    return serialized


def answer_of(plane: FakePlane, call: FakeRareCall) -> bytes | tuple[int, str]:
    plane.grpc.call(call)
    assert call.is_answered.wait(30)
    return call.answers[0]


def test_server_reload_adds_removes_and_relabels(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "a", 1)
    drop(tmp_path / "b", 7)
    server = Server(config_for(tmp_path / "a"), native=plane)
    server.start()
    assert server.monitor.wait_until(has_state("a", AVAILABLE), timeout_seconds=30)
    request = reload_request(tmp_path / "b", labels={"stable": 7})
    assert isinstance(answer_of(plane, FakeRareCall(RELOAD_CONFIG, request)), bytes)
    assert plane.serving_map.versions("b") == [7]
    assert plane.serving_map.routings["b"].labels == {"stable": 7}
    assert server.monitor.wait_until(has_state("a", END), timeout_seconds=30)
    assert ("a" in plane.grpc.health, plane.grpc.health["b"]) == (False, True)
    assert server.stop()
    assert plane.serving_map.versions("b") == []


def test_server_reload_that_cannot_be_changes_nothing(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "a", 1)
    server = Server(config_for(tmp_path / "a"), native=plane)
    server.start()
    assert server.monitor.wait_until(has_state("a", AVAILABLE), timeout_seconds=30)
    request = reload_request(tmp_path / "b", tmp_path / "b")
    answer = answer_of(plane, FakeRareCall(RELOAD_CONFIG, request))
    assert answer == (
        StatusCode.INVALID_ARGUMENT,
        "request: duplicate model 'b'; give each model its own name",
    )
    assert plane.serving_map.versions("a") == [1]
    config = answer_of(plane, FakeRareCall(GET_CONFIG))
    assert isinstance(config, bytes)
    assert [model.name for model in parse_config(config)[0]] == ["a"]
    assert server.stop()


def test_server_that_stops_does_not_wait_for_a_reload(tmp_path: Path, plane: FakePlane) -> None:
    server = Server(config_for(tmp_path / "a"), native=plane)
    server.start()
    call = FakeRareCall(RELOAD_CONFIG, reload_request(tmp_path / "b"))
    plane.grpc.call(call)
    answer_of(plane, FakeRareCall(LIST_MODELS))
    assert server.stop()
    assert call.is_answered.wait(30)
    ((code, message),) = call.answers
    assert (code, "stopping" in str(message)) == (StatusCode.UNAVAILABLE, True)


def test_server_stop_skips_wait_for_loading_model(tmp_path: Path, plane: FakePlane) -> None:
    config = config_for(tmp_path / "m", allow_repository_control=True)
    server = Server(config, native=plane)
    server.start()
    load = service_pb2.RepositoryModelLoadRequest(model_name="m").SerializeToString()
    call = FakeRareCall("/inference.GRPCInferenceService/RepositoryModelLoad", load)
    plane.grpc.call(call)
    answer_of(plane, FakeRareCall(LIST_MODELS))
    assert server.stop()
    assert call.is_answered.wait(10)
    ((code, _),) = call.answers
    assert code == StatusCode.UNAVAILABLE


@pytest.mark.parametrize("is_member", [True, False])
def test_member_of_a_fleet_reports_its_drain(
    tmp_path: Path, plane: FakePlane, is_member: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port is open until a report has shown the drain. Another server closes it at once."""
    config = config_for(
        tmp_path / "m",
        fleet_member=is_member,
        state_directory=str(tmp_path / "state"),
        drain_seconds=1.0,
    )
    server = Server(config, native=plane)
    waits: list[float] = []
    monkeypatch.setattr(server._status.drain_notice, "wait", waits.append)
    server.start()
    assert server.stop()
    assert waits == ([1.0] if is_member else [])


def test_server_never_reselects_rolled_back_version(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 1)
    drop(tmp_path / "m", 2)
    server = Server(config_for(tmp_path / "m"), native=plane)
    server.start()
    assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
    rollback = FakeRareCall(ROLLBACK, b'{"model": "m", "is_cold_allowed": true}')
    assert isinstance(answer_of(plane, rollback), bytes)
    assert server.monitor.wait_until(
        lambda statuses: [status.state for status in statuses["m"]] == [AVAILABLE, END],
        timeout_seconds=30,
    )
    assert plane.serving_map.versions("m") == [1]
    assert server.stop()


# --- Configuration --------------------------------------------------------------------------------


def test_server_passes_its_settings_to_the_data_plane(tmp_path: Path, plane: FakePlane) -> None:
    config = config_for(
        tmp_path / "m",
        host="::1",
        port=8500,
        grpc_socket_path="/run/millpond.sock",
        grpc_channel_arguments={"grpc.max_concurrent_streams": 5},
        grpc_request_threads=3,
        max_request_bytes=1000,
        grpc_max_threads=7,
        request_thread_groups=2,
        numa="interleave",
        grpc_max_connections_per_address=8,
        max_request_seconds=70.0,
        max_in_flight_requests=5,
        request_memory_bytes=1_000_000,
        run_memory_bytes=300_000,
        max_reply_bytes=200_000,
        tensorflow_intra_op_parallelism=4,
        tensorflow_inter_op_parallelism=5,
        enable_signature_method_name_check=True,
        enable_session_run=True,
        grpc_compression="gzip",
        enable_serialization_as_tensor_content=True,
    )
    Server(config, native=plane)
    assert plane.initialized == RuntimeOptions(
        intra_op_thread_count=4,
        inter_op_thread_count=5,
        checks_method_names=True,
        serves_session_run=True,
    )
    options = plane.grpc.options
    assert options.reflection is not None
    assert b"tensorflow.serving.SessionService" in options.reflection.services
    assert options == GrpcServerOptions(
        addresses=["[::1]:8500", "unix:/run/millpond.sock"],
        thread_count=3,
        max_thread_count=7,
        thread_group_count=2,
        node_cores=[node.cores for node in usable_nodes()],
        binds_threads_to_nodes=True,
        admission=plane.admissions[0],
        first_version_wait_seconds=2.0,
        max_message_bytes=1000,
        reply_bytes_max=200_000,
        budget=plane.budgets[0],
        connections_per_address_max=8,
        channel_arguments={"grpc.max_concurrent_streams": 5},
        request_seconds_max=70.0,
        rare_methods=RARE_METHODS,
        rare_message_bytes_max=dict.fromkeys(
            [
                *(RELOAD_CONFIG, REPOSITORY_MODEL_LOAD, CAPTURE_WARM_UP, GET_CONFIG),
                *(LIST_MODELS, ROLLBACK, PROMOTE, ALLOW),
            ],
            64 * 2**20,
        ),
        request_statistics=plane.request_statistics,
        reply_compression="gzip",
        has_tensor_content=True,
        serves_session_run=True,
        reflection=options.reflection,
        http=options.http,
    )
    assert options.http is not None
    assert (options.http.reply_bytes_max, options.http.body_bytes_max) == (200_000, 1_000)
    assert [admission.total_limit for admission in plane.admissions] == [5]
    assert [budget.limit_bytes for budget in plane.budgets] == [1_000_000]
    assert plane.run_memory_bytes == 300_000


def test_server_limits_the_requests_of_each_model(tmp_path: Path, plane: FakePlane) -> None:
    config = config_for(tmp_path / "m", tmp_path / "n")
    m, n = config.models
    own = replace(m, settings=ModelSettings(max_in_flight_requests=2))
    server = Server(replace(config, models=(own, n)), native=plane)
    server.start()
    assert plane.admissions[0].model_limits == {"m": 2}
    assert server.stop()


def test_server_loads_op_libraries_before_models(tmp_path: Path, plane: FakePlane) -> None:
    Server(config_for(tmp_path / "m", op_libraries=("/b.so", "/a.so")), native=plane)
    assert plane.op_libraries == ["/b.so", "/a.so"]


def test_server_broken_op_library_stops_start(tmp_path: Path, plane: FakePlane) -> None:
    with pytest.raises(FailedPrecondition, match=r"/broken.so cannot be loaded"):
        Server(config_for(tmp_path / "m", op_libraries=("/broken.so",)), native=plane)
    assert plane.pools == []


def test_server_unknown_platform_stops_start(tmp_path: Path, plane: FakePlane) -> None:
    model = ModelConfig(name="m", base_path=str(tmp_path), platform="caffe")
    with pytest.raises(InvalidConfig, match="model 'm': model_platform 'caffe' is unknown"):
        Server(ServerConfig(models=(model,)), native=plane)


def test_server_port_in_use_starts_nothing(tmp_path: Path, plane: FakePlane) -> None:
    plane.grpc = FakeGrpcServer(start_error=StatusError(14, "cannot listen"))
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(config_for(tmp_path / "m", port=port), native=plane)
        before = set(threading.enumerate())
        with pytest.raises(Unavailable, match=f"port {port} is already in use"):
            server.start()
    assert set(threading.enumerate()) <= before


def test_server_unexplained_listen_error_quotes_grpc(tmp_path: Path, plane: FakePlane) -> None:
    plane.grpc = FakeGrpcServer(start_error=StatusError(14, "cannot listen"))
    with pytest.raises(Unavailable, match=r"^cannot listen$"):
        Server(config_for(tmp_path / "m", port=0), native=plane).start()


def test_server_zero_load_threads_means_one(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    with capture_logs() as logs:
        server = Server(config_for(tmp_path / "m", num_load_threads=0), native=plane)
    assert [log["executor"] for log in logs if log["event"] == "thread_count_raised"] == ["loader"]
    server.start()
    assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
    server.stop()


def test_server_without_jemalloc_names_remedy(tmp_path: Path, plane: FakePlane) -> None:
    plane.allocator = "glibc"
    with pytest.raises(InvalidConfig, match=r"jemalloc is not preloaded.*--arena=false"):
        Server(config_for(tmp_path / "m"), native=plane)


@pytest.mark.parametrize("settings", [{"arena": False}, {"lab": LabSettings(is_stock=True)}])
def test_server_without_arenas_has_no_slabs(
    tmp_path: Path, plane: FakePlane, settings: dict[str, Any]
) -> None:
    plane.allocator = "glibc"
    Server(config_for(tmp_path / "m", **settings), native=plane)
    assert plane.pools == []


@pytest.mark.parametrize(
    ("lab", "warning_count"), [(LabSettings(load_patience_seconds=0), 1), (LabSettings(), 0)]
)
def test_server_with_lab_settings_warns_once(
    tmp_path: Path, plane: FakePlane, lab: LabSettings, warning_count: int
) -> None:
    with capture_logs() as logs:
        Server(config_for(tmp_path / "m", lab=lab), native=plane)
    warnings = [log for log in logs if log["event"] == "lab_settings"]
    assert len(warnings) == warning_count
    for warning in warnings:
        assert (warning["log_level"], warning["load_patience_seconds"]) == ("warning", 0)
        assert "unset MILLPOND_LAB" in warning["remedy"]


def test_server_keeps_slabs_and_requests_by_config(tmp_path: Path, plane: FakePlane) -> None:
    config = config_for(
        tmp_path / "m", arena_spare_slabs=3, load_priority="nice", self_warmup_requests=5
    )
    server = Server(config, native=plane)
    server.start()
    server.stop()
    assert [(p.spare_slab_count, p.thread_priority) for p in plane.pools] == [(3, "nice")]
    assert [r.bounds["request_count_max"] for r in plane.reservoirs] == [5]


@pytest.mark.parametrize(("num_load_threads", "count"), [(0, 1), (1, 1), (3, 3)])
def test_server_keeps_memory_for_loads_at_once(
    tmp_path: Path, plane: FakePlane, num_load_threads: int, count: int
) -> None:
    Server(config_for(tmp_path / "m", num_load_threads=num_load_threads), native=plane)
    assert [pool.spare_slab_count for pool in plane.pools] == [count]


def test_server_without_self_warm_up_keeps_no_requests(tmp_path: Path, plane: FakePlane) -> None:
    server = Server(config_for(tmp_path / "m", self_warmup_requests=0), native=plane)
    server.start()
    server.stop()
    assert plane.reservoirs == []


def test_server_gives_loads_its_limits_and_statistics(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m", warmup_request_seconds=5.0), native=plane)
    server.start()
    assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
    assert plane.loads[0].replay_seconds_max == 5.0
    assert plane.loads[0].request_statistics is server.request_statistics
    assert not plane.request_statistics.is_stopped
    server.stop()
    assert plane.request_statistics.is_stopped


def test_server_loads_at_configured_priority(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m", load_priority="nice"), native=plane)
    server.start()
    assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
    server.stop()
    names = ("loader-0", "loader-1", "unloader-0", "prediction-log", "request-log-upload")
    while_serving = dict.fromkeys(names, "nice")
    # A stopping server has no request that an unload could delay.
    core_count = len(os.sched_getaffinity(0))
    at_stop = {f"unloader-{number + 1}": "normal" for number in range(core_count)}
    assert plane.background_threads == {**while_serving, **at_stop}
    assert plane.pools[0].is_stopped


def loader_nice_values() -> set[int]:
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("loader-")]
    return {os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) for thread in threads}


def test_server_lowers_its_loaders_when_the_port_opens(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[set[int]] = []

    def stop_at_once(port: int) -> None:
        seen.append(loader_nice_values())
        server.request_stop(f"port {port} is open")

    config = config_for(tmp_path / "m", load_priority="nice", listen_before_ready=False)
    server = Server(config, native=plane, on_listening=stop_at_once)
    server.start()
    assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
    assert loader_nice_values() == {usual}
    server.wait()
    server.stop()
    assert seen == [{19}]
    assert plane.background_threads["loader-0"] == "normal"


def test_server_unable_to_lower_priority_still_loads(tmp_path: Path, plane: FakePlane) -> None:
    def refuse(priority: str) -> None:
        raise StatusError(7, f"the kernel refused {priority}")

    plane.enter_background_thread = refuse  # type: ignore[method-assign]
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m"), native=plane)
    with capture_logs() as logs:
        server.start()
        assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
        server.stop()
    assert "load_priority_refused" in [log["event"] for log in logs]


def test_server_pins_request_threads_if_configured(tmp_path: Path, plane: FakePlane) -> None:
    server = Server(config_for(tmp_path / "m", pin_request_threads="always"), native=plane)
    server.start()
    server.stop()
    assert plane.grpc.pins == [True]


# --- Opening gRPC's port --------------------------------------------------------------------------


def run_until_ready(server: Server, *, before_ready: Callable[[], None]) -> threading.Thread:
    running = threading.Thread(target=server.wait)
    server.start()
    before_ready()
    running.start()
    return running


def test_server_opens_grpc_when_its_model_is_available(tmp_path: Path, plane: FakePlane) -> None:
    listening, ready = threading.Event(), threading.Event()
    server = Server(
        config_for(tmp_path / "m", listen_before_ready=False, file_system_poll_wait_seconds=0.01),
        native=plane,
        on_listening=lambda port: listening.set(),
        on_ready=lambda port: ready.set(),
    )
    running = run_until_ready(server, before_ready=lambda: drop(tmp_path / "m", 7))
    assert ready.wait(30)
    assert listening.is_set()
    assert plane.serving_map.versions("m") == [7]
    server.request_stop("test")
    running.join(30)
    assert server.stop()
    assert plane.grpc.log[0] == "start"


def test_server_that_is_ready_ends_autotuning(tmp_path: Path, plane: FakePlane) -> None:
    ready = threading.Event()
    server = Server(
        config_for(
            tmp_path / "m", accelerator="pjrt:plugin.so", file_system_poll_wait_seconds=0.01
        ),
        native=plane,
        on_ready=lambda port: ready.set(),
    )
    server.start()
    (accelerator,) = plane.accelerators
    assert [pool.pins_for for pool in plane.pools] == [accelerator]
    at_start = accelerator.autotunes
    drop(tmp_path / "m", 7)
    assert ready.wait(30)
    assert (at_start, accelerator.autotunes) == (True, False)
    assert plane.grpc.options is not None
    assert plane.grpc.options.has_accelerator
    assert server.stop()


def test_server_stopped_before_models_never_opens_grpc(tmp_path: Path, plane: FakePlane) -> None:
    before = set(threading.enumerate())
    server = Server(config_for(tmp_path / "m", listen_before_ready=False), native=plane)
    running = run_until_ready(server, before_ready=lambda: None)
    server.request_stop("test")
    running.join(30)
    assert not running.is_alive()
    assert server.stop()
    assert "start" not in plane.grpc.log
    assert set(threading.enumerate()) <= before


def test_server_losing_port_during_load_raises(tmp_path: Path, plane: FakePlane) -> None:
    plane.grpc = FakeGrpcServer(start_error=StatusError(14, "cannot listen"))
    before = set(threading.enumerate())
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m", listen_before_ready=False), native=plane)
    with pytest.raises(Unavailable, match="cannot listen"):
        server.run()
    assert set(threading.enumerate()) <= before


def test_server_without_models_opens_grpc_at_once(plane: FakePlane) -> None:
    listening = threading.Event()
    server = Server(
        config_for(listen_before_ready=False),
        native=plane,
        on_listening=lambda port: listening.set(),
    )
    running = run_until_ready(server, before_ready=lambda: None)
    assert listening.wait(30)
    server.request_stop("test")
    running.join(30)
    assert server.stop()


# --- Signals --------------------------------------------------------------------------------------


def test_server_runs_until_a_stop_is_requested(tmp_path: Path, plane: FakePlane) -> None:
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m"), native=plane)
    server.request_stop("test")
    assert server.run() == 0
    assert plane.grpc.log[-1].startswith("shutdown")


def test_server_run_restores_handlers_after_sigterm(tmp_path: Path, plane: FakePlane) -> None:
    before = signal.getsignal(signal.SIGTERM)
    server = Server(
        config_for(tmp_path / "m"),
        native=plane,
        on_listening=lambda port: signal.raise_signal(signal.SIGTERM),
    )
    assert server.run() == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_server_run_exits_if_stop_raises(
    tmp_path: Path, plane: FakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shutdown(drain_seconds: float) -> bool:
        raise StatusError(13, "queue")

    exits: list[int] = []
    monkeypatch.setattr(
        "serving.server.server.StopSignals", partial(StopSignals, exit_now=exits.append)
    )
    server = Server(config_for(tmp_path / "m"), native=plane)
    server.request_stop("test")
    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr(plane.grpc, "shutdown", shutdown)
        server.run()
    assert exits == [0]
    assert [log["event"] for log in logs if log["log_level"] == "error"] == ["stop_failed"]
    assert server.stop()


class Signals:
    """StopSignals and a log of its effects."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.exits: list[int] = []
        self.clock = FakeClock()
        self.signals = StopSignals(self.reasons.append, self.exits.append, self.clock)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_stop_signals_first_requests_a_stop(number: signal.Signals) -> None:
    fixture = Signals()
    with fixture.signals:
        os.kill(os.getpid(), number)
    assert (fixture.reasons, fixture.exits) == ([number.name], [])


def test_stop_signals_echo_of_the_first_does_nothing() -> None:
    fixture = Signals()
    fixture.signals.receive(signal.SIGTERM)
    fixture.clock.advance(ECHO_SECONDS - 0.01)
    fixture.signals.receive(signal.SIGTERM)
    assert (fixture.reasons, fixture.exits) == (["SIGTERM"], [])


@pytest.mark.parametrize(("second", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stop_signals_second_exits_at_once_with_a_line(
    second: signal.Signals, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    fixture = Signals()
    fixture.signals.receive(signal.SIGTERM)
    fixture.clock.advance(ECHO_SECONDS)
    fixture.signals.receive(second)
    assert (fixture.reasons, fixture.exits) == (["SIGTERM"], [status])
    assert f"second signal ({second.name})" in capfd.readouterr().err


@pytest.mark.parametrize("first", STOP_SIGNALS)
def test_stop_signals_repeated_hangups_end_no_drain(first: signal.Signals) -> None:
    fixture = Signals()
    fixture.signals.receive(first)
    for _ in range(3):
        fixture.clock.advance(10 * ECHO_SECONDS)
        fixture.signals.receive(signal.SIGHUP)
    assert (fixture.reasons, fixture.exits) == ([first.name], [])


def test_stop_signals_count_no_hangup_as_the_first() -> None:
    fixture = Signals()
    for number in (signal.SIGHUP, signal.SIGTERM):
        fixture.signals.receive(number)
        fixture.clock.advance(ECHO_SECONDS)
    assert (fixture.reasons, fixture.exits) == (["SIGHUP"], [])
    fixture.signals.receive(signal.SIGINT)
    assert (fixture.reasons, fixture.exits) == (["SIGHUP"], [130])


# --- HTTP -----------------------------------------------------------------------------------------

FREE = HttpPort(0)


def probe(plane: FakePlane, path: str) -> int:
    """Returns the status of the answer to a GET that the data plane brings."""
    call = FakeRareCall("probe")
    call.http_method, call.target = "GET", path.encode()
    plane.grpc.call_http(call, is_probe=True)
    assert call.is_answered.wait(30)
    return call.http_answers[0][0]


def test_server_probes_follow_its_models(tmp_path: Path, plane: FakePlane) -> None:
    server = Server(
        config_for(tmp_path / "m", rest_api_port=FREE, file_system_poll_wait_seconds=0.01),
        native=plane,
    )
    server.start()
    assert probe(plane, "/readyz") == 503
    drop(tmp_path / "m", 7)
    assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
    assert (probe(plane, "/readyz"), probe(plane, "/readyz?model=m")) == (200, 200)
    assert probe(plane, "/readyz?model=x") == 404
    assert server.stop()


def test_server_probes_answer_until_grpc_has_drained(tmp_path: Path, plane: FakePlane) -> None:
    server = Server(config_for(tmp_path / "m", rest_api_port=FREE), native=plane)
    statuses: list[int] = []

    def shutdown(drain_seconds: float) -> bool:
        statuses.append(probe(plane, "/readyz"))
        return real_shutdown(drain_seconds)

    real_shutdown = plane.grpc.shutdown
    plane.grpc.shutdown = shutdown  # type: ignore[method-assign]
    server.start()
    assert server.stop()
    assert statuses == [503]
    assert [line.split()[0] for line in plane.grpc.log[-3:]] == [
        "ask_http_to_go",
        "shutdown",
        "shutdown_http",
    ]


def test_server_opens_http_before_grpc_and_logs_ports(tmp_path: Path, plane: FakePlane) -> None:
    server = Server(config_for(tmp_path / "m", rest_api_port=FREE), native=plane)
    real_start = plane.grpc.start
    probed: list[int] = []

    def start() -> None:
        probed.append(probe(plane, "/readyz"))
        real_start()

    plane.grpc.start = start  # type: ignore[method-assign]
    with capture_logs() as logs:
        server.start()
    assert probed == [503]
    listening = next(log for log in logs if log["event"] == "listening")
    assert (listening["port"], listening["http_port"]) == (12345, server.http_port)
    assert server.stop()


def test_server_without_grpc_port_closes_http(tmp_path: Path, plane: FakePlane) -> None:
    before = set(threading.enumerate())
    plane.grpc = FakeGrpcServer(start_error=StatusError(14, "cannot listen"))
    server = Server(config_for(tmp_path / "m", port=0, rest_api_port=FREE), native=plane)
    with pytest.raises(Unavailable, match="cannot listen"):
        server.start()
    assert set(threading.enumerate()) <= before


def test_server_without_https_port_starts_nothing(tmp_path: Path, plane: FakePlane) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = HttpPort(taken.getsockname()[1])
        server = Server(config_for(tmp_path / "m", rest_api_port=port), native=plane)
        with pytest.raises(Unavailable, match="cannot listen for HTTP on"):
            server.start()
    assert "start" not in plane.grpc.log


def test_server_grpc_on_default_http_port_skips_http(tmp_path: Path, plane: FakePlane) -> None:
    port = HttpPort(8501, is_required=False)
    with capture_logs() as logs:
        server = Server(config_for(tmp_path / "m", port=8501, rest_api_port=port), native=plane)
        server.start()
    assert server.http_port is None
    assert "start_http" not in plane.grpc.log
    assert [log["reason"] for log in logs if log["event"] == "http_off"] == [
        "port 8501 is gRPC's; use --rest_api_port"
    ]
    assert server.stop()


@pytest.mark.parametrize(("port", "is_logged"), [(FREE, True), (HttpPort(None), False)])
def test_server_logs_http_only_if_it_listens(
    tmp_path: Path, plane: FakePlane, port: HttpPort, is_logged: bool
) -> None:
    config = config_for(tmp_path / "m", rest_api_port=port, listen_before_ready=False)
    with capture_logs() as logs:
        server = Server(config, native=plane)
        server.start()
    events = {log["event"]: log for log in logs}
    assert ("http_listening" in events) == is_logged
    assert server.stop()


# --- Tracing --------------------------------------------------------------------------------------


def test_server_traces_nothing_by_default(tmp_path: Path, plane: FakePlane) -> None:
    server = Server(config_for(tmp_path / "m"), native=plane)
    assert plane.grpc.options.spans is None
    server.start()
    assert not any(thread.name == "tracing" for thread in threading.enumerate())
    assert server.stop()


def test_server_with_slow_request_log_has_thread(tmp_path: Path, plane: FakePlane) -> None:
    server = Server(config_for(tmp_path / "m", slow_request_log_seconds=0.5), native=plane)
    buffer = plane.grpc.options.spans
    assert isinstance(buffer, FakeSpanBuffer)
    assert buffer.limits == (1024, 200)
    slow = FakeRequestSpan(total_ns=500_000_000)
    buffer.requests.append(slow)
    with capture_logs() as logs:
        server.start()
        assert any(thread.name == "tracing" for thread in threading.enumerate())
        assert server.stop()
    (line,) = [log for log in logs if log["event"] == "request_slow"]
    assert line["trace_id"] == slow.context.trace_id


def test_server_exports_spans_of_swaps_and_calls(
    tmp_path: Path, plane: FakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = FakeExporter()
    endpoints: list[str] = []

    def make_exporter(endpoint: str, *, version: str) -> FakeExporter:
        assert version == "0.1.0"
        endpoints.append(endpoint)
        return exporter

    monkeypatch.setattr("serving.server.monitoring_parts.OtlpExporter", make_exporter)
    drop(tmp_path / "m", 7)
    server = Server(config_for(tmp_path / "m", otlp_endpoint="http://c:4318"), native=plane)
    server.start()
    assert server.monitor.wait_until(has_state("m", AVAILABLE), timeout_seconds=30)
    call = FakeRareCall(LIST_MODELS, b"", trace_context=FakeTraceContext())
    plane.grpc.call(call)
    assert call.is_answered.wait(30)
    # The real time is ten seconds after the swap's end; here it is over at once.
    (record,) = server._versions.swaps.records()
    for listener in server._versions.swaps._listeners:
        listener(record)
    assert server.stop()
    assert endpoints == ["http://c:4318"]
    names = {span.name for span in exporter.spans}
    assert {"swap m/7", LIST_MODELS.removeprefix("/")} <= names


def operator_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("admin-call-")]


def test_operator_calls_wait_for_models(tmp_path: Path, plane: FakePlane) -> None:
    seen: list[list[str]] = []
    config = config_for(tmp_path / "m", admin_address=f"unix:{tmp_path / 'admin.sock'}")
    server = Server(config, native=plane, on_listening=lambda port: seen.append(operator_threads()))
    server.start()
    seen.append(operator_threads())
    server.stop()
    assert seen[0] == []
    assert len(seen[1]) == 3
