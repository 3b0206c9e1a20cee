"""Samples: the values of one metric family, in the form that prometheus_client takes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import NativeHistogram, Sample
from prometheus_client.utils import floatToGoString

from serving.monitoring.metric_families import MetricFamily

INFINITY = "+Inf"


class Samples:
    """Collects one family's samples. Label values are given in the order of `family.labels`."""

    def __init__(self, family: MetricFamily) -> None:
        self._family = family
        # If the name does not end in the unit, prometheus_client would append it.
        has_unit = family.unit and family.base_name.endswith(f"_{family.unit}")
        self.metric = Metric(
            family.base_name, family.help, family.kind, family.unit if has_unit else ""
        )

    def add(self, values: Sequence[str], value: float) -> None:
        """Adds a sample of a gauge, a counter or an info, or one quantile of a summary."""
        labels = dict(zip(self._family.labels, values, strict=True))
        self.metric.samples.append(Sample(self._family.name, labels, value))

    def add_quantiles(
        self, values: Sequence[str], seconds: Mapping[str, float], *, request_count: int
    ) -> None:
        """Adds the quantiles of `request_count` requests. Adds nothing for 0 requests."""
        if request_count > 0:
            for quantile, quantile_seconds in seconds.items():
                self.add((*values, quantile), quantile_seconds)

    def add_total(self, values: Sequence[str], count: int, total: float) -> None:
        """Adds count and sum of a summary or histogram. `values` leave out the label `quantile`."""
        labels = dict(zip(self._family.labels, values, strict=False))
        name = self._family.name
        self.metric.samples.append(Sample(f"{name}_count", labels, count))
        self.metric.samples.append(Sample(f"{name}_sum", labels, total))

    def add_histogram(
        self,
        values: Sequence[str],
        edges: Sequence[str],
        cumulative_counts: Sequence[int],
        *,
        count: int,
        total: float,
    ) -> None:
        """Adds a histogram. `cumulative_counts` counts the values of at most each of `edges`."""
        labels = dict(zip(self._family.labels, values, strict=True))
        name = f"{self._family.name}_bucket"
        samples = self.metric.samples
        for edge, at_most in zip(edges, cumulative_counts, strict=True):
            samples.append(Sample(name, {**labels, "le": edge}, at_most))
        samples.append(Sample(name, {**labels, "le": INFINITY}, count))
        self.add_total(values, count, total)

    def add_native_histogram(self, values: Sequence[str], histogram: NativeHistogram) -> None:
        """Adds a native histogram, for a scraper that can read it."""
        labels = dict(zip(self._family.labels, values, strict=True))
        self.metric.samples.append(Sample(self._family.name, labels, 0, native_histogram=histogram))


def family_metrics(
    families: Iterable[MetricFamily],
    figures: Iterable[tuple[Sequence[str], Mapping[MetricFamily, float]]],
) -> Iterator[Metric]:
    """Yields the metric of each family, also without samples. `figures` has a value for each family by labels."""
    samples = {family: Samples(family) for family in families}
    for labels, values in figures:
        for family, value in values.items():
            samples[family].add(labels, value)
    for of_family in samples.values():
        yield of_family.metric


def edge_labels(edges: Sequence[float]) -> tuple[str, ...]:
    """Formats bucket edges as values of the label `le`: the shortest text of the same number."""
    return tuple(floatToGoString(edge) for edge in edges)  # type: ignore[no-untyped-call]
