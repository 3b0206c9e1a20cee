"""Models of Keras on JAX, whose calls assign the state that they have read, and models that write."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration import exports
from tests.integration.clients import Caller, array, caller_to, predict_request
from tests.integration.conftest import REPOSITORY
from tests.integration.kept_exports import exported_by, kept_export
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.rest_clients import RestClient

JAX_PYTHON = Path(REPOSITORY) / "build" / "jax" / "bin" / "python"
ROWS = (1, 2, 3)


@pytest.fixture(scope="module")
def normalized() -> Path:
    assert JAX_PYTHON.exists(), "make build/jax/.installed"
    exporter = exported_by("tests.integration.jax_exports", python=str(JAX_PYTHON))
    packages = (Path(REPOSITORY) / "pyproject.toml").read_text()
    return kept_export("jax", exporter, ("tests/integration/jax_exports.py",), stamp=packages)


def ask(caller: Caller, model: HostedModel, rows: int) -> Any:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    response = caller.predict(predict_request(model.name, {"x": x}))
    return response.model_spec.version.value, array(response.outputs["output_0"])


def problem_of_swap(model: HostedModel, version: int) -> str:
    """Returns the problem of the swap that brought the version."""
    model.wait_for_log("swap", version=version)
    _, document, _ = RestClient(model.server).ask("GET", "/v1/swaps")
    (swap,) = [
        swap
        for swap in document["swaps"]
        if (swap["model"], swap["version"]) == (model.name, version)
    ]
    problem: str = swap["problem"]
    return problem


def test_model_that_assigns_what_it_read_is_replayed(host: ModelHost, normalized: Path):
    model = host.model(prefix="jax", settings={"batching": {"enabled": True}}).serve(normalized)
    with caller_to(model.server.target) as caller:
        before = [ask(caller, model, rows) for rows in ROWS]
        model.serve(normalized, 2)
        after = [ask(caller, model, rows) for rows in ROWS]
    for (old, was), (new, now) in zip(before, after, strict=True):
        assert (old, new) == (1, 2)
        assert np.allclose(was, now)
    event = model.wait_for_log("self_warmed_up", version=2)
    assert event["run_count"] > 0
    assert event["failed_count"] == 0
    assert model.logged("requests_not_repeated") == []
    assert model.logged("batching_refused") == []
    assert problem_of_swap(model, 2) == ""


def test_model_that_writes_says_so_in_its_swap(host: ModelHost, tmp_path: Path):
    export = exports.export_counter(tmp_path / "1")
    model = host.model(prefix="counter").serve(export)
    with caller_to(model.server.target) as caller:
        caller.predict(predict_request(model.name, {"by": np.int64(1)}))
        model.serve(export, 2)
        answer = caller.predict(predict_request(model.name, {"by": np.int64(1)}))
    # The live request was not repeated: this is the first one that version 2 counts.
    assert array(answer.outputs["sum"]) == 1_000_000
    assert model.wait_for_log("requests_not_repeated", version=2)["level"] == "warning"
    assert "a request may change a variable" in problem_of_swap(model, 2)
