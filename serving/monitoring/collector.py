"""The exposition: all metrics as one page of text, in the format that the scraper asks for.

Cost: 6 µs of Python for each series. One model with two versions takes 2 ms, 20 such models take
55 ms (8,900 series, 43 kB compressed). The GIL is held meanwhile, which request threads never take.
`LATENCY_EDGES_NS` gives the number of series, and `WHOLE_COUNT_MAX` bounds it for many idle models.
"""

import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import (
    ALLOWUTF8,
    CONTENT_TYPE_LATEST,
    CONTENT_TYPE_LATEST_2_0,
)
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.registry import Collector

from serving.monitoring.batch_metrics import batch_metrics
from serving.monitoring.monitored_parts import MonitoredParts
from serving.monitoring.process_metrics import process_metrics
from serving.monitoring.request_metrics import request_metrics
from serving.monitoring.swap_metrics import swap_metrics
from serving.monitoring.tensorflow_serving_metrics import tensorflow_serving_metrics
from serving.monitoring.version_metrics import latest_changes, shown_statuses, version_metrics

GZIP_LEVEL = 1
"""Level 1 makes the text 30 times smaller. Level 9 takes 13 times as long and saves a fifth more."""

_VERSIONS = re.compile(r"version=([^;,\s]*)")
_SOUND_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}")

_OPENMETRICS = "application/openmetrics-text;"
_OPENMETRICS_2 = "application/openmetrics-text; version=2."

# No name here needs escaping. With escaping, prometheus_client 0.26 would turn the colons in the names
# of TensorFlow Serving's samples into underscores.
_OPENMETRICS_ENCODER = partial(openmetrics_text, escaping=ALLOWUTF8, version="1.0.0")
_OPENMETRICS_2_ENCODER = partial(openmetrics_text, escaping=ALLOWUTF8, version="2.0.0")


class MetricsCollector:
    """Reads the parts at each scrape and keeps nothing. Any thread, one at a time."""

    def __init__(self, parts: MonitoredParts, *, is_native: bool = False) -> None:
        """`is_native` adds native histograms of latencies, which older text formats cannot hold."""
        self._parts = parts
        self._is_native = is_native

    def collect(self) -> Iterator[Metric]:
        """Yields each family once, a family without samples too, so that its name can be found."""
        parts = self._parts
        statuses = shown_statuses(parts.monitor.statuses(), parts.clock.now_ns())
        latest = latest_changes(statuses)
        begun = {(status.id.name, status.id.version) for status in latest}
        methods = parts.requests.methods()
        yield from request_metrics(methods, begun, is_native=self._is_native)
        yield from batch_metrics(parts, statuses)
        yield from version_metrics(parts, statuses, latest)
        yield from swap_metrics(parts.swaps.records())
        yield from process_metrics(parts)
        yield from tensorflow_serving_metrics(parts.requests.model_methods(), latest, parts.served)


@dataclass(frozen=True)
class ExpositionFormat:
    """The format that a scraper's headers ask for. Scrapers with equal formats share a page."""

    content_type: str
    is_compressed: bool
    encode: Callable[[Collector], bytes] = field(compare=False, repr=False)


class MetricsExposition:
    """Makes pages from its own registries. `negotiate` runs on any thread, one `page` at a time."""

    def __init__(self, parts: MonitoredParts) -> None:
        self._classic = _registry(MetricsCollector(parts))
        self._native = _registry(MetricsCollector(parts, is_native=True))

    def negotiate(self, accept: str, accept_encoding: str) -> ExpositionFormat:
        """The format for the headers of these names; a missing header is ""."""
        # The library would raise for a version that is not a number.
        is_sound = all(map(_SOUND_VERSION.fullmatch, _VERSIONS.findall(accept)))
        encode, content_type = choose_encoder(accept if is_sound else "")
        if content_type.startswith(_OPENMETRICS_2):
            encode, content_type = _OPENMETRICS_2_ENCODER, CONTENT_TYPE_LATEST_2_0
        elif content_type.startswith(_OPENMETRICS):
            encode, content_type = _OPENMETRICS_ENCODER, CONTENT_TYPE_LATEST
        return ExpositionFormat(content_type, gzip_accepted(accept_encoding), encode)

    def page(self, wanted: ExpositionFormat) -> bytes:
        """Collects the metrics, in milliseconds. An exception of a part is a bug, and is raised."""
        # Only this format can hold a native histogram; the plain format would write nonsense.
        is_native = wanted.content_type.startswith(_OPENMETRICS_2)
        text = wanted.encode(self._native if is_native else self._classic)
        return gzip.compress(text, GZIP_LEVEL) if wanted.is_compressed else text


def _registry(collector: MetricsCollector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry
