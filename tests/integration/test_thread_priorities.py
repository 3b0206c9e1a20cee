"""The priority and the cores of each thread: loads, unloads and the slab keeper run at idle
priority, requests never.
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from serving import ModelServer
from serving.client import Client
from serving.config.lab_settings import LAB_VARIABLE
from serving.core.servable import AVAILABLE, END, LOADING
from serving.http.front import HTTP_NICE
from tests.integration.clients import wait_for_states, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged, wait_for_log
from tests.integration.processes import CORES

LOADER_COUNT = 3
UNLOADER_COUNT = 2
# These threads, the slab keeper, and the threads that write and upload request logs. A Python
# thread's name does not reach the kernel: they are counted.
BACKGROUND_COUNT = LOADER_COUNT + UNLOADER_COUNT + 3

LOWEST_NICE = 19


def thread_names(server: ModelServer) -> dict[int, str]:
    """Returns the priorities by thread id; a thread that ends meanwhile is left out."""
    names = {}
    for task in Path(f"/proc/{server.process_id}/task").iterdir():
        try:
            names[int(task.name)] = (task / "comm").read_text().strip()
        except FileNotFoundError:
            continue
    return names


def policies(server: ModelServer) -> Mapping[int, int]:
    return _of_threads(server, os.sched_getscheduler)


def nice_values(server: ModelServer) -> Mapping[int, int]:
    return _of_threads(server, lambda thread: os.getpriority(os.PRIO_PROCESS, thread))


def _of_threads(server: ModelServer, read: Callable[[int], int]) -> Mapping[int, int]:
    """Reads a value of each thread; a thread that ends meanwhile is left out."""
    found = {}
    for thread in thread_names(server):
        with suppress(ProcessLookupError):
            found[thread] = read(thread)
    return found


class SwappedServers:
    """Servers that have run a load, a request and an unload, so that all their threads exist.

    Each set of flags is started once.
    """

    def __init__(self, start: StartServer, scale_model: ScaleModel, directory: Path) -> None:
        self._start = start
        self._scale_model = scale_model
        self._directory = directory
        self._servers: dict[str, ModelServer] = {}

    def get(self, name: str) -> ModelServer:
        """Returns the server with the flags of that name."""
        if name not in self._servers:
            self._servers[name] = self._started(self._directory / name, FLAGS[name])
        return self._servers[name]

    def _started(self, base_path: Path, flags: Mapping[str, object]) -> ModelServer:
        base_path.mkdir()
        self._scale_model.write(base_path, 1)
        server = self._start(
            model_name="scale",
            base_path=base_path,
            num_load_threads=LOADER_COUNT,
            num_unload_threads=UNLOADER_COUNT,
            **flags,
        )
        server.wait_until_available("scale", 1)
        with Client(server.target) as client:
            client.predict("scale", {"x": np.ones(1, np.float32)})
            self._scale_model.write(base_path, 2, offset_count=1_000_000)
            wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
            client.predict("scale", {"x": np.ones(1, np.float32)})
        return server


FLAGS: Mapping[str, Mapping[str, object]] = {
    "early": {"listen_before_ready": True, "grpc_request_threads": 3},
    # The threads of these servers' other port answer no predictions, and are not pinned.
    "late": {
        "listen_before_ready": False,
        "pin_request_threads": "always",
        "admin_address": "off",
    },
    "nice": {"load_priority": "nice", "grpc_request_threads": 3},
    # HTTP is off, because what answers it in Python has its own nice value.
    "normal": {
        "load_priority": "normal",
        "rest_api_port": 0,
        "pin_request_threads": "never",
        "admin_address": "off",
    },
    # On one core.
    "stock": {
        "command": ("taskset", "--cpu-list", str(min(CORES)), sys.executable, "-m", "serving"),
        "environment": {LAB_VARIABLE: "tensorflow_runtime=stock"},
        "allocator": "glibc",
        "admin_address": "off",
    },
}


@pytest.fixture(scope="module")
def servers(
    start_module_server: StartServer,
    scale_model: ScaleModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> SwappedServers:
    return SwappedServers(start_module_server, scale_model, tmp_path_factory.mktemp("swapped"))


def idle_threads(server: ModelServer) -> list[str | None]:
    """Returns the names of the idle threads, without the one that folds constants of graphs which a loader
    optimizes: it may be idle like a loader.
    """
    names = thread_names(server)
    idle = [names.get(thread) for thread, own in policies(server).items() if own == os.SCHED_IDLE]
    return [name for name in idle if name != "tf_graph_runner"]


@pytest.mark.parametrize("name", ["early", "late"])
def test_exactly_the_background_threads_are_idle(servers: SwappedServers, name: str):
    # The comparison is exact: a pool that a loader started would run requests at the loader's
    # priority.
    server = servers.get(name)
    # A loader whose priority was raised, because it starved, is idle again a moment after its load.
    wait_until(
        lambda: len(idle_threads(server)) == BACKGROUND_COUNT,
        f"{BACKGROUND_COUNT} idle threads",
    )
    names = thread_names(server)
    if not logged(server, "load_priority_raised"):
        # A load whose priority was raised, because it starved, starts these threads at that priority.
        runners = [thread for thread, name in names.items() if name == "tf_graph_runner"]
        assert {policies(server)[thread] for thread in runners} <= {os.SCHED_IDLE}


@pytest.mark.parametrize("name", ["early", "nice"])
def test_request_threads_keep_their_priority(servers: SwappedServers, name: str):
    server = servers.get(name)
    request_threads = [
        thread for thread, name in thread_names(server).items() if name.startswith("request-")
    ]
    assert len(request_threads) >= 3
    assert {policies(server)[thread] for thread in request_threads} == {os.SCHED_OTHER}
    assert {nice_values(server)[thread] for thread in request_threads} == {0}


def test_background_threads_have_lowest_priority(servers: SwappedServers):
    server = servers.get("nice")
    assert set(policies(server).values()) == {os.SCHED_OTHER}

    def nice_count() -> int:
        names, nices = thread_names(server), nice_values(server)
        nice = [thread for thread, value in nices.items() if value == LOWEST_NICE]
        return sum(names.get(thread) != "tf_graph_runner" for thread in nice)

    # As above, once a load whose priority was raised has ended.
    wait_until(lambda: nice_count() == BACKGROUND_COUNT, f"{BACKGROUND_COUNT} nice threads")


def test_normal_background_threads_are_as_any_other(servers: SwappedServers):
    server = servers.get("normal")
    assert set(policies(server).values()) == {os.SCHED_OTHER}
    assert set(nice_values(server).values()) == {0}
    # Without HTTP there is no thread for it.
    assert wait_for_log(server, "listening")["http_port"] is None


def test_http_threads_are_nicer_than_those_of_requests(servers: SwappedServers):
    # The other threads of this server have a policy instead of a nice value.
    nicer = [value for value in nice_values(servers.get("early")).values() if value != 0]
    assert nicer
    assert set(nicer) == {HTTP_NICE}


def test_stock_runtime_has_no_idle_thread(servers: SwappedServers):
    assert set(policies(servers.get("stock")).values()) == {os.SCHED_OTHER}


# --- The number of threads ---


def threads_by_name(server: ModelServer) -> Counter[str]:
    """Counts the threads by name. jemalloc starts its own as it needs them, so they are left out."""
    names = thread_names(server).values()
    return Counter(name for name in names if name != "jemalloc_bg_thd")


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_further_core_adds_two_threads(
    start_module_server: StartServer, scale_model: ScaleModel, tmp_path: Path
):
    """One of them serves requests, and TensorFlow shares the work of a large kernel with the other."""
    scale_model.write(tmp_path, 1)

    def start(core_count: int) -> ModelServer:
        cores = ",".join(str(core) for core in sorted(CORES)[:core_count])
        server = start_module_server(
            model_name="scale",
            base_path=tmp_path,
            command=("taskset", "--cpu-list", cores, sys.executable, "-m", "serving"),
        )
        server.wait_until_available("scale", 1)
        return server

    of_one_core = start(1)
    of_two_cores = start(2)

    def has_added_two() -> bool:
        one, two = threads_by_name(of_one_core), threads_by_name(of_two_cores)
        added = two - one
        return not one - two and added.total() == 2 and added["request-1"] == 1

    wait_until(has_added_two, "two more threads")


# --- Cores of the request threads -----------------------------------------------------------------


def request_cores(server: ModelServer) -> list[set[int]]:
    """Returns the cores of each request thread."""
    names = thread_names(server)
    return [
        os.sched_getaffinity(thread)
        for thread, name in names.items()
        if name.startswith("request-")
    ]


def are_pinned(server: ModelServer) -> bool:
    """Returns True if each core has exactly one request thread."""
    cores = request_cores(server)
    return all(len(own) == 1 for own in cores) and set().union(*cores) == CORES


def are_free(server: ModelServer) -> bool:
    return request_cores(server) == [CORES] * len(CORES)


@pytest.mark.skipif(not 2 <= len(CORES) <= 8, reason="pins on machines of 2 to 8 cores")
def test_request_threads_keep_cores_during_load(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale",
        base_path=base_path,
        restore_bytes_per_second=40_000,
        # The threads of this server answer no predictions, and are not pinned.
        admin_address="off",
    )
    server.wait_until_available("scale", 1)
    wait_until(lambda: are_free(server), "free threads after the first load")
    # 4 MB: 100 seconds.
    scale_model.write(base_path, 2, offset_count=1_000_000)
    wait_until(lambda: are_pinned(server), "pinned threads during a load")
    with Client(server.target) as client:
        wait_for_states(client, "scale", {1: AVAILABLE, 2: LOADING})
    shutil.rmtree(base_path / "2")
    wait_until(lambda: are_free(server), "free threads after a load")


def test_request_threads_keep_configured_cores(servers: SwappedServers):
    assert are_pinned(servers.get("late"))
    assert are_free(servers.get("normal"))


def test_only_cores_of_the_server_have_threads(servers: SwappedServers):
    server = servers.get("stock")
    assert request_cores(server) == [{min(CORES)}]
