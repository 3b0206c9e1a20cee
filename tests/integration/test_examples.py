"""Classify, Regress, MultiInference and SessionRun on real exports, by stock stubs.

The answers' forms and the refusals are in `tests/native` (`classify_test.cc`, `multi_inference_test.cc`,
`session_run_test.cc`, `tf_example_*_test.cc`), and documented cases in `drop_in/grpc_rows.py`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving import ModelServer
from serving.base.protos import (
    classification_pb2,
    prediction_log_pb2,
)
from serving.client.stubs import PredictionServiceStub
from tests.integration.clients import TIMEOUT_SECONDS, channel_to, refusal
from tests.integration.conftest import StartServer
from tests.integration.example_exports import (
    CLASSIFY,
    PREDICT,
    REGRESS,
    export_examples,
    regressed,
)
from tests.integration.example_requests import (
    EXAMPLES,
    PAIRS,
    classes,
    classification,
    fetched_arrays,
    multi_inference,
    regression,
    session_run,
    values,
)
from tests.integration.exports import drop, let_settle
from tests.integration.logs import logged, wait_for_log
from tests.integration.model_host import ModelHost
from tests.integration.real_models import SOURCES, TOLERANCE, fetched, python_answer
from warmup.prediction_log import WARM_UP_FILE, write_logs

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_examples(tmp_path_factory.mktemp("exports") / "examples")


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return {"arena_seal": True}


@pytest.fixture(scope="module")
def server(module_host: ModelHost, export: Path) -> ModelServer:
    return module_host.model(name="m").serve(export, 4).server


@pytest.fixture
def stub(server: ModelServer) -> Iterator[PredictionServiceStub]:
    with channel_to(server.target) as channel:
        yield PredictionServiceStub(channel)


def test_classify_returns_labels_scores_and_model_spec(stub: PredictionServiceStub):
    response = stub.Classify(classification(), timeout=TIMEOUT_SECONDS)
    assert classes(response.result) == [[("low", x), ("high", y)] for x, y in PAIRS]
    assert response.model_spec.version.value == 4
    assert response.model_spec.signature_name == "serving_default"


def test_regress_answers_a_value_of_each_example(stub: PredictionServiceStub):
    response = stub.Regress(regression(), timeout=TIMEOUT_SECONDS)
    assert values(response) == [regressed(x, y) for x, y in PAIRS]
    assert response.model_spec.version.value == 4


def test_multi_inference_answers_tasks_in_order(stub: PredictionServiceStub):
    response = stub.MultiInference(
        multi_inference(("regress", REGRESS), ("", CLASSIFY)), timeout=TIMEOUT_SECONDS
    )
    first, second = response.results
    assert first.model_spec.signature_name == "regress"
    assert [entry.value for entry in first.regression_result.regressions] == [
        regressed(x, y) for x, y in PAIRS
    ]
    assert classes(second.classification_result) == [[("low", x), ("high", y)] for x, y in PAIRS]
    assert second.model_spec.version.value == 4


def test_multi_inference_feeds_each_signature(stub: PredictionServiceStub):
    tasks = ("elsewhere", REGRESS), ("regress", REGRESS)
    response = stub.MultiInference(multi_inference(*tasks), timeout=TIMEOUT_SECONDS)
    alone = [
        stub.Regress(regression(signature), timeout=TIMEOUT_SECONDS).result.regressions
        for signature, _ in tasks
    ]
    together = [result.regression_result.regressions for result in response.results]
    assert [list(entries) for entries in together] == [list(entries) for entries in alone]


@pytest.mark.real_model
def test_guesslang_classifies_as_python_does(host: ModelHost):
    base_path = fetched("guesslang")
    model = host.model(base_path, prefix="guesslang")
    model.wait_until_available(1)
    inputs = {"inputs": np.array([source.encode() for source in SOURCES], object)}
    expected = python_answer(base_path / "1", "classification", inputs)
    # The graph's input is plain text instead of an Example: an Example's bytes reach it.
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = model.name
    request.model_spec.signature_name = "classification"
    raw = b"".join(_delimited(1, source.encode()) for source in SOURCES)
    serialized = request.SerializeToString() + _delimited(2, _delimited(1, raw))
    with channel_to(model.server.target) as channel:
        classify: Any = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Classify",
            response_deserializer=classification_pb2.ClassificationResponse.FromString,
        )
        result = classify(serialized, timeout=TIMEOUT_SECONDS).result
    answered = classes(result)
    assert [[label.encode() for label, _ in row] for row in answered] == [
        list(row) for row in expected["classes"]
    ]
    scores = np.array([[score for _, score in row] for row in answered], np.float32)
    np.testing.assert_allclose(scores, expected["scores"], rtol=TOLERANCE, atol=TOLERANCE)


def _delimited(field: int, body: bytes) -> bytes:
    """Returns a length-delimited field of protobuf."""
    length, rest = [], len(body)
    while rest >= 0x80:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([field << 3 | 2, *length, rest]) + body


# --- Warm-up ----------------------------------------------------------------------------------------


def warm_up_log(kind: str) -> Any:
    log = prediction_log_pb2.PredictionLog()
    request = {
        "classify_log": classification(),
        "regress_log": regression(),
        "multi_inference_log": multi_inference(("regress", REGRESS), ("", CLASSIFY)),
    }[kind]
    getattr(log, kind).request.CopyFrom(request)
    return log


def drop_with(export: Path, base_path: Path, version: int, *logs: Any) -> None:
    """Drops a version with these records in its warm-up file."""
    beside = drop(export, base_path, f".{version}.prepared")
    write_logs(beside / WARM_UP_FILE, list(logs))
    let_settle(beside).rename(base_path / str(version))


def test_warm_up_replays_records_of_all_three_kinds(host: ModelHost, export: Path):
    model = host.model(prefix="warm")
    kinds = ("classify_log", "regress_log", "multi_inference_log")
    drop_with(export, model.base_path, 1, *(warm_up_log(kind) for kind in kinds))
    model.wait_until_available(1)
    assert model.wait_for_log("version_available", version=1)["warm_up_seconds"] > 0


def test_failing_warm_up_record_stops_version(host: ModelHost, export: Path):
    model = host.model(prefix="warm").serve(export)
    log = warm_up_log("regress_log")
    log.regress_log.request.model_spec.signature_name = "wide"
    drop_with(export, model.base_path, 2, log)
    failed = model.wait_for_log("load_failed", version=2)
    assert "record 1" in str(failed)
    assert "[batch_size, 1]" in str(failed)


# --- SessionRun -------------------------------------------------------------------------------------

SERIALIZED = np.array([entry.SerializeToString() for entry in EXAMPLES], object)


@pytest.fixture(scope="module")
def session_server(
    start_module_server: StartServer, export: Path, tmp_path_factory: pytest.TempPathFactory
) -> ModelServer:
    base_path = tmp_path_factory.mktemp("session")
    drop(export, base_path, 4)
    server = start_module_server(
        model_name="m",
        base_path=base_path,
        enable_session_run=True,
        arena_seal=True,
        enable_signature_method_name_check=True,
    )
    server.wait_until_available("m", 4)
    return server


@pytest.fixture
def session_channel(session_server: ModelServer) -> Iterator[grpc.Channel]:
    with channel_to(session_server.target) as channel:
        yield channel


def test_session_run_is_unimplemented_without_its_flag(server: ModelServer):
    with channel_to(server.target) as channel:
        code, message = refusal(lambda: session_run(channel, fetches=["value:0"]))
    assert (code, "--enable_session_run" in message) == (UNIMPLEMENTED, True)


def test_same_model_is_sealed_without_session_run(server: ModelServer):
    assert not logged(server, "arena_not_sealed", model="m")


def test_session_run_feeds_and_fetches_by_graph_name(session_channel: grpc.Channel):
    fetches = ["value:0", "examples:0", "value:0"]
    code, _ = refusal(
        lambda: session_run(session_channel, feeds={"examples:0": SERIALIZED}, fetches=fetches)
    )
    assert code == INVALID  # fed and fetched
    response = session_run(
        session_channel, feeds={"examples:0": SERIALIZED}, fetches=["value:0", "value:0"]
    )
    assert [entry.name for entry in response.tensor] == ["value:0", "value:0"]
    assert fetched_arrays(response)["value:0"].tolist() == [regressed(x, y) for x, y in PAIRS]
    assert response.model_spec.version.value == 4


def test_session_run_accepts_signature_aliases(session_channel: grpc.Channel):
    response = session_run(
        session_channel, feeds={"inputs": SERIALIZED}, fetches=["scores"], is_alias=True
    )
    assert fetched_arrays(response)["scores"].tolist() == [list(pair) for pair in PAIRS]


def test_method_name_is_checked_if_flag_is_set(
    stub: PredictionServiceStub, session_channel: grpc.Channel
):
    assert stub.Classify(classification("modern"), timeout=TIMEOUT_SECONDS).result.classifications
    checked = PredictionServiceStub(session_channel)
    assert checked.Classify(classification(), timeout=TIMEOUT_SECONDS).result.classifications
    code, message = refusal(
        lambda: checked.Classify(classification("modern"), timeout=TIMEOUT_SECONDS)
    )
    assert (code, PREDICT in message) == (INVALID, True)


# A read-only arena of 400 kB would end the process here.
def test_session_run_may_write_unsealed_variable(
    session_server: ModelServer, session_channel: grpc.Channel
):
    wait_for_log(session_server, "arena_not_sealed", model="m")
    set_weights: dict[str, Any] = {
        "feeds": {"new_weight:0": np.float32(3.0)},
        "targets": ["set_weights"],
    }
    assert not session_run(session_channel, **set_weights).tensor
    stub = PredictionServiceStub(session_channel)
    assert values(stub.Regress(regression(), timeout=TIMEOUT_SECONDS)) == pytest.approx(
        [regressed(x, y, 3.0) for x, y in PAIRS]
    )
    session_run(session_channel, feeds={"new_weight:0": np.float32(2.0)}, targets=["set_weights"])
