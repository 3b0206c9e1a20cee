"""Traces: a real server exports requests, calls and swaps to a collector and to its log."""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from serving import ModelServer
from serving.base.clock import NS_PER_SECOND, SystemClock, seconds_since
from serving.core.operator_api import ROLLBACK
from tests.integration.clients import (
    PREDICT,
    TIMEOUT_SECONDS,
    caller_to,
    predict_request,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import SMALL_SHARD, ScaleModel, flip_a_byte
from tests.integration.logs import logged, wait_for_log
from tests.integration.model_host import ModelHost
from tests.unit.otlp_collector import Collector, attributes, running_collector

X = {"x": np.array([1.0, 2.0], np.float32)}
SLOW_SECONDS = 0.2
PHASES = ["queue", "decode", "run", "encode"]


@dataclass(frozen=True)
class Trace:
    """A trace that a client begins."""

    trace_id: str
    parent_id: str
    flags: str = "01"

    @classmethod
    def new(cls, flags: str = "01") -> "Trace":
        return cls(secrets.token_hex(16), secrets.token_hex(8), flags)

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [
            ("traceparent", f"00-{self.trace_id}-{self.parent_id}-{self.flags}"),
            ("tracestate", "vendor=1"),
        ]


def call(server: ModelServer, method: str, message: bytes, trace: Trace | None) -> bytes:
    """Makes one call in `trace`, or outside of any trace for None."""
    metadata = trace.metadata if trace is not None else []
    target = server.admin_target if method == ROLLBACK else server.target
    with caller_to(target) as caller:
        method_call: Any = caller.channel.unary_unary(method)
        reply: bytes = method_call(message, timeout=TIMEOUT_SECONDS, metadata=metadata)
        return reply


def predict(server: ModelServer, trace: Trace | None, name: str = "scale") -> bytes:
    return call(server, PREDICT, predict_request(name, X).SerializeToString(), trace)


def spans_of(collector: Collector, trace: Trace, count: int) -> list[Span]:
    """Waits for `count` spans of the trace and returns them."""

    def come() -> list[Span]:
        return [span for span in collector.spans() if span.trace_id.hex() == trace.trace_id]

    wait_until(lambda: len(come()) >= count, f"{count} spans of {trace}")
    return come()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def host_flags(collector: Collector) -> dict[str, object]:
    return {"otlp_endpoint": collector.url}


# --- Requests -------------------------------------------------------------------------------------


def test_sampled_request_is_child_span_with_phases(
    server: ModelServer, collector: Collector
) -> None:
    clock, trace = SystemClock(), Trace.new()
    before_ns = clock.wall_ns()
    reply = predict(server, trace)
    after_ns = clock.wall_ns()
    root, *phases = sorted(
        spans_of(collector, trace, 5), key=lambda span: span.parent_span_id.hex() != trace.parent_id
    )
    assert root.name == "tensorflow.serving.PredictionService/Predict"
    assert (root.parent_span_id.hex(), root.kind) == (trace.parent_id, Span.SPAN_KIND_SERVER)
    assert root.trace_state == "vendor=1"
    found = attributes(root)
    assert (found["rpc.system.name"], found["rpc.response.status_code"]) == ("grpc", "OK")
    assert (found["millpond.model"], found["millpond.version"]) == ("scale", 1)
    assert found["millpond.response_bytes"] == len(reply)
    # Wall time and monotonic time are read one after the other, and a busy machine may pause between.
    slack_ns = NS_PER_SECOND
    assert before_ns - slack_ns <= root.start_time_unix_nano
    assert root.end_time_unix_nano <= after_ns + slack_ns
    phases.sort(key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))
    assert [span.name for span in phases] == PHASES
    assert {span.parent_span_id for span in phases} == {root.span_id}
    lengths_ns = [span.end_time_unix_nano - span.start_time_unix_nano for span in phases]
    assert sum(lengths_ns) == root.end_time_unix_nano - root.start_time_unix_nano
    assert min(lengths_ns) >= 0


def test_unsampled_request_has_no_span(server: ModelServer, collector: Collector) -> None:
    unsampled = Trace.new(flags="00")
    predict(server, unsampled)
    predict(server, None)
    predict(server, Trace("0" * 32, "0" * 16))
    # This request comes after the others, so its span comes alone.
    sampled = Trace.new()
    predict(server, sampled)
    spans_of(collector, sampled, 5)
    spans = [span for span in collector.spans() if "Predict" in span.name]
    traces = {span.trace_id.hex() for span in spans}
    assert sampled.trace_id in traces
    assert not {unsampled.trace_id, "0" * 32} & traces
    # The request outside of any trace began none.
    assert all(span.parent_span_id for span in spans)


def test_unmatched_request_span_names_model(server: ModelServer, collector: Collector) -> None:
    trace = Trace.new()
    with pytest.raises(Exception, match="NOT_FOUND"):
        predict(server, trace, name="nobody")
    roots = [span for span in spans_of(collector, trace, 3) if span.kind == Span.SPAN_KIND_SERVER]
    assert attributes(roots[0])["millpond.model"] == "nobody"
    assert attributes(roots[0])["rpc.response.status_code"] == "NOT_FOUND"
    # The fault is the client's, so by OpenTelemetry's rule the server's span is not an error.
    assert roots[0].status.code == roots[0].status.STATUS_CODE_UNSET


def test_requests_are_counted_that_are_too_many(server: ModelServer, collector: Collector) -> None:
    sent = 1_000
    trace = Trace.new()

    def dropped() -> int:
        with urlopen(f"{server.url}/metrics") as page:
            text: str = page.read().decode()
        counts = re.findall(r'serving_spans_dropped_total\{reason="\w+"\} (\d+)', text)
        return sum(map(int, counts))

    def requests() -> list[Span]:
        return [span for span in collector.spans() if span.kind == Span.SPAN_KIND_SERVER]

    def come(of: Trace) -> int:
        return sum(span.trace_id.hex() == of.trace_id for span in requests())

    def is_exported() -> bool:
        """Traces one more request."""
        before, one = dropped(), Trace.new()
        predict(server, one)
        wait_until(lambda: come(one) or dropped() > before, "it is exported or counted")
        return come(one) > 0

    dropped_before = dropped()
    with caller_to(server.target) as caller:
        predictions: Any = caller.channel.unary_unary(PREDICT)
        message = predict_request("scale", X).SerializeToString()
        calls = [
            predictions.future(message, timeout=TIMEOUT_SECONDS, metadata=trace.metadata)
            for _ in range(sent)
        ]
        for begun in calls:
            begun.result()
    wait_until(
        lambda: come(trace) + dropped() - dropped_before == sent, "each is exported or counted"
    )
    # Another test's request may be one of the 200 of the second in which the first of these ended.
    ends_ns = [span.end_time_unix_nano for span in requests()]
    first_ns = min(
        span.end_time_unix_nano for span in requests() if span.trace_id.hex() == trace.trace_id
    )
    assert sum(end_ns > first_ns - NS_PER_SECOND for end_ns in ends_ns) >= 200
    # Other tests trace single requests.
    wait_until(is_exported, "room for spans again")


# --- Swaps ----------------------------------------------------------------------------------------


def test_swaps_are_traces_with_stages_and_errors(
    host: ModelHost, collector: Collector, scale_model: ScaleModel
) -> None:
    model = host.model(prefix="swapped")
    scale_model.write(model.base_path, 1)
    model.wait_until_available(1)
    scale_model.write(model.base_path, 2)
    model.wait_for_log("version_unloaded", version=1)
    scale_model.write(model.base_path, 3, prepare=lambda path: flip_a_byte(path / SMALL_SHARD, 0))
    model.wait_for_log("load_failed", version=3)

    def roots() -> dict[str, Span]:
        return {span.name: span for span in collector.spans() if span.name.startswith("swap ")}

    # A swap is over ten seconds after its last step.
    names = [f"swap {model.name}/{version}" for version in (2, 3)]
    wait_until(lambda: set(names) <= set(roots()), "both swaps")
    swap, failed = (roots()[name] for name in names)
    stages = [
        span for span in collector.spans() if span.trace_id == swap.trace_id and span is not swap
    ]
    below = {span.name for span in stages if span.parent_span_id == swap.span_id}
    assert {"restore", "init", "publish", "quiesce", "destroy"} <= below
    assert all(
        swap.start_time_unix_nano <= span.start_time_unix_nano
        and span.end_time_unix_nano <= swap.end_time_unix_nano
        for span in stages
    )
    found = attributes(swap)
    assert (found["millpond.result"], found["millpond.previous_version"]) == ("published", 1)
    assert swap.status.code == swap.status.STATUS_CODE_UNSET
    assert failed.trace_id != swap.trace_id
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert failed.status.message
    assert attributes(failed)["millpond.result"] == "load_failed"


# --- The log --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def idle_collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def untraced_host(
    start_module_server: StartServer,
    tmp_path_factory: pytest.TempPathFactory,
    idle_collector: Collector,
    scale_model: ScaleModel,
) -> Iterator[ModelHost]:
    """A server without tracing, which logs slow requests."""
    directory = tmp_path_factory.mktemp("untraced")
    host = ModelHost(start_module_server, directory, slow_request_log_seconds=SLOW_SECONDS)
    with pytest.MonkeyPatch.context() as patch:
        # An orchestrator may set this for every process; alone it turns nothing on.
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", idle_collector.url)
        scale = host.model(name="scale")
    for version in (1, 2):
        scale_model.write(scale.base_path, version)
    scale.wait_until_available(2)
    yield host
    assert idle_collector.posts == []


def test_rare_call_logs_have_trace_without_tracing(
    untraced_host: ModelHost, scale_model: ScaleModel
) -> None:
    server = untraced_host.server
    rollback, sampled = Trace.new(flags="00"), Trace.new()
    # The control thread logs this line, because it does the work of the call.
    body = {"model": "scale", "is_cold_allowed": True}
    call(server, ROLLBACK, json.dumps(body).encode(), rollback)
    line = wait_for_log(server, "rolled_back", trace_id=rollback.trace_id)
    assert re.fullmatch("[0-9a-f]{16}", line["span_id"])
    assert line["span_id"] != rollback.parent_id
    predict(server, sampled)
    # Later work of the control thread belongs to no call.
    later = untraced_host.model(prefix="later")
    scale_model.write(later.base_path, 1)
    later.wait_until_available(1)
    assert all("trace_id" not in event for event in later.logged("version_available"))
    assert logged(server, "request_failed") == []


def test_slow_request_is_logged_without_collector(
    untraced_host: ModelHost, slow_export: Path
) -> None:
    model = untraced_host.model(prefix="slow").serve(slow_export)
    slow, unsampled = Trace.new(), Trace.new(flags="00")
    request = predict_request(model.name, {"seconds": np.float64(SLOW_SECONDS)})
    call(model.server, PREDICT, request.SerializeToString(), unsampled)
    quick_request = predict_request(model.name, {"x": np.int32(1)}, signature_name="quick")
    clock, quick = SystemClock(), Trace.new()

    def was_quick() -> bool:
        # A machine that does other work may hold up even this request.
        nonlocal quick
        quick, began_ns = Trace.new(), clock.now_ns()
        call(model.server, PREDICT, quick_request.SerializeToString(), quick)
        return seconds_since(clock, began_ns) < SLOW_SECONDS

    wait_until(was_quick, "a quick request")
    call(model.server, PREDICT, request.SerializeToString(), slow)
    line = wait_for_log(model.server, "request_slow", trace_id=slow.trace_id)
    assert (line["model"], line["version"], line["code"]) == (model.name, 1, "OK")
    assert line["run_seconds"] >= SLOW_SECONDS
    assert line["seconds"] >= line["run_seconds"]
    # Only sampled requests are logged, and only slow ones.
    told = {event["trace_id"]: event for event in model.logged("request_slow")}
    assert not {unsampled.trace_id, quick.trace_id} & set(told)
    assert all(event["seconds"] >= SLOW_SECONDS for event in told.values())


# --- Missing parts --------------------------------------------------------------------------------


def test_lost_collector_costs_only_spans(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale", base_path=base_path, otlp_endpoint=f"http://127.0.0.1:{port}"
    )
    server.wait_until_available("scale", version=1)
    predict(server, Trace.new())
    wait_for_log(server, "spans_not_exported")
    predict(server, Trace.new())
    server.stop()
    assert logged(server, "stopped", is_complete=True)
    assert len(logged(server, "spans_not_exported")) == 1
    # The library does not write lines of its own either.
    lines = server.log_path.read_text().splitlines()
    assert [line for line in lines if "xport" in line and not line.startswith("{")] == []


def test_server_without_extra_names_install_command(tmp_path: Path) -> None:
    # Python finds this module before the installed one.
    package = tmp_path / "opentelemetry"
    package.mkdir()
    (package / "__init__.py").write_text('raise ImportError("no module named opentelemetry")')
    (tmp_path / "models").mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "serving", "serve", f"--model_base_path={tmp_path / 'models'}"),
            *("--otlp_endpoint=http://c:4318", "--port=0", "--rest_api_port=0"),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "--otlp_endpoint=http://c:4318 needs OpenTelemetry" in last
    assert "pip install 'millpond[otel]'" in last
