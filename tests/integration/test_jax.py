"""Models of Keras on JAX and of jax2tf, which are compiled for each shape. Some of them write."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.clients import Caller, array, caller_to, predict_request
from tests.integration.kept_exports import kept_jax_exports
from tests.integration.model_host import HostedModel, ModelHost

ROWS = range(1, 17)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which XLA writes each program that it compiles."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def host_flags(programs: Path) -> Mapping[str, object]:
    return {"environment": {"XLA_FLAGS": f"--xla_dump_to={programs} --xla_dump_hlo_as_proto"}}


def compiled(programs: Path) -> int:
    """Returns how often the server has compiled."""
    return len(list(programs.glob("*.before_optimizations.hlo.pb")))


@pytest.fixture(scope="module")
def exported() -> Path:
    return kept_jax_exports()


@pytest.fixture(scope="module")
def normalized(exported: Path) -> Path:
    return exported / "normalized"


@pytest.fixture(scope="module")
def counting(exported: Path) -> Path:
    return exported / "counting"


def ask(caller: Caller, model: HostedModel, rows: int) -> Any:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    response = caller.predict(predict_request(model.name, {"x": x}))
    return response.model_spec.version.value, array(response.outputs["output_0"])


def test_model_that_assigns_what_it_read_is_replayed(host: ModelHost, normalized: Path):
    model = host.model(prefix="jax", settings={"batching": {"enabled": True}}).serve(normalized)
    with caller_to(model.server.target) as caller:
        before = [ask(caller, model, rows) for rows in (1, 2, 3)]
        model.serve(normalized, 2)
        after = [ask(caller, model, rows) for rows in (1, 2, 3)]
    for (old, was), (new, now) in zip(before, after, strict=True):
        assert (old, new) == (1, 2)
        assert np.allclose(was, now)
    event = model.wait_for_log("self_warmed_up", version=2)
    assert event["run_count"] > 0
    assert event["failed_count"] == 0
    assert model.logged("requests_not_repeated") == []
    assert model.logged("batching_refused") == []
    assert model.problem_of_swap(2) == ""


@pytest.mark.parametrize("export", ["normalized", "counting"])
def test_live_sizes_are_compiled_before_the_swap(
    host: ModelHost, programs: Path, export: str, request: pytest.FixtureRequest
):
    directory: Path = request.getfixturevalue(export)
    model = host.model(prefix=export).serve(directory)
    with caller_to(model.server.target) as caller:
        cold = compiled(programs)
        for rows in ROWS:
            ask(caller, model, rows)
        assert compiled(programs) - cold == len(ROWS)
        model.wait_until_kept(len(ROWS))
        model.serve(directory, 2)
        warm = compiled(programs)
        assert warm - cold == 2 * len(ROWS)
        assert {ask(caller, model, rows)[0] for rows in ROWS} == {2}
        assert compiled(programs) == warm


def test_first_client_finds_state_of_checkpoint(host: ModelHost, counting: Path):
    model = host.model(prefix="counting").serve(counting)
    x = np.zeros((1, 4), np.float32)
    with caller_to(model.server.target) as caller:
        caller.predict(predict_request(model.name, {"x": x}))
        model.wait_until_kept(1)
        model.serve(counting, 2)
        answer = caller.predict(predict_request(model.name, {"x": x}))
    assert array(answer.outputs["calls"]) == 1
    assert model.wait_for_log("self_warmed_up", version=2)["run_count"] == 1
    assert model.wait_for_log("state_put_back", version=2)["variable_count"] == 1
    assert model.logged("requests_not_repeated") == []
    problem = model.problem_of_swap(2)
    assert problem == "a request may change a variable, so no gate compared its answers"
