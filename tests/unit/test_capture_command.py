"""`millpond capture` against a gRPC server of stock parts."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.base.errors import MillpondError
from serving.base.protos import get_model_metadata_pb2, predict_pb2, types_pb2
from serving.commands.cli import main
from serving.core.operator_api import CAPTURE_WARM_UP
from serving.rpc.capture_service import CaptureService
from tests.unit.fakes.grpc_services import abort_with, grpc_service
from tests.unit.fakes.parts import FakeReservoirs, FakeServedModels
from tests.unit.fakes.requests import FakeReservoir, request_for
from warmup.prediction_log import WARM_UP_FILE, Log, has_response, read_logs


class FakeModelServer:
    """Model `m` answered requests for a, b and c.

    Version 7, which serves now, has lost the output c, and refuses b for a reason of its own.
    """

    def __init__(self) -> None:
        reservoir = FakeReservoir(kept=[*map(request_for, "abc")])
        self._captures = CaptureService(FakeServedModels(["m"]), FakeReservoirs({"m": reservoir}))

    def answer(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        if method.endswith("/GetModelMetadata"):
            return _metadata()
        if method != CAPTURE_WARM_UP:
            return self._predict(predict_pb2.PredictRequest.FromString(request), context)
        try:
            return self._captures.capture_warm_up(request)
        except MillpondError as error:
            abort_with(error, context)

    def _predict(self, request: predict_pb2.PredictRequest, context: grpc.ServicerContext) -> bytes:
        if list(request.output_filter) == ["b"]:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no output b")
        response = predict_pb2.PredictResponse()
        response.model_spec.version.value = 7
        data: bytes = response.SerializeToString()
        return data


def _metadata() -> bytes:
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name in "ab":
        info = signatures.signature_def["serving_default"].outputs[name]
        info.dtype = types_pb2.DT_FLOAT
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.metadata["signature_def"].Pack(signatures)
    data: bytes = response.SerializeToString()
    return data


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with grpc_service(FakeModelServer().answer) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def dead_target(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/nobody.sock"


def outputs(logs: Iterator[Log]) -> list[str]:
    return [log.predict_log.request.output_filter[0] for log in logs]


def test_capture_command_writes_the_recent_requests(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "requests"
    assert main(["capture", "m", "--target", target, "--output", str(path)]) == 0
    assert outputs(read_logs(path)) == ["a", "b"]
    printed = capsys.readouterr()
    assert printed.out == f"{path}: 2 records, 0 with a response\n"
    assert printed.err == (
        "left out 1 of 3 requests, which the version that serves now would refuse\n"
    )


def test_capture_into_version_writes_warm_up_file(target: str, tmp_path: Path):
    (tmp_path / "saved_model.pb").touch()
    assert main(["capture", "m", "--target", target, "--output", str(tmp_path)]) == 0
    assert outputs(read_logs(tmp_path / WARM_UP_FILE)) == ["a", "b"]


def test_capture_into_plain_directory_is_refused(
    dead_target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "7").mkdir()
    arguments = ["capture", "m", "--target", dead_target, "--output", str(tmp_path)]
    assert main(arguments) == 1
    assert capsys.readouterr().err == (
        f"millpond capture: --output: {tmp_path} has neither saved_model.pb nor saved_model.pbtxt; "
        f"its versions are {tmp_path}/7; give a version's directory, or a file to write\n"
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["7"]


def test_capture_into_missing_place_calls_no_server(
    dead_target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / "none" / "requests"
    assert main(["capture", "m", "--target", dead_target, f"--output={output}"]) == 1
    assert f"--output={output}: {tmp_path}/none is not a directory" in capsys.readouterr().err


def test_capture_with_responses_keeps_answers(target: str, tmp_path: Path):
    path = tmp_path / "requests"
    arguments = ["capture", "m", "--target", target, "--output", str(path)]
    assert main([*arguments, "--with-responses", "--count=1"]) == 0
    (log,) = read_logs(path)
    assert has_response(log)
    assert log.predict_log.response.model_spec.version.value == 7


def test_capture_refused_by_server_writes_nothing(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["capture", "m", "--target", target, "--output", str(tmp_path / "requests")]
    assert main([*arguments, "--with-responses"]) == 1
    assert "record 2: no output b" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_capture_command_overwrites_only_by_force(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "requests"
    path.write_bytes(b"old")
    arguments = ["capture", "m", "--target", target, "--output", str(path)]
    assert main(arguments) == 2
    assert f"{path} exists; --force" in capsys.readouterr().err
    assert path.read_bytes() == b"old"
    assert main([*arguments, "--force"]) == 0
    assert outputs(read_logs(path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["n"], "no model 'n'"), (["m", "--output=/nowhere/requests"], "/nowhere")],
)
def test_capture_failure_exits_one_with_reason(
    arguments: list[str],
    message: str,
    target: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    command = ["capture", "--target", target, "--output", str(tmp_path / "requests"), *arguments]
    assert main(command) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", ["0", "1001", "many"])
def test_capture_count_out_of_range_is_wrong_usage(
    count: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["capture", "m", f"--output={tmp_path / 'requests'}", f"--count={count}"]) == 2
    assert f"--count: {count!r} is not a whole number from 1 to 1000" in capsys.readouterr().err
