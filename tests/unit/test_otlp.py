"""OtlpExporter: the bytes on the wire, to a collector in this process."""

import logging
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from serving.base.errors import InvalidConfig, Unavailable
from serving.monitoring.otlp import OtlpExporter, traces_url
from serving.monitoring.spans import Span
from tests.unit.otlp_collector import Collector, running_collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture
def exporter(collector: Collector) -> Iterator[OtlpExporter]:
    exporter = OtlpExporter(collector.url, version="1.2.3")
    yield exporter
    exporter.stop()


def span(**changes: object) -> Span:
    values: dict[str, object] = {
        "name": "s/M",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
        "began_at_ns": 1_700_000_000_000_000_001,
        "ended_at_ns": 1_700_000_000_000_000_007,
    }
    return Span(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp", "https://c/otlp/v1/traces"),
        ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
    ],
)
def test_endpoint_is_a_base_url_or_the_whole_of_it(endpoint: str, url: str):
    assert traces_url(endpoint) == url


def test_export_posts_readable_spans(collector: Collector, exporter: OtlpExporter):
    exporter.export(
        [
            span(
                parent_id="b" * 16,
                trace_state="vendor=1",
                is_of_server=True,
                attributes={"a": 1, "b": "two"},
                error="why",
            ),
            span(name="child", trace_state="no state, is it"),
        ]
    )
    ((path, headers, body),) = collector.posts
    assert path == "/v1/traces"
    assert headers["content-type"] == "application/x-protobuf"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    of_server = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert (of_server["service.name"], of_server["service.version"]) == ("millpond", "1.2.3")
    (scope,) = resource.scope_spans
    first, second = scope.spans
    assert first.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert (first.span_id.hex(), first.parent_span_id.hex()) == ("00f067aa0ba902b7", "b" * 16)
    assert (first.name, first.kind, first.trace_state) == (
        "s/M",
        first.SPAN_KIND_SERVER,
        "vendor=1",
    )
    assert first.start_time_unix_nano == 1_700_000_000_000_000_001
    assert first.end_time_unix_nano - first.start_time_unix_nano == 6
    assert (first.status.code, first.status.message) == (first.status.STATUS_CODE_ERROR, "why")
    assert {item.key for item in first.attributes} == {"a", "b"}
    assert (second.kind, second.parent_span_id) == (second.SPAN_KIND_INTERNAL, b"")
    assert (second.status.code, second.trace_state) == (second.status.STATUS_CODE_UNSET, "")


def test_environment_names_service_and_host(collector: Collector, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ads")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-7")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    exporter = OtlpExporter(collector.url, version="1")
    exporter.export([span()])
    exporter.stop()
    ((_, headers, body),) = collector.posts
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    of_server = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert (of_server["service.name"], of_server["service.instance.id"]) == ("ads", "pod-7")
    assert headers["api-key"] == "secret"


def test_refusal_is_unavailable_and_only_output(
    collector: Collector, exporter: OtlpExporter, capfd: pytest.CaptureFixture[str]
):
    collector.status = 401
    with pytest.raises(Unavailable, match="401"):
        exporter.export([span()])
    assert capfd.readouterr() == ("", "")


def test_stopped_exporter_writes_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    # Set up as in the server; pytest has handlers of its own.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    exporter = OtlpExporter(collector.url, version="1")
    exporter.stop()
    with pytest.raises(Unavailable):
        exporter.export([span()])
    assert collector.posts == []
    assert capfd.readouterr() == ("", "")


def test_missing_extra_is_refused_with_remedy(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(InvalidConfig, match=r"--otlp_endpoint=http://c.*'millpond\[otel\]'"):
        OtlpExporter("http://c", version="1")
