"""The exposition: all metrics as one page of text, in the format that the scraper asks for.

Cost: 6 µs of Python a series, with the GIL held, which request threads never take: 2 ms for one model with
two versions, 55 ms for 20 such (8,900 series, 43 kB compressed). Series: see `LATENCY_EDGES_NS`.
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

from serving.monitoring.metric_sources import MetricSources
from serving.monitoring.process_metrics import process_metrics
from serving.monitoring.request_metrics import request_metrics
from serving.monitoring.swap_metrics import swap_metrics
from serving.monitoring.tensorflow_serving_metrics import tensorflow_serving_metrics
from serving.monitoring.version_metrics import shown_statuses, version_metrics

GZIP_LEVEL = 1
"""Metrics shrink by 30 at level 1 already; level 9 takes 13 times as long for a fifth less."""

_VERSIONS = re.compile(r"version=([^;,\s]*)")
_SOUND_VERSION = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}")

_OPENMETRICS = "application/openmetrics-text;"
_OPENMETRICS_2 = "application/openmetrics-text; version=2."

# Asked to escape, prometheus_client 0.26 makes underscores of the colons of TensorFlow Serving's names
# (of samples, not of families). None of our names needs escaping.
_OPENMETRICS_ENCODER = partial(openmetrics_text, escaping=ALLOWUTF8, version="1.0.0")
_OPENMETRICS_2_ENCODER = partial(openmetrics_text, escaping=ALLOWUTF8, version="2.0.0")


class MetricsCollector:
    """Reads the sources anew for each scrape; keeps nothing. Any thread, one at a time."""

    def __init__(self, sources: MetricSources, *, is_native: bool = False) -> None:
        """`is_native`: latencies as native histograms too, which older text formats cannot say."""
        self._sources = sources
        self._is_native = is_native

    def collect(self) -> Iterator[Metric]:
        """Each family once; one without samples too, so that its name can be found."""
        sources = self._sources
        statuses = shown_statuses(sources.statuses(), sources.clock.wall_ns())
        yield from request_metrics(sources.requests.methods(), is_native=self._is_native)
        yield from version_metrics(sources, statuses)
        yield from swap_metrics(sources.swaps())
        yield from process_metrics(sources)
        yield from tensorflow_serving_metrics(
            sources.requests.model_methods(), statuses, sources.base_path
        )


@dataclass(frozen=True)
class ExpositionFormat:
    """What a scraper asked for, by its headers. A value: scrapers that ask for the same share a page."""

    content_type: str
    is_compressed: bool
    encode: Callable[[Collector], bytes] = field(compare=False, repr=False)


class MetricsExposition:
    """Makes pages, of registries of its own. `negotiate` on any thread, `page` one at a time."""

    def __init__(self, sources: MetricSources) -> None:
        self._classic = _registry(MetricsCollector(sources))
        self._native = _registry(MetricsCollector(sources, is_native=True))

    def negotiate(self, accept: str, accept_encoding: str) -> ExpositionFormat:
        """By the headers of those names, each "" where there is none."""
        # Versions that are no numbers would make the library raise.
        is_sound = all(map(_SOUND_VERSION.fullmatch, _VERSIONS.findall(accept)))
        encode, content_type = choose_encoder(accept if is_sound else "")
        if content_type.startswith(_OPENMETRICS_2):
            encode, content_type = _OPENMETRICS_2_ENCODER, CONTENT_TYPE_LATEST_2_0
        elif content_type.startswith(_OPENMETRICS):
            encode, content_type = _OPENMETRICS_ENCODER, CONTENT_TYPE_LATEST
        return ExpositionFormat(content_type, gzip_accepted(accept_encoding), encode)

    def page(self, wanted: ExpositionFormat) -> bytes:
        """Collects, in milliseconds. Raises what a source raises: that is a bug."""
        # Only this format can say a native histogram; the plain one would write nonsense.
        is_native = wanted.content_type.startswith(_OPENMETRICS_2)
        text = wanted.encode(self._native if is_native else self._classic)
        return gzip.compress(text, GZIP_LEVEL) if wanted.is_compressed else text


def _registry(collector: MetricsCollector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry
