"""Samples: the values of one metric family, as text for a scraper or as a Metric of prometheus_client.

A page of a thousand models has 25,000 lines, so `lines` makes them without an object for each line:
prometheus_client's own text takes four times as long.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import NativeHistogram, Sample
from prometheus_client.utils import floatToGoString

from serving.monitoring.metric_families import MetricFamily

INFINITY = "+Inf"

# Stands for the edge of a bucket. No model or signature has this character in its name.
_EDGE = "\0"

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class _Value(NamedTuple):
    """One sample. `values` are the values of its labels, and `suffix` ends its name."""

    values: Sequence[str]
    value: float
    suffix: str = ""

    def samples(self, family: MetricFamily) -> Iterator[Sample]:
        labels = dict(zip(family.labels, self.values, strict=False))
        yield Sample(f"{family.name}{self.suffix}", labels, self.value)

    def lines(self, family: MetricFamily) -> Iterator[str]:
        labels = _label_text(family.labels, self.values)
        braces = f"{{{labels}}}" if labels else ""
        yield f"{family.name}{self.suffix}{braces} {_value_text(self.value)}\n"


class _Buckets(NamedTuple):
    """The buckets of a histogram. `counts` has, for each of `edges`, the values of at most that edge."""

    values: Sequence[str]
    edges: Sequence[str]
    counts: Sequence[int]

    def samples(self, family: MetricFamily) -> Iterator[Sample]:
        labels = dict(zip(family.labels, self.values, strict=True))
        for edge, count in zip(self.edges, self.counts, strict=True):
            yield Sample(f"{family.name}_bucket", {**labels, "le": edge}, count)

    def lines(self, family: MetricFamily) -> Iterator[str]:
        # The labels are sorted by name, so the edge may stand between two other labels.
        labels = _label_text((*family.labels, "le"), (*self.values, _EDGE))
        begin, _, end = f"{family.name}_bucket{{{labels}}}".partition(_EDGE)
        for edge, count in zip(self.edges, self.counts, strict=True):
            yield f"{begin}{edge}{end} {count}\n"


class _Native(NamedTuple):
    """A native histogram, which the text formats of `lines` do not have."""

    values: Sequence[str]
    histogram: NativeHistogram

    def samples(self, family: MetricFamily) -> Iterator[Sample]:
        labels = dict(zip(family.labels, self.values, strict=True))
        yield Sample(family.name, labels, 0, native_histogram=self.histogram)

    def lines(self, family: MetricFamily) -> Iterator[str]:
        del family
        yield from ()


class Samples:
    """Collects the samples of one family. Label values are given in the order of `family.labels`."""

    def __init__(self, family: MetricFamily) -> None:
        self.family = family
        self._rows: list[_Value | _Buckets | _Native] = []

    def add(self, values: Sequence[str], value: float) -> None:
        """Adds a sample of a gauge, a counter or an info, or one quantile of a summary."""
        self._rows.append(_Value(values, value))

    def add_quantiles(
        self, values: Sequence[str], seconds: Mapping[str, float], *, request_count: int
    ) -> None:
        """Adds the quantiles of `request_count` requests. Adds nothing for 0 requests."""
        if request_count > 0:
            for quantile, quantile_seconds in seconds.items():
                self.add((*values, quantile), quantile_seconds)

    def add_total(self, values: Sequence[str], count: int, total: float) -> None:
        """Adds count and sum of a summary or histogram. `values` leave out the label `quantile`."""
        self._rows += (_Value(values, count, "_count"), _Value(values, total, "_sum"))

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
        self._rows.append(_Buckets(values, (*edges, INFINITY), (*cumulative_counts, count)))
        self.add_total(values, count, total)

    def add_native_histogram(self, values: Sequence[str], histogram: NativeHistogram) -> None:
        """Adds a native histogram, for a scraper that can read it."""
        self._rows.append(_Native(values, histogram))

    @property
    def metric(self) -> Metric:
        """The family as prometheus_client takes it."""
        family = self.family
        metric = Metric(family.base_name, family.help, family.kind, _unit(family))
        metric.samples = [sample for row in self._rows for sample in row.samples(family)]
        return metric

    def lines(self, *, is_openmetrics: bool) -> Iterator[str]:
        """Yields the lines of the family in the plain format, or in that of OpenMetrics 1.0."""
        yield _openmetrics_head(self.family) if is_openmetrics else _plain_head(self.family)
        for row in self._rows:
            yield from row.lines(self.family)


def family_metrics(
    families: Iterable[MetricFamily],
    figures: Iterable[tuple[Sequence[str], Mapping[MetricFamily, float]]],
) -> Iterator[Samples]:
    """Yields the samples of each family, also without any. `figures` has, by labels, values of families."""
    samples = {family: Samples(family) for family in families}
    for labels, values in figures:
        for family, value in values.items():
            samples[family].add(labels, value)
    yield from samples.values()


def edge_labels(edges: Sequence[float]) -> tuple[str, ...]:
    """Formats bucket edges as values of the label `le`: the shortest text of the same number."""
    return tuple(floatToGoString(edge) for edge in edges)  # type: ignore[no-untyped-call]


def _unit(family: MetricFamily) -> str:
    """The unit of a family for OpenMetrics; "" if the family's name does not end with it.

    OpenMetrics demands that the name ends with the unit.
    """
    return family.unit if family.unit and family.base_name.endswith(f"_{family.unit}") else ""


@lru_cache
def _plain_head(family: MetricFamily) -> str:
    kind = {"info": "gauge", "unknown": "untyped"}.get(family.kind, family.kind)
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {kind}\n"


@lru_cache
def _openmetrics_head(family: MetricFamily) -> str:
    name, unit = family.base_name, _unit(family)
    head = f"# HELP {name} {family.help.translate(_ESCAPES)}\n# TYPE {name} {family.kind}\n"
    return f"{head}# UNIT {name} {unit}\n" if unit else head


def _label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """The labels as they stand in braces, sorted. A sample may have fewer values than its family labels."""
    template, order = _label_template(tuple(names[: len(values)]))
    return template % tuple([_escaped(values[place]) for place in order])


@lru_cache
def _label_template(names: tuple[str, ...]) -> tuple[str, Sequence[int]]:
    """The sorted labels with a place for each value, and the values' numbers in that order."""
    order = sorted(range(len(names)), key=names.__getitem__)
    return ",".join(f'{names[place]}="%s"' for place in order), order


@lru_cache(maxsize=4096)
def _escaped(value: str) -> str:
    """Cached, because each model's name stands in many families."""
    return value.translate(_ESCAPES)


def _value_text(value: float) -> str:
    """A whole number without a point, because most values are counts; others as Go writes them."""
    if isinstance(value, int):
        return f"{value:d}"
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]
