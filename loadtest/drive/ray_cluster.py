"""A Ray cluster of several nodes on this machine, with Millpond's fleet and Debian's HAProxy.

Ray is imported by the first cluster, after the settings of its environment.
"""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.config.config import parse_fleet_config
from fleet.files.haproxy import HaproxySettings, haproxy_text
from fleet.files.registry import write_text
from loadtest.drive.shell_server import free_port
from serving.base.clock import Clock, SystemClock, pause, seconds_since
from serving.base.errors import FailedPrecondition, MillpondError, Unavailable

if TYPE_CHECKING:
    from fleet.ray import Deployment

NODE_MEMORY_BYTES = 4_000_000_000

# Ray needs a little shared memory for each node, although Millpond puts nothing into it.
_OBJECT_STORE_BYTES = 80_000_000
_POLL_SECONDS = 0.1

# Ray gives each node 30 s to start, which no setting changes; a busy machine may take longer.
_START_COUNT_MAX = 4

# Turns off Ray's reports to its makers, its processes ahead of demand, and its killing of actors because
# other programs of this machine use memory.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}


def haproxy_program() -> str:
    """Finds HAProxy. Raises FailedPrecondition."""
    path = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if path is None:
        raise FailedPrecondition("HAProxy is not installed: apt-get install haproxy")
    return path


class LocalCluster:
    """Nodes of a Ray cluster, all on this machine, inside `with`. The first one has the cluster's state.

    `directory` must be short, because the paths of Ray's UNIX sockets have 70 more characters, and may have
    107 in all.
    """

    def __init__(self, directory: Path, node_count: int) -> None:
        self._directory = directory
        self._node_count = node_count
        self._nodes: dict[str, Any] = {}
        self._cluster: Any = None

    def __enter__(self) -> "LocalCluster":
        os.environ.update(_ENVIRONMENT)
        os.environ["RAY_TMPDIR"] = str(self._directory)
        (self._directory / "ray").mkdir(parents=True, exist_ok=True)
        for attempts_left in reversed(range(_START_COUNT_MAX)):
            try:
                self._start()
                break
            except Exception:
                if attempts_left == 0:
                    raise
        return self

    def _start(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(shutdown_at_exit=True)
        self._nodes.clear()
        try:
            for _ in range(self._node_count):
                self.add_node()
        except BaseException:
            self._cluster.shutdown()
            raise

    def __exit__(self, *exception: object) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()
        for name in [*_ENVIRONMENT, "RAY_TMPDIR"]:
            os.environ.pop(name, None)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def head(self) -> str:
        """The node with the cluster's state."""
        return next(iter(self._nodes))

    def add_node(self) -> str:
        """Starts a node, and returns its name."""
        options: dict[str, Any] = {
            "num_cpus": 2,
            "memory": NODE_MEMORY_BYTES,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "include_dashboard": False,
            # Nothing here scales the cluster, and nobody reads the workers' output in this process.
            "no_monitor": True,
            "include_log_monitor": False,
        }
        node = self._cluster.add_node(**options)
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def kill_node(self, name: str, servers: list[int]) -> None:
        """Kills a node with its servers at once, as a power cut does."""
        for process_id in servers:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)


class RayFleet:
    """A fleet on a cluster, its front in this process, and HAProxy before it, inside `with`."""

    def __init__(
        self, directory: Path, tables: str, *, poll_seconds: float = 0.5, clock: Clock | None = None
    ) -> None:
        """`tables` are the tables [waves] and [ray] of the fleet's configuration."""
        self._directory = directory
        self._tables = tables
        self._poll_seconds = poll_seconds
        self._clock = clock or SystemClock()
        self._haproxy: subprocess.Popen[bytes] | None = None
        self._proxy_port = free_port()
        self._front: Any = None
        self._thread: threading.Thread | None = None
        self.deployment: Deployment = None  # type: ignore[assignment]

    def __enter__(self) -> "RayFleet":
        from fleet.ray import deploy
        from fleet.ray.front import Front

        self.deployment = deploy(self.config())
        try:
            self._start_haproxy()
            self._front = Front(
                parse_fleet_config(self.config()), lambda: self.deployment, self._clock
            )
            self._thread = threading.Thread(target=self._front.run, name="front")
            self._thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._front is not None and self._thread is not None:
            self._front.stop()
            self._thread.join()
        if self._haproxy is not None:
            self._haproxy.terminate()
            self._haproxy.wait()
        # If this fails, the end of the cluster ends what is left.
        with suppress(MillpondError):
            self.deployment.shut_down(60)

    @property
    def target(self) -> str:
        """The address for clients: HAProxy's."""
        return f"127.0.0.1:{self._proxy_port}"

    @property
    def operators(self) -> str:
        """The operators' door of the front."""
        address: str = self._front.operator_address
        return address

    def change(self, tables: str) -> None:
        """Deploys another configuration."""
        from fleet.ray import deploy

        self._tables = tables
        deploy(self.config())

    def config(self) -> str:
        """The text of the configuration."""
        return (
            '[coordinator]\nlisten = "127.0.0.1:0"\n'
            f"poll_seconds = {self._poll_seconds}\n"
            f"registry_file = {str(self._directory / 'servers.json')!r}\n"
            f"[haproxy]\nfile = {str(self._directory / 'haproxy.cfg')!r}\n"
            f"pid_file = {str(self._directory / 'haproxy.pid')!r}\n"
            f'bind = "{self.target}"\n'
            f"stats_socket = {str(self._directory / 'haproxy.sock')!r}\n"
            f"check_seconds = 0.5\n{self._tables}"
        )

    def replicas(self) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = self.deployment.replicas()["replicas"]
        return rows

    def model(self, name: str) -> Mapping[str, Any]:
        """The status of a model; {} while no server has reported it."""
        found: Mapping[str, Any] = self.deployment.status()["models"].get(name, {})
        return found

    def serving(self, name: str) -> dict[str, int]:
        """The version that each live server answers with."""
        servers = self.deployment.status()["servers"]
        return {
            row["name"]: row["versions"][name]
            for row in servers
            if row["state"] == "live" and row["versions"].get(name) is not None
        }

    def wait_for(self, is_so: Callable[[], object], what: str, seconds: float = 120) -> None:
        """Waits until `is_so` is true, also while the coordinator does not answer. Raises Unavailable."""
        start_ns = self._clock.now_ns()
        while True:
            with suppress(Unavailable):
                if is_so():
                    return
            if seconds_since(self._clock, start_ns) > seconds:
                raise Unavailable(f"waited {seconds} s for {what}")
            pause(self._clock, _POLL_SECONDS)

    def _start_haproxy(self) -> None:
        files = parse_fleet_config(self.config()).haproxy
        assert files is not None
        settings: HaproxySettings = files.settings
        write_text(Path(files.file), haproxy_text((), settings))
        log = (self._directory / "haproxy.log").open("wb")
        command = [haproxy_program(), "-W", "-p", files.pid_file, "-f", files.file]
        self._haproxy = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()
        self.wait_for(Path(files.pid_file).exists, "HAProxy's pid file")


@contextmanager
def ray_fleet(
    directory: Path, node_count: int, tables: Callable[[str], str]
) -> Iterator[tuple[LocalCluster, RayFleet]]:
    """Yields a cluster and a fleet on it. `tables` makes the tables [waves] and [ray] from the address."""
    with (
        LocalCluster(directory, node_count) as cluster,
        RayFleet(directory, tables(cluster.address)) as fleet,
    ):
        yield cluster, fleet
