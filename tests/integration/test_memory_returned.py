"""Memory of unloaded versions: returned to the system, or kept as spare memory for the next
versions.
"""

import statistics
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

# 100 MB: a version that stays in memory cannot be missed.
OFFSET_COUNT = 25_000_000
VERSION_MIB = OFFSET_COUNT * 4 / 2**20
TOLERANCE_MIB = 0.1 * VERSION_MIB
SWAP_COUNT = 6
LONG_SWAP_COUNT = 20
FLAT_RATIO = 1.03

DropBig = Callable[[Path, int], None]


@pytest.fixture(scope="module")
def starts_warm() -> bool:
    """Memory is measured in processes that share none."""
    return False


@pytest.fixture(scope="module")
def drop_big(scale_model: ScaleModel, tmp_path_factory: pytest.TempPathFactory) -> DropBig:
    """Makes `base_path/version` a version of 100 MB with the answers of version 1 or 2."""
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
    swaps = ServerPages(server.url).swaps(name)
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
    """Waits for all of its pages: the memory of the process is known to 10 % only."""
    wait_until(lambda: spare_mib(server) >= VERSION_MIB, "spare memory for one version")


def assert_answers_as(server: ModelServer, version: int, parameters_of: int) -> None:
    with Client(server.target) as client:
        prediction = client.predict("scale", {"x": np.ones(1, np.float32)})
    answer = ScaleModel.answer(parameters_of, np.ones(1))
    assert (prediction.version, prediction.outputs["y"].tolist()) == (version, answer.tolist())


def wait_for_memory(server: ModelServer, wanted_mib: float, what: str) -> None:
    """Waits until the server holds that much, to 10 % of a big version."""
    seen_mib = 0.0

    def is_so() -> bool:
        nonlocal seen_mib
        seen_mib = anonymous_mib(server.process_id)
        return abs(seen_mib - wanted_mib) <= TOLERANCE_MIB

    try:
        wait_until(is_so, f"{wanted_mib:.0f} MiB {what}")
    except AssertionError as error:
        raise AssertionError(f"{error}; {seen_mib:.0f} at last") from None


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


@pytest.mark.parametrize(
    "swap_count", [SWAP_COUNT, pytest.param(LONG_SWAP_COUNT, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("spare_count", [0, 1])
def test_memory_is_flat_over_many_swaps(
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    drop_big: DropBig,
    spare_count: int,
    swap_count: int,
):
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path, arena_spare_slabs=spare_count)
    server.wait_until_available("scale", 1)
    scale_model.write(base_path, 2)
    wait_for_swap(server, 1, 2)
    at_rest_mib = anonymous_mib(server.process_id) + (1 + spare_count) * VERSION_MIB
    settled_mib = []
    for version in range(3, swap_count + 3):
        before_mib = anonymous_mib(server.process_id)
        drop_big(base_path, version)
        seen_mib = memory_during_swap(server, version - 1)
        if spare_count > 0 and version > 3:
            # The spare memory takes the version: there is neither more memory while both versions are
            # loaded nor memory that is returned and taken again.
            assert max(seen_mib) < before_mib + TOLERANCE_MIB
            assert min(seen_mib) > before_mib - TOLERANCE_MIB
        wait_for_swap(server, version - 1, version)
        assert_answers_as(server, version, parameters_of=(version - 1) % 2 + 1)
        # The keeper returns a slab, or touches a spare one, in its own time.
        wait_for_memory(server, at_rest_mib, f"after {version} versions")
        if spare_count > 0:
            wait_for_spare_of_a_version(server)
        settled_mib.append(anonymous_mib(server.process_id))
    third = swap_count // 3
    early = statistics.median(settled_mib[third : 2 * third])
    late = statistics.median(settled_mib[-third:])
    assert late < FLAT_RATIO * early, settled_mib


def memory_during_swap(server: ModelServer, old: int) -> list[float]:
    """Returns the memory at moments until version `old` is unloaded."""
    seen_mib = []

    def is_swapped() -> bool:
        seen_mib.append(anonymous_mib(server.process_id))
        return bool(logged(server, "version_unloaded", version=old))

    wait_until(is_swapped, f"version {old} to be unloaded")
    return seen_mib
