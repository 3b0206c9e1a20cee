"""Deltas on an accelerator: what its memory has already is not sent again."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.measure.server_pages import ServerPages
from serving.core.servable import ServableState
from tests.integration.accelerators import plugin_path
from tests.integration.clients import array, caller_to, predict_request
from tests.integration.delta_exports import TrainedModel
from tests.integration.exports import flip_a_byte
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.rest_clients import RestClient

# A table has a little more than 1 MiB, below which a variable is read again.
ROWS = 16_500
COLUMNS = 16
TABLE_BYTES = ROWS * COLUMNS * 4
DENSE_BYTES = 2 * COLUMNS * 4 * 4
# The smallest step of a scatter: rows of 16 floats, each with an id.
STEP_BYTES = 128 * (4 + COLUMNS * 4)
IDS = np.arange(0, ROWS, 97)
# The CPU, which is the same one, takes no run.
THERE = {"platform": "pjrt", "accelerator_tables": "device", "accelerator_devices": [0]}


@pytest.fixture(scope="module")
def host_flags(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, object]:
    return {
        "accelerator": f"pjrt:{plugin_path()}",
        "accelerator_rows": "256",
        "accelerator_cache_directory": tmp_path_factory.mktemp("programs"),
        "admin_on_data_port": True,
    }


class Fresh:
    """A model on the server's accelerator, of which a trainer writes versions."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        self.hosted = host.model(prefix="trained", settings=THERE)
        self.trained = TrainedModel(self.hosted.base_path, rows=ROWS, columns=COLUMNS)
        self.versions: list[int] = []
        self._next = 1

    @property
    def version(self) -> int:
        """The version that answers."""
        return self.versions[-1]

    def serve_base(self) -> None:
        self.trained.export_base(self._next)
        self._serve_next()

    def serve_delta(self, changed_count: int) -> None:
        self.trained.train(changed_count)
        self.trained.export_delta(self._next)
        self._serve_next()

    def serve_copy(self, version: int, directory: Path) -> None:
        shutil.copytree(directory, self.hosted.base_path / str(version))
        self._next = version
        self._serve_next()

    def _serve_next(self) -> None:
        self.hosted.wait_until_available(self._next)
        self.versions.append(self._next)
        self._next += 1

    def fail_delta(self) -> None:
        """Brings a delta whose load fails, because bits of its rows are wrong. The version before serves on."""
        failed = self._next
        self.trained.train(200)
        path = self.trained.export_delta(failed)
        flip_a_byte(path / "variables" / "variables.data-00001-of-00002", 10)
        self.hosted.wait_for_log("load_failed", version=failed)
        shutil.rmtree(path)
        self._next += 1

    def roll_back(self) -> None:
        """Takes the last version away. The version before comes back."""
        shutil.rmtree(self.hosted.base_path / str(self.version))
        self.versions.pop()
        self.hosted.wait_for_states({self.version: ServableState.AVAILABLE})

    def uploaded_bytes(self) -> int:
        """The bytes that the last version's uploads sent, by the metrics."""
        metrics = ServerPages(self.hosted.server.url).metrics()
        family = "serving_accelerator_upload_bytes_total"
        return int(metrics.total(family, model=self.hosted.name, version=str(self.version)))

    def swap(self) -> Mapping[str, Any]:
        """The record of the swap to the last version."""
        _, document, _ = RestClient(self.hosted.server).ask("GET", "/v1/swaps")
        name = self.hosted.name
        found = [
            swap
            for swap in document["swaps"]
            if (swap["model"], swap["version"]) == (name, self.version)
        ]
        assert len(found) == 1
        swap: Mapping[str, Any] = found[0]
        return swap

    def assert_answers_as_sent_in_full(self) -> None:
        """Fails unless answers are bit for bit those of another model, which is sent the same version in full."""
        answer = answer_of(self.hosted, self.version)
        other = self._host.model(prefix="full", settings=THERE)
        # Files of its own: the server may load no table of the other model.
        other.serve(self.hosted.base_path / str(self.version), self.version)
        assert answer.tobytes() == answer_of(other, self.version).tobytes()


def answer_of(model: HostedModel, version: int) -> Any:
    with caller_to(model.server.target) as caller:
        response = caller.predict(predict_request(model.name, {"ids": IDS}))
    assert response.model_spec.version.value == version
    return array(response.outputs["y"])


def test_equal_tables_are_sent_once(host: ModelHost) -> None:
    fresh = Fresh(host)
    fresh.serve_base()
    assert fresh.uploaded_bytes() == 2 * TABLE_BYTES + DENSE_BYTES
    fresh.serve_delta(0)
    assert fresh.uploaded_bytes() == DENSE_BYTES
    fresh.assert_answers_as_sent_in_full()


def test_changed_rows_are_sent_alone(host: ModelHost) -> None:
    fresh = Fresh(host)
    fresh.serve_base()
    for _ in range(3):
        fresh.serve_delta(30)
        sent_bytes = 2 * STEP_BYTES + DENSE_BYTES
        assert fresh.uploaded_bytes() == sent_bytes
        figures = fresh.swap()["figures"]
        assert figures["uploaded_bytes"] == sent_bytes
        assert figures["accelerator_kept_bytes"] == 2 * TABLE_BYTES + DENSE_BYTES - sent_bytes
        assert fresh.swap()["delta_uploaded_in_full"] == ""
        answer = answer_of(fresh.hosted, fresh.version)
        assert answer == pytest.approx(fresh.trained.answer(IDS), abs=1e-5)
        fresh.assert_answers_as_sent_in_full()


def test_delta_without_its_base_there_is_sent_in_full(host: ModelHost) -> None:
    fresh = Fresh(host)
    fresh.serve_base()
    fresh.serve_delta(10)
    alone = Fresh(host)
    alone.serve_copy(2, fresh.hosted.base_path / "2")
    assert alone.uploaded_bytes() == 2 * TABLE_BYTES + DENSE_BYTES
    reason = "no version on the accelerator has a table of its base"
    assert reason in alone.swap()["delta_uploaded_in_full"]
    assert reason in str(alone.hosted.wait_for_log("delta_uploaded_in_full")["reason"])
    metrics = ServerPages(alone.hosted.server.url).metrics()
    family = "serving_accelerator_delta_uploaded_in_full_total"
    assert metrics.total(family, model=alone.hosted.name, version="2") == 1


def test_random_versions_answer_as_sent_in_full(host: ModelHost) -> None:
    fresh = Fresh(host)
    random = np.random.default_rng(7)
    fresh.serve_base()
    for _ in range(12):
        match random.choice(["delta", "delta", "base", "failure", "rollback"]):
            case "delta":
                fresh.serve_delta(int(random.integers(400)))
                assert fresh.uploaded_bytes() < TABLE_BYTES
            case "base":
                fresh.trained.train(100)
                fresh.serve_base()
            case "failure":
                fresh.fail_delta()
            case "rollback":
                fresh.serve_delta(int(random.integers(400)))
                fresh.roll_back()
        fresh.assert_answers_as_sent_in_full()
