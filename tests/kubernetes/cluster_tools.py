"""Runs Helm's engine and the models of Kubernetes' objects, for tests that have neither.

Usage: build/kubernetes/bin/python cluster_tools.py render|validate|fit <QUESTIONS >ANSWERS

Both are JSON lists of the same length. The tests start it in a virtual environment of its own
(dependency group "kubernetes"): the packages want other versions of what the server needs, and Helm's
Go runtime would share the test's process. Nothing here asks a cluster or the network.

    render    {"chart": PATH, "values": {…}} → {"objects": [YAML, …], "notes": TEXT, "lint": [TEXT, …]}
              or {"error": TEXT} if the schema or a template refuses the values
    validate  {"version": "1.30", "objects": [{…}, …]} → [TEXT, …], what Kubernetes' schemas refuse
    fit       {…}, an object of KServe or of the Prometheus operator → [TEXT, …], what its model
              refuses or does not know
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import cache
from typing import Any


def render(question: Any) -> Any:
    import helm_python

    with helm_python.Chart.load(question["chart"]) as chart:
        try:
            chart.validate_schema(question["values"])
            rendered = chart.render(question["values"], name="web", namespace="prod")
        except helm_python.HelmError as error:
            return {"error": str(error)}
    notes = {name: text for name, text in rendered.items() if name.endswith("NOTES.txt")}
    report = helm_python.lint(question["chart"], question["values"], strict=True)
    info = 1
    found = [item["error"] for item in report["messages"] if item["severity"] > info]
    return {
        "objects": [text for name, text in rendered.items() if name not in notes],
        "notes": "".join(notes.values()),
        "lint": [*found, *report["errors"]],
    }


@cache
def _kubernetes_validate() -> Any:
    """The package's module, made to read a schema once and not for each object: a megabyte each time."""
    from kubernetes_validate import utils

    utils.schema_contents = cache(utils.schema_contents)
    utils.all_versions = cache(utils.all_versions)
    return utils


def validate(question: Any) -> list[str]:
    kubernetes_validate = _kubernetes_validate()
    problems = []
    for item in question["objects"]:
        try:
            kubernetes_validate.validate(item, question["version"], strict=True)
        except kubernetes_validate.ValidationError as error:
            name = f"{item['kind']} {item['metadata']['name']}"
            problems.append(f"{name}: {list(error.path)}: {error.message}")
    return problems


def fit(question: Any) -> list[str]:
    """Reads the object into its model and writes it again: what the model does not know is lost."""
    try:
        written = _of_operator(question) if _is_operators(question) else _of_kserve(question)
    except Exception as error:  # noqa: BLE001 each model raises its own.
        return [f"{type(error).__name__}: {error}"]
    return _differences(question, written, question["kind"])


def _is_operators(question: Any) -> bool:
    return bool(question["apiVersion"] == "monitoring.coreos.com/v1")


def _of_operator(question: Any) -> Any:
    module = importlib.import_module("cloudcoil.models.prometheus_operator.v1")
    model = getattr(module, question["kind"])
    return model.model_validate(question).model_dump(by_alias=True, exclude_none=True, mode="json")


def _of_kserve(question: Any) -> Any:
    import kserve.models
    import kubernetes.client
    from kserve.api_client import ApiClient

    # KServe's models name Kubernetes' own, which its client looks for in its own package.
    kserve.models.__getattr__ = lambda name: getattr(kubernetes.client, name)

    class Response:
        data = json.dumps(question)

    version = question["apiVersion"].removeprefix("serving.kserve.io/")
    client = ApiClient()
    read = client.deserialize(Response, f"V{version[1:]}{question['kind']}")
    return client.sanitize_for_serialization(read)


def _differences(given: Any, written: Any, where: str) -> list[str]:
    """Returns what is given and not written alike. A model may add its defaults."""
    if isinstance(given, dict) and isinstance(written, dict):
        return [
            text
            for key in sorted(given)
            for text in _differences(given[key], written.get(key), f"{where}.{key}")
        ]
    if isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        return [
            text
            for index, pair in enumerate(zip(given, written, strict=True))
            for text in _differences(*pair, f"{where}[{index}]")
        ]
    return [] if given == written else [f"{where}: {given!r} is read as {written!r}"]


if __name__ == "__main__":
    command = {"render": render, "validate": validate, "fit": fit}[sys.argv[1]]
    json.dump([command(question) for question in json.load(sys.stdin)], sys.stdout)
