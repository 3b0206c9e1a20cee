"""`python -m warmup from-log`: a sample of a request log as a warm-up file."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.base.protos import saved_model_pb2, types_pb2
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from tests.unit.signatures import signature_def
from warmup.__main__ import main
from warmup.prediction_log import WARM_UP_FILE, Log, has_response, read_logs
from warmup.records import write_records
from warmup.request_log import LogSample


def logged(number: int, signature: str = "serving_default", outputs: Sequence[str] = ()) -> Log:
    """Returns a record as a server logs it."""
    log = Log()
    log.log_metadata.sampling_config.sampling_rate = 0.5
    request = log.predict_log.request
    request.model_spec.name = "ctr"
    request.model_spec.signature_name = signature
    request.model_spec.version.value = 3
    request.output_filter.extend(outputs)
    request.inputs["x"].CopyFrom(to_tensor_proto(float(number)))
    log.predict_log.response.outputs["y"].CopyFrom(to_tensor_proto(float(-number)))
    log.predict_log.response.model_spec.version.value = 3
    return log


def sample_of(logs: Sequence[Log], count: int, *, seed: int = 0, golden: bool = False) -> list[Log]:
    sample = LogSample(count, seed=seed, has_responses=golden)
    sample.add(logs)
    return list(sample.logs())


def number_of(log: Log) -> float:
    return float(from_tensor_proto(log.predict_log.request.inputs["x"]))


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "ctr-20261128T201500Z-0123abcd-000001.tfrecord"
    write_records(path, [logged(number).SerializeToString() for number in range(20)])
    return path


def test_record_is_for_any_version_of_the_model():
    (log,) = sample_of([logged(1)], 10)
    assert not log.HasField("log_metadata")
    assert not log.predict_log.request.model_spec.HasField("version")
    assert log.predict_log.request.model_spec.name == "ctr"
    assert not has_response(log)


def test_golden_record_keeps_the_answer():
    (log,) = sample_of([logged(1)], 10, golden=True)
    assert log.predict_log.response == logged(1).predict_log.response


def test_repeated_request_comes_once():
    assert len(sample_of([logged(1), logged(2), logged(1)], 10)) == 2


def test_rare_pair_has_its_share_of_the_sample():
    logs = [*(logged(n) for n in range(100)), logged(1, "rare"), logged(2, outputs=["y"])]
    pairs = Counter(
        (log.predict_log.request.model_spec.signature_name, *log.predict_log.request.output_filter)
        for log in sample_of(logs, 5)
    )
    assert pairs == {("serving_default",): 3, ("rare",): 1, ("serving_default", "y"): 1}


def test_sample_is_of_the_whole_log():
    logs = [logged(number) for number in range(1_000)]
    counts = Counter(
        int(number_of(log) // 500) for seed in range(20) for log in sample_of(logs, 50, seed=seed)
    )
    # Six standard deviations.
    assert counts[0] + counts[1] == 1_000
    assert abs(counts[0] - 500) < 100


def test_same_seed_gives_the_same_sample():
    logs = [logged(number) for number in range(100)]
    assert sample_of(logs, 10, seed=7) == sample_of(logs, 10, seed=7)
    assert sample_of(logs, 10, seed=7) != sample_of(logs, 10, seed=8)


def test_command_writes_the_file_of_a_version(
    log_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    version = tmp_path / "4"
    version.mkdir()
    assert main(["from-log", str(log_file), "--output", str(version), "--count=5"]) == 0
    path = version / WARM_UP_FILE
    assert capsys.readouterr().out == f"{path}: 5 records\n"
    assert [has_response(log) for log in read_logs(path)] == [False] * 5


def test_command_writes_golden_answers(
    log_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / "golden"
    assert main(["from-log", str(log_file), f"--output={output}", "--with-responses"]) == 0
    assert capsys.readouterr().out == f"{output}: 20 records, with golden answers\n"
    assert all(map(has_response, read_logs(output)))


def test_command_overwrites_only_by_force(
    log_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / "requests"
    output.write_bytes(b"kept")
    assert main(["from-log", str(log_file), f"--output={output}"]) == 1
    assert "--force overwrites it" in capsys.readouterr().err
    assert output.read_bytes() == b"kept"
    assert main(["from-log", str(log_file), f"--output={output}", "--force"]) == 0
    before = log_file.read_bytes()
    assert main(["from-log", str(log_file), f"--output={log_file}", "--force"]) == 1
    assert log_file.read_bytes() == before
    assert len(list(read_logs(output))) == 20


def test_command_names_a_log_that_links_in_a_circle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert main(["from-log", str(circle), f"--output={tmp_path / 'requests'}"]) == 1
    assert str(circle) in capsys.readouterr().err


def test_command_names_records_of_other_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    other = Log()
    other.session_run_log.SetInParent()
    path = tmp_path / "log"
    write_records(path, [other.SerializeToString(), logged(1).SerializeToString()])
    version = version_with(tmp_path / "4", "x")
    assert main(["from-log", str(path), f"--output={version}"]) == 0
    assert capsys.readouterr().err == "left out 1 records that are no predict_log\n"


def test_log_without_requests_exits_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "log"
    write_records(path, [])
    assert main(["from-log", str(path), f"--output={tmp_path / 'out'}"]) == 1
    assert "no request of a predict_log is in them" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_damaged_log_exits_one(log_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log_file.write_bytes(log_file.read_bytes()[:-1])
    assert main(["from-log", str(log_file), f"--output={tmp_path / 'out'}"]) == 1
    assert "is cut short" in capsys.readouterr().err


def test_more_records_than_a_server_takes_are_usage(log_file: Path, tmp_path: Path):
    assert main(["from-log", str(log_file), f"--output={tmp_path / 'out'}", "--count=1001"]) == 2


def version_with(path: Path, *inputs: str, optional: str = "") -> Path:
    """Writes a version whose signature has these inputs, and `optional` with a default."""
    model = saved_model_pb2.SavedModel()
    graph = model.meta_graphs.add()
    graph.meta_info_def.tags.append("serve")
    definition = graph.signature_def["serving_default"]
    names = [*inputs, *filter(None, [optional])]
    spec = (types_pb2.DT_DOUBLE, None)
    made = signature_def(dict.fromkeys(names, spec), {"y": spec})
    definition.CopyFrom(made)
    if optional:
        definition.defaults[optional].CopyFrom(to_tensor_proto(1.0))
    path.mkdir()
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    return path


def test_record_that_a_version_refuses_is_left_out(
    log_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    other = tmp_path / "other.tfrecord"
    record = logged(1)
    record.predict_log.request.inputs["w"].CopyFrom(to_tensor_proto(2.0))
    write_records(other, [record.SerializeToString()])
    version = version_with(tmp_path / "4", "x", "w")
    assert main(["from-log", str(log_file), str(other), f"--output={version}"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{version / WARM_UP_FILE}: 1 records\n"
    assert printed.err == (
        "left out 20 records that the version cannot replay: input 'w' is missing\n"
    )
    assert main(["check", str(version)]) == 0


def test_log_without_a_needed_input_writes_nothing(
    log_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    version = version_with(tmp_path / "4", "x", "w")
    assert main(["from-log", str(log_file), f"--output={version}"]) == 1
    assert "can replay no record of the log" in capsys.readouterr().err
    assert not (version / WARM_UP_FILE).exists()


def test_record_without_an_optional_input_is_sound(log_file: Path, tmp_path: Path):
    version = version_with(tmp_path / "4", "x", optional="w")
    assert main(["from-log", str(log_file), f"--output={version}"]) == 0
    assert main(["check", str(version)]) == 0
    assert len(list(read_logs(version / WARM_UP_FILE))) == 20


def test_file_for_no_version_is_not_checked(
    log_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["from-log", str(log_file), f"--output={tmp_path / 'out'}"]) == 0
    assert "held against no signatures" in capsys.readouterr().err
