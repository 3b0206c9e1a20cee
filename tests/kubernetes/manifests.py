"""The chart and the manifests of deploy/kubernetes, as a cluster would get them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

REPOSITORY = Path(__file__).parents[2]
DIRECTORY = REPOSITORY / "deploy" / "kubernetes"
CHART = DIRECTORY / "millpond"
KSERVE = DIRECTORY / "kserve"
DOCKERFILE = REPOSITORY / "Dockerfile"
_PYTHON = REPOSITORY / "build" / "kubernetes" / "bin" / "python"
_TOOLS = Path(__file__).parent / "cluster_tools.py"
_TIMEOUT_SECONDS = 300

_COMPONENT = "app.kubernetes.io/component"
_COORDINATOR = "coordinator"

Object = dict[str, Any]


@dataclass(frozen=True)
class Release:
    """A rendered chart, or the error that refuses its values."""

    objects: Sequence[Object] = ()
    notes: str = ""
    lint: Sequence[str] = ()
    error: str = ""

    def of_kind(self, *kinds: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] in kinds]

    def only(self, *kinds: str) -> Object:
        """Returns the only object of these kinds."""
        (found,) = self.of_kind(*kinds)
        return found

    @property
    def servers(self) -> Release:
        """The release without the coordinator of its fleet."""
        return self._part(lambda labels: labels.get(_COMPONENT) != _COORDINATOR)

    @property
    def coordinator(self) -> Release:
        """The coordinator of the fleet alone."""
        return self._part(lambda labels: labels.get(_COMPONENT) == _COORDINATOR)

    def _part(self, is_in: Callable[[Mapping[str, str]], bool]) -> Release:
        objects = [item for item in self.objects if is_in(item["metadata"]["labels"])]
        return replace(self, objects=objects)

    @property
    def workload(self) -> Object:
        return self.only("Deployment", "StatefulSet")

    @property
    def pod(self) -> Object:
        """The specification of a pod of the workload."""
        spec: Object = self.workload["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        (container,) = self.pod["containers"]
        found: Object = container
        return found


def asked(command: str, questions: Sequence[Any]) -> list[Any]:
    """Returns the answers of cluster_tools.py."""
    assert _PYTHON.exists(), f"{_PYTHON} is missing: run `make build/kubernetes/.installed`"
    done = subprocess.run(
        [_PYTHON, _TOOLS, command],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def render_all(values: Sequence[Mapping[str, Any]]) -> list[Release]:
    """Renders the chart once for each of `values`, with Helm's own engine."""
    answers = asked("render", [{"chart": str(CHART), "values": item} for item in values])
    return [_release(answer) for answer in answers]


def _release(answer: Mapping[str, Any]) -> Release:
    if "error" in answer:
        return Release(error=answer["error"])
    documents = (yaml.load_all(text, yaml.CSafeLoader) for text in answer["objects"])
    objects = [item for each in documents for item in each if item]
    return Release(objects, answer["notes"], answer["lint"])


def kserve_objects() -> dict[str, Object]:
    """Returns each object below deploy/kubernetes/kserve by the name of its file."""
    return {path.name: yaml.safe_load(path.read_text()) for path in sorted(KSERVE.glob("*.yaml"))}


@cache
def image_environment() -> Mapping[str, str]:
    """Returns the variables that the Dockerfile sets."""
    return dict(re.findall(r"^ENV (\w+)=(.*)$", DOCKERFILE.read_text(), re.MULTILINE))


def http_probes(container: Object) -> Iterator[tuple[str, Object]]:
    """Yields the name and the request of each probe."""
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if name in container:
            yield name, container[name]["httpGet"]
