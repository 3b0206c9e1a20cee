"""The cost of a fleet's coordinator: processor time and messages for each server, at rest and in a rollout."""

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.drive.fleet_members import MODEL, FleetMembers
from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import Unavailable

_PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.2

Samples = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FleetCost:
    """The cost over a time. `seconds` is of the wall, `processor_seconds` of the coordinator."""

    seconds: float
    processor_seconds: float
    report_count: int
    grant_count: int
    failed_count: int

    def as_row(self, phase: str, server_count: int) -> dict[str, Any]:
        messages = self.report_count + self.grant_count
        return {
            "phase": phase,
            "servers": server_count,
            "seconds": round(self.seconds, 1),
            "core_share": round(self.processor_seconds / self.seconds, 4),
            "processor_ms_per_report": round(
                1e3 * self.processor_seconds / max(1, self.report_count), 3
            ),
            "messages_per_server": round(messages / server_count, 2),
            "messages_per_server_per_second": round(messages / server_count / self.seconds, 2),
            "grants_per_server": round(self.grant_count / server_count, 2),
            "failed_calls": self.failed_count,
        }


def run_fleet_cost(
    server_count: int, seconds: float, directory: Path, clock: Clock
) -> list[dict[str, Any]]:
    """Runs a coordinator on `server_count` members. Returns a row for its rest, and for a rollout.

    Raises Unavailable if it does not come that far.
    """
    with FleetMembers(server_count) as members:
        coordinator = _Coordinator(directory, members.targets, clock)
        try:
            stable = f'fleet_stable_version{{model="{MODEL}"}}'
            on_all = f'fleet_model_servers{{model="{MODEL}",version="1"}}'
            coordinator.wait_until(
                lambda samples: samples.get(on_all) == server_count and samples.get(stable) == 1
            )
            rest = coordinator.cost_of(lambda: pause(clock, seconds))
            members.drop_version(2)
            rollout = coordinator.cost_of(
                lambda: coordinator.wait_until(lambda samples: samples.get(stable) == 2)
            )
        finally:
            coordinator.stop()
    return [rest.as_row("rest", server_count), rollout.as_row("rollout", server_count)]


class _Coordinator:
    """`millpond fleet start` as a process, and its metrics."""

    def __init__(self, directory: Path, targets: list[str], clock: Clock) -> None:
        self._clock = clock
        self._port = _free_port()
        file = directory / "fleet.toml"
        servers = "".join(
            f'[servers.s{number}]\nadmin = "{target}"\n' for number, target in enumerate(targets)
        )
        file.write_text(
            f"[coordinator]\nstate_directory = {str(directory / 'state')!r}\n"
            f'listen = "127.0.0.1:{self._port}"\n[waves]\njudged_seconds = 2\n{servers}'
        )
        command = [sys.executable, "-m", "serving", "fleet", "start", str(file)]
        with (directory / "coordinator.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_PATIENCE_SECONDS)

    def samples(self) -> Samples:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if not line.startswith("#")
        }

    def wait_until(self, is_so: Callable[[Samples], bool]) -> None:
        started_ns = self._clock.now_ns()
        while seconds_since(self._clock, started_ns) < _PATIENCE_SECONDS:
            try:
                if is_so(self.samples()):
                    return
            except OSError:
                if self._process.poll() is not None:
                    break
            pause(self._clock, _LOOK_SECONDS)
        raise Unavailable("the coordinator has not come that far; see coordinator.log")

    def cost_of(self, act: Callable[[], None]) -> FleetCost:
        started_ns, before = self._clock.now_ns(), self.samples()
        act()
        after = self.samples()

        def grown(name: str) -> float:
            return after[name] - before[name]

        return FleetCost(
            seconds=seconds_since(self._clock, started_ns),
            processor_seconds=grown("process_cpu_seconds_total"),
            report_count=int(grown('fleet_calls_total{call="report"}')),
            grant_count=int(grown('fleet_calls_total{call="grant"}')),
            failed_count=int(
                sum(
                    grown(f'fleet_calls_failed_total{{call="{kind}"}}')
                    for kind in ("report", "grant")
                )
            ),
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
