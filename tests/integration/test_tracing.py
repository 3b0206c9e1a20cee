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
from serving.base.clock import NS_PER_SECOND, SystemClock
from serving.rpc.admin_service import ROLLBACK
from tests.integration.clients import PREDICT, caller_to, predict_request, wait_until
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel, drop, flip_a_byte
from tests.integration.logs import logged, wait_for_log
from tests.unit.otlp_collector import Collector, attributes, running_collector

X = {"x": np.array([1.0, 2.0], np.float32)}
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
        reply: bytes = method_call(message, timeout=30, metadata=metadata)
        return reply


def predict(server: ModelServer, trace: Trace | None, name: str = "scale") -> bytes:
    return call(server, PREDICT, predict_request(name, X).SerializeToString(), trace)


def spans_of(collector: Collector, trace: Trace, count: int) -> list[Span]:
    """Waits for `count` spans of the trace and returns them."""

    def come() -> list[Span]:
        return [span for span in collector.spans() if span.trace_id.hex() == trace.trace_id]

    wait_until(lambda: len(come()) >= count, f"{count} spans of {trace}")
    return come()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture
def server(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, collector: Collector
) -> ModelServer:
    """Serves version 1 of "scale" and traces to `collector`."""
    scale_model.write(base_path, 1)
    server = start_server(
        model_name="scale",
        base_path=base_path,
        otlp_endpoint=collector.url,
        rest_api_port="auto",
        max_num_load_retries=0,
    )
    server.wait_until_available("scale", version=1)
    return server


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
    # Wall time and monotonic time are read one after the other.
    slack_ns = NS_PER_SECOND // 100
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
    traces = {span.trace_id.hex() for span in collector.spans() if "Predict" in span.name}
    assert traces == {sampled.trace_id}


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
    request = predict_request("scale", X)
    trace = Trace.new()
    with caller_to(server.target) as caller:
        predictions: Any = caller.channel.unary_unary(PREDICT)
        message = request.SerializeToString()
        calls = [
            predictions.future(message, timeout=60, metadata=trace.metadata) for _ in range(sent)
        ]
        for begun in calls:
            begun.result()

    def dropped() -> int:
        with urlopen(f"{server.url}/metrics") as page:
            text: str = page.read().decode()
        counts = re.findall(r'serving_spans_dropped_total\{reason="\w+"\} (\d+)', text)
        return sum(map(int, counts))

    def come() -> int:
        return sum(span.kind == Span.SPAN_KIND_SERVER for span in collector.spans())

    wait_until(lambda: come() + dropped() == sent, "each is exported or counted")
    assert come() >= 200


# --- Swaps ----------------------------------------------------------------------------------------


def test_swaps_are_traces_with_stages_and_errors(
    server: ModelServer, collector: Collector, scale_model: ScaleModel, base_path: Path
) -> None:
    scale_model.write(base_path, 2)
    server.wait_until_available("scale", version=2)
    wait_for_log(server, "version_unloaded", version=1)
    scale_model.write(
        base_path,
        3,
        prepare=lambda path: flip_a_byte(next((path / "variables").glob("*.data-0*")), 0),
    )
    wait_for_log(server, "load_failed", version=3)

    def roots() -> dict[str, Span]:
        return {span.name: span for span in collector.spans() if span.name.startswith("swap ")}

    # A swap is over ten seconds after its last step.
    wait_until(
        lambda: {"swap scale/2", "swap scale/3"} <= set(roots()), "both swaps", timeout_seconds=60
    )
    swap, failed = roots()["swap scale/2"], roots()["swap scale/3"]
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


def test_rare_call_logs_have_trace_without_tracing(
    start_server: StartServer,
    scale_model: ScaleModel,
    base_path: Path,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An orchestrator may set this for every process; alone it turns nothing on.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    for version in (1, 2):
        scale_model.write(base_path, version)
    server = start_server(model_name="scale", base_path=base_path)
    server.wait_until_available("scale", version=2)
    rollback, sampled = Trace.new(flags="00"), Trace.new()
    # The control thread logs this line, because it does the work of the call.
    call(
        server, ROLLBACK, json.dumps({"model": "scale", "is_cold_allowed": True}).encode(), rollback
    )
    line = wait_for_log(server, "rolled_back", trace_id=rollback.trace_id)
    assert re.fullmatch("[0-9a-f]{16}", line["span_id"])
    assert line["span_id"] != rollback.parent_id
    predict(server, sampled)
    server.stop()
    assert logged(server, "request_failed") == []
    assert all("trace_id" not in event for event in server.events() if event["event"] == "stopped")
    assert collector.posts == []


def test_slow_request_is_logged_without_collector(
    start_server: StartServer, slow_export: Path, base_path: Path
) -> None:
    drop(slow_export, base_path, 1)
    server = start_server(model_name="slow", base_path=base_path, slow_request_log_seconds=0.2)
    server.wait_until_available("slow", version=1)
    slow, quick = Trace.new(), Trace.new()
    request = predict_request("slow", {"seconds": np.float64(0.2)})
    call(server, PREDICT, request.SerializeToString(), Trace.new(flags="00"))
    quick_request = predict_request("slow", {"x": np.int32(1)}, signature_name="quick")
    call(server, PREDICT, quick_request.SerializeToString(), quick)
    call(server, PREDICT, request.SerializeToString(), slow)
    line = wait_for_log(server, "request_slow", trace_id=slow.trace_id)
    assert (line["model"], line["version"], line["code"]) == ("slow", 1, "OK")
    assert line["run_seconds"] >= 0.2
    assert line["seconds"] >= line["run_seconds"]
    assert len(logged(server, "request_slow")) == 1


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
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "--otlp_endpoint=http://c:4318 needs OpenTelemetry" in last
    assert "pip install 'millpond[otel]'" in last
