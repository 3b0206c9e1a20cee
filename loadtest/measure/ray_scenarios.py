"""The scenarios of a fleet on Ray: versions in waves, and the deaths of a node, a coordinator and a server."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.drive.fleet_model import GOOD, MODEL_NAME, NAN, SLOW, FleetModel
from loadtest.drive.ray_cluster import LocalCluster, RayFleet
from loadtest.measure.retried_load import RetriedLoad, p999_ratio
from serving.base.clock import Clock, pause
from serving.base.errors import InternalError
from serving.server.model_server import ModelServer

MEMORY_BYTES = 50_000_000
PROCESS_BYTES = 500_000_000

# With fewer requests a wave would not be judged by p999.
_REQUEST_COUNT = 1_000
_JUDGED_SECONDS = 30
_WAVES = (
    f'sizes = ["1", "2"]\nrequest_count = {_REQUEST_COUNT}\njudged_seconds = {_JUDGED_SECONDS}\n'
)
_LOST_SECONDS = 6
_LONG_SECONDS = 180.0

# Only this gate does not warn: a version that answers NaN is refused.
SERVER_SETTINGS = f"""
[models.{MODEL_NAME}]
keep_previous_seconds = 600
[models.{MODEL_NAME}.gates]
drift = "enforce"
"""

Say = Callable[[str], None]


def fleet_tables(
    address: str,
    model: FleetModel,
    settings_file: Path,
    *,
    servers: int,
    waves: str = _WAVES,
) -> str:
    """Writes the tables [waves] and [ray] of a fleet of one model."""
    return (
        f"[waves]\nload_count_max = 1\nlost_seconds = {_LOST_SECONDS}\n{waves}"
        f'[ray]\naddress = "{address}"\nprocess_bytes = {PROCESS_BYTES}\nleave_seconds = 3\n'
        f"log_directory = {str(settings_file.parent / 'logs')!r}\n"
        "[ray.flags]\nfile_system_poll_wait_seconds = 0.2\n"
        f"model_settings_file = {str(settings_file)!r}\n"
        f"[ray.models.{MODEL_NAME}]\nbase_path = {str(model.base_path)!r}\nreplicas = {servers}\n"
        f"memory_bytes = {MEMORY_BYTES}\n"
    )


class Scenarios:
    """Runs scenarios one after the other on a fleet under load, and keeps their figures by name."""

    def __init__(
        self,
        cluster: LocalCluster,
        fleet: RayFleet,
        model: FleetModel,
        load: RetriedLoad,
        clock: Clock,
        say: Say,
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._model = model
        self._load = load
        self._clock = clock
        self._say = say
        self._server_count = len(fleet.replicas())
        self._version = 1
        self._reports: dict[str, dict[str, Any]] = {}

    @property
    def reports(self) -> Mapping[str, Mapping[str, Any]]:
        return self._reports

    def steady(self, seconds: float) -> None:
        """No change."""
        with self._scenario("steady"):
            pause(self._clock, seconds)

    def good_version(self, name: str = "a good version in waves") -> None:
        """Rolls a good version out to every server."""
        with self._scenario(name):
            version = self._drop(GOOD)
            self._wait_for_stable(version)

    def bad_version(self, name: str, variant: str) -> None:
        """Drops a bad version, which must be stopped in its first wave, on at most two servers."""
        with self._scenario(name) as values:
            version = self._drop(variant)
            self._fleet.wait_for(
                lambda: version in self._blocked(), f"version {version} is blocked", _LONG_SECONDS
            )
            self._wait_for_stable(self._stable)
        model = self._fleet.model(MODEL_NAME)
        values["reason"] = self._blocked()[version]
        values["verdict"] = next(
            (row["gate"] for row in reversed(model["verdicts"]) if not row["is_passed"]), ""
        )

    def node_killed(self) -> None:
        """Kills a node with its servers. Others take their place, and so does another coordinator."""
        with self._scenario("a node killed") as values:
            place = self._fleet.deployment.place()["node"]
            rows = self._fleet.replicas()
            nodes = {row["node"] for row in rows} - {self._cluster.head}
            node = place if place in nodes else sorted(nodes)[0]
            lost = [row for row in rows if row["node"] == node]
            values["servers killed"] = len(lost)
            values["coordinator was there"] = place == node
            self._cluster.kill_node(node, [row["process_id"] for row in lost])
            self._wait_for_launches({row["launch"] for row in lost})

    def coordinator_killed(self) -> None:
        """Kills the coordinator in the first wave of a good version, which must then go on."""
        with self._scenario("the coordinator killed in a wave") as values:
            version = self._drop(GOOD)
            self._fleet.wait_for(
                lambda: version in self._fleet.serving(MODEL_NAME).values(),
                f"a server with version {version}",
                _LONG_SECONDS,
            )
            process_id = self._fleet.deployment.place()["process_id"]
            values["servers with it"] = [*self._fleet.serving(MODEL_NAME).values()].count(version)
            os.kill(process_id, signal.SIGKILL)
            self._fleet.wait_for(
                lambda: self._fleet.deployment.place()["process_id"] != process_id,
                "another coordinator",
            )
            self._wait_for_stable(version)

    def server_killed(self) -> None:
        """Kills a server's process, which must be started again."""
        with self._scenario("a server killed"):
            row = self._fleet.replicas()[0]
            os.kill(row["process_id"], signal.SIGKILL)
            self._wait_for_launches({row["launch"]})

    def servers_restarted(self, restart: Callable[[], None] | None = None) -> None:
        """Drains each server and starts it again, one after the other. `restart` begins that."""
        with self._scenario("a rolling restart") as values:
            before = self._fleet.replicas()
            (restart or self._fleet.deployment.restart)()
            self._wait_for_launches({row["launch"] for row in before})
            kept = {row["grpc"] for row in before} & {row["grpc"] for row in self._fleet.replicas()}
            values["addresses kept"] = len(kept)

    @property
    def _stable(self) -> int | None:
        stable: int | None = self._fleet.model(MODEL_NAME)["stable"]
        return stable

    def _blocked(self) -> dict[int, str]:
        rows = self._fleet.model(MODEL_NAME)["blocked_versions"]
        return {row["version"]: row["reason"] for row in rows}

    def _drop(self, variant: str) -> int:
        self._version += 1
        self._model.drop(variant, self._version)
        return self._version

    def _wait_for_stable(self, version: int | None) -> None:
        """Waits until each server answers with the version, and no other one is on its way."""

        def is_so() -> bool:
            model = self._fleet.model(MODEL_NAME)
            if model["stable"] != version or model["rollout"] is not None:
                return False
            return [*self._fleet.serving(MODEL_NAME).values()] == [version] * self._server_count

        self._fleet.wait_for(is_so, f"version {version} on each server", _LONG_SECONDS)

    def _wait_for_launches(self, old: set[int]) -> None:
        """Waits until none of these launches is left, and each server answers."""

        def is_so() -> bool:
            rows = self._fleet.replicas()
            is_new = not old & {row["launch"] for row in rows}
            serving = self._fleet.serving(MODEL_NAME)
            is_up = all(row["phase"] == "up" and row["grpc"] for row in rows)
            return is_new and is_up and len(serving) == len(rows) == self._server_count

        self._fleet.wait_for(is_so, "servers in the place of others", _LONG_SECONDS)

    @contextmanager
    def _scenario(self, name: str) -> Iterator[dict[str, Any]]:
        """Measures the requests of a scenario.

        Values that are put into the yielded dictionary are reported with them.
        """
        self._say(f"{name} …")
        values: dict[str, Any] = {}
        since_ns = self._clock.now_ns()
        yield values
        until_ns = self._clock.now_ns()
        self._reports[name] = values
        # Waits, because a request that is still under way counts too.
        pause(self._clock, 1.0)
        values.update(self._load.report(since_ns, until_ns))


def run_scenarios(scenarios: Scenarios, steady_seconds: float) -> None:
    """Runs all scenarios."""
    scenarios.steady(steady_seconds)
    scenarios.good_version()
    scenarios.bad_version("a slow version", SLOW)
    scenarios.bad_version("a NaN version", NAN)
    scenarios.coordinator_killed()
    scenarios.server_killed()
    scenarios.servers_restarted()
    scenarios.node_killed()


def lone_server(
    model: FleetModel,
    directory: Path,
    rate_per_second: float,
    seconds: float,
    clock: Clock,
    say: Say,
) -> dict[str, Any]:
    """Measures one server with the same load: steady, and while versions are swapped."""
    say("one server …")
    versions = sorted(int(path.name) for path in model.base_path.iterdir() if path.name.isdigit())
    with ModelServer(
        model_name=MODEL_NAME,
        base_path=model.base_path,
        log_path=directory / "lone.log",
        file_system_poll_wait_seconds=0.2,
    ) as server:
        server.wait_until_available(MODEL_NAME, versions[-1])
        with RetriedLoad(server.target, rate_per_second, clock) as load:
            start_ns = clock.now_ns()
            pause(clock, seconds)
            steady_ns = clock.now_ns()
            for version in range(versions[-1] + 1, versions[-1] + 4):
                model.drop(GOOD, version)
                server.wait_until_available(MODEL_NAME, version)
                pause(clock, seconds / 3)
            swapped_ns = clock.now_ns()
            pause(clock, 1.0)
            return {
                "steady": load.report(start_ns, steady_ns),
                "three swaps": load.report(steady_ns, swapped_ns),
            }


def check_reports(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises InternalError if a request failed, or a bad version was stopped after its first wave."""
    for name, row in reports.items():
        if row["failed"]:
            raise InternalError(f"{name}: {row['failed']} requests failed")
        if row["wrong"] and name != "a NaN version":
            raise InternalError(f"{name}: {row['wrong']} answers were wrong")
        if "verdict" in row and row["verdict"] not in ("loads", "wave 1"):
            raise InternalError(f"{name} was stopped by {row['verdict']}: {row['reason']}")


def ratios(
    reports: Mapping[str, Mapping[str, Any]], lone: Mapping[str, Mapping[str, Any]]
) -> dict[str, float | None]:
    """The p999 in the waves over the steady one, of the fleet and of one server that swaps."""
    return {
        "fleet": p999_ratio(reports["a good version in waves"], reports["steady"]),
        "one server": p999_ratio(lone["three swaps"], lone["steady"]),
    }
