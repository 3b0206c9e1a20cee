"""Metrics of the request logs."""

from collections.abc import Iterator, Mapping

from serving.monitoring import metric_families as families
from serving.monitoring.metric_samples import Samples
from serving.request_log.request_logs import RequestLogFigures

_COUNTS = (
    (families.REQUEST_LOG_SAMPLED, "sampled_count"),
    (families.REQUEST_LOG_WRITTEN, "written_count"),
    (families.REQUEST_LOG_PENDING, "pending_count"),
    (families.REQUEST_LOG_BYTES, "byte_count"),
    (families.REQUEST_LOG_FILES, "file_count"),
    (families.REQUEST_LOG_DELETED_FILES, "deleted_file_count"),
    (families.REQUEST_LOG_DELETED_BYTES, "deleted_byte_count"),
    (families.REQUEST_LOG_DELETED_UNSENT, "unsent_file_count"),
    (families.REQUEST_LOG_DISK_ERRORS, "disk_error_count"),
)
_UPLOADS = (
    (families.REQUEST_LOG_UPLOADED_FILES, "file_count"),
    (families.REQUEST_LOG_UPLOADED_BYTES, "byte_count"),
    (families.REQUEST_LOG_UPLOAD_FAILURES, "failure_count"),
    (families.REQUEST_LOG_UNSENT_FILES, "waiting_count"),
)
_REASONS = (
    ("queue_full", "queue_full_count"),
    ("disk", "disk_count"),
    ("turned_off", "late_count"),
)


def request_log_metrics(figures: Mapping[str, RequestLogFigures]) -> Iterator[Samples]:
    """Yields the metrics of each model whose log has been on, by name."""
    for family, count in _COUNTS:
        samples = Samples(family)
        for model, log in figures.items():
            samples.add((model,), getattr(log, count))
        yield samples
    for family, count in _UPLOADS:
        samples = Samples(family)
        for model, log in figures.items():
            samples.add((model,), getattr(log.uploads, count))
        yield samples
    dropped = Samples(families.REQUEST_LOG_DROPPED)
    for model, log in figures.items():
        for reason, count in _REASONS:
            dropped.add((model, reason), getattr(log, count))
    yield dropped
