"""Deltas on an accelerator: what its memory has already is not sent again."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from loadtest.measure.server_pages import ServerPages
from tests.integration.accelerators import plugin_path
from tests.integration.clients import array, caller_to, predict_request
from tests.integration.delta_exports import TrainedModel
from tests.integration.model_host import HostedModel, ModelHost

# A table has a little more than 1 MiB, below which a variable is read again.
ROWS = 16_500
COLUMNS = 16
TABLE_BYTES = ROWS * COLUMNS * 4
DENSE_BYTES = 2 * COLUMNS * 4 * 4
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


def uploaded_bytes(model: HostedModel, version: int) -> int:
    metrics = ServerPages(model.server.url).metrics()
    family = "serving_accelerator_upload_bytes_total"
    return int(metrics.total(family, model=model.name, version=str(version)))


def answer_of(model: HostedModel, version: int) -> Any:
    with caller_to(model.server.target) as caller:
        response = caller.predict(predict_request(model.name, {"ids": IDS}))
    assert response.model_spec.version.value == version
    return array(response.outputs["y"])


def test_equal_tables_are_sent_once(host: ModelHost) -> None:
    model = host.model(prefix="trained", settings=THERE)
    trained = TrainedModel(model.base_path, rows=ROWS, columns=COLUMNS)
    trained.export_base(1)
    model.wait_until_available(1)
    assert uploaded_bytes(model, 1) == 2 * TABLE_BYTES + DENSE_BYTES
    trained.train(0)
    trained.export_delta(2)
    model.wait_until_available(2)
    assert uploaded_bytes(model, 2) == DENSE_BYTES
    assert answer_of(model, 2) == pytest.approx(trained.answer(IDS), abs=1e-5)
