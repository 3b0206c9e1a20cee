"""Both clients against a server without a network: requests, replies, errors and readiness."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serving.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    MillpondError,
    NotFound,
    StatusCode,
    Unavailable,
)
from serving.base.protos import (
    classification_pb2,
    get_model_status_pb2,
    predict_pb2,
    regression_pb2,
)
from serving.base.tensor_proto import to_tensor_proto
from serving.client import AsyncClient, Client, ScoredClass, Tls
from serving.core.servable import AVAILABLE, LOADING, ServableState
from tests.unit.fakes.client import FakeAsyncChannel, FakeChannel, FakeRpcError, FakeServer
from tests.unit.fakes.clocks import FakeClock

PREDICT = "/tensorflow.serving.PredictionService/Predict"
UNAVAILABLE = FakeRpcError(StatusCode.UNAVAILABLE, "refused")


def answered(version: int = 1) -> predict_pb2.PredictResponse:
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    response.outputs["y"].CopyFrom(to_tensor_proto([2.0]))
    return response


def status(**states: ServableState) -> get_model_status_pb2.GetModelStatusResponse:
    """Returns the statuses of versions such as `v1=AVAILABLE`."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for version, state in states.items():
        response.model_version_status.add(version=int(version[1:]), state=int(state))
    return response


class Blocking:
    """Runs calls of a Client."""

    def __init__(self, server: FakeServer, target: str | list[str] = "a", **settings: Any) -> None:
        self.clock = FakeClock()
        self.pauses = self.clock.waits
        self.client = Client(
            target,
            clock=self.clock,
            open_channel=lambda targets: FakeChannel(server),  # type: ignore[arg-type, return-value]
            **settings,
        )

    def run(self, method: str, *arguments: Any, **more: Any) -> Any:
        with self.client as client:
            return getattr(client, method)(*arguments, **more)


class Asyncio:
    """Runs calls of an AsyncClient, whose sleeps advance the clock."""

    def __init__(self, server: FakeServer, target: str = "a", **settings: Any) -> None:
        self.clock = FakeClock()
        self.pauses: list[float] = []
        self._server = server
        self._target = target
        self._settings = settings

    def run(self, method: str, *arguments: Any, **more: Any) -> Any:
        async def in_loop() -> Any:
            client = AsyncClient(
                self._target,
                clock=self.clock,
                sleep=self._sleep,
                open_channel=lambda targets: FakeAsyncChannel(self._server),  # type: ignore[arg-type, return-value]
                **self._settings,
            )
            async with client:
                return await getattr(client, method)(*arguments, **more)

        return asyncio.run(in_loop())

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)


@pytest.fixture(params=[Blocking, Asyncio])
def drive(request: pytest.FixtureRequest) -> Callable[..., Any]:
    kind: Callable[..., Any] = request.param
    return kind


def test_predict_sends_request_and_returns_arrays(drive: Callable[..., Any]):
    server = FakeServer(answered(7))
    prediction = drive(server).run(
        "predict",
        "m",
        {"x": [1.0]},
        label="stable",
        signature_name="s",
        output_filter=["y"],
        metadata={"x-canary": "1"},
        timeout_seconds=3,
    )
    assert (prediction.version, prediction.outputs["y"].tolist()) == (7, [2.0])
    ((path, request, timeout, metadata),) = server.calls
    assert (path, timeout, metadata) == (PREDICT, 3, (("x-canary", "1"),))
    assert request.model_spec.version_label == "stable"
    assert request.model_spec.signature_name == "s"
    assert request.output_filter == ["y"]
    assert request.inputs["x"] == to_tensor_proto([1.0])
    assert server.closed.is_set()


def test_call_of_a_client_that_is_closed_is_refused():
    blocking = Blocking(FakeServer(answered())).client
    blocking.close()
    with pytest.raises(FailedPrecondition, match="closed"):
        blocking.predict("m", {})

    async def ask() -> None:
        client = AsyncClient(
            "a",
            open_channel=lambda target: FakeAsyncChannel(FakeServer(answered())),  # type: ignore[arg-type, return-value]
        )
        await client.close()
        await client.predict("m", {})

    with pytest.raises(FailedPrecondition, match="closed"):
        asyncio.run(ask())


def test_operators_call_to_several_servers_is_refused():
    server = FakeServer()
    several = Blocking(server, ["10.0.0.1:8500", "10.0.0.2:8500"])
    with pytest.raises(InvalidArgument, match=r"10\.0\.0\.2:8500; make a client for one"):
        several.run("rollback", "m")
    assert not server.calls


def test_predict_without_timeout_uses_client_deadline(drive: Callable[..., Any]):
    server = FakeServer(answered())
    drive(server, timeout_seconds=2.5).run("predict", "m", {"x": [1.0]})
    assert server.calls[0][2] == 2.5


def test_predict_refuses_version_beside_label(drive: Callable[..., Any]):
    with pytest.raises(InvalidArgument, match="version 3 and label 'stable'"):
        drive(FakeServer(answered())).run("predict", "m", {}, version=3, label="stable")


def test_predict_names_input_that_holds_no_tensor(drive: Callable[..., Any]):
    with pytest.raises(InvalidArgument, match="input 'x'"):
        drive(FakeServer(answered())).run("predict", "m", {"x": [object()]})


@pytest.mark.parametrize(("message", "asks"), [("a:1: Socket closed", True), ("refused", False)])
def test_connection_closed_unanswered_suggests_tls(
    message: str, asks: bool, drive: Callable[..., Any]
):
    server = FakeServer(FakeRpcError(StatusCode.UNAVAILABLE, message))
    with pytest.raises(Unavailable) as raised:
        drive(server, "a:1").run("predict", "m", {})
    assert ("--tls_ca" in raised.value.message) == asks


def test_unavailable_server_is_named(drive: Callable[..., Any]):
    with pytest.raises(Unavailable, match=r"no server answers at a:1 \(refused\)"):
        drive(FakeServer(UNAVAILABLE), "a:1").run("predict", "m", {})


def test_refusal_keeps_code_and_message(drive: Callable[..., Any]):
    server = FakeServer(FakeRpcError(StatusCode.NOT_FOUND, "no m"))
    with pytest.raises(NotFound, match="no m"):
        drive(server).run("predict", "m", {})


def test_unknown_option_is_refused(drive: Callable[..., Any]):
    with pytest.raises(TypeError, match=r"'deadline'; options: .*timeout"):
        drive(FakeServer(answered())).run("predict", "m", {}, deadline=3)


def test_call_takes_the_timeout_of_stubs(drive: Callable[..., Any]):
    for method, arguments in (
        ("predict", ("m", {})),
        ("predict_message", (predict_pb2.PredictRequest(),)),
    ):
        server = FakeServer(answered())
        drive(server).run(method, *arguments, timeout=3)
        assert server.calls[0][2] == 3


def test_call_with_two_timeouts_is_refused(drive: Callable[..., Any]):
    with pytest.raises(TypeError, match="give one of them"):
        drive(FakeServer(answered())).run("predict", "m", {}, timeout=3, timeout_seconds=3)


def test_classify_returns_labels_and_scores(drive: Callable[..., Any]):
    response = classification_pb2.ClassificationResponse()
    response.model_spec.version.value = 2
    first, second = (response.result.classifications.add() for _ in range(2))
    first.classes.add(label="cat", score=0.75)
    second.classes.add(score=0.5)
    server = FakeServer(response)
    result = drive(server).run(
        "classify", "m", [{"x": 1.0}, {"x": 2.0}], context={"u": "v"}, version=2
    )
    assert result.version == 2
    assert result.classes == ((ScoredClass("cat", 0.75),), (ScoredClass("", 0.5),))
    ((path, request, _, _),) = server.calls
    assert path.endswith("/Classify")
    assert request.model_spec.version.value == 2
    assert len(request.input.example_list_with_context.examples) == 2


def test_regress_gives_one_number_for_each_example(drive: Callable[..., Any]):
    response = regression_pb2.RegressionResponse()
    for value in (2.5, 3.0):
        response.result.regressions.add(value=value)
    server = FakeServer(response)
    result = drive(server).run("regress", "m", [{"x": 1.0}, {"x": 2.0}])
    assert result.values.dtype == np.float32
    assert result.values.tolist() == [2.5, 3.0]
    assert server.calls[0][0].endswith("/Regress")
    assert len(server.calls[0][1].input.example_list.examples) == 2


# --- Readiness --------------------------------------------------------------------------------------


def test_wait_until_ready_waits_for_available_version(drive: Callable[..., Any]):
    server = FakeServer(
        UNAVAILABLE,
        FakeRpcError(StatusCode.NOT_FOUND, "no m"),
        status(v1=LOADING),
        status(v1=AVAILABLE),
    )
    driven = drive(server)
    assert driven.run("wait_until_ready", "m") is None
    assert driven.pauses == [0.05] * 3


def test_wait_until_ready_ignores_other_versions(drive: Callable[..., Any]):
    server = FakeServer(status(v1=AVAILABLE), status(v1=AVAILABLE, v2=AVAILABLE))
    drive(server).run("wait_until_ready", "m", version=2)
    assert len(server.calls) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (status(v3=LOADING), "model 'm': any version is not AVAILABLE after 0.2 s: version 3 is"),
        (status(), "it has no version"),
        (UNAVAILABLE, "no server answers at a"),
    ],
)
def test_wait_until_ready_times_out_with_last_status(
    answer: Any, message: str, drive: Callable[..., Any]
):
    driven = drive(FakeServer(answer))
    with pytest.raises(Unavailable, match=message):
        driven.run("wait_until_ready", "m", 0.2)
    assert sum(driven.pauses) == pytest.approx(0.2)


def test_wait_until_ready_raises_permanent_error(drive: Callable[..., Any]):
    driven = drive(FakeServer(FakeRpcError(StatusCode.UNAUTHENTICATED, "who are you")))
    with pytest.raises(MillpondError, match="who are you"):
        driven.run("wait_until_ready", "m")
    assert driven.pauses == []


# --- Imports and options --------------------------------------------------------------------------


def test_client_import_loads_no_server_code():
    code = (
        "import sys, serving.client\n"
        "names = ('tensorflow', 'structlog', 'starlette', 'serving.manager.stream', 'serving.server.server')\n"
        "print([name for name in names if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"


def test_tls_certificate_without_key_is_refused():
    with pytest.raises(InvalidArgument, match="needs its key"):
        Tls(certificate_file="client.pem")


def test_missing_tls_file_is_refused_by_name():
    with pytest.raises(InvalidArgument, match=r"/nowhere/ca\.pem: cannot be read"):
        Client("a:1", tls=Tls(ca_file="/nowhere/ca.pem"))


def test_unknown_compression_is_refused_with_choices():
    with pytest.raises(InvalidArgument, match=r"'zstd'; it is one of .*gzip"):
        Client("a:1", compression="zstd")  # type: ignore[arg-type]
