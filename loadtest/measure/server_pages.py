"""Reads a server's own figures over HTTP, for comparison with its clients' figures."""

import json
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from serving.base.errors import Unavailable

# Enough for a page of many versions on a machine whose cores are busy.
_TIMEOUT_SECONDS = 10


class Metrics:
    """The samples of one scrape."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._samples = [sample for family in families for sample in family.samples]

    @classmethod
    def parse(cls, text: str) -> "Metrics":
        """Parses a page in Prometheus' text format. Raises ValueError if it does not parse."""
        return cls(list(text_string_to_metric_families(text)))

    def total(self, name: str, **labels: str) -> float:
        """The sum over all series with that name and these labels; 0 without any series."""
        return sum(self._values(name, labels))

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the only series with that name and these labels; None without a
        series.

        Raises ValueError if there are several series.
        """
        values = self._values(name, labels)
        if len(values) > 1:
            raise ValueError(f"{len(values)} series match {name} {labels}; give more labels")
        return values[0] if values else None

    def counts_by(self, label: str, name: str, **labels: str) -> Counter[str]:
        """Sums as `total` does for each value of `label`, as whole numbers."""
        counts: Counter[str] = Counter()
        for sample in self._samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                counts[sample.labels.get(label, "")] += int(sample.value)
        return counts

    def bucket_counts(self, histogram: str, **labels: str) -> Mapping[float, int]:
        """The cumulative counts by bucket edge, ascending, summed over series."""
        counts = self.counts_by("le", f"{histogram}_bucket", **labels)
        return {edge: counts[text] for edge, text in sorted((float(t), t) for t in counts)}

    def _values(self, name: str, labels: Mapping[str, str]) -> list[float]:
        return [
            float(sample.value)
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]


def read_bytes_of(swap: Mapping[str, Any]) -> int:
    """The bytes that a swap's load read, by its record. Pure."""
    restored_bytes = swap["restored_bytes"]
    # A version without tables has no such figure, because it reads everything.
    return int(swap["parameter_bytes"] if restored_bytes is None else restored_bytes)


class ServerPages:
    """The pages of one server; `url` is `http://HOST:PORT`. Each method raises Unavailable."""

    def __init__(self, url: str) -> None:
        self._url = url
        # Without a proxy, because the server is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def metrics(self, prefix: str = "") -> Metrics:
        """Scrapes the metrics now, as Prometheus does. Reads only names with `prefix`, which is faster."""
        text = self._get("/metrics").decode()
        if prefix:
            text = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(prefix))
        return Metrics.parse(text)

    def swaps(self, model: str) -> Sequence[Mapping[str, Any]]:
        """Reads the records of `/v1/swaps`, oldest first."""
        document = json.loads(self._get(f"/v1/swaps?{urlencode({'model': model})}"))
        records: list[Mapping[str, Any]] = document["swaps"]
        return records[::-1]

    def _get(self, path: str) -> bytes:
        try:
            with self._opener.open(f"{self._url}{path}", timeout=_TIMEOUT_SECONDS) as response:
                content: bytes = response.read()
        except OSError as error:
            raise Unavailable(f"{self._url}{path}: {error}") from None
        return content
