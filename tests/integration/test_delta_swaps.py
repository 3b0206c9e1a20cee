"""Delta versions on a server: what a swap reads, and that no answer is lost or wrong meanwhile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.client import Client
from serving.core.servable import END
from tests.integration.clients import array, predict_request, wait_for_states, wait_until
from tests.integration.conftest import StartServer
from tests.integration.delta_exports import TrainedModel
from tests.integration.exports import flip_a_byte
from tests.integration.logs import logged, wait_for_log
from tests.integration.model_host import ModelHost
from tests.integration.processes import millpond
from tests.integration.steady_clients import SteadyClients

NAME = "trained"
ROWS, COLUMNS, TABLE_COUNT = 40_000, 16, 2
TABLES_BYTES = ROWS * COLUMNS * 4 * TABLE_COUNT
VERSION_COUNT = 50
BASES = (1, 26)
ROLLED_BACK = (12, 33)
BROKEN = (18, 40)
IDS = np.arange(0, ROWS, 211)


class Training:
    """A model that is trained and exported again and again, and the answers of its versions."""

    def __init__(self, base_path: Path) -> None:
        base_path.mkdir(exist_ok=True)
        self.model = TrainedModel(base_path, rows=ROWS, columns=COLUMNS, table_count=TABLE_COUNT)
        self.answers: dict[int, bytes] = {}

    def export(self, version: int, *, is_base: bool = False) -> None:
        """Trains, and writes a version: a two-hundredth of the rows changes, or twice that."""
        self.model.train(ROWS // 200 if version % 7 else ROWS // 100)
        self.answers[version] = self.model.answer(IDS).tobytes()
        if is_base:
            self.model.export_base(version)
        else:
            self.model.export_delta(version)

    def export_broken(self, version: int) -> None:
        """Writes a delta with a wrong bit in its rows."""
        self.model.train()
        complete = self.model.base_path
        self.model.base_path = complete.with_name("beside")
        self.model.base_path.mkdir(exist_ok=True)
        path = self.model.export_delta(version)
        self.model.base_path = complete
        flip_a_byte(path / "variables" / "variables.data-00001-of-00002", 1000)
        path.rename(complete / str(version))

    def fault(self, response: Any) -> str:
        version = response.model_spec.version.value
        answer = array(response.outputs["y"]).astype(np.float32).tobytes()
        return "" if answer == self.answers.get(version) else f"wrong answer of version {version}"

    def clients(self, server: ModelServer) -> SteadyClients:
        request = predict_request(NAME, {"ids": IDS})
        return SteadyClients(server.target, [(request, self.fault)] * 2)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    made = Training(tmp_path_factory.mktemp("deltas") / "versions")
    made.export(1, is_base=True)
    return made


def start(start_server: StartServer, training: Training, **flags: object) -> ModelServer:
    server = start_server(model_name=NAME, base_path=training.model.base_path, **flags)
    server.wait_until_available(NAME, max(training.answers))
    return server


def swap_to(server: ModelServer, version: int) -> Mapping[str, Any]:
    """Returns the swap that brought a version first: a rollback may have brought it again."""
    wanted = (version, "published")

    def swaps() -> list[Mapping[str, Any]]:
        known = ServerPages(server.url).swaps(NAME)
        return [swap for swap in known if (swap["version"], swap["result"]) == wanted]

    # The version's status may be AVAILABLE a moment before its swap is published.
    wait_until(swaps, f"the swap to version {version}")
    return swaps()[0]


def metric(server: ModelServer, name: str) -> float | None:
    return ServerPages(server.url).metrics().value(name)


def tables_bytes(server: ModelServer) -> float:
    """Returns the bytes of all tables, with versions and without."""
    families = ("serving_table_held_bytes", "serving_table_standby_bytes")
    return sum(metric(server, family) or 0 for family in families)


def wait_until_copied_ahead(server: ModelServer) -> None:
    """Waits until each table has a copy besides that of the version that serves."""
    wait_until(
        lambda: metric(server, "serving_table_standby_bytes") == TABLES_BYTES, "the copy ahead"
    )


def wait_until_unloaded(server: ModelServer, version: int) -> None:
    with Client(server.target) as client:
        wait_for_states(client, NAME, {version: END})


def change_version(
    server: ModelServer, training: Training, clients: SteadyClients, version: int
) -> None:
    """Brings one version, and waits until it answers. A broken one does not."""
    if version in BROKEN:
        training.export_broken(version)
        wait_for_log(server, "load_failed", model=NAME, version=version)
        return
    training.export(version, is_base=version in BASES)
    server.wait_until_available(NAME, version)
    clients.wait_for_answers_of(version)
    if version in ROLLED_BACK:
        with Client(server.admin_target) as client:
            client.rollback(NAME, is_cold_allowed=True)
        clients.wait_for_answers_of(version - 1)


def test_fifty_deltas_lose_no_answer(start_server: StartServer, training: Training) -> None:
    server = start(start_server, training, max_num_load_retries=0)
    with training.clients(server).running() as clients:
        for version in range(2, VERSION_COUNT + 1):
            change_version(server, training, clients, version)
        wait_until_unloaded(server, VERSION_COUNT - 1)
    assert clients.failures == []
    swaps = {
        version: swap_to(server, version)
        for version in range(2, VERSION_COUNT + 1)
        if version not in BROKEN
    }
    # A base has another file. A broken delta ends before it writes to a table.
    read = {version: swap for version, swap in swaps.items() if swap["kept_bytes"] != TABLES_BYTES}
    assert sorted(read) == [version for version in BASES if version in swaps], [
        (version, swap["delta_restored_in_full"], swap["figures"]) for version, swap in read.items()
    ]
    assert logged(server, "delta_restored_in_full") == []
    delta = swaps[VERSION_COUNT]["figures"]
    assert 0 < delta["restored_bytes"] < 2 * 72 * delta["changed_row_count"]
    assert metric(server, "serving_table_held_bytes") == TABLES_BYTES
    # A load that begins before the last version but one is gone makes a third copy, which may stay: N is 2.
    assert metric(server, "serving_table_standby_bytes") in (TABLES_BYTES, 2 * TABLES_BYTES)
    assert metric(server, "serving_slab_quarantined") == 0
    assert logged(server, "live_version_overwritten") == []


def test_restart_serves_the_last_delta(start_server: StartServer, training: Training) -> None:
    newest = max(training.answers) + 1
    training.export(newest)
    server = start(start_server, training)
    with training.clients(server).running() as clients:
        clients.wait_for_answers_of(newest, 3)
    assert clients.failures == []
    reason = swap_to(server, newest)["delta_restored_in_full"]
    status = millpond("status", "--target", server.admin_target).stdout
    assert "no earlier version of the model" in reason
    assert f"delta restored in full: {reason}" in status
    assert metric(server, "serving_swap_delta_restored_in_full") == 0


def test_delta_beside_a_kept_version_copies_a_table(
    start_server: StartServer, training: Training, tmp_path: Path
) -> None:
    settings = tmp_path / "models.toml"
    settings.write_text(f"[models.{NAME}]\nkeep_previous_seconds = 600\n")
    server = start(start_server, training, model_settings_file=settings)
    wait_until_copied_ahead(server)
    first = max(training.answers) + 1
    with training.clients(server).running() as clients:
        for version in (first, first + 1):
            training.export(version)
            server.wait_until_available(NAME, version)
        with Client(server.admin_target) as client:
            client.rollback(NAME)
        clients.wait_for_answers_of(first, 3)
    assert clients.failures == []
    # The first delta has the copy that was made ahead.
    for version, copied_bytes in ((first, 0), (first + 1, TABLES_BYTES)):
        swap = swap_to(server, version)
        assert swap["figures"]["copied_bytes"] == copied_bytes
        assert swap["kept_bytes"] == TABLES_BYTES
        assert not swap["delta_restored_in_full"]


@pytest.mark.parametrize("policy", ["availability", "resource"])
def test_delta_of_a_replaced_file_is_read_in_full(
    start_server: StartServer, training: Training, tmp_path: Path, policy: str
) -> None:
    settings = tmp_path / "models.toml"
    settings.write_text(f'[models.{NAME}]\naspired_version_policy = "{policy}"\n')
    server = start(start_server, training, model_settings_file=settings)
    version = max(training.answers) + 1
    training.model.replace_tables()
    training.export(version)
    server.wait_until_available(NAME, version)
    swap = swap_to(server, version)
    assert "of another file" in swap["delta_restored_in_full"]
    said = wait_for_log(server, "delta_restored_in_full", model=NAME, version=version)
    assert (said["level"], said["reason"]) == ("warning", swap["delta_restored_in_full"])
    assert metric(server, "serving_swap_delta_restored_in_full") == 1


@pytest.mark.parametrize("arena", [True, False])
@pytest.mark.parametrize("columns", [0, COLUMNS - 1, 2 * COLUMNS])
def test_rows_of_another_width_are_refused(
    start_server: StartServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    arena: bool,
) -> None:
    import tensorflow as tf

    from millpond.delta import deltas

    narrow = Training(tmp_path / "narrow")
    narrow.export(1, is_base=True)
    whole = deltas._tensors

    def of_another_width(*arguments: Any) -> dict[str, Any]:
        found = whole(*arguments)
        rows = arguments[2].tables[0].rows_key
        found[rows] = tf.zeros([found[rows].shape[0], columns])
        return found

    monkeypatch.setattr(deltas, "_tensors", of_another_width)
    server = start_server(model_name=NAME, base_path=narrow.model.base_path, arena=arena)
    narrow.export(2)
    reason = str(wait_for_log(server, "load_failed", version=2))
    assert f"have the shape [200,{columns}], and not [200,{COLUMNS}]" in reason


def test_tables_of_a_removed_model_go_back(host: ModelHost, tmp_path: Path) -> None:
    training = Training(tmp_path / "versions")
    training.export(1, is_base=True)
    hosted = host.model(training.model.base_path, prefix="removed")
    hosted.wait_until_available(1)
    training.export(2)
    hosted.wait_until_available(2)
    hosted.wait_for_states({1: END})
    assert metric(hosted.server, "serving_table_standby_bytes") == TABLES_BYTES
    host.model(prefix="other")
    host.remove(hosted.name)
    wait_until(lambda: tables_bytes(hosted.server) == 0, "no tables")
