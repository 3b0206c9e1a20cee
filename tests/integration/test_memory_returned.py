"""Memory of unloaded versions: returned to the system, or kept as spare memory for the next
versions.
"""

import json
import statistics
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import wait_for_states, wait_until
from tests.integration.conftest import StartServer, WriteConfig
from tests.integration.exports import ScaleModel
from tests.integration.logs import logged, wait_for_log
from tests.integration.processes import anonymous_mib

# 200 MB: the server's own memory is small beside it.
OFFSET_COUNT = 50_000_000
VERSION_MIB = OFFSET_COUNT * 4 / 2**20
TOLERANCE_MIB = 0.05 * VERSION_MIB
SWAP_COUNT = 20
FLAT_RATIO = 1.03

DropBig = Callable[[Path, int], None]


@pytest.fixture(scope="module")
def drop_big(scale_model: ScaleModel, tmp_path_factory: pytest.TempPathFactory) -> DropBig:
    """Makes `base_path/version` a version of 200 MB with the answers of version 1 or 2."""
    directory = tmp_path_factory.mktemp("big")
    paths = [scale_model.write(directory, n, offset_count=OFFSET_COUNT) for n in (1, 2)]

    def drop(base_path: Path, version: int) -> None:
        (base_path / str(version)).symlink_to(paths[(version - 1) % 2])

    return drop


def wait_for_swap(server: ModelServer, old: int, new: int, *, model: str = "scale") -> None:
    with Client(server.target) as client:
        wait_for_states(client, model, {old: END, new: AVAILABLE})
    unloaded = wait_for_log(server, "version_unloaded", model=model, version=old)
    assert unloaded["arena_live_bytes"] == 0


def prefaulted_mib(server: ModelServer, name: str, version: int) -> float:
    """Returns the memory that the load of a version found in place."""
    with urllib.request.urlopen(f"{server.url}/v1/swaps?model={name}", timeout=30) as answer:
        swaps = json.load(answer)["swaps"]
    (prefaulted_bytes,) = (
        swap["figures"]["prefaulted_bytes"] for swap in swaps if swap["version"] == version
    )
    return float(prefaulted_bytes) / 2**20


def spare_mib(server: ModelServer) -> float:
    """Returns the spare memory whose pages are in place."""
    value = ServerPages(server.url).metrics().value("serving_slab_spare_resident_bytes")
    assert value is not None
    return value / 2**20


def wait_for_spare_of_a_version(server: ModelServer) -> None:
    """Waits for all of its pages: the memory of the process is known to 5 % only."""
    wait_until(lambda: spare_mib(server) >= VERSION_MIB, "spare memory for one version")


def assert_answers_as(server: ModelServer, version: int, parameters_of: int) -> None:
    with Client(server.target) as client:
        prediction = client.predict("scale", {"x": np.ones(1, np.float32)})
    answer = ScaleModel.answer(parameters_of, np.ones(1))
    assert (prediction.version, prediction.outputs["y"].tolist()) == (version, answer.tolist())


def wait_for_memory(server: ModelServer, wanted_mib: float, what: str) -> None:
    """Waits until the server holds that much, to 5 % of a big version."""
    seen_mib = 0.0

    def is_so() -> bool:
        nonlocal seen_mib
        seen_mib = anonymous_mib(server.process_id)
        return abs(seen_mib - wanted_mib) <= TOLERANCE_MIB

    try:
        wait_until(is_so, f"{wanted_mib:.0f} MiB {what}")
    except AssertionError as error:
        raise AssertionError(f"{error}; {seen_mib:.0f} at last") from None


def start_small(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, spare_count: int
) -> tuple[ModelServer, float]:
    """Returns a server that has swapped one small version for another, and the memory that it holds
    then.
    """
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path, arena_spare_slabs=spare_count)
    server.wait_until_available("scale", 1)
    scale_model.write(base_path, 2)
    wait_for_swap(server, 1, 2)
    return server, anonymous_mib(server.process_id)


def test_spare_memory_takes_next_version(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, drop_big: DropBig
):
    server, before_mib = start_small(start_server, scale_model, base_path, spare_count=1)
    drop_big(base_path, 3)
    wait_for_swap(server, 2, 3)
    wait_for_memory(server, before_mib + 2 * VERSION_MIB, "with one version and spare memory")
    wait_for_spare_of_a_version(server)
    seen_mib = []

    def is_swapped() -> bool:
        seen_mib.append(anonymous_mib(server.process_id))
        return bool(logged(server, "version_unloaded", version=3))

    drop_big(base_path, 4)
    wait_until(is_swapped, "version 4 in the place of 3")
    assert_answers_as(server, 4, parameters_of=2)
    # There is neither more memory while both versions are loaded nor memory that is returned and
    # taken again.
    assert max(seen_mib) < before_mib + 2 * VERSION_MIB + TOLERANCE_MIB
    assert min(seen_mib) > before_mib + 2 * VERSION_MIB - TOLERANCE_MIB
    wait_for_memory(server, before_mib + 2 * VERSION_MIB, "after the swap")


def test_models_share_spare_memory(
    start_server: StartServer,
    scale_model: ScaleModel,
    tmp_path: Path,
    drop_big: DropBig,
    write_config: WriteConfig,
):
    base_paths = {name: tmp_path / name for name in ("a", "b", "c")}
    for base_path in base_paths.values():
        scale_model.write(base_path, 1)
    server = start_server(model_config_file=write_config(tmp_path, base_paths), arena_spare_slabs=1)
    for name in base_paths:
        server.wait_until_available(name, 1)
    before_mib = anonymous_mib(server.process_id)
    for name, base_path in base_paths.items():
        drop_big(base_path, 2)
        wait_for_swap(server, 1, 2, model=name)
    at_rest_mib = before_mib + (len(base_paths) + 1) * VERSION_MIB
    wait_for_memory(server, at_rest_mib, "with three versions and spare memory for one")
    wait_for_spare_of_a_version(server)
    for name, base_path in base_paths.items():
        drop_big(base_path, 3)
        wait_for_swap(server, 2, 3, model=name)
        # Each swap finds the memory that the swap before has left, and takes no other.
        wait_for_memory(server, at_rest_mib, f"after the swap of {name}")
        assert prefaulted_mib(server, name, 3) >= VERSION_MIB


@pytest.mark.parametrize("spare_count", [0, 1])
def test_memory_is_flat_over_many_swaps(
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    drop_big: DropBig,
    spare_count: int,
):
    server, before_mib = start_small(start_server, scale_model, base_path, spare_count)
    at_rest_mib = before_mib + (1 + spare_count) * VERSION_MIB
    settled_mib = []
    for version in range(3, SWAP_COUNT + 3):
        drop_big(base_path, version)
        wait_for_swap(server, version - 1, version)
        assert_answers_as(server, version, parameters_of=(version - 1) % 2 + 1)
        # The keeper returns a slab, or touches a spare one, in its own time.
        wait_for_memory(server, at_rest_mib, f"after {version} versions")
        settled_mib.append(anonymous_mib(server.process_id))
    early = statistics.median(settled_mib[3:8])
    late = statistics.median(settled_mib[-5:])
    assert late < FLAT_RATIO * early, settled_mib
