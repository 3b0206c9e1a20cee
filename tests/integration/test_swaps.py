"""Swaps under load from stock stubs: no lost request, no wrong answer, no leftover."""

import shutil
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.measure.server_pages import ServerPages
from loadtest.measure.swaps import swaps_in
from serving.base.errors import StatusCode
from serving.client import Client
from serving.core.servable import AVAILABLE, END, LoadStage
from tests.integration.clients import caller_to, predict_request, wait_for_states, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop, export_remembering, write_warm_up
from tests.integration.held import Held
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import anonymous_mib
from tests.integration.steady_clients import scale_clients

X = np.array([1.0], np.float32)
OFFSET_COUNT = 1_000_000
COUNTED = {"word": np.array([b"mill"], object)}

# 16 MB: a leaked version shows in the process's memory after a few swaps.
LARGE_OFFSET_COUNT = 4_000_000
LARGE_MIB = LARGE_OFFSET_COUNT * 4 / 2**20
SWAP_COUNT = 6
LONG_SWAP_COUNT = 100


@pytest.fixture(scope="module")
def host_flags() -> Mapping[str, object]:
    """A failed load is tried again once, and at once."""
    return {"max_num_load_retries": 1, "load_retry_interval_micros": -1}


@pytest.fixture
def scale(host: ModelHost, scale_model: ScaleModel) -> HostedModel:
    """A model whose version 1 serves."""
    model = host.model(prefix="scale")
    scale_model.write(model.base_path, 1, offset_count=OFFSET_COUNT)
    model.wait_until_available(1)
    return model


@pytest.fixture
def client(scale: HostedModel) -> Iterator[Client]:
    with Client(scale.server.target) as client:
        yield client


@pytest.mark.timeout(400 + 4 * LONG_SWAP_COUNT)
@pytest.mark.parametrize(
    "swap_count", [SWAP_COUNT, pytest.param(LONG_SWAP_COUNT, marks=pytest.mark.soak)]
)
def test_many_swaps_lose_no_request_and_no_memory(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, swap_count: int
):
    scale_model.write(base_path, 1, offset_count=LARGE_OFFSET_COUNT)
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", 1)
    resident_mib = []
    with scale_clients(server.target).running() as clients, Client(server.target) as client:
        clients.wait_for_answers_of(1)
        for version in range(2, swap_count + 2):
            scale_model.write(base_path, version, offset_count=LARGE_OFFSET_COUNT)
            clients.wait_for_answers_of(version, 20)
            wait_for_states(client, "scale", {version: AVAILABLE, version - 1: END})
            shutil.rmtree(base_path / str(version - 1))
            resident_mib.append(anonymous_mib(server.process_id))
    assert clients.failures == []
    assert set(clients.answer_counts) == set(range(1, swap_count + 2))
    # Allocators grow during the first swaps. If versions leaked, each swap would add one.
    third = swap_count // 3
    early = statistics.median(resident_mib[third : 2 * third])
    late = statistics.median(resident_mib[-third:])
    assert late - early < LARGE_MIB, resident_mib


def test_swap_logs_the_seconds_of_every_stage(scale: HostedModel, scale_model: ScaleModel):
    scale_model.write(scale.base_path, 2)
    scale.wait_for_states({1: END, 2: AVAILABLE})
    scale.wait_for_log("version_unloaded")
    events = [event for event in scale.server.events() if event.get("model") == scale.name]
    swaps = {(swap.title, swap.version): swap.stage_seconds for swap in swaps_in(events)}
    # Without batching there is nothing to verify, and without an accelerator nothing to compile or
    # measure.
    left_out = {
        LoadStage.VERIFY_BATCHING,
        LoadStage.COMPILE,
        LoadStage.MEASURE,
    }
    stages = [stage.value for stage in LoadStage if stage not in left_out]
    assert list(swaps["load", 2]) == [*stages, "total"]
    assert swaps["load", 2]["total"] == pytest.approx(
        sum(swaps["load", 2][stage] for stage in stages), abs=0.001
    )
    assert {"quiesce", "destroy"} <= set(swaps["unload", 1])


def test_swap_counts_answers_of_old_version(
    scale: HostedModel, client: Client, scale_model: ScaleModel
):
    for _ in range(3):
        client.predict(scale.name, {"x": X})
    scale_model.write(scale.base_path, 2)
    unloaded = scale.wait_for_log("version_unloaded")
    assert (unloaded["version"], unloaded["request_count"], unloaded["failed_count"]) == (1, 3, 0)


def _flip_a_bit_of_the_large_shard(directory: Path) -> None:
    shard = directory / "variables" / "variables.data-00001-of-00002"
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    shard.write_bytes(damaged)


def _warm_up_with_a_record_that_fails(directory: Path) -> None:
    good: dict[str, Any] = {"x": np.ones(3, np.float32)}
    write_warm_up(directory, "any", [good, {"x": np.ones(3, np.float64)}])


def _damage_the_warm_up_file(directory: Path) -> None:
    write_warm_up(directory, "any", [{"x": np.ones(3, np.float32)}])
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
    scale: HostedModel, client: Client, scale_model: ScaleModel, case: str
):
    spoil, code, word = BROKEN[case]
    with scale_clients(scale.server.target, scale.name).running() as clients:
        scale_model.write(scale.base_path, 2, offset_count=OFFSET_COUNT, prepare=spoil)
        scale.wait_for_states({1: AVAILABLE, 2: END})
        (status,) = client.model_status(scale.name, 2)
        assert (status.error_code, word in status.error_message) == (code, True), status
        failed = scale.wait_for_log("load_failed")
        assert (failed["version"], failed["code"], failed["level"]) == (2, code.name, "error")
        clients.wait_for_answers_of(1, 50)
        scale_model.write(scale.base_path, 3)
        clients.wait_for_answers_of(3)
        scale.wait_for_states({1: END, 3: AVAILABLE})
    assert clients.failures == []
    assert set(clients.answer_counts) == {1, 3}


def test_failed_version_retries_if_replaced_at_once(
    scale: HostedModel, scale_model: ScaleModel, tmp_path: Path
):
    # This imitates `rm -r 2; mv fixed 2` between two polls, which `ln -sfn` always does.
    damaged = scale_model.write(
        tmp_path, 2, offset_count=OFFSET_COUNT, prepare=_flip_a_bit_of_the_large_shard
    )
    (scale.base_path / "2").symlink_to(damaged)
    scale.wait_for_states({1: AVAILABLE, 2: END})
    (tmp_path / "fixed").mkdir()
    (tmp_path / "link").symlink_to(scale_model.write(tmp_path / "fixed", 2))
    (tmp_path / "link").replace(scale.base_path / "2")
    scale.wait_for_states({1: END, 2: AVAILABLE})


def test_failed_version_retries_if_mended_in_place(
    scale: HostedModel, client: Client, scale_model: ScaleModel, tmp_path: Path
):
    version = scale_model.write(
        scale.base_path, 2, offset_count=OFFSET_COUNT, prepare=_flip_a_bit_of_the_large_shard
    )
    scale.wait_for_states({1: AVAILABLE, 2: END})
    sound = scale_model.write(tmp_path, 2, offset_count=OFFSET_COUNT)
    # Sizes and times stay the same, as `rsync -a` leaves them.
    shutil.copytree(sound, version, dirs_exist_ok=True)
    scale.wait_for_states({1: END, 2: AVAILABLE})
    assert client.predict(scale.name, {"x": X}).version == 2


@pytest.fixture(scope="module")
def counter_with_warm_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that counts its runs itself, in a table: what records write to variables is put back."""
    export = export_remembering(tmp_path_factory.mktemp("counter") / "export")
    write_warm_up(export, "recorded under another name", [COUNTED] * 2)
    return export


def run_count(target: str, name: str) -> int:
    """Returns the number of runs of a counting model before this one."""
    with Client(target) as client:
        return int(client.predict(name, COUNTED).outputs["count"][0]) - 1


def test_version_warms_up_before_it_is_available(host: ModelHost, counter_with_warm_up: Path):
    model = host.model(prefix="counter").serve(counter_with_warm_up)
    assert run_count(model.server.target, model.name) == 2


def test_request_that_writes_a_table_is_not_repeated(host: ModelHost, counter_with_warm_up: Path):
    model = host.model(prefix="counter").serve(counter_with_warm_up)
    run_count(model.server.target, model.name)
    model.wait_until_kept(1)
    model.serve(counter_with_warm_up, 2)
    assert run_count(model.server.target, model.name) == 2
    event = model.wait_for_log("requests_not_repeated", version=2)
    assert (event["level"], event["count"]) == ("warning", 1)
    problem = model.problem_of_swap(2)
    assert "1 live requests warmed the version up only in part" in problem
    assert "(LookupTableInsertV2): it is not repeated, because" in problem
    assert "is not a variable" in problem


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({"num_request_iterations_for_warmup": 3}, 6), ({"enable_model_warmup": False}, 0)],
    ids=["iterations", "off"],
)
def test_flags_change_the_warm_up(
    start_server: StartServer,
    counter_with_warm_up: Path,
    base_path: Path,
    flags: dict[str, object],
    expected: int,
):
    drop(counter_with_warm_up, base_path, 1)
    server = start_server(model_name="counter", base_path=base_path, **flags)
    server.wait_until_available("counter", 1)
    assert run_count(server.target, "counter") == expected


def test_swap_does_not_wait_for_old_request(host: ModelHost, slow_export: Path, held: Held):
    model = host.model(prefix="held").serve(slow_export)
    quick = predict_request(model.name, {"x": np.int32(1)}, signature_name="quick")
    with caller_to(model.server.target) as caller:
        running = held.start(caller, model.name)
        pages = ServerPages(model.server.url)
        in_flight = "serving_servable_handles"
        wait_until(lambda: pages.metrics().total(in_flight) > 0, "the request in the server")
        model.serve(slow_export, 2)
        assert caller.predict(quick).model_spec.version.value == 2
        # The old version stays exactly as long as its last request needs it.
        assert not running.done()
        assert model.logged("version_unloaded") == []
        held.release()
        assert running.result().model_spec.version.value == 1
    model.wait_for_states({1: END, 2: AVAILABLE})
