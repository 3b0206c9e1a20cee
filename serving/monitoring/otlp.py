"""Exports spans to an OpenTelemetry collector over HTTP, with the extra `millpond[otel]`.

OTLP over gRPC would need grpcio, and so a second gRPC library with its threads in the process. The
exporter only sends one POST a second.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from serving.base.errors import InvalidConfig, Unavailable
from serving.monitoring.spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

SIGNAL_PATH = "/v1/traces"

EXPORT_SECONDS = 5.0
"""The time for one batch with its retries. Later batches wait meanwhile, and are dropped if too many do."""


def traces_url(endpoint: str) -> str:
    """The URL for spans. `endpoint` is a collector's base URL, or ends in SIGNAL_PATH. Pure."""
    path = urlsplit(endpoint).path
    return endpoint if path.endswith(SIGNAL_PATH) else endpoint.rstrip("/") + SIGNAL_PATH


class OtlpExporter:
    """Posts spans to a collector. Used by one thread at a time, except `stop`.

    Settings without a flag come from the standard variables: OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE,
    _COMPRESSION, OTEL_SERVICE_NAME (default: millpond) and OTEL_RESOURCE_ATTRIBUTES.
    """

    def __init__(self, endpoint: str, *, version: str) -> None:
        """Raises InvalidConfig if the extra is not installed. Does not connect yet."""
        try:
            from opentelemetry.exporter.otlp.proto.http import trace_exporter
            from opentelemetry.sdk import resources
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise InvalidConfig(
                f"--otlp_endpoint={endpoint} needs OpenTelemetry, which is not installed ({error}): "
                "pip install 'millpond[otel]'"
            ) from None
        self._reason = _LastReason()
        # Never removed: an export that `stop` ends logs a reason too.
        logging.getLogger("opentelemetry").addHandler(self._reason)
        own = {resources.SERVICE_NAME: "millpond", resources.SERVICE_VERSION: version}
        # The environment overrides these attributes.
        self._resource = resources.Resource(own).merge(resources.OTELResourceDetector().detect())
        self._scope = InstrumentationScope("millpond", version)
        self._exporter = trace_exporter.OTLPSpanExporter(
            endpoint=traces_url(endpoint), timeout=EXPORT_SECONDS
        )

    def export(self, spans: Sequence[Span]) -> None:
        """Posts the spans. Raises Unavailable if the collector does not accept them within EXPORT_SECONDS."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        readable = [self._readable(span) for span in spans]
        self._reason.text = "the collector did not accept the spans"
        result = self._exporter.export(readable)
        if result is not SpanExportResult.SUCCESS:
            raise Unavailable(self._reason.text)

    def stop(self) -> None:
        """Ends an `export` under way; later exports fail. Any thread."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanKind, Status, StatusCode

        status = Status() if span.error is None else Status(StatusCode.ERROR, span.error)
        return ReadableSpan(
            name=span.name,
            context=_context(span, span.span_id, is_remote=False),
            parent=_context(span, span.parent_id, is_remote=span.is_parent_remote)
            if span.parent_id is not None
            else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.SERVER if span.is_of_server else SpanKind.INTERNAL,
            status=status,
            start_time=span.began_at_ns,
            end_time=span.ended_at_ns,
            instrumentation_scope=self._scope,
        )


def _context(span: Span, span_id: str, *, is_remote: bool) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    return SpanContext(
        trace_id=int(span.trace_id, 16),
        span_id=int(span_id, 16),
        is_remote=is_remote,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        # `from_header` leaves out an invalid state and logs a warning, which only `_LastReason` gets.
        trace_state=TraceState.from_header([span.trace_state]) if span.trace_state else None,
    )


class _LastReason(logging.Handler):
    """Keeps the library's last log message, which is the reason of a failure.

    Without a handler Python would write a line for each batch to standard error, not as JSON. Tracing
    logs the reason instead, at most once a minute.
    """

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
