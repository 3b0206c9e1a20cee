"""The client and the commands built on it, against a gRPC server of stock parts."""

import io
import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    MillpondError,
    NotFound,
    StatusCode,
    Unavailable,
    Unimplemented,
)
from serving.base.protos import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
    types_pb2,
)
from serving.base.signatures import INIT_OP_SIGNATURE
from serving.base.tensor_proto import from_tensor_proto, to_tensor_proto
from serving.client import Client, Signature, TensorSpec, VersionStatus
from serving.commands.cli import main
from serving.commands.status import age_text, print_models, refusal_text, roles
from serving.core.blocked_versions import BlockedVersions
from serving.core.operator_api import ALLOW, PROMOTE, ROLLBACK, Rollback, RollbackBlock
from serving.core.servable import AVAILABLE, END, Health, ServableId, ServableState, ServableStatus
from serving.data_plane.servables import AcceleratedSignature, AcceleratorUploads
from serving.manager.blocked_version_file import BlockedVersionKeeper, NoBlockedVersionKeeper
from serving.manager.stream import StreamStatus
from serving.manager.streams import Streams
from serving.reload.config_watch import ConfigRefusal
from serving.request_log.request_logs import RequestLogs
from serving.rpc.admin_service import AdminService
from serving.rpc.rare_calls import answer
from serving.source.notes import Note
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane
from tests.unit.fakes.grpc_services import abort_with, grpc_service
from tests.unit.fakes.log_store import no_uploads, used_log
from tests.unit.fakes.parts import FakeMonitor, FakeRefusals, FakeServedModels
from tests.unit.fakes.servables import (
    BUSY_RUNS,
    CHOSEN_SIDES,
    FakeServable,
    FakeSignatureBatching,
    busy_batching,
)
from tests.unit.fakes.servers import FakeRareCall
from tests.unit.fakes.terminals import Terminal

Answer = TypeVar("Answer")

# Far in the future, so that the age of each is 0 s.
FUTURE_NS = 2**62
OF_MODEL = [
    "m\t9\tEND\t0 s\t\t\tload failed: [broken] file",
    "m\t10\tAVAILABLE\t0 s\t\tdefault, label stable\t",
    "m: the old version is unloaded first: too large",
    "m: version_incomplete: version 11",
]

STATUSES = (
    ServableStatus(
        id=ServableId("m", 9),
        state=END,
        health=Health(StatusCode.DATA_LOSS, "[broken]\nfile"),
        failed_load_count=1,
        state_changed_wall_ns=FUTURE_NS,
    ),
    ServableStatus(id=ServableId("m", 10), state=AVAILABLE, state_changed_wall_ns=FUTURE_NS),
)


class FakeControl(Streams):
    """Version 10 of `m` answers. Only version 9 can be rolled back to; other operations fail."""

    def __init__(self, *, loaded: Sequence[FakeServable] = ()) -> None:
        super().__init__()
        self._loaded = {servable.id: servable for servable in loaded}
        self._statuses_to_come: list[StreamStatus] = []

    def rollback(self, name: str, *, is_cold_allowed: bool) -> "Future[Rollback]":
        blocked = (
            RollbackBlock(10, has_served=True, reason="it served until now"),
            RollbackBlock(11, has_served=False, reason="it never served; its load failed"),
        )
        version = None if is_cold_allowed else 9
        self._statuses_to_come = self._cold_rollback() if is_cold_allowed else []
        return _done(Rollback(10, version, blocked=blocked[: 2 if is_cold_allowed else 1]))

    def promote(self, name: str) -> "Future[int]":
        future: Future[int] = Future()
        future.set_exception(FailedPrecondition(f"model {name!r} has no canary to promote"))
        return future

    def allow(self, name: str, version: int) -> "Future[None]":
        return _done(None)

    def blocks(self, name: str) -> BlockedVersions:
        return {}

    def _cold_rollback(self) -> list[StreamStatus]:
        """Returns the statuses of two questions: version 8 is still loaded, and then it answers."""
        return [
            StreamStatus(policy="auto", default_version=default, blocked=(9, 10, 11))
            for default in (10, 8)
        ]

    def status(self, name: str) -> StreamStatus | None:
        if name != "m":
            return None
        if self._statuses_to_come:
            return self._statuses_to_come.pop(0)
        return StreamStatus(
            policy="auto",
            unload_first_reason="too large",
            default_version=10,
            labels={"stable": 10},
        )

    def servable(self, servable_id: ServableId) -> FakeServable | None:
        if servable_id.version == 10:
            return FakeServable(servable_id)
        return self._loaded.get(servable_id)


def _done(value: Answer) -> "Future[Answer]":
    future: Future[Answer] = Future()
    future.set_result(value)
    return future


def _answered(
    handler: Callable[[bytes], bytes], request: bytes, context: grpc.ServicerContext
) -> bytes:
    """Answers like a rare call."""
    try:
        return handler(request)
    except MillpondError as error:
        abort_with(error, context)


REFUSAL = ConfigRefusal("/etc/models.config", "/etc/models.config: no\ntext", FUTURE_NS)
REFUSED = (
    "/etc/models.config: refused 0 s ago, the server goes on with the configuration before it: "
    "no text"
)

CONTROL = FakeControl()


def admin_service(
    control: FakeControl = CONTROL,
    *,
    served: FakeServedModels | None = None,
    statuses: Sequence[ServableStatus] = (),
    refusal: ConfigRefusal | None = None,
    keeper: BlockedVersionKeeper | None = None,
    request_logs: RequestLogs | None = None,
) -> AdminService:
    return AdminService(
        served=served or FakeServedModels(),
        monitor=FakeMonitor(statuses),
        control=control,
        streams=control,
        request_logs=request_logs
        or RequestLogs(FakePlane(), uploads=no_uploads(), clock=FakeClock()),
        refusals=FakeRefusals(refusal),
        keeper=keeper or NoBlockedVersionKeeper(),
    )


ADMIN = admin_service(
    served=FakeServedModels(
        ["m", "empty"],
        notes={"m": [Note.of("version_incomplete", version=11)]},
        found={"m": [10, 9, 8]},
    ),
    statuses=STATUSES,
    refusal=REFUSAL,
)


class FakeModelServer:
    """Model `m`: versions 9 (END) and 10; `serving_default` doubles `x` float32[?,2] into `y`."""

    def answer(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        name = method.rpartition("/")[2]
        handlers: dict[str, Callable[[bytes, grpc.ServicerContext], Any]] = {
            "Predict": self._predict,
            "GetModelMetadata": self._metadata,
            "GetModelStatus": self._status,
        }
        if method in ADMIN.handlers:
            return _answered(ADMIN.handlers[method], request, context)
        message: bytes = handlers[name](request, context).SerializeToString()
        return message

    def _predict(self, request: bytes, context: grpc.ServicerContext) -> Any:
        message = predict_pb2.PredictRequest.FromString(request)
        self._check_name(message.model_spec.name, context)
        response = predict_pb2.PredictResponse()
        response.model_spec.version.value = message.model_spec.version.value or 10
        doubled = 2 * from_tensor_proto(message.inputs["x"])
        response.outputs["y"].CopyFrom(to_tensor_proto(doubled))
        return response

    def _metadata(self, request: bytes, context: grpc.ServicerContext) -> Any:
        message = get_model_metadata_pb2.GetModelMetadataRequest.FromString(request)
        self._check_name(message.model_spec.name, context)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        signatures.signature_def[INIT_OP_SIGNATURE].outputs["__saved_model_init_op"].name = "NoOp"
        signature = signatures.signature_def["serving_default"]
        for infos, name in ((signature.inputs, "x"), (signature.outputs, "y")):
            infos[name].dtype = types_pb2.DT_FLOAT
            infos[name].tensor_shape.dim.add(size=-1)
            infos[name].tensor_shape.dim.add(size=2)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.metadata["signature_def"].Pack(signatures)
        return response

    def _status(self, request: bytes, context: grpc.ServicerContext) -> Any:
        message = get_model_status_pb2.GetModelStatusRequest.FromString(request)
        self._check_name(message.model_spec.name, context)
        response = get_model_status_pb2.GetModelStatusResponse()
        for status in reversed(STATUSES):  # TensorFlow Serving sends the newest first
            version = response.model_version_status.add(
                version=status.id.version, state=int(status.state)
            )
            version.status.error_code = int(status.health.code)
            version.status.error_message = status.health.message
        return response

    def _check_name(self, name: str, context: grpc.ServicerContext) -> None:
        if name != "m":
            context.abort(grpc.StatusCode.NOT_FOUND, f"Servable not found for request: {name}")


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with grpc_service(FakeModelServer().answer) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def client(target: str) -> Iterator[Client]:
    with Client(target) as client:
        yield client


@pytest.fixture
def dead_target(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/nobody.sock"


def test_client_predict_returns_arrays_and_version(client: Client):
    prediction = client.predict("m", {"x": np.ones((1, 2), np.float32)})
    assert prediction.version == 10
    assert prediction.outputs["y"].tolist() == [[2, 2]]


def test_client_predict_requests_given_version(client: Client):
    assert client.predict("m", {"x": np.ones((1, 2), np.float32)}, version=9).version == 9


def test_client_model_status_is_ascending_by_version(client: Client):
    assert client.model_status("m") == (
        VersionStatus(
            version=9, state=ServableState.END, error_code=15, error_message="[broken]\nfile"
        ),
        VersionStatus(version=10, state=ServableState.AVAILABLE),
    )


def test_client_signatures_have_dtypes_and_open_dims(client: Client):
    spec = TensorSpec(types_pb2.DT_FLOAT, (None, 2))
    assert client.signatures("m") == {"serving_default": Signature({"x": spec}, {"y": spec})}


def test_client_list_models_includes_empty_models(client: Client):
    assert client.list_models() == {"empty": (), "m": client.model_status("m")}


def test_client_unknown_model_raises_server_message(client: Client):
    with pytest.raises(NotFound, match="Servable not found for request: n"):
        client.model_status("n")


def test_unknown_option_of_a_call_is_named() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(TypeError, match=r"'deadline'; .*timeout"):
        client.predict("m", {}, deadline=5)  # type: ignore[call-arg]


def test_client_timeout_names_server_and_seconds():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(target) as client,
            pytest.raises(MillpondError, match=f"no answer from {target} in 0.05 s") as raised,
        ):
            client.model_status("m", timeout_seconds=0.05)
    assert raised.value.code == StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("message", ["", "Method not found!"])
def test_client_of_a_server_without_method_has_hint(message: str):
    with grpc_service(
        lambda method, request, context: abort_with(Unimplemented(message), context)
    ) as port:
        target = f"127.0.0.1:{port}"
        with (
            Client(target) as client,
            pytest.raises(Unimplemented, match=f"{target} does not have"),
        ):
            client.describe_models()


def test_client_without_server_names_target(dead_target: str):
    with Client(dead_target) as client, pytest.raises(Unavailable, match=dead_target):
        client.model_status("m")


@pytest.mark.parametrize(
    ("model", "lines"),
    [
        (["m"], OF_MODEL),
        ([], ["empty\t-\tno version\t\t\t\t", *OF_MODEL]),
    ],
    ids=["one_model", "all_models"],
)
def test_status_command_prints_one_line_a_version(
    model: list[str], lines: list[str], target: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["status", *model, f"--target={target}"]) == 0
    heading = "model\tversion\tstate\tage\tmemory MB\trole\tremark"
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [heading, *lines, REFUSED]
    assert printed.err == f"server {target}\n"


def test_predict_asks_the_server_that_it_finds(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("serving.commands.connection.found_target", lambda: target)
    assert main(["predict", "m"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("model m, version 10, ")
    assert printed.err == f"server {target}\n"


def test_predict_without_socket_asks_the_usual_port(
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("MILLPOND_RUN_DIRECTORY", str(tmp_path))
    monkeypatch.setattr("serving.commands.connection.DATA_TARGET", target)
    assert main(["predict", "m"]) == 0
    assert capsys.readouterr().err == f"server {target}\n"
    assert main(["status"]) == 1


@pytest.mark.parametrize("is_given", [True, False])
def test_command_names_a_server_that_it_found(
    is_given: bool,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr("serving.commands.connection.found_target", lambda: target)
    assert main(["allow", "m", "10", *(["--target", target] if is_given else [])]) == 0
    assert capsys.readouterr().err == ("" if is_given else f"server {target}\n")


def test_status_command_as_json_prints_full_status(target: str, capsys: pytest.CaptureFixture[str]):
    assert main(["status", "m", "--json", "--target", target]) == 0
    printed = json.loads(capsys.readouterr().out)
    listed = json.loads(ADMIN.list_models(b""))
    assert printed == {
        "server": target,
        **listed,
        "models": [item for item in listed["models"] if item["name"] == "m"],
    }
    assert printed["refused_config"]["since_wall_ns"] == FUTURE_NS
    assert printed["models"][0]["found_versions"] == [8, 9, 10]


def test_refusal_text_without_refusal_is_empty():
    reply = json.loads(admin_service().list_models(b""))
    assert reply == {"models": [], "refused_config": None}
    assert refusal_text(reply["refused_config"], 0) == ""


def test_refusal_text_names_file_once_with_age():
    refusal = {"file": "/s.toml", "reason": "model 'b' cannot be", "since_wall_ns": 0}
    assert refusal_text(refusal, 7 * 60 * NS_PER_SECOND) == (
        "/s.toml: refused 7 min ago, the server goes on with the configuration before it: "
        "model 'b' cannot be"
    )


def test_status_shows_rolled_back_versions():
    version = {"version": 2, "state": "AVAILABLE", "state_changed_wall_ns": 0, "error_message": ""}
    blocked_versions = [{"version": 2, "by": "operator"}, {"version": 3, "by": "canary"}]
    model = {"versions": [version], "default_version": 2, "blocked_versions": blocked_versions}
    assert roles(model, version) == [
        "default",
        "blocked: rolled back",
        "serves because no other version can",
    ]
    out = io.StringIO()
    print_models({"ctr": model}, 0, out)
    assert "ctr: version 3 is blocked: rolled back by its canary figures" in out.getvalue()
    assert "version 2 is blocked" not in out.getvalue()


@pytest.mark.parametrize(
    ("number", "state", "reason"),
    [
        (1, "END", "unloaded: its directory is gone from the base path"),
        (2, "END", "unloaded: the version policy selects a newer version"),
        (3, "END", "unloaded: it is blocked; millpond allow unblocks it"),
        (4, "END", "unloaded: the version policy does not select it"),
        (4, "AVAILABLE", "gate latency: slow"),
    ],
)
def test_status_has_reason_of_an_unloaded_version(number: int, state: str, reason: str):
    verdicts = [{"gate": "latency", "is_passed": False, "reason": "slow"}]
    version = {"version": number, "state": state, "state_changed_wall_ns": 0, "error_message": ""}
    version["verdicts"] = verdicts
    blocks = [{"version": 3, "by": "operator"}]
    model = {"versions": [version], "found_versions": [2, 3, 4], "blocked_versions": blocks}
    out = io.StringIO()
    print_models({"ctr": model}, 0, out)
    _heading, row, *_ = out.getvalue().splitlines()
    assert row.split("\t")[-1] == reason


def batched_version(states: Sequence[FakeSignatureBatching]) -> dict[str, Any]:
    """Returns an AVAILABLE version as the server's reply describes it."""
    servable = FakeServable(ServableId("ctr", 7))
    servable.batched = list(states)
    status = ServableStatus(id=servable.id, state=AVAILABLE)
    admin = admin_service(FakeControl(loaded=[servable]), statuses=[status])
    (model,) = json.loads(admin.list_models(b""))["models"]
    (version,) = model["versions"]
    assert isinstance(version, dict)
    return version


def test_reply_has_the_figures_of_batches():
    on, refused = batched_version(busy_batching())["batching"]
    assert on["requests_per_run"] == pytest.approx(7 / 3)
    assert (on["run_count"], on["row_count"], on["padding_row_count"]) == (3, 9, 4)
    assert (on["failed_batch_count"], on["split_request_count"]) == (1, 2)
    assert (on["wait_seconds"], on["run_seconds"], on["rows_limit"]) == (0.007, 0.003, 64)
    assert (refused["is_on"], refused["requests_per_run"]) == (False, None)


def test_status_lists_batched_and_refused_signatures():
    joint = FakeSignatureBatching("", True, "", figures=busy_batching()[0].figures)
    idle = FakeSignatureBatching("idle", True, "")
    version = batched_version([*busy_batching(), joint, idle])
    out = io.StringIO()
    print_models({"ctr": {"versions": [version]}}, 0, out)
    assert out.getvalue().splitlines()[2:] == [
        "ctr: version 7: signature serving_default is batched, 2.3 requests and 3.0 rows per run",
        "ctr: version 7: signature whole is not batched: "
        "its graph mixes rows: output 'y': node 'sum' (Sum) reduces over the rows",
        "ctr: version 7: runs of several signatures are batched, 2.3 requests and 3.0 rows per run",
        "ctr: version 7: signature idle is batched and compared (output 'y': node 'sort' (Sort) is not "
        "an op that the analysis knows), no run yet",
    ]


@pytest.mark.parametrize(
    ("figures", "notes", "lines"),
    [
        ({"parameter_bytes": 5}, {}, []),
        (
            {"restored_bytes": 112_000_000, "kept_bytes": 10_288_000_000, "copied_bytes": 0},
            {},
            ["ctr: version 7: read 112.0 MB of 10,400.0 MB"],
        ),
        (
            {"restored_bytes": 1_000_000, "kept_bytes": 9_000_000, "copied_bytes": 9_000_000},
            {},
            ["ctr: version 7: read 1.0 MB of 10.0 MB, copied 9.0 MB in memory"],
        ),
        (
            {"restored_bytes": 10_000_000, "kept_bytes": 0, "copied_bytes": 0},
            {"delta_restored_in_full": "t: another file"},
            [
                "ctr: version 7: read 10.0 MB of 10.0 MB; delta restored in full: t: another file",
            ],
        ),
        ({"uploaded_bytes": 500_000_000, "accelerator_kept_bytes": 0}, {}, []),
        (
            {"uploaded_bytes": 1_200_000, "accelerator_kept_bytes": 498_800_000},
            {},
            ["ctr: version 7: uploaded 1.2 MB of 500.0 MB"],
        ),
        (
            {"uploaded_bytes": 10_000_000, "accelerator_kept_bytes": 0},
            {"delta_uploaded_in_full": "t: no room"},
            ["ctr: version 7: uploaded 10.0 MB of 10.0 MB; delta uploaded in full: t: no room"],
        ),
    ],
)
def test_status_says_what_a_version_with_tables_read(
    figures: Mapping[str, float], notes: Mapping[str, str], lines: list[str]
):
    status = ServableStatus(id=ServableId("ctr", 7), state=AVAILABLE, figures=figures, notes=notes)
    (model,) = json.loads(admin_service(statuses=[status]).list_models(b""))["models"]
    out = io.StringIO()
    print_models({"ctr": model}, 0, out)
    assert out.getvalue().splitlines()[2:] == lines


def test_status_says_what_ran_on_the_accelerator():
    servable = FakeServable(ServableId("ctr", 7))
    # The parameters of one more signature gave way.
    servable.accelerator_bytes = 99_000_000
    servable.uploads = AcceleratorUploads(resident_bytes=12_300_000)
    idle = replace(BUSY_RUNS, signature="idle", run_counts=(0, 0), cpu_run_counts=(0,) * 9)
    servable.runs = [BUSY_RUNS, idle]
    servable.accelerated = [
        AcceleratedSignature(
            name="idle",
            rows=(1, 2_048),
            reason="",
            host_ops=("Assert",),
            host_tables=("ids",),
            untuned_rows=(1, 2_048),
        ),
        AcceleratedSignature(
            name="parse", rows=(), reason="it has no product", host_ops=(), host_tables=()
        ),
        CHOSEN_SIDES,
    ]
    available = ServableStatus(id=servable.id, state=AVAILABLE)
    admin = admin_service(FakeControl(loaded=[servable]), statuses=[available])
    (model,) = json.loads(admin.list_models(b""))["models"]
    out = io.StringIO()
    print_models({"ctr": model}, 0, out)
    assert out.getvalue().splitlines()[2:] == [
        "ctr: version 7: signature idle runs on the CPU in part (Assert, ids); on the accelerator "
        "(12.3 MB of parameters there): no run yet; rows not autotuned: 1, 2,048",
        "ctr: version 7: signature parse runs on the CPU (it has no product)",
        "ctr: version 7: signature serving_default runs on the accelerator (12.3 MB of parameters there): 8 runs, "
        "36 rows and 7 of padding; on the CPU: shape 2, memory 1; 1 row on the CPU (0.55 ms; accelerator 0.80 ms), "
        "up to 8 rows on the accelerator (not measured; CPU not measured)",
    ]


def test_signature_without_memory_has_one_status_line():
    servable = FakeServable(ServableId("ctr", 7))
    servable.accelerator_bytes = 12_300_000
    servable.runs = [replace(BUSY_RUNS, run_counts=(0, 0))]
    servable.accelerated = [
        AcceleratedSignature(
            name="serving_default", rows=(1, 8), reason="no room", host_ops=(), host_tables=()
        )
    ]
    available = ServableStatus(id=servable.id, state=AVAILABLE)
    admin = admin_service(FakeControl(loaded=[servable]), statuses=[available])
    (model,) = json.loads(admin.list_models(b""))["models"]
    out = io.StringIO()
    print_models({"ctr": model}, 0, out)
    assert out.getvalue().splitlines()[2:] == [
        "ctr: version 7: signature serving_default runs on the CPU (no room); on the accelerator "
        "(0.0 MB of parameters there): no run yet; on the CPU: shape 2, memory 1",
    ]


def log_line(**changes: object) -> str:
    """The last line of the status of a model whose log has these values."""
    admin = admin_service(served=FakeServedModels(["m"]), request_logs=used_log())
    (model,) = json.loads(admin.list_models(b""))["models"]
    model["request_log"] |= changes
    out = io.StringIO()
    print_models({"m": model}, model["request_log"]["last_error_wall_ns"] + 5 * NS_PER_SECOND, out)
    return out.getvalue().splitlines()[-1]


def test_status_has_a_line_for_the_request_log():
    assert log_line() == (
        "m: request log to /no/such/directory/m: 0 records written (0.0 MB), 3 dropped, 1 pending; last error "
        "5 s ago: [Errno 2] No such file or directory: '/no/such/directory'"
    )


def test_status_says_what_waits_for_its_upload():
    line = log_line(waiting_file_count=2, lost_file_count=1, last_error=None)
    assert line.endswith("1 pending; 2 files wait for their upload; 1 files were deleted unsent")


def test_status_says_that_a_used_log_is_off():
    assert log_line(filename_prefix="").startswith("m: request log is off: 0 records written")


def test_model_that_never_logged_has_no_line():
    admin = admin_service(served=FakeServedModels(["m"]))
    (model,) = json.loads(admin.list_models(b""))["models"]
    assert model["request_log"] is None
    out = io.StringIO()
    print_models({"m": model}, 0, out)
    assert "request log" not in out.getvalue()


@pytest.mark.parametrize(
    ("version", "remark"),
    [
        ({"state": "END", "failed_load_count": 1, "error_code": 5}, "load failed: bad"),
        ({"state": "END", "failed_load_count": 1, "error_code": 1}, "bad"),
        ({"state": "END", "failed_load_count": 0, "error_code": 13}, "bad"),
        ({"state": "START", "failed_load_count": 1, "error_code": 5}, "bad"),
    ],
    ids=["failed", "cancelled", "unload_with_error", "to_be_retried"],
)
def test_status_names_a_failed_load(version: dict[str, Any], remark: str):
    version = {"version": 1, "state_changed_wall_ns": 0, "error_message": "bad", **version}
    out = io.StringIO()
    print_models({"ctr": {"versions": [version], "found_versions": []}}, 0, out)
    assert out.getvalue().splitlines()[1].split("\t")[-1] == remark


def test_status_notes_are_read_as_text():
    model = {"versions": [], "notes": [{"event": "gone", "level": "warning", "kept": [1, 2]}]}
    out = io.StringIO()
    print_models({"ctr": model, "b": {"versions": [], "notes": [{"event": "empty"}]}}, 0, out)
    assert "ctr: gone: kept 1, 2\n" in out.getvalue()
    assert "b: empty\n" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (86_400 * 3, "3 d")],
)
def test_age_has_two_units_or_more(seconds: float, text: str):
    assert age_text(seconds) == text


def test_roles_name_requests_that_reach_version():
    model = {
        "default_version": 2,
        "canary_version": 3,
        "canary_weight": 0.05,
        "labels": {"stable": 2, "old": 1},
        "previous": 1,
        "blocked_versions": [
            {"version": 4, "by": "operator"},
            {"version": 5, "by": "canary"},
            {"version": 6, "by": "failure"},
        ],
    }
    found = {
        number: roles(model, {"version": number, "state": state})
        for number, state in enumerate(["AVAILABLE"] * 3 + ["END"] * 3, start=1)
    }
    assert found == {
        1: ["label old", "previous"],
        2: ["default", "label stable"],
        3: ["canary 5%"],
        4: ["blocked: rolled back"],
        5: ["blocked: rolled back by its canary figures"],
        6: ["blocked: its load failed"],
    }


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (
            ["rollback", "m"],
            [
                "m: version 9 serves, version 10 is blocked",
                "m: version 10 is blocked by the rollback: it served until now",
            ],
        ),
        (
            ["rollback", "m", "--cold"],
            [
                "m: an earlier version than 10 is being loaded",
                "m: version 10 is blocked by the rollback: it served until now",
                "m: version 11 is blocked by the rollback: it never served; its load failed",
                "m: version 8 serves, version 10 is blocked",
            ],
        ),
        (["allow", "m", "10"], ["m: version 10 may serve again"]),
    ],
)
def test_commands_on_model_print_their_effect(
    command: list[str], lines: list[str], target: str, capsys: pytest.CaptureFixture[str]
):
    assert main([*command, "--target", target]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_promote_without_canary_exits_one_with_reason(
    target: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["promote", "m", "--target", target]) == 1
    assert "no canary" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "request_bytes", "message"),
    [
        (ROLLBACK, b"{", "not valid JSON"),
        (ROLLBACK, b"[]", "must be a JSON object, but it is list"),
        (PROMOTE, b"{}", "names no model"),
        (ALLOW, b'{"model": "m", "version": "x"}', "'x' is not a version number"),
    ],
)
def test_empty_admin_request_is_invalid(method: str, request_bytes: bytes, message: str):
    with pytest.raises(InvalidArgument, match=message):
        ADMIN.handlers[method](request_bytes)


def test_admin_answers_in_time_if_control_thread_hangs():
    class Stuck(FakeControl):
        def promote(self, name: str) -> Future[int]:
            return Future()

    admin = admin_service(Stuck())
    call = FakeRareCall(PROMOTE, b'{"model": "m"}', remaining_seconds=0.01)
    answer(call, admin.handlers)
    ((code, message),) = (item for item in call.answers if isinstance(item, tuple))
    assert code == StatusCode.UNAVAILABLE
    assert "did not answer in 0.005 s" in message


def test_reply_that_is_not_on_disk_carries_a_warning():
    waits: list[float] = []

    class FullDisk(NoBlockedVersionKeeper):
        def wait_until_kept(self, timeout_seconds: float) -> str:
            waits.append(timeout_seconds)
            return "blocked_versions.json: disk full"

    admin = admin_service(keeper=FullDisk())
    rolled_back = json.loads(admin.rollback(b'{"model": "m"}'))
    assert (rolled_back["rolled_back"], rolled_back["version"]) == (10, 9)
    allowed = json.loads(admin.allow(b'{"model": "m", "version": 10}', 2.0))
    for warning in (rolled_back["warning"], allowed["warning"]):
        assert "in effect until this server ends" in warning
        assert "blocked_versions.json: disk full" in warning
    # The second caller has 2 s, of which half a second is kept for the reply.
    assert waits == [3.0, 0.75]


def test_status_command_on_a_terminal_draws_a_table():
    terminal = Terminal()
    models = json.loads(ADMIN.list_models(b""))["models"]
    print_models({model["name"]: model for model in models}, 0, terminal)
    assert "─" in terminal.getvalue()
    assert "[broken]" in terminal.getvalue()


def test_status_escapes_terminal_controls():
    out = io.StringIO()
    notes = [{"event": "gone", "path": "/m\u202e"}]
    print_models({"a\x1b[2J\tb\nc": {"versions": [], "notes": notes}}, 0, out)
    lines = out.getvalue().splitlines()
    assert lines[1].startswith("a\\x1b[2J\\tb\\nc\t")
    assert "/m\\u202e" in lines[2]


def test_status_command_unknown_model_exits_one(target: str, capsys: pytest.CaptureFixture[str]):
    assert main(["status", "n", "--target", target]) == 1
    assert "the server has no model 'n'; models: empty, m" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["status", "m"], ["predict", "m"]])
def test_command_without_server_exits_one(
    command: list[str], dead_target: str, capsys: pytest.CaptureFixture[str]
):
    assert main([*command, f"--target={dead_target}"]) == 1
    assert f"no server answers at {dead_target}" in capsys.readouterr().err


def test_predict_command_with_json_prints_outputs(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "request.json"
    path.write_text(json.dumps({"instances": [[1, 2], [3, 4]]}))
    assert main(["predict", "m", "--target", target, f"--input_json={path}"]) == 0
    first, second, *values = capsys.readouterr().out.splitlines()
    assert first.startswith("model m, version 10, ")
    assert second == "y: float32[2, 2]"
    assert "".join(values) == "[[2. 4.] [6. 8.]]"


def test_predict_random_data_has_requested_rows(target: str, capsys: pytest.CaptureFixture[str]):
    assert main(["predict", "m", "--target", target, "--rows=3", "--version=9"]) == 0
    out = capsys.readouterr().out
    assert "version 9" in out
    assert "y: float32[3, 2]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "m", "--version=x"], "--version: 'x' is not a whole number from 0 to"),
        (["predict", "m", f"--version={2**63}"], "is not a whole number from 0 to"),
        (["predict", "m", "--rows=0"], "--rows: '0' is not a whole number of at least 1"),
        (["predict", "m", "--seed=-1"], "--seed: '-1' is not a whole number of at least 0"),
        (["predict", "m", "--timeout_seconds=0"], "'0' is not a number above 0"),
        (["predict", "m", "--timeout_seconds=nan"], "'nan' is not a number above 0"),
        (["allow", "m", "7th"], "VERSION: '7th' is not a whole number from 0 to"),
    ],
)
def test_command_line_bad_number_is_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m", "--signature_name=s"], "has no signature 's'; it has ['serving_default']"),
        (["m", "--input_json=/nowhere"], "/nowhere: cannot be read as JSON"),
        (["n"], "Servable not found"),
        (["m", "--signature_name", INIT_OP_SIGNATURE], "has no signature"),
    ],
)
def test_predict_bad_request_exits_one_with_message(
    arguments: list[str], message: str, target: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["predict", *arguments, "--target", target]) == 1
    assert message in capsys.readouterr().err
