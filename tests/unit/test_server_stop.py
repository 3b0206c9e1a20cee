"""The order in which a server stops its parts: it drains first, and no request is lost."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from serving.http.listener import HttpListener
from serving.loading.batch_refusals import BatchRefusals
from serving.manager.blocked_version_file import BlockedVersionFile
from serving.manager.manager import AspiredVersionsManager
from serving.manager.startup_wait import StartupWait
from serving.manager.state_monitor import StateMonitor
from serving.monitoring.swap_timeline import SwapTimeline
from serving.monitoring.tracing import Tracing
from serving.reload.config_reload import ConfigReloader
from serving.reload.config_watch import ConfigWatcher
from serving.reload.served_models import ServedModels
from serving.rpc.capture_service import CaptureDirectory
from serving.rpc.health import HealthReporter
from serving.rpc.profiler_service import ProfilerService
from serving.rpc.rare_calls import RareCallThreads
from serving.rpc.transport import Transport
from serving.server.admin_listener import AdminListener
from serving.server.drain import DrainNotice
from serving.server.load_threads import LoadThreads
from serving.server.server import Server
from serving.server.service_notices import ServiceNotices
from serving.source.poller_pool import PollerPool
from tests.unit.fakes.data_plane import FakePlane, FakeSlabPool
from tests.unit.fakes.requests import FakeRequestStatistics
from tests.unit.fakes.servers import FakeGrpcServer
from tests.unit.worlds.whole_server import full_config

ORDER: list[list[Callable[..., Any]]] = [
    # Balancers and clients turn to other servers, while this one answers as before.
    [ServiceNotices.report_stop, HealthReporter.drain],
    [DrainNotice.wait],
    # Nothing begins that a drain would wait for.
    [
        FakeGrpcServer.ask_http_to_go,
        ConfigWatcher.stop,
        Transport.stop,
        ConfigReloader.stop,
        ServedModels.stop,
        PollerPool.stop,
        StateMonitor.end_waits,
        StartupWait.cancel,
        ProfilerService.stop,
    ],
    # The running requests end while all versions are loaded: over gRPC, and then over HTTP, which shows
    # the drain meanwhile. What answers there ends after its port is closed.
    [FakeGrpcServer.shutdown],
    [AdminListener.stop],
    [FakeGrpcServer.shutdown_http],
    [HttpListener.stop],
    [RareCallThreads.stop, ProfilerService.join],
    # No request is left that an unload could slow down, or that could need the version.
    [LoadThreads.hurry_unloads, SwapTimeline.begin_stop],
    [AspiredVersionsManager.stop],
    # The last blocked versions and requests are written, and the threads that looked at files end.
    [
        ServedModels.join,
        PollerPool.join,
        ConfigWatcher.join,
        Transport.join,
        BlockedVersionFile.stop,
        CaptureDirectory.stop,
    ],
    [SwapTimeline.stop],
    [Tracing.stop],
    [FakeRequestStatistics.stop, BatchRefusals.stop, LoadThreads.stop],
    [FakeSlabPool.stop],
]


@contextmanager
def recorded(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yields the names of the methods of ORDER, in the order in which they are called first."""
    called: list[str] = []

    def recording(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if method.__qualname__ not in called:
                called.append(method.__qualname__)
            return method(*arguments, **named)

        return call

    with patch.context() as patched:
        for method in (method for step in ORDER for method in step):
            owner = next(kind for kind in OWNERS if kind.__name__ in method.__qualname__.split("."))
            patched.setattr(owner, method.__name__, recording(method))
        yield called


OWNERS = (
    *(ServiceNotices, HealthReporter, DrainNotice, ConfigWatcher, Transport),
    *(ConfigReloader, ServedModels, PollerPool, StateMonitor, StartupWait, ProfilerService),
    *(FakeGrpcServer, AdminListener, HttpListener, RareCallThreads, LoadThreads),
    *(SwapTimeline, AspiredVersionsManager, BlockedVersionFile, CaptureDirectory, Tracing),
    *(FakeRequestStatistics, BatchRefusals, FakeSlabPool),
)


def test_server_stops_its_parts_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(full_config(tmp_path), native=FakePlane())
    server.start()
    with recorded(monkeypatch) as called:
        assert server.stop()
    at = {name: index for index, name in enumerate(called)}
    steps = [[method.__qualname__ for method in step] for step in ORDER]
    missing = [name for step in steps for name in step if name not in at]
    assert missing == []
    for before, after in zip(steps, steps[1:]):
        assert max(at[name] for name in before) < min(at[name] for name in after), (before, after)
