"""Classify, Regress, MultiInference and SessionRun, by stock stubs and messages."""

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
from tests.integration.clients import channel_to, refusal
from tests.integration.conftest import StartServer
from tests.integration.example_exports import (
    CLASSIFY,
    PREDICT,
    REGRESS,
    example,
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
from tests.integration.exports import drop
from tests.integration.logs import logged
from tests.integration.real_models import SOURCES, TOLERANCE, fetched, python_answer
from warmup.prediction_log import WARM_UP_FILE, write_logs

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_examples(tmp_path_factory.mktemp("exports") / "examples")


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer, export: Path, tmp_path_factory: pytest.TempPathFactory
) -> ModelServer:
    base_path = tmp_path_factory.mktemp("base")
    drop(export, base_path, 4)
    server = start_module_server(model_name="m", base_path=base_path, arena_seal=True)
    server.wait_until_available("m", 4)
    return server


@pytest.fixture
def stub(server: ModelServer) -> Iterator[PredictionServiceStub]:
    with channel_to(server.target) as channel:
        yield PredictionServiceStub(channel)


def test_classify_returns_labels_scores_and_model_spec(stub: PredictionServiceStub):
    response = stub.Classify(classification(), timeout=30)
    assert classes(response.result) == [[("low", x), ("high", y)] for x, y in PAIRS]
    assert response.model_spec.version.value == 4
    assert response.model_spec.signature_name == "serving_default"


def test_classify_returns_labels_or_scores_alone(stub: PredictionServiceStub):
    labels = stub.Classify(classification("labels"), timeout=30)
    assert classes(labels.result) == [[("low", 0), ("high", 0)]] * 3
    scores = stub.Classify(classification("scores"), timeout=30)
    assert classes(scores.result) == [[("", x), ("", y)] for x, y in PAIRS]


def test_regress_answers_a_value_of_each_example(stub: PredictionServiceStub):
    response = stub.Regress(regression(), timeout=30)
    assert values(response) == [regressed(x, y) for x, y in PAIRS]
    assert response.model_spec.version.value == 4


def test_context_fills_gaps_and_example_feature_wins(
    stub: PredictionServiceStub,
):
    examples = [example(x=1.0), example(x=1.0, y=5.0), example()]
    response = stub.Regress(
        regression(examples=examples, context=example(x=10.0, y=0.5)), timeout=30
    )
    assert values(response) == [regressed(1.0, 0.5), regressed(1.0, 5.0), regressed(10.0, 0.5)]


def test_multi_inference_answers_tasks_in_order(stub: PredictionServiceStub):
    response = stub.MultiInference(
        multi_inference(("regress", REGRESS), ("", CLASSIFY)), timeout=30
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
    response = stub.MultiInference(multi_inference(*tasks), timeout=30)
    alone = [
        stub.Regress(regression(signature), timeout=30).result.regressions for signature, _ in tasks
    ]
    together = [result.regression_result.regressions for result in response.results]
    assert [list(entries) for entries in together] == [list(entries) for entries in alone]


@pytest.mark.parametrize(
    ("signature", "in_message"),
    [
        ("nobody", '"nobody"'),
        ("regress", '"classes" or "scores"'),
    ],
)
def test_classify_of_another_signature_is_invalid(
    stub: PredictionServiceStub, signature: str, in_message: str
):
    code, message = refusal(lambda: stub.Classify(classification(signature), timeout=30))
    assert (code, in_message in message) == (INVALID, True), message


@pytest.mark.parametrize(
    ("signature", "in_message"),
    [("serving_default", '"outputs"'), ("wide", "[batch_size, 1]")],
)
def test_regress_of_another_signature_is_invalid(
    stub: PredictionServiceStub, signature: str, in_message: str
):
    code, message = refusal(lambda: stub.Regress(regression(signature), timeout=30))
    assert (code, in_message in message) == (INVALID, True), message


def test_bad_requests_have_tensorflow_serving_codes(stub: PredictionServiceStub):
    empty = refusal(lambda: stub.Regress(regression(examples=[]), timeout=30))
    assert empty[0] == INVALID
    assert "Input is empty" in empty[1]
    assert (
        refusal(lambda: stub.Classify(classification_pb2.ClassificationRequest(), timeout=30))[0]
        == INVALID
    )
    unknown = refusal(lambda: stub.Regress(regression(model="nobody"), timeout=30))
    assert unknown[0] == grpc.StatusCode.NOT_FOUND
    wrong_type = [example(x=b"no number")]
    assert refusal(lambda: stub.Regress(regression(examples=wrong_type), timeout=30))[0] == INVALID


@pytest.mark.parametrize(
    ("tasks", "code", "in_message"),
    [
        ([], INVALID, "no tasks"),
        ([("regress", REGRESS)] * 2, INVALID, "Duplicate evaluation of signature: regress"),
        ([("regress", PREDICT)], UNIMPLEMENTED, "Unsupported signature method_name"),
    ],
)
def test_multi_inference_that_cannot_be_is_refused(
    stub: PredictionServiceStub,
    tasks: list[tuple[str, str]],
    code: grpc.StatusCode,
    in_message: str,
):
    refused = refusal(lambda: stub.MultiInference(multi_inference(*tasks), timeout=30))
    assert (refused[0], in_message in refused[1]) == (code, True), refused


def test_method_name_is_checked_if_flag_is_set(
    stub: PredictionServiceStub, start_server: StartServer, export: Path, base_path: Path
):
    assert stub.Classify(classification("modern"), timeout=30).result.classifications
    drop(export, base_path, 1)
    strict = start_server(
        model_name="m", base_path=base_path, enable_signature_method_name_check=True
    )
    strict.wait_until_available("m", 1)
    with channel_to(strict.target) as channel:
        checked = PredictionServiceStub(channel)
        assert checked.Classify(classification(), timeout=30).result.classifications
        code, message = refusal(lambda: checked.Classify(classification("modern"), timeout=30))
    assert (code, PREDICT in message) == (INVALID, True)


@pytest.mark.real_model
def test_guesslang_classifies_as_python_does(start_server: StartServer):
    base_path = fetched("guesslang")
    server = start_server(model_name="guesslang", base_path=base_path)
    server.wait_until_available("guesslang", 1)
    inputs = {"inputs": np.array([source.encode() for source in SOURCES], object)}
    expected = python_answer(base_path / "1", "classification", inputs)
    # The graph's input is plain text instead of an Example: an Example's bytes reach it.
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "guesslang"
    request.model_spec.signature_name = "classification"
    raw = b"".join(_delimited(1, source.encode()) for source in SOURCES)
    serialized = request.SerializeToString() + _delimited(2, _delimited(1, raw))
    with channel_to(server.target) as channel:
        classify: Any = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Classify",
            response_deserializer=classification_pb2.ClassificationResponse.FromString,
        )
        result = classify(serialized, timeout=30).result
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


def test_warm_up_replays_records_of_all_three_kinds(
    start_server: StartServer, export: Path, base_path: Path
):
    version = drop(export, base_path, 1)
    kinds = ("classify_log", "regress_log", "multi_inference_log")
    write_logs(version / WARM_UP_FILE, [warm_up_log(kind) for kind in kinds])
    server = start_server(model_name="m", base_path=base_path)
    server.wait_until_available("m", 1)


def test_failing_warm_up_record_stops_version(
    start_server: StartServer, export: Path, base_path: Path
):
    drop(export, base_path, 1)
    server = start_server(model_name="m", base_path=base_path, max_num_load_retries=0)
    server.wait_until_available("m", 1)
    beside = drop(export, base_path, ".2")
    log = warm_up_log("regress_log")
    log.regress_log.request.model_spec.signature_name = "wide"
    write_logs(beside / WARM_UP_FILE, [log])
    beside.rename(base_path / "2")
    failed = server.wait_for_event(
        lambda event: event["event"] == "load_failed" and event["version"] == 2, 30
    )
    assert "record 1" in str(failed)
    assert "[batch_size, 1]" in str(failed)


# --- SessionRun -------------------------------------------------------------------------------------

SERIALIZED = np.array([entry.SerializeToString() for entry in EXAMPLES], object)


@pytest.fixture(scope="module")
def session_server(
    start_module_server: StartServer,
    export: Path,
    slow_export: Path,
    write_config: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> ModelServer:
    directory = tmp_path_factory.mktemp("session")
    for name, source in (("m", export), ("slow", slow_export)):
        (directory / name).mkdir()
        drop(source, directory / name, 4)
    config = write_config(directory, {name: directory / name for name in ("m", "slow")})
    server = start_module_server(model_config_file=config, enable_session_run=True, arena_seal=True)
    for name in ("m", "slow"):
        server.wait_until_available(name, 4)
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
    assert not logged(server, "arena_not_sealed")


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


def test_session_run_that_cannot_be_is_refused(session_channel: grpc.Channel):
    def code_of(**fields: Any) -> grpc.StatusCode:
        return refusal(lambda: session_run(session_channel, **fields))[0]

    assert code_of(feeds={"examples:0": SERIALIZED}) == INVALID
    assert code_of(fetches=["scores"], is_alias=True, feeds={"x": SERIALIZED}) == INVALID
    assert code_of(fetches=["nobody:0"]) in (INVALID, grpc.StatusCode.NOT_FOUND)
    assert code_of(fetches=["value:0"], feeds={"examples:0": np.ones(1, np.float32)}) == INVALID
    assert code_of(model="nobody", fetches=["value:0"]) == grpc.StatusCode.NOT_FOUND


# A read-only arena of 400 kB would end the process here.
def test_session_run_may_write_unsealed_variable(
    session_server: ModelServer, session_channel: grpc.Channel
):
    unsealed = {event["model"] for event in logged(session_server, "arena_not_sealed")}
    assert "m" in unsealed
    set_weights: dict[str, Any] = {
        "feeds": {"new_weight:0": np.float32(3.0)},
        "targets": ["set_weights"],
    }
    assert not session_run(session_channel, **set_weights).tensor
    stub = PredictionServiceStub(session_channel)
    assert values(stub.Regress(regression(), timeout=30)) == pytest.approx(
        [regressed(x, y, 3.0) for x, y in PAIRS]
    )
    session_run(session_channel, feeds={"new_weight:0": np.float32(2.0)}, targets=["set_weights"])


@pytest.mark.parametrize(("timeout", "timeout_ms"), [(0.3, 0), (30, 300)])
def test_session_run_ends_at_earlier_timeout(
    session_channel: grpc.Channel, timeout: float, timeout_ms: int
):
    code, _ = refusal(
        lambda: session_run(
            session_channel,
            timeout=timeout,
            model="slow",
            feeds={"seconds": np.float64(20)},
            fetches=["rounds"],
            is_alias=True,
            timeout_ms=timeout_ms,
        )
    )
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED


# More parts than SessionCallables keeps callables for.
def test_session_run_answers_many_parts_of_graph(session_channel: grpc.Channel):
    tensors = ["value:0", "Mean:0", "mul:0", "add:0", "stack:0", "Tile:0", "Shape:0"]
    for mask in range(1, 1 << len(tensors)):
        fetches = [name for bit, name in enumerate(tensors) if mask & 1 << bit]
        response = session_run(session_channel, feeds={"examples:0": SERIALIZED}, fetches=fetches)
        assert [entry.name for entry in response.tensor] == fetches
        if "value:0" in fetches:
            arrays = fetched_arrays(response)
            assert arrays["value:0"].tolist() == [regressed(x, y) for x, y in PAIRS]
