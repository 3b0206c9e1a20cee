"""Swaps under load from stock stubs: no lost request, no wrong answer, no leftover.

MILLPOND_SWAPS sets their number (40; 100 for the long form).
"""

import os
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.measure.swaps import swaps_in
from serving import ModelServer
from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LoadStage
from tests.integration.clients import (
    caller_to,
    predict_request,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, export_counter, let_settle, write_warm_up
from tests.integration.logs import wait_for_log
from tests.integration.processes import anonymous_mib
from tests.integration.steady_clients import scale_clients

SWAP_COUNT = int(os.environ.get("MILLPOND_SWAPS", "40"))
X = np.array([1.0], np.float32)

# 4 MB: a leaked version shows in the process's memory after a few swaps.
OFFSET_COUNT = 1_000_000
VERSION_MIB = OFFSET_COUNT * 4 / 2**20


@pytest.fixture
def server(start_server: StartServer, scale_model: ScaleModel, base_path: Path) -> ModelServer:
    scale_model.write(base_path, 1, offset_count=OFFSET_COUNT)
    server = start_server(
        model_name="scale",
        base_path=base_path,
        max_num_load_retries=1,
        load_retry_interval_micros=-1,
    )
    server.wait_until_available("scale", 1)
    return server


@pytest.fixture
def client(server: ModelServer) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


@pytest.mark.timeout(400 + 4 * SWAP_COUNT)
def test_many_swaps_lose_no_request_and_no_memory(
    server: ModelServer, client: Client, scale_model: ScaleModel, base_path: Path
):
    resident_mib = []
    with scale_clients(server.target).running() as clients:
        clients.wait_for_answers_of(1)
        for version in range(2, SWAP_COUNT + 2):
            scale_model.write(base_path, version, offset_count=OFFSET_COUNT)
            clients.wait_for_answers_of(version, 20)
            wait_for_states(client, "scale", {version: AVAILABLE, version - 1: END})
            shutil.rmtree(base_path / str(version - 1))
            resident_mib.append(anonymous_mib(server.process_id))
    assert clients.failures == []
    assert set(clients.answer_counts) == set(range(1, SWAP_COUNT + 2))
    # Allocators grow during the first dozen swaps. If versions leaked, each swap would add one.
    quarter = SWAP_COUNT // 4
    early = statistics.median(resident_mib[quarter : 2 * quarter])
    late = statistics.median(resident_mib[-quarter:])
    assert late - early < 2 * VERSION_MIB, resident_mib


def test_swap_logs_the_seconds_of_every_stage(
    server: ModelServer, client: Client, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 2)
    wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
    wait_for_log(server, "version_unloaded")
    swaps = {(swap.title, swap.version): swap.stage_seconds for swap in swaps_in(server.events())}
    # Without batching there is nothing to prove.
    stages = [stage.value for stage in LoadStage if stage is not LoadStage.PROVE_BATCHING]
    assert list(swaps["load", 2]) == [*stages, "total"]
    assert swaps["load", 2]["total"] == pytest.approx(
        sum(swaps["load", 2][stage] for stage in stages), abs=0.001
    )
    assert {"quiesce", "destroy"} <= set(swaps["unload", 1])


def test_swap_counts_answers_of_old_version(
    server: ModelServer, client: Client, scale_model: ScaleModel, base_path: Path
):
    for _ in range(3):
        client.predict("scale", {"x": X})
    scale_model.write(base_path, 2)
    unloaded = wait_for_log(server, "version_unloaded")
    assert (unloaded["version"], unloaded["request_count"], unloaded["failed_count"]) == (1, 3, 0)


def _flip_a_bit_of_the_large_shard(directory: Path) -> None:
    shard = directory / "variables" / "variables.data-00001-of-00002"
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    shard.write_bytes(damaged)


def _warm_up_with_a_record_that_fails(directory: Path) -> None:
    good: dict[str, Any] = {"x": np.ones(3, np.float32)}
    write_warm_up(directory, "scale", [good, {"x": np.ones(3, np.float64)}])


def _damage_the_warm_up_file(directory: Path) -> None:
    write_warm_up(directory, "scale", [{"x": np.ones(3, np.float32)}])
    path = directory / "assets.extra" / "tf_serving_warmup_requests"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


BROKEN = {
    "flipped_bit": (_flip_a_bit_of_the_large_shard, StatusCode.DATA_LOSS, "hecksum"),
    "warm_up_record_fails": (
        _warm_up_with_a_record_that_fails,
        StatusCode.INVALID_ARGUMENT,
        "record 2",
    ),
    "warm_up_file_damaged": (_damage_the_warm_up_file, StatusCode.DATA_LOSS, "checksum"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_failed_load_keeps_old_version_and_tries_next(
    server: ModelServer, client: Client, scale_model: ScaleModel, base_path: Path, case: str
):
    spoil, code, word = BROKEN[case]
    with scale_clients(server.target).running() as clients:
        scale_model.write(base_path, 2, offset_count=OFFSET_COUNT, prepare=spoil)
        wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
        (status,) = client.model_status("scale", 2)
        assert (status.error_code, word in status.error_message) == (code, True), status
        failed = wait_for_log(server, "load_failed")
        assert (failed["version"], failed["code"], failed["level"]) == (2, code.name, "error")
        clients.wait_for_answers_of(1, 50)
        scale_model.write(base_path, 3)
        clients.wait_for_answers_of(3)
        wait_for_states(client, "scale", {1: END, 3: AVAILABLE})
    assert clients.failures == []
    assert set(clients.answer_counts) == {1, 3}


def test_failed_version_retries_if_replaced_at_once(
    server: ModelServer, client: Client, scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    # This imitates `rm -r 2; mv fixed 2` between two polls, which `ln -sfn` always does.
    damaged = scale_model.write(
        tmp_path, 2, offset_count=OFFSET_COUNT, prepare=_flip_a_bit_of_the_large_shard
    )
    (base_path / "2").symlink_to(damaged)
    wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
    (tmp_path / "fixed").mkdir()
    (tmp_path / "link").symlink_to(scale_model.write(tmp_path / "fixed", 2))
    (tmp_path / "link").replace(base_path / "2")
    wait_for_states(client, "scale", {1: END, 2: AVAILABLE})


def test_failed_version_retries_if_mended_in_place(
    server: ModelServer, client: Client, scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    scale_model.write(
        base_path, 2, offset_count=OFFSET_COUNT, prepare=_flip_a_bit_of_the_large_shard
    )
    wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
    sound = scale_model.write(tmp_path, 2, offset_count=OFFSET_COUNT)
    # Sizes and times stay the same, as `rsync -a` leaves them.
    shutil.copytree(sound, base_path / "2", dirs_exist_ok=True)
    wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
    assert client.predict("scale", {"x": X}).version == 2


@pytest.mark.parametrize(
    ("flags", "run_count"),
    [({}, 2), ({"num_request_iterations_for_warmup": 3}, 6), ({"enable_model_warmup": False}, 0)],
    ids=["by_default", "iterations", "off"],
)
def test_version_warms_up_before_it_is_available(
    start_server: StartServer, base_path: Path, flags: dict[str, object], run_count: int
):
    # Each run adds 1 to a million counters, so the model itself counts its runs.
    version = export_counter(base_path / "1")
    write_warm_up(version, "recorded under another name", [{"by": np.int64(1)}] * 2)
    let_settle(version)
    server = start_server(model_name="counter", base_path=base_path, **flags)
    server.wait_until_available("counter", 1)
    with Client(server.target) as client:
        counted = client.predict("counter", {"by": np.int64(0)}).outputs["sum"]
    assert counted == run_count * 1_000_000


def test_swap_does_not_wait_for_old_request(
    start_server: StartServer, slow_export: Path, base_path: Path
):
    shutil.copytree(slow_export, base_path / "1")
    let_settle(base_path / "1")
    server = start_server(model_name="slow", base_path=base_path)
    server.wait_until_available("slow", 1)
    quick = predict_request("slow", {"x": np.int32(1)}, signature_name="quick")
    with caller_to(server.target) as caller, Client(server.target) as client:
        running = caller.start_predict(predict_request("slow", {"seconds": np.float64(3)}))
        shutil.copytree(slow_export, base_path.parent / "second")
        let_settle(base_path.parent / "second").rename(base_path / "2")
        wait_until(
            lambda: caller.predict(quick).model_spec.version.value == 2, "an answer of version 2"
        )
        assert not running.done()
        # The old version stays exactly as long as its last request needs it.
        assert running.result().model_spec.version.value == 1
        wait_for_states(client, "slow", {1: END, 2: AVAILABLE})
