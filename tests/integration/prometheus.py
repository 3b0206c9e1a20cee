"""A real Prometheus server that scrapes the targets of a test."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

from loadtest.drive.shell_server import free_port
from tests.integration.clients import TIMEOUT_SECONDS, wait_until
from tests.unit.promtool import tool

# A scrape may take as long, also on a busy machine.
SCRAPE_SECONDS = 1.0
# The server is on this machine, so requests bypass any proxy.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Sample:
    """One series of an instant vector."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """A running server. `query` raises the HTTP error if the expression is wrong."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[Sample]:
        """Returns an instant vector, evaluated now."""
        found = self._get("/api/v1/query", {"query": expression})
        return [
            Sample(labels=result["metric"], value=float(result["value"][1]))
            for result in found["data"]["result"]
        ]

    def query_range(self, expression: str, *, seconds: float) -> list[Mapping[str, str]]:
        """Returns the labels of each series that the expression has had in the last seconds."""
        now_seconds = self.value("vector(time())")
        parameters = {
            "query": expression,
            "start": f"{now_seconds - seconds:.3f}",
            "end": f"{now_seconds:.3f}",
            "step": "1s",
        }
        found = self._get("/api/v1/query_range", parameters)
        return [result["metric"] for result in found["data"]["result"]]

    def rules(self) -> list[Mapping[str, Any]]:
        """Returns all rules as Prometheus last evaluated them."""
        groups = self._get("/api/v1/rules", {})["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def value(self, expression: str) -> float:
        """Returns the only value of the expression."""
        samples = self.query(expression)
        assert len(samples) == 1, (expression, samples)
        return samples[0].value

    def wait_for(
        self,
        expression: str,
        is_reached: Callable[[list[Sample]], object],
        seconds: float = TIMEOUT_SECONDS,
    ) -> list[Sample]:
        """Polls until the expression has that value."""
        samples: list[Sample] = []

        def has_reached() -> object:
            samples[:] = self.query(expression)
            return is_reached(samples)

        wait_until(has_reached, expression, seconds)
        return samples

    def is_ready(self) -> bool:
        try:
            with _opener.open(f"{self.url}/-/ready", timeout=5) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:
        url = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        with _opener.open(url, timeout=10) as response:
            return json.load(response)


@contextmanager
def running_prometheus(
    directory: Path, target_url: str, *, rule_files: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """Runs a server that scrapes `target_url` every SCRAPE_SECONDS; its files lie in `directory`."""
    config = {
        "global": {
            "scrape_interval": f"{round(SCRAPE_SECONDS * 1_000)}ms",
            "evaluation_interval": f"{round(SCRAPE_SECONDS * 1_000)}ms",
        },
        "rule_files": [str(path) for path in rule_files],
        "scrape_configs": [
            {
                "job_name": "millpond",
                "metrics_path": urllib.parse.urlsplit(target_url).path,
                "static_configs": [{"targets": [urllib.parse.urlsplit(target_url).netloc]}],
            }
        ],
    }
    # JSON is valid YAML.
    (directory / "prometheus.yml").write_text(json.dumps(config))
    prometheus = Prometheus(f"http://127.0.0.1:{free_port()}")
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address={prometheus.url.removeprefix('http://')}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(prometheus.is_ready, "Prometheus ready")
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
