"""The request log: stock clients send requests, and stock TensorFlow reads the files."""

import resource
import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from google.protobuf import text_format
from pyarrow import parquet

from loadtest.measure.server_pages import ServerPages
from serving.base.errors import InvalidArgument
from serving.base.protos import prediction_log_pb2
from serving.client import Client
from serving.client.stubs import PredictionServiceStub
from serving.core.model_config_messages import config_message
from tests.integration.batches import FLAGS, scrape, take_run_seconds
from tests.integration.clients import (
    TIMEOUT_SECONDS,
    array,
    caller_to,
    channel_to,
    is_right,
    predict_request,
    refusal,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.example_exports import CLASSIFY, REGRESS, export_examples
from tests.integration.example_requests import EXAMPLES, classification, multi_inference, regression
from tests.integration.exports import ScaleModel, drop, let_settle
from tests.integration.kserve_clients import DENSE, IDS, client_of, echo_inputs
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.processes import millpond
from tests.integration.rest_clients import RestClient
from warmup.__main__ import main as warmup
from warmup.prediction_log import WARM_UP_FILE, read_logs

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
X = np.array([1, 2, 3], np.float32)
DROP_REASONS = ("queue_full", "disk", "turned_off")


def logging(prefix: Path, rate: float = 1, more: str = "") -> str:
    return (
        f"logging_config {{ sampling_config {{ sampling_rate: {rate} }} "
        f'log_collector_config {{ filename_prefix: "{prefix}" {more} }} }}'
    )


def count(model: HostedModel, kind: str, **labels: str) -> int:
    """Returns a figure of the model's log; 0 before the log was ever on."""
    metrics = ServerPages(model.server.url).metrics()
    family = f"serving_request_log_{kind}"
    return round(metrics.value(family, model=model.name, **labels) or 0)


def finished(model: HostedModel, prefix: Path) -> list[Path]:
    """Turns the log off, and returns its files when they are complete."""
    model.configure()
    wait_until(lambda: count(model, "pending") == 0, "the end of the log")
    assert list(prefix.parent.glob(".*.partial")) == []
    return sorted(prefix.parent.glob(f"{prefix.name}-*"))


def records(paths: Sequence[Path]) -> list[prediction_log_pb2.PredictionLog]:
    return [log for path in paths for log in read_logs(path)]


def stock_records(paths: Sequence[Path]) -> list[prediction_log_pb2.PredictionLog]:
    """Returns the records as a stock tf.data.TFRecordDataset reads them."""
    import tensorflow as tf

    records = tf.data.TFRecordDataset([str(path) for path in paths])
    return [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]


def arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array(tensor).tolist() for name, tensor in tensors.items()}


def send(model: HostedModel, request_count: int = 1) -> None:
    with caller_to(model.server.target) as caller:
        for _ in range(request_count):
            caller.predict(predict_request(model.name, {"x": X}))


@pytest.fixture
def scale(host: ModelHost, scale_model: ScaleModel) -> HostedModel:
    model = host.model(prefix="scale")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    return model


def test_stock_tensorflow_reads_request_and_answer(scale: HostedModel, tmp_path: Path) -> None:
    prefix = tmp_path / "log"
    scale.configure(config=logging(prefix))
    with caller_to(scale.server.target) as caller:
        answer = caller.predict(predict_request(scale.name, {"x": X}))
        code, _ = refusal(lambda: caller.predict(predict_request(scale.name, {"z": X})))
        assert code.name == "INVALID_ARGUMENT"
    (path,) = finished(scale, prefix)
    assert path.stat().st_mode & 0o777 == 0o600
    # The request that failed has no record.
    (log,) = stock_records([path])
    request, response = log.predict_log.request, log.predict_log.response
    assert arrays(request.inputs) == {"x": X.tolist()}
    assert request.model_spec.name == scale.name
    assert arrays(response.outputs) == arrays(answer.outputs)
    assert response.model_spec == answer.model_spec == log.log_metadata.model_spec
    assert log.log_metadata.sampling_config.sampling_rate == 1


def test_reload_changes_and_ends_the_log(scale: HostedModel, tmp_path: Path) -> None:
    send(scale, 5)
    assert count(scale, "sampled_total") == 0
    scale.configure(config=logging(tmp_path / "all"))
    send(scale, 5)
    scale.configure(config=logging(tmp_path / "half", rate=0.5))
    # Records that come before the writer's turn go to the former file.
    wait_until(lambda: list(tmp_path.glob("all-*")), "the end of the first file")
    send(scale, 200)
    # A record follows its reply. If the log is off by then, the record is counted as turned_off.
    files = finished(scale, tmp_path / "half")
    sampled = count(scale, "sampled_total") - 5
    # Seven standard deviations.
    assert abs(sampled - 100) < 50
    send(scale, 5)
    assert count(scale, "sampled_total") == sampled + 5
    assert len(records(files)) == sampled - count(scale, "dropped_total", reason="turned_off")
    assert len(records(sorted(tmp_path.glob("all-*")))) == 5


def test_swapped_version_logs_on(
    scale: HostedModel, scale_model: ScaleModel, tmp_path: Path
) -> None:
    prefix = tmp_path / "log"
    scale.configure(config=logging(prefix))
    send(scale)
    scale_model.write(scale.base_path, 2)
    scale.wait_until_available(2)
    send(scale)
    logs = records(finished(scale, prefix))
    versions = [log.predict_log.response.model_spec.version.value for log in logs]
    assert versions == [1, 2]


def test_only_allowed_tensors_are_logged(
    host: ModelHost, echo_export: Path, tmp_path: Path
) -> None:
    prefix = tmp_path / "log"
    model = host.model(
        prefix="echo",
        settings={"request_log": {"inputs": ["ids"], "outputs": ["next"]}},
        config=logging(prefix),
    ).serve(echo_export)
    with client_of(triton_grpc, model.server) as client:
        client.infer(model.name, echo_inputs(triton_grpc))
    (log,) = records(finished(model, prefix))
    assert arrays(log.predict_log.request.inputs) == {"ids": IDS.tolist()}
    assert list(log.predict_log.response.outputs) == ["next"]


def test_every_protocol_is_logged(host: ModelHost, echo_export: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "log"
    model = host.model(prefix="echo", config=logging(prefix)).serve(echo_export)
    inputs = {"dense": DENSE, "ids": IDS}
    rest = RestClient(model.server)
    body = {"inputs": {"dense": DENSE.tolist(), "ids": IDS.tolist()}}
    assert rest.ask("POST", f"/v1/models/{model.name}:predict", body)[0] == 200
    assert rest.ask("POST", f"/v1/models/{model.name}:predict", {"inputs": 3})[0] == 400
    with client_of(triton_grpc, model.server) as client:
        client.infer(model.name, echo_inputs(triton_grpc))
    with caller_to(model.server.target) as caller:
        caller.predict(predict_request(model.name, inputs))
    logs = records(finished(model, prefix))
    assert len(logs) == 3
    for log in logs:
        assert arrays(log.predict_log.request.inputs) == arrays(predict_request("m", inputs).inputs)
        assert log.predict_log.response.outputs.keys() >= {"next"}


def test_requests_of_examples_are_logged(host: ModelHost, tmp_path: Path) -> None:
    prefix = tmp_path / "log"
    export = export_examples(tmp_path / "examples")
    model = host.model(prefix="examples", config=logging(prefix)).serve(export)
    with channel_to(model.server.target) as channel:
        stub = PredictionServiceStub(channel)
        tasks = (("regress", REGRESS), ("", CLASSIFY))
        stub.Classify(classification("labels", model=model.name), timeout=TIMEOUT_SECONDS)
        stub.Regress(regression(model=model.name), timeout=TIMEOUT_SECONDS)
        stub.MultiInference(multi_inference(*tasks, model=model.name), timeout=TIMEOUT_SECONDS)
    logs = records(finished(model, prefix))
    names = [log.predict_log.response.model_spec.signature_name for log in logs]
    assert names == ["labels", "regress", "regress", "serving_default"]
    for log in logs:
        (examples,) = arrays(log.predict_log.request.inputs).values()
        assert len(examples) == len(EXAMPLES)


@pytest.fixture(scope="module")
def sums_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports y, the sum of each row of x, whose runs last so long that requests share them."""
    import tensorflow as tf

    def sums(x: Any) -> dict[str, Any]:
        with tf.control_dependencies(take_run_seconds()):
            return {"y": tf.reduce_sum(x, axis=1)}

    path = tmp_path_factory.mktemp("sums") / "export"
    module = tf.Module()
    module.sums = tf.function(sums, [tf.TensorSpec([None, 2], tf.float32, "x")])
    tf.saved_model.save(module, str(path), {"serving_default": module.sums})
    return let_settle(path)


def test_parquet_has_a_column_of_each_tensor(
    scale: HostedModel, scale_model: ScaleModel, tmp_path: Path
) -> None:
    prefix = tmp_path / "log"
    scale.configure(config=logging(prefix, more='type: "parquet"'))
    with channel_to(scale.server.target) as channel:
        PredictionServiceStub(channel).Predict(
            predict_request(scale.name, {"x": X}),
            timeout=TIMEOUT_SECONDS,
            metadata=[("traceparent", f"00-{TRACE_ID}-b7ad6b7169203331-01")],
        )
    send(scale, 2)
    (path,) = finished(scale, prefix)
    assert path.suffix == ".parquet"
    first, *more = parquet.read_table(path).to_pylist()
    age = datetime.now(timezone.utc) - first["time"]
    assert (first["model"], first["version"], first["trace_id"]) == (scale.name, 1, TRACE_ID)
    assert 0 < age.total_seconds() < TIMEOUT_SECONDS
    assert 0 < first["latency_seconds"] < TIMEOUT_SECONDS
    assert (first["input.x"], first["input.x.shape"]) == (X.tolist(), [3])
    assert is_right(np.array(first["output.y"], np.float32), ScaleModel.answer(1, X))
    assert [row["trace_id"] for row in more] == [None, None]


def test_batched_requests_are_logged_one_by_one(
    start_server: StartServer, sums_export: Path, base_path: Path, tmp_path: Path
) -> None:
    drop(sums_export, base_path, 1)
    config = tmp_path / "models.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "sums" base_path: "{base_path}" '
        f"{logging(tmp_path / 'log')} }} }}"
    )
    server = start_server(model_config_file=config, enable_batching=True, **FLAGS)
    server.wait_until_available("sums", 1)
    sent = [np.full((1 + number % 3, 2), number, np.float32) for number in range(300)]
    with caller_to(server.target) as caller:
        calls = [caller.start_predict(predict_request("sums", {"x": x})) for x in sent]
        answers = [arrays(call.result().outputs) for call in calls]
    run_count = scrape(server).total("serving_batch_requests_count")
    assert 0 < run_count < len(sent)
    server.stop()
    logged = [
        (arrays(log.predict_log.request.inputs), arrays(log.predict_log.response.outputs))
        for (path,) in [tmp_path.glob("log-*")]
        for log in read_logs(path)
    ]
    expected = [({"x": x.tolist()}, answer) for x, answer in zip(sent, answers, strict=True)]
    assert sorted(logged, key=str) == sorted(expected, key=str)


# --- Replayed on the next version -----------------------------------------------------------------


def logged_file(model: HostedModel, directory: Path, request: Any, *options: str) -> Path:
    """Logs the request, turns the log into a warm-up file, and returns that file."""
    prefix = directory / "log"
    model.configure(config=logging(prefix))
    with caller_to(model.server.target) as caller:
        caller.predict(request)
    files = finished(model, prefix)
    path = directory / "requests"
    assert warmup(["from-log", *map(str, files), f"--output={path}", *options]) == 0
    return path


def test_logged_requests_warm_the_next_version_up(
    host: ModelHost, echo_export: Path, tmp_path: Path
) -> None:
    model = host.model(prefix="echo").serve(echo_export)
    request = predict_request(model.name, {"dense": DENSE, "ids": IDS})
    file = logged_file(model, tmp_path, request, "--with-responses")
    version = shutil.copytree(echo_export, tmp_path / "2")
    (version / WARM_UP_FILE).parent.mkdir(exist_ok=True)
    shutil.copy(file, version / WARM_UP_FILE)
    assert warmup(["check", str(version)]) == 0
    model.configure(settings={"gates": {"golden": "enforce"}})
    drop(let_settle(version), model.base_path, 2)
    model.wait_until_available(2)
    labels = {"model": model.name, "version": "2", "gate": "golden", "mode": "enforce"}
    assert ServerPages(model.server.url).metrics().value("serving_gate_passed", **labels) == 1


def test_answers_of_yesterday_refuse_a_version(
    scale: HostedModel, scale_model: ScaleModel, tmp_path: Path
) -> None:
    request = predict_request(scale.name, {"x": X})
    file = logged_file(scale, tmp_path, request, "--with-responses")
    scale.configure(settings={"gates": {"golden": "enforce"}})
    made = tmp_path / "made"
    made.mkdir()
    scale_model.write(made, 2)
    (made / "2" / WARM_UP_FILE).parent.mkdir(exist_ok=True)
    shutil.copy(file, made / "2" / WARM_UP_FILE)
    drop(let_settle(made / "2"), scale.base_path, 2)
    failed = scale.wait_for_log("load_failed", version=2)
    assert failed["reason"] == "it did not pass gate 'golden'"
    with caller_to(scale.server.target) as caller:
        assert caller.predict(request).model_spec.version.value == 1


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (logging(Path("/no/such/directory/m")), "make the directory"),
        (logging(Path("/tmp/m"), more='type: "kafka"'), "type 'kafka' is unknown"),
        (logging(Path("/tmp/m"), rate=2), "sampling_rate 2 is not a share"),
    ],
)
def test_reload_with_a_bad_log_changes_nothing(
    start_server: StartServer,
    scale_model: ScaleModel,
    tmp_path: Path,
    config: str,
    reason: str,
) -> None:
    base_path = tmp_path / "scale"
    base_path.mkdir()
    scale_model.write(base_path, 1)

    def document(more: str) -> str:
        return f'model_config_list {{ config {{ name: "scale" base_path: "{base_path}" {more} }} }}'

    file = tmp_path / "models.config"
    file.write_text(document(logging(tmp_path / "log")))
    server = start_server(model_config_file=file)
    server.wait_until_available("scale", 1)
    with Client(server.admin_target) as client, pytest.raises(InvalidArgument, match=reason):
        client.reload_config(_encoded(document(config)))
    with caller_to(server.target) as caller:
        caller.predict(predict_request("scale", {"x": X}))
    server.stop()
    assert len(records(sorted(tmp_path.glob("log-*")))) == 1


def test_server_does_not_start_with_a_bad_log(tmp_path: Path) -> None:
    file = tmp_path / "models.config"
    config = logging(tmp_path / "missing" / "log")
    file.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{tmp_path}" {config} }} }}'
    )
    done = millpond("serve", "--port=0", "--rest_api_port=0", f"--model_config_file={file}")
    assert done.returncode == 2
    assert "make the directory" in done.stdout + done.stderr


def _encoded(document: str) -> bytes:
    """Encodes a config that this package's own reader would refuse."""
    serialized: bytes = text_format.Parse(document, config_message()).SerializeToString()
    return serialized


# --- A server that is killed, and reloads under load ----------------------------------------------


def test_killed_server_leaves_whole_records(
    start_server: StartServer, scale_model: ScaleModel, tmp_path: Path
) -> None:
    config, logs = tmp_path / "models.config", tmp_path / "logs"
    logs.mkdir()
    scale_model.write(tmp_path / "scale", 1)
    model = f'config {{ name: "scale" base_path: "{tmp_path}/scale" {logging(logs / "log")} }}'
    config.write_text(f"model_config_list {{ {model} }}")
    server = start_server(model_config_file=config)
    server.wait_until_available("scale", 1)
    with caller_to(server.target) as caller:
        for number in range(200):
            caller.predict(predict_request("scale", {"x": np.array([number], np.float32)}))

    def open_files() -> list[Path]:
        return [path for path in logs.glob(".log-*.partial") if path.stat().st_size > 0]

    wait_until(lambda: bool(open_files()), "the first records on the disk")
    server.kill()
    assert list(logs.iterdir()) == open_files()
    (recovered,) = open_files()
    second = start_server(model_config_file=config)
    event = second.wait_for_event(lambda each: each["event"] == "request_log_recovered", 60)
    assert f".{event['file']}.partial" == recovered.name
    numbers = []
    for log in records([logs / event["file"]]):
        (x,) = arrays(log.predict_log.request.inputs)["x"]
        assert arrays(log.predict_log.response.outputs)["y"] == ScaleModel.answer(1, [x]).tolist()
        numbers.append(x)
    # Not in the order of the requests, because a record is queued after its reply.
    assert 0 < len(numbers) == len(set(numbers))
    assert set(numbers) <= set(range(200))


def _has_sampled(model: HostedModel, low: int) -> bool:
    return count(model, "sampled_total") > low


# Four clients without a pause would take all cores.
PAUSE_SECONDS = 0.004


def test_reloads_under_load_count_every_record(scale: HostedModel, tmp_path: Path) -> None:
    prefixes = [tmp_path / name for name in ("a", "b")]
    scale.configure(config=logging(prefixes[0]))
    stop = threading.Event()

    def load() -> int:
        request_count = 0
        with caller_to(scale.server.target) as caller:
            while not stop.wait(PAUSE_SECONDS):
                caller.predict(predict_request(scale.name, {"x": X}))
                request_count += 1
        return request_count

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load) for _ in range(4)]
        try:
            for turn in range(12):
                config = logging(prefixes[turn % 2]) if turn % 3 else ""
                scale.configure(config=config)
                taken = count(scale, "sampled_total")
                if config:
                    wait_until(partial(_has_sampled, scale, taken), "a record")
        finally:
            stop.set()
        request_count = sum(each.result() for each in loads)
    scale.configure()
    wait_until(lambda: count(scale, "pending") == 0, "the end of the log")
    files = [path for path in tmp_path.iterdir() if path.name[0] in "ab"]
    dropped_count = count(scale, "dropped_total", reason="turned_off")
    sampled_count = count(scale, "sampled_total")
    assert list(tmp_path.glob(".*.partial")) == []
    assert 0 < sampled_count <= request_count
    assert len(records(files)) == count(scale, "written_total") == sampled_count - dropped_count


# --- A disk that fails ----------------------------------------------------------------------------


def test_full_disk_loses_records_and_no_request(scale: HostedModel, tmp_path: Path) -> None:
    prefix = tmp_path / "log"
    scale.configure(config=logging(prefix))
    send(scale)
    pid = scale.server.process_id
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    room = scale.server.log_path.stat().st_size + 2**20
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, unlimited[1]))
    try:
        big = np.zeros(room // 16, np.float32)
        with caller_to(scale.server.target) as caller:
            for _ in range(20):
                caller.predict(predict_request(scale.name, {"x": big}))
        wait_until(lambda: count(scale, "dropped_total", reason="disk") > 0, "a loss")
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
    assert "File too large" in scale.wait_for_log("request_log_failed")["reason"]
    # A record that is written together with one that finds no room may be lost with it.
    finished(scale, prefix)
    scale.configure(config=logging(prefix))
    send(scale)
    # A record follows its reply. If the log is off by then, the record is counted as turned_off.
    wait_until(lambda: count(scale, "sampled_total") == 22, "the record of the last request")
    written = records(finished(scale, prefix))
    dropped = [count(scale, "dropped_total", reason=reason) for reason in DROP_REASONS]
    assert count(scale, "sampled_total") == 22 == len(written) + sum(dropped)
    assert arrays(written[-1].predict_log.request.inputs) == {"x": X.tolist()}
    assert count(scale, "disk_errors_total") > 0
