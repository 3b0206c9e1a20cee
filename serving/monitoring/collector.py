"""The exposition: all metrics as one page of text, in the format that the scraper asks for.

Cost: 2 µs of Python for each series. The GIL is held meanwhile, which request threads never take.
`LATENCY_EDGES_NS` gives the number of series, and `WHOLE_COUNT_MAX` bounds it for many idle models.
"""

import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import (
    ALLOWUTF8,
    CONTENT_TYPE_LATEST,
    CONTENT_TYPE_LATEST_2_0,
    DOTS,
)
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text

from serving.monitoring.accelerator_metrics import accelerator_metrics
from serving.monitoring.batch_metrics import batch_metrics
from serving.monitoring.metric_samples import Samples
from serving.monitoring.monitored_parts import MonitoredParts
from serving.monitoring.process_metrics import process_metrics
from serving.monitoring.request_log_metrics import request_log_metrics
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
_OPENMETRICS_2_VERSION = "2.0.0"


class MetricsCollector:
    """Reads the parts at each scrape and keeps nothing. Any thread, one at a time."""

    def __init__(self, parts: MonitoredParts, *, is_native: bool = False) -> None:
        """`is_native` adds native histograms of latencies, which older text formats cannot hold."""
        self._parts = parts
        self._is_native = is_native

    def families(self) -> Iterator[Samples]:
        """Yields each family once, a family without samples too, so that its name can be found."""
        parts = self._parts
        statuses = shown_statuses(parts.monitor.statuses(), parts.clock.now_ns())
        latest = latest_changes(statuses)
        whole = {(status.id.name, status.id.version) for status in latest}
        yield from request_metrics(parts.requests.methods(), whole, is_native=self._is_native)
        yield from batch_metrics(parts, statuses)
        yield from version_metrics(parts, statuses, latest)
        yield from swap_metrics(parts.swaps.records())
        yield from accelerator_metrics(parts, statuses)
        yield from request_log_metrics(parts.request_logs.figures())
        yield from process_metrics(parts)
        yield from tensorflow_serving_metrics(parts.requests.model_methods(), latest, parts.served)

    def collect(self) -> Iterator[Metric]:
        """The families, for the encoders of prometheus_client."""
        return (samples.metric for samples in self.families())

    def text(self, *, is_openmetrics: bool) -> bytes:
        """The page in the plain format, or in that of OpenMetrics 1.0."""
        lines = [
            line
            for samples in self.families()
            for line in samples.lines(is_openmetrics=is_openmetrics)
        ]
        return "".join([*lines, "# EOF\n"] if is_openmetrics else lines).encode()


@dataclass(frozen=True)
class ExpositionFormat:
    """The format that a scraper's headers ask for. Scrapers with equal formats share a page."""

    content_type: str
    is_compressed: bool
    make: Callable[[], bytes] = field(compare=False, repr=False)


class MetricsExposition:
    """Makes the pages. `negotiate` runs on any thread, and one `page` at a time."""

    def __init__(self, parts: MonitoredParts) -> None:
        self._classic = MetricsCollector(parts)
        self._native = MetricsCollector(parts, is_native=True)

    def negotiate(self, accept: str, accept_encoding: str) -> ExpositionFormat:
        """The format for the headers of these names; a missing header is ""."""
        # The library would raise for a version that is not a number.
        is_sound = all(map(_SOUND_VERSION.fullmatch, _VERSIONS.findall(accept)))
        encode, content_type = choose_encoder(accept if is_sound else "")
        make = partial(self._classic.text, is_openmetrics=False)
        if content_type.startswith(_OPENMETRICS_2):
            # Only this format can have a native histogram. No name needs escaping here. With escaping,
            # prometheus_client 0.26 would turn the colons in TensorFlow Serving's names into underscores.
            content_type = CONTENT_TYPE_LATEST_2_0
            make = partial(
                openmetrics_text, self._native, escaping=ALLOWUTF8, version=_OPENMETRICS_2_VERSION
            )
        elif content_type.startswith(_OPENMETRICS):
            content_type = CONTENT_TYPE_LATEST
            make = partial(self._classic.text, is_openmetrics=True)
        elif content_type.endswith(DOTS):
            # The other ways of escaping leave our names as they are.
            make = partial(encode, self._classic)
        return ExpositionFormat(content_type, gzip_accepted(accept_encoding), make)

    def page(self, wanted: ExpositionFormat) -> bytes:
        """Collects the metrics, in milliseconds. An exception of a part is a bug, and is raised."""
        text = wanted.make()
        return gzip.compress(text, GZIP_LEVEL) if wanted.is_compressed else text
