"""Debian's HAProxy with the configuration that a fleet writes, in front of real servers."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from loadtest.drive.shell_server import free_port
from serving import ModelServer
from serving.base.clock import SystemClock
from serving.base.errors import MillpondError
from serving.client import Client, RetryPolicy
from serving.fleet.config import parse_fleet_config
from serving.fleet.haproxy import Backend, HaproxySettings, fingerprint_of
from serving.fleet.haproxy import haproxy_text as text_of
from serving.fleet.haproxy_process import reload_haproxy, running_fingerprint
from serving.fleet.registry import write_text
from serving.fleet.service import FleetService
from tests.integration.clients import wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed")

SERVER_COUNT = 2


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
            check_seconds=0.2,
            drain_seconds=20,
        )
        write_text(self.directory / "haproxy.cfg", text_of(backends, settings))

    def reload(self, *backends: Backend) -> None:
        before = self._workers()
        self.write(*backends)
        reload_haproxy(self.pid_file)
        wait_until(lambda: self._workers() - before, "a new worker")

    def _workers(self) -> set[str]:
        pid = Path(self.pid_file).read_text().strip()
        return {*Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    @contextmanager
    def running(self) -> Iterator[None]:
        log = (self.directory / "haproxy.log").open("w")
        command = [str(HAPROXY), "-W", "-p", self.pid_file, "-f", "haproxy.cfg"]
        process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)
        try:
            wait_until(lambda: Path(self.pid_file).exists(), "HAProxy's pid file")
            yield
        finally:
            process.terminate()
            process.wait(60)
            log.close()


@dataclass
class Load:
    """A client that sends one request after the other, and counts who answered."""

    target: str
    model: str = "scale"
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    failures: list[str] = field(default_factory=list)
    answer_count: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator["Load"]:
        threads = [threading.Thread(target=self._send) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()

    def wait_for_more(self, count: int) -> None:
        wanted = self.answer_count + count
        wait_until(lambda: self.answer_count >= wanted, f"{count} more answers")

    def _send(self) -> None:
        with Client(self.target, retries=self.retries) as client:
            while not self.is_over.is_set():
                try:
                    client.predict(self.model, {"x": np.ones(2, np.float32)}, timeout_seconds=20)
                except MillpondError as error:
                    self.failures.append(str(error))
                else:
                    self.answer_count += 1


@pytest.fixture
def servers(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> list[ModelServer]:
    scale_model.write(base_path, 1)
    started = [start_server(model_name="scale", base_path=base_path) for _ in range(SERVER_COUNT)]
    for server in started:
        server.wait_until_available("scale", 1)
    return started


def backends_of(servers: list[ModelServer], draining: int | None = None) -> list[Backend]:
    return [
        Backend(name=f"s{number}", address=server.target, is_draining=number == draining)
        for number, server in enumerate(servers)
    ]


def request_count(server: ModelServer) -> int:
    with Client(server.admin_target) as client:
        count: int = client.describe_models()["scale"]["versions"][0]["request_count"]
    return count


def test_haproxy_spreads_requests_of_one_client(servers: list[ModelServer], tmp_path: Path) -> None:
    proxy = Proxy(tmp_path)
    proxy.write(*backends_of(servers))
    with proxy.running(), Load(proxy.target).running() as load:
        load.wait_for_more(200)
    assert load.failures == []
    assert all(request_count(server) > 20 for server in servers)


def test_haproxy_reloads_without_a_lost_request(servers: list[ModelServer], tmp_path: Path) -> None:
    proxy = Proxy(tmp_path)
    proxy.write(*backends_of(servers))
    with proxy.running(), Load(proxy.target).running() as load:
        for draining in (0, 1, None):
            load.wait_for_more(100)
            proxy.reload(*backends_of(servers, draining))
        load.wait_for_more(100)
    assert load.failures == []


def test_drained_server_stops_without_a_lost_request(
    servers: list[ModelServer], tmp_path: Path
) -> None:
    proxy = Proxy(tmp_path)
    proxy.write(*backends_of(servers))
    with proxy.running(), Load(proxy.target).running() as load:
        load.wait_for_more(100)
        proxy.reload(*backends_of(servers, draining=0))
        load.wait_for_more(100)
        servers[0].stop()
        load.wait_for_more(100)
    assert load.failures == []


def test_haproxy_skips_a_server_that_does_not_serve(
    servers: list[ModelServer], start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    idle = start_server(model_name="scale", base_path=tmp_path / "empty", listen_before_ready=True)
    proxy = Proxy(tmp_path)
    proxy.write(*backends_of([servers[0], idle]))
    log = tmp_path / "haproxy.log"
    with proxy.running():
        wait_until(lambda: "servers/s1 is DOWN" in log.read_text(), "a check that fails")
        with Load(proxy.target).running() as load:
            load.wait_for_more(200)
    assert load.failures == []
    assert "servers/s0 is DOWN" not in log.read_text()


MODELS = ("scale", "scale", "other")


@contextmanager
def coordinator(
    proxy: Proxy, ports: dict[str, int], servers: list[ModelServer]
) -> Iterator[FleetService]:
    """Leads a fleet of these servers, and keeps the proxy's configuration."""
    directory = proxy.directory
    binds = ", ".join(f'{model} = "127.0.0.1:{port}"' for model, port in ports.items())
    tables = "".join(
        f'[servers.s{number}]\nadmin = "{server.admin_target}"\ngrpc = "{server.target}"\n'
        for number, server in enumerate(servers)
    )
    config = parse_fleet_config(
        f'[coordinator]\nstate_directory = "{directory / "fleet"}"\nlisten = "127.0.0.1:0"\n'
        f'registry_file = "{directory / "servers.json"}"\npoll_seconds = 0.2\n'
        f"[waves]\nsizes = []\njudged_seconds = 1\n"
        f'[haproxy]\nfile = "{directory / "haproxy.cfg"}"\npid_file = "{proxy.pid_file}"\n'
        f'stats_socket = "{directory / "stats.sock"}"\nbinds = {{{binds}}}\n{tables}'
    )
    service = FleetService(config, SystemClock())
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join()


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
                drain_seconds=20,
                listen_before_ready=True,
            )
        )
    proxy = Proxy(tmp_path)
    ports = {"scale": proxy.port, "other": free_port()}
    once = RetryPolicy(attempt_count_max=1)
    loads = [Load(f"127.0.0.1:{port}", model, once) for model, port in ports.items()]
    registry = f"fleet+file://{tmp_path / 'servers.json'}"
    loads += [Load(registry, model, once) for model in ports]
    with coordinator(proxy, ports, servers):
        for server, model in zip(servers, MODELS):
            server.wait_until_available(model, 1)
        wait_until((tmp_path / "haproxy.cfg").exists, "the proxy's configuration")
        with proxy.running(), ExitStack() as stack:
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
