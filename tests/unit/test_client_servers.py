"""Both clients against servers without a network: the choice of servers, the time and the number of
calls.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serving.base.errors import (
    FailedPrecondition,
    InvalidArgument,
    MillpondError,
    NotFound,
    ResourceExhausted,
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
from serving.client import AsyncClient, Client, Health, RetryPolicy, ScoredClass, Tls
from serving.client.health_watch import HealthWatch
from serving.core.servable import AVAILABLE, LOADING, ServableState
from tests.unit.fakes.client import FakeAsyncChannel, FakeChannel, FakeRpcError, FakeServer
from tests.unit.fakes.clocks import FakeClock

PREDICT = "/tensorflow.serving.PredictionService/Predict"
SERVING_RESPONSE, NOT_SERVING_RESPONSE = b"\x08\x01", b"\x08\x02"
UNAVAILABLE = FakeRpcError(StatusCode.UNAVAILABLE, "refused")
NO_HEALTH_SERVICE = [FakeRpcError(StatusCode.UNIMPLEMENTED)]


def answered(version: int = 1) -> predict_pb2.PredictResponse:
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    response.outputs["y"].CopyFrom(to_tensor_proto([2.0]))
    return response


def status(**states: ServableState) -> get_model_status_pb2.GetModelStatusResponse:
    """Returns the statuses of versions, given like `v1=AVAILABLE`."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for version, state in states.items():
        response.model_version_status.add(version=int(version[1:]), state=int(state))
    return response


class Blocking:
    """Drives a client; both kinds have the same methods here."""

    def __init__(self, servers: dict[str, FakeServer], **settings: Any) -> None:
        self.clock = FakeClock()
        self.pauses = self.clock.waits
        self.client = Client(
            list(servers),
            clock=self.clock,
            random=lambda: 0.0,
            open_channel=lambda target: FakeChannel(servers[target]),  # type: ignore[arg-type, return-value]
            **settings,
        )

    def run(self, method: str, *arguments: Any, **more: Any) -> Any:
        with self.client as client:
            return getattr(client, method)(*arguments, **more)


class Asyncio:
    """Drives an AsyncClient, whose sleeps advance the clock."""

    def __init__(self, servers: dict[str, FakeServer], **settings: Any) -> None:
        self.clock = FakeClock()
        self.pauses: list[float] = []
        self._servers = servers
        self._settings = settings

    def run(self, method: str, *arguments: Any, **more: Any) -> Any:
        async def in_loop() -> Any:
            client = AsyncClient(
                list(self._servers),
                clock=self.clock,
                random=lambda: 0.0,
                sleep=self._sleep,
                open_channel=lambda target: FakeAsyncChannel(self._servers[target]),  # type: ignore[arg-type, return-value]
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
    prediction = drive({"a": server}).run(
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
    blocking = Blocking({"a": FakeServer(answered())}).client
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


def test_predict_without_timeout_uses_client_deadline(drive: Callable[..., Any]):
    server = FakeServer(answered())
    drive({"a": server}, timeout_seconds=2.5).run("predict", "m", {"x": [1.0]})
    assert server.calls[0][2] == 2.5


def test_predict_refuses_version_beside_label(drive: Callable[..., Any]):
    with pytest.raises(InvalidArgument, match="version 3 and label 'stable'"):
        drive({"a": FakeServer(answered())}).run("predict", "m", {}, version=3, label="stable")


def test_predict_names_input_that_holds_no_tensor(drive: Callable[..., Any]):
    with pytest.raises(InvalidArgument, match="input 'x'"):
        drive({"a": FakeServer(answered())}).run("predict", "m", {"x": [object()]})


def test_unavailable_call_retries_within_deadline(
    drive: Callable[..., Any],
):
    server = FakeServer(UNAVAILABLE, UNAVAILABLE, answered())
    driven = drive({"a": server})
    assert driven.run("predict", "m", {}, timeout_seconds=10).version == 1
    assert driven.pauses == pytest.approx([0.025, 0.05])
    assert [call[2] for call in server.calls] == pytest.approx([10, 9.975, 9.925])


def test_unavailable_last_attempt_names_server(drive: Callable[..., Any]):
    server = FakeServer(UNAVAILABLE)
    with pytest.raises(Unavailable, match=r"no server answers at a:1 \(refused\)"):
        drive({"a:1": server}, retries=RetryPolicy(attempt_count_max=3)).run("predict", "m", {})
    assert len(server.calls) == 3


@pytest.mark.parametrize(("message", "asks"), [("a:1: Socket closed", True), ("refused", False)])
def test_connection_closed_unanswered_suggests_tls(
    message: str, asks: bool, drive: Callable[..., Any]
):
    server = FakeServer(FakeRpcError(StatusCode.UNAVAILABLE, message))
    with pytest.raises(Unavailable) as raised:
        drive({"a:1": server}).run("predict", "m", {})
    assert ("--tls_ca" in raised.value.message) == asks


def test_exhausted_server_rests_for_its_pushback(drive: Callable[..., Any]):
    full = FakeRpcError(StatusCode.RESOURCE_EXHAUSTED, "full", "800")
    driven = drive({"a": FakeServer(full, answered())})
    assert driven.run("predict", "m", {}).version == 1
    assert driven.pauses == pytest.approx([0.8])


def test_exhaustion_beyond_deadline_fails_at_once(
    drive: Callable[..., Any],
):
    full = FakeRpcError(StatusCode.RESOURCE_EXHAUSTED, "full", "800")
    driven = drive({"a": FakeServer(full)})
    with pytest.raises(ResourceExhausted, match="full"):
        driven.run("predict", "m", {}, timeout_seconds=0.5)
    assert driven.pauses == []


def test_refusal_is_not_tried_again(drive: Callable[..., Any]):
    server = FakeServer(FakeRpcError(StatusCode.NOT_FOUND, "no m"))
    with pytest.raises(NotFound, match="no m"):
        drive({"a": server}).run("predict", "m", {})
    assert len(server.calls) == 1


def test_classify_returns_labels_and_scores(drive: Callable[..., Any]):
    response = classification_pb2.ClassificationResponse()
    response.model_spec.version.value = 2
    first, second = (response.result.classifications.add() for _ in range(2))
    first.classes.add(label="cat", score=0.75)
    second.classes.add(score=0.5)
    server = FakeServer(response)
    result = drive({"a": server}).run(
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
    result = drive({"a": server}).run("regress", "m", [{"x": 1.0}, {"x": 2.0}])
    assert result.values.dtype == np.float32
    assert result.values.tolist() == [2.5, 3.0]
    assert server.calls[0][0].endswith("/Regress")
    assert len(server.calls[0][1].input.example_list.examples) == 2


# --- Several servers --------------------------------------------------------------------------------


def test_refused_call_moves_to_another_server(drive: Callable[..., Any]):
    watches = [NO_HEALTH_SERVICE] * 100
    first, second = (
        FakeServer(UNAVAILABLE, watches=watches),
        FakeServer(answered(), watches=watches),
    )
    assert drive({"a": first, "b": second}).run("predict", "m", {}).version == 1
    assert len(first.calls) <= 1
    assert len(second.calls) == 1


def test_failed_call_moves_on_despite_other_turns():
    driven: Any = None

    def fail_after_another_call() -> FakeRpcError:
        driven.client.predict("m", {})
        return UNAVAILABLE

    first, second = FakeServer(fail_after_another_call), FakeServer(answered())
    driven = Blocking({"a": first, "b": second})
    for index in (0, 1):
        driven.client._servers._rotation.report(index, Health.SERVING)
    driven.run("predict", "m", {})
    assert (len(first.calls), len(second.calls)) == (1, 2)


def test_operators_call_to_several_servers_is_refused():
    servers = {"a": FakeServer(b""), "b": FakeServer(b"")}
    with pytest.raises(InvalidArgument, match="has 2: a, b"):
        Blocking(servers).run("rollback", "m")


def test_operators_order_is_sent_once():
    server = FakeServer(UNAVAILABLE)
    with pytest.raises(Unavailable):
        Blocking({"a": server}).run("promote", "m")
    assert len(server.calls) == 1


def test_client_without_a_server_is_refused():
    with pytest.raises(InvalidArgument, match="names no server"):
        Client([])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([SERVING_RESPONSE, NOT_SERVING_RESPONSE], [Health.SERVING, Health.DOWN, Health.DOWN]),
        ([SERVING_RESPONSE, UNAVAILABLE], [Health.SERVING, Health.DOWN]),
        (NO_HEALTH_SERVICE, [Health.SERVING]),
    ],
    ids=["drains_and_ends", "dies", "has_no_health_service"],
)
def test_health_watch_reports_statuses_and_end(said: list[Any], expected: list[Health]):
    heard: list[Health] = []
    channel: Any = FakeChannel(FakeServer(None, watches=[said]))
    HealthWatch(channel, "", heard.append, FakeClock()).follow()
    assert heard == expected


def test_health_watch_that_is_closed_begins_no_other():
    channel: Any = FakeChannel(FakeServer(None))
    heard: list[Health] = []
    watch = HealthWatch(channel, "", heard.append, FakeClock())
    watch.close()
    assert not watch.follow()
    assert heard == []


# --- Readiness --------------------------------------------------------------------------------------


def test_wait_until_ready_waits_for_available_version(drive: Callable[..., Any]):
    server = FakeServer(
        UNAVAILABLE,
        FakeRpcError(StatusCode.NOT_FOUND, "no m"),
        status(v1=LOADING),
        status(v1=AVAILABLE),
    )
    driven = drive({"a": server})
    assert driven.run("wait_until_ready", "m") is None
    assert driven.pauses == [0.05] * 3


def test_wait_until_ready_ignores_other_versions(drive: Callable[..., Any]):
    server = FakeServer(status(v1=AVAILABLE), status(v1=AVAILABLE, v2=AVAILABLE))
    drive({"a": server}).run("wait_until_ready", "m", version=2)
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
    driven = drive({"a": FakeServer(answer)})
    with pytest.raises(Unavailable, match=message):
        driven.run("wait_until_ready", "m", 0.2)
    assert sum(driven.pauses) == pytest.approx(0.2)


def test_wait_until_ready_raises_permanent_error(drive: Callable[..., Any]):
    driven = drive({"a": FakeServer(FakeRpcError(StatusCode.UNAUTHENTICATED, "who are you"))})
    with pytest.raises(MillpondError, match="who are you"):
        driven.run("wait_until_ready", "m")
    assert driven.pauses == []


def test_close_stops_retries_of_running_calls():
    closed = threading.Event()
    blocking: Any = None

    def close_then_fail() -> FakeRpcError:
        blocking.client.close()
        closed.set()
        return FakeRpcError(StatusCode.CANCELLED, "Channel closed!")

    server = FakeServer(close_then_fail)
    blocking = Blocking({"a": server})
    with pytest.raises(MillpondError, match="Channel closed"):
        blocking.run("predict", "m", {})
    assert closed.is_set()
    assert len(server.calls) == 1


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
