"""KServe's runtime and examples, against KServe's own models and the program itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from serving.config.flags import parse_flags
from serving.http.health_routes import health_routes
from serving.monitoring.metrics_routes import PATHS as METRICS_PATHS
from tests.kubernetes.manifests import Object, asked, http_probes, kserve_objects, render_all

RUNTIME = "cluster-serving-runtime.yaml"
# KServe's: the port of HTTP without one in the manifest, and the directory that it mounts.
HTTP_PORT = 8080
MODEL_DIRECTORY = "/mnt/models"
# Kubernetes' default, since a runtime cannot set it.
GRACE_SECONDS = 30
VERSIONS = ("1.28", "1.32", "1.37")


@pytest.fixture
def runtime() -> Object:
    return kserve_objects()[RUNTIME]


@pytest.fixture
def container(runtime: Object) -> Object:
    (found,) = runtime["spec"]["containers"]
    result: Object = found
    return result


def services() -> dict[str, Object]:
    return {name: item for name, item in kserve_objects().items() if name != RUNTIME}


def arguments(container: Object, name: str, model: Object) -> list[str]:
    """Returns the arguments of a pod as KServe puts them together."""
    own = [argument.replace("{{.Name}}", name) for argument in container["args"]]
    return [*own, *model.get("args", [])]


@cache
def problems_of_kserve() -> dict[str, list[str]]:
    """The problems that KServe's models find in each manifest, and in a wrong runtime. Their import takes seconds."""
    objects = kserve_objects()
    wrong = kserve_objects()[RUNTIME]
    wrong["spec"]["containers"][0]["readyProbe"] = {}
    wrong["spec"]["protocolVersion"] = ["v1"]
    return dict(zip([*objects, "wrong"], asked("fit", [*objects.values(), wrong]), strict=True))


def test_manifests_fit_models_of_kserve() -> None:
    found = {name: problems for name, problems in problems_of_kserve().items() if name != "wrong"}
    assert found == {name: [] for name in kserve_objects()}


def test_unknown_field_does_not_fit() -> None:
    assert [text.partition(":")[0] for text in problems_of_kserve()["wrong"]] == [
        "ClusterServingRuntime.spec.containers[0].readyProbe",
        "ClusterServingRuntime.spec.protocolVersion",
    ]


def test_containers_fit_schemas_of_kubernetes(runtime: Object) -> None:
    spec = {key: runtime["spec"][key] for key in ("containers", "volumes")}
    pod: Any = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}, "spec": spec}
    questions = [{"version": version, "objects": [pod]} for version in VERSIONS]
    assert asked("validate", questions) == [[]] * len(VERSIONS)


def test_runtime_arguments_are_flags_of_the_server(container: Object) -> None:
    flags = parse_flags(arguments(container, "ctr", {}))
    assert (flags["model_name"], str(flags["model_base_path"])) == ("ctr", MODEL_DIRECTORY)
    assert flags["rest_api_port"].number == HTTP_PORT


def test_runtime_drain_ends_before_the_kill(container: Object) -> None:
    # Beyond the drain a stop waits up to 10 s for a load that hangs.
    assert parse_flags(container["args"])["drain_seconds"] + 10 < GRACE_SECONDS


def test_runtime_probes_ask_routes_of_the_server(container: Object) -> None:
    paths = {route.path for route in health_routes(lambda: None)}  # type: ignore[attr-defined,arg-type,return-value]
    probes = dict(http_probes(container))
    assert {probe["path"] for probe in probes.values()} == paths
    assert {probe["port"] for probe in probes.values()} == {HTTP_PORT}


def test_runtime_metrics_are_those_of_the_server(runtime: Object) -> None:
    annotations = runtime["spec"]["annotations"]
    assert annotations["prometheus.kserve.io/path"] in METRICS_PATHS
    assert annotations["prometheus.kserve.io/port"] == str(HTTP_PORT)


def test_runtime_has_image_and_security_of_chart(container: Object) -> None:
    (release,) = render_all([{}])
    of_pod = {
        k: v for k, v in release.pod["securityContext"].items() if not k.startswith("fsGroup")
    }
    assert container["image"] == release.container["image"]
    assert container["securityContext"] == of_pod | release.container["securityContext"]


def test_runtime_mounts_have_their_volumes(runtime: Object, container: Object) -> None:
    volumes = [volume["name"] for volume in runtime["spec"]["volumes"]]
    assert volumes == [mount["name"] for mount in container["volumeMounts"]]


@pytest.mark.parametrize("name", services())
def test_service_fits_the_runtime(name: str, runtime: Object, container: Object) -> None:
    model = services()[name]["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    formats = {item["name"] for item in runtime["spec"]["supportedModelFormats"]}
    assert model["modelFormat"]["name"] in formats
    flags = parse_flags(arguments(container, "ctr", model))
    for port in model.get("ports", []):
        assert port["containerPort"] == flags["port"]
    # The model comes by one way.
    assert ("storageUri" in model) == (str(flags["model_base_path"]) == MODEL_DIRECTORY)
