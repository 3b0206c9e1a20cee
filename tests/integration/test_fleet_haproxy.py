"""Debian's HAProxy with the configuration that a fleet writes, in front of real servers."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fleet.files.haproxy import Backend, HaproxySettings, fingerprint_of
from fleet.files.haproxy import haproxy_text as text_of
from fleet.files.haproxy_process import reload_haproxy, running_fingerprint
from fleet.files.registry import write_text
from loadtest.drive.shell_server import free_port
from serving import ModelServer
from serving.client import Client, RetryPolicy
from tests.integration.clients import TIMEOUT_SECONDS, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.fleets import Call, Load, running_coordinator, server_tables

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed")


@dataclass
class Proxy:
    """A HAProxy whose configuration a test replaces."""

    directory: Path
    port: int = field(default_factory=free_port)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid_file(self) -> str:
        return str(self.directory / "pid")

    def write(self, *backends: Backend) -> None:
        settings = HaproxySettings(
            bind=self.target,
            stats_socket=str(self.directory / "stats.sock"),
            # Also the time for an answer: two late ones, as of a server without a core, count as its end.
            check_seconds=2,
            drain_seconds=20,
        )
        write_text(self.directory / "haproxy.cfg", text_of(backends, settings))

    def reload(self, *backends: Backend) -> None:
        before = self._workers()
        self.write(*backends)
        # The master removes the file for a moment while it reads its configuration.
        wait_until(lambda: Path(self.pid_file).exists(), "the pid file after the reload before")
        reload_haproxy(self.pid_file)
        wait_until(lambda: self._workers() - before, "a new worker")

    def _workers(self) -> set[str]:
        pid = self._master.pid
        return {*Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    @contextmanager
    def running(self) -> Iterator[None]:
        log = (self.directory / "haproxy.log").open("w")
        command = [str(HAPROXY), "-W", "-p", self.pid_file, "-f", "haproxy.cfg"]
        self._master = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)
        try:
            wait_until(lambda: Path(self.pid_file).exists(), "HAProxy's pid file")
            yield
        finally:
            self._master.terminate()
            self._master.wait(TIMEOUT_SECONDS)
            log.close()


@contextmanager
def calls_to(
    target: str | Sequence[str], model: str = "scale", retries: RetryPolicy | None = None
) -> Iterator[Call]:
    with Client(target, retries=retries or RetryPolicy()) as client:
        yield lambda: client.predict(
            model, {"x": np.ones(2, np.float32)}, timeout_seconds=TIMEOUT_SECONDS
        )


def backends_of(servers: list[ModelServer], draining: int | None = None) -> list[Backend]:
    return [
        Backend(name=f"s{number}", address=server.target, is_draining=number == draining)
        for number, server in enumerate(servers)
    ]


def request_count(server: ModelServer) -> int:
    with Client(server.admin_target) as client:
        count: int = client.describe_models()["scale"]["versions"][0]["request_count"]
    return count


LOADED, RELOADED, STOPPED = "requests through HAProxy", "three reloads", "the stop of s0"


@dataclass
class Story:
    """Two servers behind a HAProxy under load, and a third one that never serves."""

    step: str = "the start of HAProxy"
    """The step under way, or the step that failed with `error`."""
    error: str = ""
    passed: list[str] = field(default_factory=list)
    request_counts: Sequence[int] = ()
    """The requests that each of the two had answered before the first change."""
    log: str = ""
    """HAProxy's log until then."""
    failures_until_reloads: Sequence[str] = ()
    failures_until_stop: Sequence[str] = ()
    """All failures until a server that HAProxy drained had stopped."""

    @contextmanager
    def at(self, step: str) -> Iterator[None]:
        """Notes that the step begins, and that it passed."""
        self.step = step
        yield
        self.passed.append(step)

    def assert_passed(self, step: str) -> None:
        assert step in self.passed, (
            f"passed {self.passed}, then failed at {self.step}: {self.error}"
        )


@pytest.fixture(scope="module")
def story(
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Story:
    """The story until its first error: a test fails for the step that it needs, and names that step."""
    base_path, empty = (tmp_path_factory.mktemp(name) for name in ("scale", "empty"))
    scale_model.write(base_path, 1)
    servers = [
        start_module_server(model_name="scale", base_path=path)
        for path in (base_path, base_path, empty)
    ]
    for server in servers[:2]:
        server.wait_until_available("scale", 1)
    story = Story()
    try:
        tell(story, Proxy(tmp_path_factory.mktemp("proxy")), servers)
    except Exception as error:  # noqa: BLE001 (each test shows it)
        story.error = repr(error)
    return story


def tell(story: Story, proxy: Proxy, servers: list[ModelServer]) -> None:
    proxy.write(*backends_of(servers))
    log = proxy.directory / "haproxy.log"
    with proxy.running(), calls_to(proxy.target) as call:
        load = Load(call)
        with story.at("a check that fails"):
            wait_until(lambda: "servers/s2 is DOWN" in log.read_text(), "s2 is DOWN")
        with load.running():
            with story.at(LOADED):
                load.wait_for_more(200)
                story.request_counts = [request_count(server) for server in servers[:2]]
                story.log = log.read_text()
            with story.at(RELOADED):
                for draining in (1, None, 0):
                    # A new worker takes each server for one that serves until its first check.
                    proxy.reload(*backends_of(servers[:2], draining))
                    load.wait_for_more(100)
                story.failures_until_reloads = list(load.failures)
            with story.at(STOPPED):
                servers[0].stop()
                load.wait_for_more(100)
        story.failures_until_stop = load.failures


def test_haproxy_spreads_requests_of_one_client(story: Story) -> None:
    story.assert_passed(LOADED)
    assert all(count > 20 for count in story.request_counts)


def test_haproxy_skips_a_server_that_does_not_serve(story: Story) -> None:
    story.assert_passed(LOADED)
    assert "servers/s2 is DOWN" in story.log
    assert "servers/s0 is DOWN" not in story.log


def test_haproxy_reloads_without_a_lost_request(story: Story) -> None:
    story.assert_passed(RELOADED)
    assert story.failures_until_reloads == []


def test_drained_server_stops_without_a_lost_request(story: Story) -> None:
    story.assert_passed(STOPPED)
    assert story.error == ""
    assert story.failures_until_stop == []


MODELS = ("scale", "scale", "other")


def coordinator_tables(proxy: Proxy, ports: dict[str, int], servers: list[ModelServer]) -> str:
    """Returns the tables of a coordinator of these servers that keeps the proxy's configuration."""
    directory = proxy.directory
    binds = ", ".join(f'{model} = "127.0.0.1:{port}"' for model, port in ports.items())
    named = {f"s{number}": server for number, server in enumerate(servers)}
    return (
        f"[waves]\nsizes = []\njudged_seconds = 1\n"
        f'[haproxy]\nfile = "{directory / "haproxy.cfg"}"\npid_file = "{proxy.pid_file}"\n'
        f'stats_socket = "{directory / "stats.sock"}"\nbinds = {{{binds}}}\n{server_tables(named)}'
    )


def test_member_that_gets_sigterm_loses_no_request(
    start_server: StartServer, scale_model: ScaleModel, tmp_path: Path
) -> None:
    """No client tries a request again: the server serves on until HAProxy and the clients have left it."""
    servers = []
    for number, model in enumerate(MODELS):
        if not (tmp_path / model).exists():
            scale_model.write(tmp_path / model, 1)
        servers.append(
            start_server(
                model_name=model,
                base_path=tmp_path / model,
                state_directory=tmp_path / f"s{number}",
                fleet_member=True,
                drain_seconds=TIMEOUT_SECONDS / 2,
            )
        )
    proxy = Proxy(tmp_path)
    ports = {"scale": proxy.port, "other": free_port()}
    once = RetryPolicy(attempt_count_max=1)
    targets: list[tuple[str, str | list[str]]] = []
    for model, port in ports.items():
        own = [server.target for server, its_model in zip(servers, MODELS) if its_model == model]
        targets += [(model, f"127.0.0.1:{port}"), (model, own)]
    with running_coordinator(tmp_path, coordinator_tables(proxy, ports, servers)):
        for server, model in zip(servers, MODELS):
            server.wait_until_available(model, 1)
        wait_until((tmp_path / "haproxy.cfg").exists, "the proxy's configuration")
        with proxy.running(), ExitStack() as stack:
            loads = [
                Load(stack.enter_context(calls_to(target, model, once)), 1)
                for model, target in targets
            ]
            for load in loads:
                stack.enter_context(load.running())
            for load in loads:
                load.wait_for_more(100)
            servers[0].stop()
            text = (tmp_path / "haproxy.cfg").read_text()
            assert text.count("weight 0") == 1
            stats = str(tmp_path / "stats.sock")
            wait_until(lambda: running_fingerprint(stats) == fingerprint_of(text), "the new file")
            for load in loads:
                load.wait_for_more(100)
    assert [load.failures for load in loads] == [[], [], [], []]
    assert "drain_not_reported" not in servers[0].log_path.read_text()
