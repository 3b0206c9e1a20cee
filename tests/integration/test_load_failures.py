"""Failing loads: damaged files, too little memory, a version removed again.

The old version serves on.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from serving import ModelServer
from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LOADING
from serving.server.server_log import LogEvent
from tests.integration.clients import (
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import REPOSITORY, StartServer
from tests.integration.exports import (
    LARGE_SHARD,
    SMALL_SHARD,
    ScaleModel,
    flip_a_byte,
)
from tests.integration.logs import logged, wait_for_log
from tests.integration.processes import anonymous_mib
from tests.integration.steady_clients import scale_clients

X = np.array([1.0, 2.5, -3.0], np.float32)
MB = 1_000_000

# 4 MB: several of the pieces that a restore reads at once.
OFFSET_COUNT = 1_000_000


# --- Damaged and incomplete checkpoints ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("shard", "offset"),
    [(SMALL_SHARD, 0), (LARGE_SHARD, 0), (LARGE_SHARD, 2_000_001), (LARGE_SHARD, -1)],
    ids=["of_a_small_tensor", "first", "in_the_middle", "last"],
)
def test_flipped_checkpoint_byte_keeps_old_version(
    shared_scale: tuple[ModelServer, Path, Iterator[int]],
    scale_model: ScaleModel,
    shard: str,
    offset: int,
):
    server, base_path, numbers = shared_scale
    version = next(numbers)
    with (
        scale_clients(server.target, count=2).running() as clients,
        Client(server.target) as client,
    ):
        clients.wait_for_answers_of(1, 10)
        scale_model.write(
            base_path,
            version,
            offset_count=OFFSET_COUNT,
            prepare=lambda directory: flip_a_byte(directory / shard, offset),
        )
        wait_for_states(client, "scale", {1: AVAILABLE, version: END})
        clients.wait_for_answers_of(1, 10)
        (status,) = client.model_status("scale", version)
    assert status.error_code == StatusCode.DATA_LOSS
    assert Path(shard).name in status.error_message
    assert (clients.failures, set(clients.answer_counts)) == ([], {1})
    assert not logged(server, "arena_leaked")


@pytest.mark.parametrize("shard", [SMALL_SHARD, LARGE_SHARD], ids=["small", "large"])
def test_shard_cut_short_is_an_incomplete_version(
    shared_scale: tuple[ModelServer, Path, Iterator[int]],
    scale_model: ScaleModel,
    shard: str,
):
    server, base_path, numbers = shared_scale
    version = next(numbers)

    def cut(directory: Path) -> None:
        os.truncate(directory / shard, (directory / shard).stat().st_size - 1)

    scale_model.write(base_path, version, offset_count=OFFSET_COUNT, prepare=cut)
    incomplete = wait_for_log(server, "version_incomplete", version=version)
    assert Path(shard).name in incomplete["reason"]
    with Client(server.target) as client:
        assert client.predict("scale", {"x": X}).version == 1
        assert [status.version for status in client.model_status("scale")][-1] != version
    shutil.rmtree(base_path / str(version))


def test_truncated_shard_is_refused_during_restore(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path, restore_bytes_per_second=8 * MB)
    server.wait_until_available("scale", 1)
    with (
        scale_clients(server.target, count=2).running() as clients,
        Client(server.target) as client,
    ):
        second = scale_model.write(base_path, 2, offset_count=4 * OFFSET_COUNT)
        # 16 MB take two seconds.
        wait_for_restore(server, client, 2, OFFSET_COUNT * 4 / 2**20)
        os.truncate(second / LARGE_SHARD, 4_000)
        wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
        (status,) = client.model_status("scale", 2)
        assert status.error_code in (StatusCode.OUT_OF_RANGE, StatusCode.DATA_LOSS), status
        assert Path(LARGE_SHARD).name in status.error_message
        clients.wait_for_answers_of(1, 10)
    assert clients.failures == []
    assert not logged(server, "arena_leaked")


def wait_for_restore(
    server: ModelServer, client: Client, version: int, restored_mib: float
) -> None:
    """Waits until a load has touched so much memory that its restore is under way."""
    wait_for_states(client, "scale", {version: LOADING})
    before_mib = anonymous_mib(server.process_id)
    wait_until(
        lambda: anonymous_mib(server.process_id) > before_mib + restored_mib,
        f"{restored_mib} MiB of version {version} to be restored",
    )


# --- Too little memory --------------------------------------------------------------------------------


def start_limited(start_server: StartServer, base_path: Path, limit_bytes: int) -> ModelServer:
    server = start_server(
        model_name="scale",
        base_path=base_path,
        model_memory_limit_bytes=limit_bytes,
        arena_headroom_bytes=MB,
        max_num_load_retries=0,
    )
    server.wait_until_available("scale", 1)
    return server


def test_version_above_memory_limit_is_never_read(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1)
    server = start_limited(start_server, base_path, 50 * MB)
    with (
        scale_clients(server.target, count=2).running() as clients,
        Client(server.target) as client,
    ):
        # A wrong checksum would only be found by a read.
        scale_model.write(
            base_path,
            2,
            offset_count=15 * OFFSET_COUNT,
            prepare=lambda directory: flip_a_byte(directory / LARGE_SHARD, 0),
        )
        wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
        (status,) = client.model_status("scale", 2)
        assert status.error_code == StatusCode.RESOURCE_EXHAUSTED
        for words in ("--model_memory_limit_bytes is 50.0 MB", "needs 6", "the loaded versions"):
            assert words in status.error_message
        clients.wait_for_answers_of(1, 10)
        scale_model.write(base_path, 3, offset_count=OFFSET_COUNT)
        clients.wait_for_answers_of(3, 10)
    assert clients.failures == []


def test_memory_limit_counts_the_version_that_serves(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    # One version of 40 MB fits, and a second one does not: old and new are in memory together
    # during a swap.
    scale_model.write(base_path, 1, offset_count=10 * OFFSET_COUNT)
    server = start_limited(start_server, base_path, 60 * MB)
    scale_model.write(base_path, 2, offset_count=10 * OFFSET_COUNT)
    with Client(server.target) as client:
        wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
        (status,) = client.model_status("scale", 2)
        assert status.error_code == StatusCode.RESOURCE_EXHAUSTED
        assert "the loaded versions have 4" in status.error_message
        assert client.predict("scale", {"x": X}).version == 1


# --- A version removed during its load ------------------------------------------------------------


def test_load_ends_soon_after_directory_removal(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale",
        base_path=base_path,
        restore_bytes_per_second=20 * MB,
        arena_spare_slabs=0,
    )
    server.wait_until_available("scale", 1)
    with (
        scale_clients(server.target, count=2).running() as clients,
        Client(server.target) as client,
    ):
        clients.wait_for_answers_of(1, 10)
        before_mib = anonymous_mib(server.process_id)
        # 200 MB, which would take ten seconds.
        second = scale_model.write(base_path, 2, offset_count=50 * OFFSET_COUNT)
        wait_for_restore(server, client, 2, 30)
        shutil.rmtree(second)
        failed = wait_for_log(server, "load_failed", version=2)
        assert (failed["code"], failed["will_retry"]) == ("CANCELLED", False)
        wait_for_states(client, "scale", {1: AVAILABLE, 2: END})
        # The poll that sees the removal makes the list without the version.
        (omitted,) = logged(server, "aspired", versions=[1])[1:]
        assert 0 <= _logged_at(failed) - _logged_at(omitted) < 1
        wait_until(
            lambda: anonymous_mib(server.process_id) < before_mib + 10,
            "the memory of the cancelled load to be returned",
        )
        assert not logged(server, "arena_leaked")
        scale_model.write(base_path, 3)
        clients.wait_for_answers_of(3, 10)
    assert clients.failures == []


def _logged_at(event: LogEvent) -> float:
    return datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00")).timestamp()


# --- Refused at start -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--allocator=glibc", "--allocator=jemalloc or --arena=false"),
        ("--load_priority=nonsense", "idle, nice"),
    ],
)
def test_impossible_flag_is_refused_with_remedy(base_path: Path, flag: str, remedy: str):
    result = subprocess.run(
        [sys.executable, "-m", "serving", "serve", f"--model_base_path={base_path}", flag],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=REPOSITORY,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert flag.split("=", maxsplit=1)[0] in line
    assert remedy in line


def test_server_without_arenas_serves_on_glibc(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
):
    # The remedy in the refusal of --allocator=glibc.
    scale_model.write(base_path, 1)
    server = start_server(model_name="scale", base_path=base_path, allocator="glibc", arena=False)
    server.wait_until_available("scale", 1)
    scale_model.write(base_path, 2)
    with Client(server.target) as client:
        wait_for_states(client, "scale", {1: END, 2: AVAILABLE})
        assert client.predict("scale", {"x": X}).version == 2
