"""The row analysis of exports by Keras and TensorFlow, and what clients get from models that mix rows."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving.base.protos import predict_pb2
from tests.integration import row_functions, row_models
from tests.integration.batches import CLIENT_COUNT, FLAGS, scrape
from tests.integration.clients import TIMEOUT_SECONDS, array, caller_to, is_right, predict_request
from tests.integration.kept_exports import kept_export
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.steady_clients import SteadyThreads

Verdicts = dict[str, tuple[str, str]]

ANSWERS = 1_500
REQUESTS_OF_A_MODEL = 900
FUNCTION_COUNT = 80
EXPORT_SIZE = 8
# The kept exports are made by these.
SOURCES = tuple(
    f"tests/integration/{name}.py"
    for name in ("exports", "row_models", "row_functions", "test_row_analysis")
)
# One client of a test sends it, and the mixing models look for it.
RARE = 777.0


def verdicts_of(*exports: Path) -> Verdicts:
    """Returns the verdicts of all signatures, whose names differ."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.integration.row_census", "--json", *map(str, exports)],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    of_exports = json.loads(result.stdout.splitlines()[-1]).values()
    return {name: (rows, reason) for each in of_exports for name, (rows, reason) in each.items()}


@pytest.fixture(scope="module")
def mixing_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    signatures = row_models.matrix_signatures(row_models.mixing_functions())
    return row_models.export_signatures(tmp_path_factory.mktemp("mixing") / "export", signatures)


def test_analysis_shows_independent_functions(tmp_path: Path):
    functions = row_models.independent_functions()
    export = row_models.export_signatures(
        tmp_path / "export", row_models.matrix_signatures(functions)
    )
    verdicts = verdicts_of(export)
    assert set(verdicts) == set(functions)
    assert {
        name: verdict for name, verdict in verdicts.items() if verdict[0] != "independent"
    } == {}


def export_in_parts(directory: Path, signatures: dict[str, Any], *models: object) -> None:
    """Exports some signatures each: a load takes the square of their number."""
    names = iter(signatures)
    for number, first in enumerate(names):
        some = (first, *islice(names, EXPORT_SIZE - 1))
        row_models.export_signatures(
            directory / f"export-{number}", {name: signatures[name] for name in some}, *models
        )


def export_keras_layers(directory: Path) -> None:
    signatures, models = row_models.keras_signatures()
    export_in_parts(directory, signatures, *models)
    (directory / "names.json").write_text(json.dumps(list(signatures)))


def test_analysis_shows_independent_keras_layers():
    kept = kept_export("keras_layers", export_keras_layers, SOURCES)
    verdicts = verdicts_of(*kept.glob("export-*"))
    assert set(verdicts) == set(json.loads((kept / "names.json").read_text()))
    assert {
        name: verdict for name, verdict in verdicts.items() if verdict[0] != "independent"
    } == {}


def test_analysis_shows_that_functions_mix_rows(mixing_export: Path):
    verdicts = verdicts_of(mixing_export)
    assert set(verdicts) == set(row_models.mixing_functions())
    assert {name: verdict for name, verdict in verdicts.items() if verdict[0] != "mixes"} == {}
    assert all("node '" in reason for _, reason in verdicts.values())


def test_doubtful_functions_are_not_independent(tmp_path: Path):
    signatures = row_models.matrix_signatures(row_models.doubtful_functions())
    verdicts = verdicts_of(row_models.export_signatures(tmp_path / "export", signatures))
    assert {name: rows for name, (rows, _) in verdicts.items() if rows == "independent"} == {}
    assert set(verdicts) == set(signatures)


def export_random_functions(seed: int, directory: Path) -> None:
    """Exports the functions, and beside them which of them mix rows, as TensorFlow computes them."""
    signatures = row_functions.random_signatures(seed, FUNCTION_COUNT)
    export_in_parts(directory, signatures)
    mixing = [name for name, each in signatures.items() if row_functions.rows_differ(each, seed)]
    (directory / "mixing.json").write_text(json.dumps(mixing))


@pytest.mark.parametrize(
    "seeds",
    [
        [1],
        pytest.param(range(2, 14), id="long", marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
    ],
)
def test_no_mixing_function_seems_independent(seeds: Iterable[int]):
    for seed in seeds:
        kept = kept_export(f"functions-{seed}", partial(export_random_functions, seed), SOURCES)
        verdicts = verdicts_of(*kept.glob("export-*"))
        assert len(verdicts) == FUNCTION_COUNT
        mixing = set(json.loads((kept / "mixing.json").read_text()))
        independent = {name for name, (rows, _) in verdicts.items() if rows == "independent"}
        assert not mixing & independent, seed
        # There were enough of both.
        assert min(len(mixing), len(independent)) > FUNCTION_COUNT / 20


# --- A server ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return {**FLAGS, "enable_batching": True}


class OneRowClients(SteadyThreads):
    """Threads that send one row each. `make_inputs` makes the inputs of a thread by its number."""

    def __init__(
        self,
        hosted: HostedModel,
        signature_name: str,
        make_inputs: Callable[[int], dict[str, Any]],
    ) -> None:
        super().__init__(CLIENT_COUNT)
        self._hosted = hosted
        self._signature_name = signature_name
        self._make_inputs = make_inputs

    def run(self, number: int) -> None:
        request = self._request(self._make_inputs(number))
        with caller_to(self._hosted.server.target) as caller:
            while not self.is_stopping:
                try:
                    response = caller.predict(request)
                except grpc.RpcError as error:
                    self.failures.append(str(error))
                    continue
                self._check(number, array(response.outputs["y"]))

    def _request(self, inputs: dict[str, Any]) -> predict_pb2.PredictRequest:
        return predict_request(self._hosted.name, inputs, signature_name=self._signature_name)

    def _check(self, number: int, answer: Any) -> None:
        self.answer_counts[1] += 1


class ClientsOfTheDoublingModel(OneRowClients):
    """All but the first send rows that the model hands through; the first one sends the rare value too."""

    def run(self, number: int) -> None:
        if number > 0:
            super().run(number)
            return
        rare = self._request({"x": np.full((1, 4), RARE, np.float32)})
        with caller_to(self._hosted.server.target) as caller:
            while not self.is_stopping:
                caller.predict(rare)

    def _check(self, number: int, answer: Any) -> None:
        super()._check(number, answer)
        if not is_right(answer, row_of(number)["x"]):
            self.failures.append(f"wrong answer to client {number}: {answer}")


def row_of(number: int) -> dict[str, Any]:
    return {"x": np.full((1, 4), number / 4, np.float32)}


def batched_signatures(hosted: HostedModel, names: Iterable[str]) -> set[str]:
    metrics = scrape(hosted.server)
    labels = {"model": hosted.name, "version": "1"}
    on = "serving_batching_on"
    return {name for name in names if metrics.total(on, **labels, signature=name) == 1}


def test_innocent_requests_get_their_own_answers(host: ModelHost, mixing_export: Path):
    hosted = host.model(prefix="mixing").serve(mixing_export)
    assert batched_signatures(hosted, row_models.mixing_functions()) == set()
    refused = hosted.only_logged("batching_refused", signature="doubled_if_any_is_777")
    assert refused["rows"] == "mixes"
    assert "(Any) reduces over the rows" in refused["reason"]
    clients = ClientsOfTheDoublingModel(hosted, "doubled_if_any_is_777", row_of)
    with clients.running():
        clients.wait_for_answers_of(1, ANSWERS)
    assert clients.failures == []


def test_owner_may_vouch_for_a_model_that_mixes(host: ModelHost, mixing_export: Path):
    settings = {"batching": {"may_mix_rows": True}}
    hosted = host.model(prefix="vouched", settings=settings).serve(mixing_export)
    # Made-up rows do not show the first one, and the second one they do.
    batched = batched_signatures(hosted, row_models.mixing_functions())
    assert "over_the_largest" in batched
    assert "minus_the_mean" not in batched


@pytest.mark.parametrize(
    "model_count",
    [4, pytest.param(40, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(0)])],
)
def test_rounding_refuses_no_scoring_model(host: ModelHost, tmp_path: Path, model_count: int):
    signatures, models = row_models.scoring_signatures(model_count, seed=7)
    export = row_models.export_signatures(tmp_path / "export", signatures, *models)
    hosted = host.model(prefix="scores").serve(export)
    assert batched_signatures(hosted, signatures) == set(signatures)
    for name, signature in signatures.items():
        inputs = list(signature.structured_input_signature[1])

        def make_inputs(number: int, inputs: list[str] = inputs) -> dict[str, Any]:
            random = np.random.default_rng(number)
            return {each: random.standard_normal((1, 16), np.float32) for each in inputs}

        clients = OneRowClients(hosted, name, make_inputs)
        with clients.running():
            clients.wait_for_answers_of(1, REQUESTS_OF_A_MODEL)
        assert clients.failures == []
    assert batched_signatures(hosted, signatures) == set(signatures)
    runs = scrape(hosted.server)
    requests = runs.total("serving_batch_requests_sum", model=hosted.name)
    assert requests > runs.total("serving_batch_requests_count", model=hosted.name)
