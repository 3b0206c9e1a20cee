"""The priority and the cores of each thread: loads, unloads and the slab keeper run at idle
priority, requests never.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LOADING
from serving.http.server import HTTP_NICE
from tests.integration.clients import wait_for_states, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged

LOADER_COUNT = 3
UNLOADER_COUNT = 2
# These threads, and the slab keeper. A Python thread's name does not reach the kernel: they are
# counted.
BACKGROUND_COUNT = LOADER_COUNT + UNLOADER_COUNT + 1

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
    return {thread: os.sched_getscheduler(thread) for thread in thread_names(server)}


def nice_values(server: ModelServer) -> Mapping[int, int]:
    return {thread: os.getpriority(os.PRIO_PROCESS, thread) for thread in thread_names(server)}


def start_and_swap(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, **flags: object
) -> ModelServer:
    """Starts a server and runs a load, a request and an unload: all its threads exist."""
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale",
        base_path=base_path,
        num_load_threads=LOADER_COUNT,
        num_unload_threads=UNLOADER_COUNT,
        **flags,
    )
    server.wait_until_available("scale", 1)
    with Client(server.target) as client:
        client.predict("scale", {"x": np.ones(1, np.float32)})
        scale_model.write(base_path, 2, offset_count=1_000_000)
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
        client.predict("scale", {"x": np.ones(1, np.float32)})
    return server


@pytest.mark.parametrize("listen_before_ready", [True, False])
def test_exactly_the_background_threads_are_idle(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, listen_before_ready: bool
):
    # The comparison is exact: a pool that a loader started would run requests at the loader's
    # priority.
    server = start_and_swap(
        start_server, scale_model, base_path, listen_before_ready=listen_before_ready
    )
    names = thread_names(server)
    idle = [
        thread
        for thread, policy in policies(server).items()
        # This thread folds constants of graphs that a loader optimizes, so it may be idle like a
        # loader.
        if policy == os.SCHED_IDLE and names.get(thread) != "tf_graph_runner"
    ]
    assert len(idle) == BACKGROUND_COUNT, [names.get(thread) for thread in idle]
    if not logged(server, "load_priority_raised"):
        # A load whose priority was raised, because it starved, starts these threads at that priority.
        runners = [thread for thread, name in names.items() if name == "tf_graph_runner"]
        assert {policies(server)[thread] for thread in runners} <= {os.SCHED_IDLE}


@pytest.mark.parametrize("load_priority", ["idle", "nice"])
def test_request_threads_keep_their_priority(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, load_priority: str
):
    server = start_and_swap(
        start_server,
        scale_model,
        base_path,
        load_priority=load_priority,
        grpc_completion_queue_count=3,
    )
    request_threads = [
        thread for thread, name in thread_names(server).items() if name.startswith("request-")
    ]
    assert len(request_threads) >= 3
    assert {policies(server)[thread] for thread in request_threads} == {os.SCHED_OTHER}
    assert {nice_values(server)[thread] for thread in request_threads} == {0}


def test_background_threads_have_lowest_priority(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    server = start_and_swap(start_server, scale_model, base_path, load_priority="nice")
    assert set(policies(server).values()) == {os.SCHED_OTHER}
    names = thread_names(server)
    nice = [
        thread
        for thread, value in nice_values(server).items()
        if value == LOWEST_NICE and names.get(thread) != "tf_graph_runner"
    ]
    assert len(nice) == BACKGROUND_COUNT


def test_normal_background_threads_are_as_any_other(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    # HTTP is off, because its threads have their own nice value.
    server = start_and_swap(
        start_server, scale_model, base_path, load_priority="normal", rest_api_port=0
    )
    assert set(policies(server).values()) == {os.SCHED_OTHER}
    assert set(nice_values(server).values()) == {0}


def test_http_threads_are_nicer_than_those_of_requests(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    server = start_and_swap(start_server, scale_model, base_path, load_priority="normal")
    nicer = [value for value in nice_values(server).values() if value != 0]
    assert nicer
    assert set(nicer) == {HTTP_NICE}


def test_stock_runtime_has_no_idle_thread(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    server = start_and_swap(
        start_server, scale_model, base_path, tensorflow_runtime="stock", allocator="glibc"
    )
    assert set(policies(server).values()) == {os.SCHED_OTHER}


# --- Cores of the request threads -----------------------------------------------------------------

CORES = os.sched_getaffinity(0)


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
        restore_bytes_per_second=400_000,
        # The threads of this server answer no predictions, and are not pinned.
        admin_address="off",
    )
    server.wait_until_available("scale", 1)
    wait_until(lambda: are_free(server), "free threads after the first load")
    # 4 MB: ten seconds.
    scale_model.write(base_path, 2, offset_count=1_000_000)
    wait_until(lambda: are_pinned(server), "pinned threads during a load")
    with Client(server.target) as client:
        wait_for_states(client, "scale", {1: AVAILABLE, 2: LOADING})
    shutil.rmtree(base_path / "2")
    wait_until(lambda: are_free(server), "free threads after a load")


@pytest.mark.parametrize("pin_request_threads", ["always", "never"])
def test_request_threads_keep_configured_cores(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, pin_request_threads: str
):
    server = start_and_swap(
        start_server,
        scale_model,
        base_path,
        pin_request_threads=pin_request_threads,
        admin_address="off",
    )
    if pin_request_threads == "always":
        assert are_pinned(server)
    else:
        assert are_free(server)
