"""Servers and models for the integration tests.

A test adds its models to the module's `host`. A test that stops or kills its server, reads figures of the
process, or needs a flag that the host lacks, starts a server of its own. Each server takes a free port and
listens when the test gets it. It is told to stop at the end of its scope, while the next test runs; that it
stopped cleanly is asserted at the end of the module. A failing test shows the end of the servers' logs.
Models are exported once a session, so that the import of TensorFlow (3 to 5 s) is paid once. A test marked
`soak` runs only with MILLPOND_SOAK=1.
"""

import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = str(Path(__file__).parents[2])

if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

from loadtest.plan.plan import Plan, write_plan  # noqa: E402  (found through the path above)
from serving import ModelServer  # noqa: E402
from serving.base.clock import NS_PER_SECOND  # noqa: E402
from tests.integration import exports  # noqa: E402
from tests.integration.clients import TIMEOUT_SECONDS, Caller, caller_to  # noqa: E402
from tests.integration.exports import ScaleModel  # noqa: E402
from tests.integration.held import Held  # noqa: E402
from tests.integration.logs import MARK  # noqa: E402
from tests.integration.model_host import HostedModel, ModelHost  # noqa: E402
from tests.integration.warm_servers import WarmModelServer, WarmProcess  # noqa: E402
from tests.integration.wire_servers import StartWire, start_wire_server  # noqa: E402

StartServer = Callable[..., ModelServer]
"""Starts a server with these arguments of `ModelServer`; it is stopped at the end of the scope."""

WriteConfig = Callable[[Path, Mapping[str, Path]], Path]
"""Writes a config file with the base path of each model, and returns its path."""

_LOG_LINE_COUNT = 60
_started: list[ModelServer] = []


# The files that take longest, so that the workers end at about the same time.
_LONGEST = tuple(
    f"test_{name}.py"
    for name in (
        *("loadtest_gpu", "loadtest", "accelerator", "documents", "autotuning", "object_storage"),
        *("interop", "loadtest_fresh", "arenas", "life_of_server", "row_analysis", "page"),
        *("soak", "delta", "request_log", "batching", "tracing", "supervisor", "version_life"),
        *("config_reload", "dashboards", "request_counts", "out_of_descriptors"),
    )
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the longest files first, and takes out the long forms, which `make soak` runs."""
    places = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    if os.environ.get("MILLPOND_SOAK") == "1":
        return
    long_forms = [item for item in items if item.get_closest_marker("soak")]
    if long_forms:
        config.hook.pytest_deselected(items=long_forms)
        items[:] = [item for item in items if item not in long_forms]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    del item, call
    report = yield
    if report.failed:
        for server in _started:
            lines = server.log_path.read_text(errors="replace").splitlines()
            shown = [line for line in lines if MARK not in line][-_LOG_LINE_COUNT:]
            report.sections.append((f"log {server.log_path}", "\n".join(shown)))
    return report


class _BackgroundStops:
    """Stops servers on threads of its own, and keeps the errors of those that did not stop cleanly."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[Exception] = []

    def stop(self, server: ModelServer) -> None:
        """Begins to stop the server. Returns at once."""
        thread = threading.Thread(target=self._stop, args=(server,), name="stop-server")
        self._threads.append(thread)
        thread.start()

    def assert_all_clean(self) -> None:
        """Waits for all servers, and fails with the errors of all that did not end with status 0."""
        for thread in self._threads:
            thread.join()
        assert not self._errors, "\n".join(repr(error) for error in self._errors)

    def _stop(self, server: ModelServer) -> None:
        try:
            server.stop()
        except Exception as error:  # noqa: BLE001  (shown by `assert_all_clean`)
            self._errors.append(error)


@contextmanager
def _servers(
    tmp_path_factory: pytest.TempPathFactory, stops: _BackgroundStops, *, starts_warm: bool
) -> Iterator[StartServer]:
    make = WarmModelServer if starts_warm else ModelServer
    with ExitStack() as stack:

        def start(**arguments: object) -> ModelServer:
            log_path = tmp_path_factory.mktemp("server") / "server.log"
            # The server polls the disk often, so that a swap takes no longer than its own work.
            settings: dict[str, object] = {
                "file_system_poll_wait_seconds": 0.05,
                "start_timeout_seconds": TIMEOUT_SECONDS,
                "stop_timeout_seconds": TIMEOUT_SECONDS,
            }
            server = make(log_path=log_path, **{**settings, **arguments})  # type: ignore[arg-type]
            server.start()
            _started.append(server)
            stack.callback(_started.remove, server)
            stack.callback(stops.stop, server)
            return server

        yield start


@pytest.fixture(scope="module")
def background_stops() -> Iterator[_BackgroundStops]:
    stops = _BackgroundStops()
    yield stops
    stops.assert_all_clean()


@pytest.fixture(scope="module")
def starts_warm() -> bool:
    """True if servers of the module are forked with their modules imported (`warm_servers.py`)."""
    return True


@pytest.fixture(scope="module")
def warm_load_tests() -> Iterator[None]:
    """Lets the servers of `loadtest`, which runs in this process, start warm too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelServer, "process_type", WarmProcess)
        yield


@pytest.fixture(scope="module")
def patient_load_tests() -> Iterator[None]:
    """Lets the clients of `loadtest` wait as long as those of other tests.

    A server refuses a request that would wait longer than a tenth of its deadline. With the deadline of a
    measurement that is a second, for which a busy machine may give the server no core.
    """

    def write(plan: Plan, path: Path) -> None:
        write_plan(replace(plan, deadline_ns=round(TIMEOUT_SECONDS * NS_PER_SECOND)), path)

    with pytest.MonkeyPatch.context() as patch:
        # By name: other tests need none of these modules.
        patch.setattr("loadtest.drive.generator.write_plan", write)
        for name in ("checked_sender._REQUEST_TIMEOUT_SECONDS", "mixing_model._TIMEOUT_SECONDS"):
            patch.setattr(f"loadtest.drive.{name}", TIMEOUT_SECONDS)
        yield


@pytest.fixture
def start_server(
    tmp_path_factory: pytest.TempPathFactory, background_stops: _BackgroundStops, starts_warm: bool
) -> Iterator[StartServer]:
    with _servers(tmp_path_factory, background_stops, starts_warm=starts_warm) as start:
        yield start


@pytest.fixture(scope="module")
def start_module_server(
    tmp_path_factory: pytest.TempPathFactory, background_stops: _BackgroundStops, starts_warm: bool
) -> Iterator[StartServer]:
    with _servers(tmp_path_factory, background_stops, starts_warm=starts_warm) as start:
        yield start


@pytest.fixture(scope="module")
def host_flags() -> Mapping[str, object]:
    """Flags of the module's host. A module that needs other ones has a fixture of this name."""
    return {}


@pytest.fixture(scope="module")
def module_host(
    start_module_server: StartServer,
    tmp_path_factory: pytest.TempPathFactory,
    host_flags: Mapping[str, object],
) -> ModelHost:
    """The server of the module, for models that several tests share."""
    return ModelHost(start_module_server, tmp_path_factory.mktemp("host"), **host_flags)


@pytest.fixture
def host(module_host: ModelHost) -> Iterator[ModelHost]:
    """The server of the module, to which a test adds models that go at its end."""
    with module_host.models_of_a_test():
        yield module_host


@pytest.fixture(scope="module")
def server(module_host: ModelHost, scale_model: ScaleModel) -> ModelServer:
    """The server of the module with version 1 of `scale`. Many modules have another fixture of this name."""
    scale = module_host.model(name="scale")
    scale_model.write(scale.base_path, 1)
    scale.wait_until_available(1)
    return scale.server


@pytest.fixture
def slow(host: ModelHost, slow_export: Path) -> HostedModel:
    """A copy of the model `slow`, of which version 1 answers and has no warm-up file."""
    return host.model(prefix="slow").serve(slow_export)


@pytest.fixture(scope="module")
def slow_and_scale(
    module_host: ModelHost, slow_export: Path, scale_model: ScaleModel
) -> ModelServer:
    """The module's server with the models `slow` and `scale`, version 1 of each."""
    module_host.model(name="slow").serve(slow_export)
    scale = module_host.model(name="scale")
    scale_model.write(scale.base_path, 1)
    scale.wait_until_available(1)
    return scale.server


@pytest.fixture
def slow_caller(slow: HostedModel) -> Iterator[Caller]:
    """Calls the server of the fixture `slow`."""
    with caller_to(slow.server.target) as caller:
        yield caller


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """Calls the server of the module's fixture `server`."""
    with caller_to(request.getfixturevalue("server").target) as caller:
        yield caller


@pytest.fixture(scope="session")
def export_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="session")
def echo_export(export_path: Path) -> Path:
    return exports.export_echo(export_path / "echo")


@pytest.fixture(scope="session")
def slow_export(export_path: Path) -> Path:
    return exports.export_slow(export_path / "slow")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    """Requests of `slow` that run until they are released, at the latest at the test's end."""
    made = Held(tmp_path)
    yield made
    made.release()


@pytest.fixture(scope="module")
def start_wire(
    start_module_server: StartServer,
    echo_export: Path,
    slow_export: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> StartWire:
    """Starts a server of the models `echo` and `slow` with a given security, once for each."""
    models = {"echo": echo_export, "slow": slow_export}
    return cache(
        lambda security: start_wire_server(
            start_module_server, models, tmp_path_factory.mktemp("wire"), security
        )
    )


@pytest.fixture(scope="session")
def scale_model(export_path: Path) -> ScaleModel:
    return ScaleModel(export_path / "scale")


@pytest.fixture
def base_path(tmp_path: Path) -> Path:
    """Returns an empty base path."""
    path = tmp_path / "base"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def write_config() -> Callable[[Path, Mapping[str, Path]], Path]:
    return _write_config


def _write_config(directory: Path, base_paths: Mapping[str, Path]) -> Path:
    """Writes a --model_config_file with these models."""
    models = (
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}'
        for name, path in base_paths.items()
    )
    path = directory / "models.config"
    path.write_text("model_config_list { " + " ".join(models) + " }")
    return path
