"""Servers and models for the integration tests.

A server from here takes a free port and listens when the test gets it. It is stopped afterwards:
cleanly, or the test fails. A failing test shows the end of the server's log. Models are exported
once a session, so that the import of TensorFlow (3 to 5 s) is paid once.
"""

import itertools
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

REPOSITORY = str(Path(__file__).parents[2])

if REPOSITORY not in sys.path:
    sys.path.insert(0, REPOSITORY)

from serving import ModelServer  # noqa: E402  (found through the path above)
from tests.integration import exports  # noqa: E402
from tests.integration.clients import TIMEOUT_SECONDS, Caller, caller_to  # noqa: E402
from tests.integration.exports import ScaleModel  # noqa: E402
from tests.integration.wire_servers import StartWire, start_wire_server  # noqa: E402

StartServer = Callable[..., ModelServer]
WriteConfig = Callable[[Path, Mapping[str, Path]], Path]
"""Starts a server with these arguments of `ModelServer`; it is stopped at the end of the scope."""

_LOG_LINE_COUNT = 60
_started: list[ModelServer] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    del item, call
    report = yield
    if report.failed:
        for server in _started:
            lines = server.log_path.read_text(errors="replace").splitlines()[-_LOG_LINE_COUNT:]
            report.sections.append((f"log {server.log_path}", "\n".join(lines)))
    return report


@contextmanager
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    with ExitStack() as stack:

        def start(**arguments: object) -> ModelServer:
            log_path = tmp_path_factory.mktemp("server") / "server.log"
            # The server polls the disk often, so that a swap takes no longer than its own work.
            settings: dict[str, object] = {
                "file_system_poll_wait_seconds": 0.05,
                "start_timeout_seconds": TIMEOUT_SECONDS,
            }
            server = ModelServer(log_path=log_path, **{**settings, **arguments})  # type: ignore[arg-type]
            server.start()
            _started.append(server)
            stack.callback(_started.remove, server)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    with _servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def start_module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    with _servers(tmp_path_factory) as start:
        yield start


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


@pytest.fixture(scope="module")
def start_wire(
    start_module_server: StartServer,
    echo_export: Path,
    slow_export: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> StartWire:
    """Starts a server of the models `echo` and `slow` with a given security."""
    models = {"echo": echo_export, "slow": slow_export}
    return lambda security: start_wire_server(
        start_module_server, models, tmp_path_factory.mktemp("wire"), security
    )


@pytest.fixture(scope="session")
def scale_model(export_path: Path) -> ScaleModel:
    return ScaleModel(export_path / "scale")


@pytest.fixture(scope="module")
def shared_scale(
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ModelServer, Path, Iterator[int]]:
    """A server of `scale` version 1, its base path, and version numbers that are still unused."""
    base_path = tmp_path_factory.mktemp("shared_scale")
    scale_model.write(base_path, 1)
    server = start_module_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 1)
    return server, base_path, itertools.count(2)


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
