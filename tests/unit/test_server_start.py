"""A start that fails: a wrong configuration opens nothing, and what was started is stopped."""

import itertools
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from serving.base.errors import InvalidConfig
from serving.config.server_config import HttpPort
from serving.core.model_config import ModelConfig
from serving.http.listener import HttpListener
from serving.loading.batch_refusals import BatchRefusals
from serving.loading.starvation_watch import StarvationWatch
from serving.manager.blocked_version_file import BlockedVersionFile
from serving.manager.manager import AspiredVersionsManager
from serving.monitoring.swap_timeline import SwapTimeline
from serving.monitoring.tracing import Tracing
from serving.reload.config_reload import ConfigReloader
from serving.reload.config_watch import ConfigWatcher
from serving.request_log.request_logs import RequestLogs
from serving.rpc.capture_service import CaptureDirectory
from serving.rpc.rare_calls import RareCallThreads
from serving.rpc.transport import Transport
from serving.server.admin_listener import AdminListener
from serving.server.port_reservation import PortReservation
from serving.server.server import Server
from serving.server.service_reports import ServiceReports
from serving.source.poller_pool import PollerPool
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.fakes.servers import FakeGrpcServer
from tests.unit.worlds.whole_server import full_config

START: list[tuple[type, str]] = [
    (PortReservation, "take"),
    (HttpListener, "start"),
    (FakeGrpcServer, "start_http"),
    (AdminListener, "start"),
    (FakeGrpcServer, "start"),
    (PollerPool, "start"),
    (ConfigReloader, "apply_first"),
    (RareCallThreads, "start"),
    (AdminListener, "answer"),
    (Tracing, "start"),
    (StarvationWatch, "start"),
    (BatchRefusals, "start"),
    (CaptureDirectory, "start"),
    (RequestLogs, "start"),
    (BlockedVersionFile, "start"),
    (SwapTimeline, "start"),
    (AspiredVersionsManager, "start"),
    (ConfigWatcher, "start"),
    (Transport, "start"),
    (ServiceReports, "start"),
]
"""The steps of a start, in their order."""


class World:
    """A server with every part, and what it holds of the process."""

    def __init__(self, directory: Path, *, has_http: bool = True) -> None:
        config = replace(
            full_config(directory),
            port=free_port(),
            rest_api_port=HttpPort(0 if has_http else None),
            admin_address=f"unix:{directory / 'a'}",
        )
        self._before = held_by_process()
        self._directory = directory
        self.plane = FakePlane()
        self.server = Server(config, native=self.plane)

    def held(self) -> set[str]:
        """The threads, ports, sockets and parts of the data plane that the server has not given back."""
        plane = self.plane
        servers = {"data": plane.grpc, "admin": plane.admin_grpc}
        open_servers = {
            name
            for name, grpc in servers.items()
            if "start" in grpc.log and not grpc.log[-1].startswith("shutdown")
        }
        memory = set() if all(pool.is_stopped for pool in plane.pools) else {"slabs"}
        figures = set() if plane.request_statistics.is_stopped else {"statistics"}
        files = {path.name for path in self._directory.iterdir() if path.is_socket()}
        return (held_by_process() - self._before) | open_servers | memory | figures | files


def held_by_process() -> set[str]:
    """The threads of this process, and its sockets and event descriptors."""
    found = {f"{thread.name} {thread.ident}" for thread in threading.enumerate()}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if not path.readlink().is_absolute():
                found.add(f"{path.name} {path.readlink()}")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_start_takes_all_its_steps_in_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[type, str]] = []

    def recording(step: tuple[type, str], method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if step not in taken:
                taken.append(step)
            return method(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for kind, name in START:
            patched.setattr(kind, name, recording((kind, name), getattr(kind, name)))
        world.server.start()
    assert taken == START
    assert {"data", "admin", "slabs", "statistics", "a"} < world.held()
    assert world.server.stop()
    assert world.held() == set()


@pytest.mark.parametrize("step", START, ids=lambda step: f"{step[0].__name__}.{step[1]}")
def test_start_that_fails_stops_what_was_started(
    step: tuple[type, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise InvalidConfig("--a_flag is wrong")

    with monkeypatch.context() as patched:
        patched.setattr(*step, fail)
        with capture_logs() as logs, pytest.raises(InvalidConfig, match="--a_flag is wrong"):
            world.server.run()
    assert world.held() == set()
    assert "stop_failed" not in {log["event"] for log in logs}


def test_start_without_one_thread_stops_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread that a start begins is refused in turn, until a start has all of its threads."""
    refused: list[str] = []
    is_started = False
    while not is_started:
        directory = tmp_path / str(len(refused))
        directory.mkdir()
        world = World(directory, has_http=False)
        with monkeypatch.context() as patched, suppress(ThreadRefused):
            patched.setattr(threading.Thread, "start", refusing(refused))
            world.server.start()
            is_started = True
        if is_started:
            assert world.server.stop()
        assert world.held() == set(), refused
    names = {name.rstrip("-0123456789") for name in refused}
    assert names >= {
        "poller-watch",
        "rare-call",
        "admin-call",
        "tracing",
        "loader",
        "control",
        "service",
    }


class ThreadRefused(RuntimeError):
    """As Python raises if the system gives a process no further thread."""


def refusing(refused: list[str]) -> Callable[[threading.Thread], None]:
    """Makes a `Thread.start` that refuses this thread one start: the next after those in `refused`."""
    start, caller, started = threading.Thread.start, threading.current_thread(), itertools.count()
    index = len(refused)

    def refuse_one(thread: threading.Thread) -> None:
        if threading.current_thread() is caller and next(started) == index:
            refused.append(thread.name)
            raise ThreadRefused("can't start new thread")
        start(thread)

    return refuse_one


def test_store_without_home_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As for a user without a home directory.
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    model = ModelConfig(name="m", base_path="s3://bucket/m")
    config = replace(full_config(tmp_path), models=(model,))
    before = held_by_process()
    plane = FakePlane()
    with pytest.raises(InvalidConfig, match="give --model_cache_directory"):
        Server(config, native=plane)
    assert held_by_process() == before
    assert (plane.pools, (tmp_path / "state").exists()) == ([], False)
