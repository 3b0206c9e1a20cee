"""The Helm chart, rendered by Helm's own engine, against Kubernetes' schemas and the program itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import tomli
import yaml  # type: ignore[import-untyped]

from serving.config.flags import FLAGS, Flag, parse_flags
from serving.config.model_config_file import parse_model_config
from serving.config.model_settings_file import parse_model_settings
from serving.core.version_selection import All, Latest, Specific
from serving.http.health_routes import health_routes
from serving.monitoring.metric_families import FAMILIES
from serving.monitoring.metrics_routes import PATHS as METRICS_PATHS
from serving.storage.store_urls import BACKENDS
from tests.documents import blocks_of
from tests.kubernetes.manifests import (
    CHART,
    DOCKERFILE,
    REPOSITORY,
    Object,
    Release,
    asked,
    http_probes,
    image_environment,
    render_all,
)

# From the oldest that Chart.yaml takes to the newest that kubernetes-validate has.
VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
URL_MODEL = {"name": "ctr", "basePath": "s3://models/ctr"}
CASES: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "object storage": {
        "workload": {"kind": "StatefulSet", "storageClassName": "fast"},
        "models": [{**URL_MODEL, "versionPolicy": {"latest": 2}, "labels": {"stable": 3}}],
        "modelSettings": "[models.ctr]\nkeep_previous_seconds = 60\n",
        "objectStorage": {
            "secretName": "store",
            "fileSecretName": "store-files",
            "environment": {"AWS_REGION": "eu-central-1"},
            "cacheBytesPerModel": 50_000_000_000,
        },
        "networkPolicy": {"enabled": True},
        "headlessService": {"enabled": False},
    },
    "everything": {
        "fullnameOverride": "ranking",
        "image": {"repository": "registry:5000/millpond", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "workload": {"maxSurge": "25%", "maxUnavailable": 0},
        "models": [
            {"name": "a", "basePath": "/srv/a", "versionPolicy": {"specific": [3, 20261124]}},
            {"name": "b", "basePath": "/srv/b", "versionPolicy": {"all": True}},
            URL_MODEL,
        ],
        "modelVolume": {"kind": "hostPath", "hostPath": "/mnt/models", "mountPath": "/srv"},
        "flags": {"grpc_max_message_bytes": 100_000_000, "enable_batching": True, "arena": "false",
                  "load_seconds_target": 2.5},
        "autoscaling": {"enabled": True},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {"enabled": True, "clients": [PEER], "monitoring": [PEER],
                          "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/m"}},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}, "grpcPort": 80},
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "ranking"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "inference", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "extraEnv": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        "extraVolumeMounts": [{"name": "tls", "mountPath": "/etc/tls", "readOnly": True}],
    },
    "claim of another": {
        "modelVolume": {"kind": "existingClaim", "existingClaim": "m", "subPath": "prod"},
        "serviceAccount": {"create": False},
        "podDisruptionBudget": {"enabled": False},
        "drain": {"preStopSeconds": 0},
        "spreadOverNodes": False,
    },
}  # fmt: skip
# Kubernetes' own kinds; the operator's is checked by its model.
FOREIGN_KINDS = {"ServiceMonitor"}
MODEL = {"name": "m", "basePath": "/models/m"}
REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "unknown value": ({"replicas": 3}, "replicas"),
    "unknown kind": ({"workload": {"kind": "DaemonSet"}}, "/workload/kind"),
    "no model": ({"models": []}, "/models"),
    "model without directory": ({"models": [{"name": "m"}]}, "basePath"),
    "relative directory": ({"models": [{"name": "m", "basePath": "models/m"}]}, "/models/0/basePath"),
    "slash at the end": ({"models": [{"name": "m", "basePath": "/models/m/"}]}, "/models/0/basePath"),
    "other store": ({"models": [{"name": "m", "basePath": "ftp://h/m"}]}, "/models/0/basePath"),
    "password in URL": ({"models": [{"name": "m", "basePath": "s3://k:p@b/m"}]}, "basePath"),
    "quote in name": ({"models": [{**MODEL, "name": 'm"'}]}, "/models/0/name"),
    "two policies": ({"models": [{**MODEL, "versionPolicy": {"latest": 1, "all": True}}]}, "versionPolicy"),
    "no version": ({"models": [{**MODEL, "versionPolicy": {"specific": []}}]}, "versionPolicy"),
    "label without number": ({"models": [{**MODEL, "labels": {"stable": "3"}}]}, "/labels/stable"),
    "duplicate model": ({"models": [MODEL, MODEL]}, 'duplicate model "m"'),
    "outside the volume": ({"models": [{"name": "m", "basePath": "/srv/m"}]}, "outside modelVolume"),
    "claim without name": ({"modelVolume": {"kind": "existingClaim"}}, "/modelVolume/existingClaim"),
    "hostPath without path": ({"modelVolume": {"kind": "hostPath"}}, "/modelVolume/hostPath"),
    "access mode": ({"modelVolume": {"accessModes": ["ReadWrite"]}}, "/accessModes/0"),
    "size": ({"modelVolume": {"size": "20 GB"}}, "/modelVolume/size"),
    "flag of the chart": ({"flags": {"port": 9000}}, "invalid propertyName 'port'"),
    "flag with dashes": ({"flags": {"--arena": False}}, "invalid propertyName '--arena'"),
    "list as flag": ({"flags": {"op_package": ["a"]}}, "/flags/op_package"),
    "negative drain": ({"drain": {"seconds": -1}}, "/drain/seconds"),
    "short margin": ({"drain": {"marginSeconds": 5}}, "/drain/marginSeconds"),
    "port": ({"service": {"grpcPort": 70_000}}, "/service/grpcPort"),
    "short digest": ({"image": {"digest": "sha256:12"}}, "/image/digest"),
    "tag in repository": ({"image": {"repository": "millpond:1"}}, "/image/repository"),
    "interval": ({"serviceMonitor": {"interval": "often"}}, "/serviceMonitor/interval"),
    "policy for everyone": ({"networkPolicy": {"clients": []}}, "/networkPolicy/clients"),
    "replicas": ({"autoscaling": {"minReplicas": 5, "maxReplicas": 2}}, "minReplicas is above"),
    "standstill": ({"workload": {"maxSurge": 0, "maxUnavailable": 0}}, "no pod could be replaced"),
    "other probe": ({"probes": {"readiness": {"httpGet": {"path": "/"}}}}, "httpGet"),
}  # fmt: skip
PAGE = REPOSITORY / "docs" / "kubernetes.md"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
# Flags whose directory or file must be on a volume, as the root file system is read-only.
PATH_FLAGS = (
    "model_config_file",
    "model_settings_file",
    "model_cache_directory",
    "state_directory",
)


@cache
def releases() -> dict[str, Release]:
    return dict(zip(CASES, render_all(list(CASES.values()))))


@pytest.fixture(params=CASES)
def release(request: pytest.FixtureRequest) -> Release:
    found = releases()[request.param]
    assert not found.error
    return found


@cache
def refusals() -> dict[str, str]:
    """Returns the error of each case of REFUSED; "" if its values are taken."""
    rendered = render_all([values for values, _ in REFUSED.values()])
    return {name: release.error for name, release in zip(REFUSED, rendered)}


def objects_of_kubernetes() -> list[Object]:
    """Returns the objects of all cases."""
    found = [item for release in releases().values() for item in release.objects]
    return [item for item in found if item["kind"] not in FOREIGN_KINDS]


def paths_of(values: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the path of each value that is not a table with keys."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from paths_of(value, (*prefix, key))
    else:
        yield prefix


def labels_of(item: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = item["metadata"]["labels"]
    return found


def is_selected(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()


def pods_of(release: Release) -> list[Object]:
    """Returns the specification of each pod: the server's and the test's."""
    return [release.pod, *(item["spec"] for item in release.of_kind("Pod"))]


def test_helm_lint_is_clean(release: Release) -> None:
    assert list(release.lint) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_fit_schemas_of_kubernetes(version: str) -> None:
    assert asked("validate", [{"version": version, "objects": objects_of_kubernetes()}]) == [[]]


def test_wrong_object_does_not_fit() -> None:
    deployment = json.loads(json.dumps(releases()["defaults"].workload))
    deployment["spec"]["template"]["spec"]["containers"][0]["port"] = 1
    (problems,) = asked("validate", [{"version": VERSIONS[-1], "objects": [deployment]}])
    assert ["'port' was unexpected" in text for text in problems] == [True]


def test_service_monitor_fits_its_operator() -> None:
    monitors = releases()["everything"].of_kind("ServiceMonitor")
    assert asked("fit", monitors) == [[]]


def test_kinds_of_all_cases_are_complete() -> None:
    kinds = {item["kind"] for release in releases().values() for item in release.objects}
    assert kinds == {
        *("Deployment", "StatefulSet", "Service", "ConfigMap", "ServiceAccount", "ServiceMonitor"),
        *("PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "Pod"),
        "PersistentVolumeClaim",
    }


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_values_are_refused(name: str) -> None:
    _, expected = REFUSED[name]
    assert expected in refusals()[name]


# --- Against the program ------------------------------------------------------------------------


def test_arguments_are_flags_of_the_server(release: Release) -> None:
    flags = parse_flags(release.container["args"])
    assert flags["log_format"] == "json"


def test_flags_keep_their_values() -> None:
    flags = parse_flags(releases()["everything"].container["args"])
    given = ("grpc_max_message_bytes", "enable_batching", "arena", "load_seconds_target")
    assert [flags[name] for name in given] == [100_000_000, True, False, 2.5]
    assert (
        parse_flags(releases()["object storage"].container["args"])["model_cache_bytes"]
        == 50 * 10**9
    )


def test_flags_of_the_chart_are_refused_as_values() -> None:
    excluded = set(SCHEMA["properties"]["flags"]["propertyNames"]["not"]["enum"])
    used = {
        argument.partition("=")[0].removeprefix("--")
        for argument in releases()["object storage"].container["args"]
    }
    assert used <= excluded
    assert all(isinstance(FLAGS[name], Flag) for name in excluded)


def test_config_map_is_what_the_server_reads() -> None:
    read = {}
    for case, release in releases().items():
        data = release.only("ConfigMap")["data"]
        models = parse_model_config(data["models.config"], case)
        read[case] = [
            (m.name, str(m.base_path), m.version_selection, dict(m.labels)) for m in models
        ]
        parse_model_settings(data["model_settings.toml"], case, {model.name for model in models})
    assert read["defaults"] == [("default", "/models/default", Latest(1), {})]
    assert read["object storage"] == [("ctr", "s3://models/ctr", Latest(2), {"stable": 3})]
    assert read["everything"] == [
        ("a", "/srv/a", Specific(frozenset({3, 20261124})), {}),
        ("b", "/srv/b", All(), {}),
        ("ctr", "s3://models/ctr", Latest(1), {}),
    ]


def test_config_flags_name_files_of_the_config_map(release: Release) -> None:
    flags = parse_flags(release.container["args"])
    directory = next(m for m in release.container["volumeMounts"] if m["name"] == "config")[
        "mountPath"
    ]
    files = {f"{directory}/{name}" for name in release.only("ConfigMap")["data"]}
    assert {str(flags["model_config_file"]), str(flags["model_settings_file"])} == files


def test_stores_are_those_of_the_server() -> None:
    pattern = SCHEMA["properties"]["models"]["items"]["properties"]["basePath"]["pattern"]
    assert set(re.findall(r"\b[a-z0-9]{2}\b(?=[|)])", pattern)) == set(BACKENDS)


def test_ports_are_those_of_the_image(release: Release) -> None:
    ports = {port["name"]: port["containerPort"] for port in release.container["ports"]}
    environment = image_environment()
    assert ports == {
        "grpc": int(environment["MILLPOND_PORT"]),
        "http": int(environment["MILLPOND_HTTP_PORT"]),
    }
    assert re.search(r"^EXPOSE 8500 8501$", DOCKERFILE.read_text(), re.MULTILINE)


def test_probes_ask_routes_of_the_server(release: Release) -> None:
    paths = {route.path for route in health_routes(lambda: None)}  # type: ignore[attr-defined,arg-type,return-value]
    probes = dict(http_probes(release.container))
    assert {probe["path"] for probe in probes.values()} == paths
    # A pod that is alive but loads, or drains, must not be killed.
    assert probes["livenessProbe"]["path"] == probes["startupProbe"]["path"] == "/healthz"
    assert probes["readinessProbe"]["path"] == "/readyz"
    assert {probe["port"] for probe in probes.values()} == {"http"}


def test_monitor_scrapes_metrics_of_the_server() -> None:
    (endpoint,) = releases()["everything"].only("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["path"] in METRICS_PATHS


def test_autoscaler_goes_by_metric_of_the_server() -> None:
    (metric,) = releases()["everything"].only("HorizontalPodAutoscaler")["spec"]["metrics"]
    family = next(f for f in FAMILIES if f.name == metric["pods"]["metric"]["name"])
    # Labels would make several series of a pod, of which an adapter takes the sum.
    assert (family.kind, family.labels) == ("gauge", ())


def test_test_pod_runs_a_command_of_the_image(release: Release) -> None:
    (container,) = release.only("Pod")["spec"]["containers"]
    assert container["image"] == release.container["image"]
    assert container["command"][:2] == ["millpond", "health"]
    service = release.of_kind("Service")[0]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    name = service["metadata"]["name"]
    assert container["command"][2:] == [
        f"--target={name}:{ports['grpc']}",
        f"--http={name}:{ports['http']}",
    ]


def test_chart_has_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {chart["version"], chart["appVersion"]} == {project["version"]}
    assert releases()["defaults"].container["image"] == f"millpond:{project['version']}"


# --- A pod's life -------------------------------------------------------------------------------


def test_grace_period_is_longer_than_drain(release: Release) -> None:
    flags = parse_flags(release.container["args"])
    hook = release.container.get("lifecycle")
    seconds_before = int(hook["preStop"]["exec"]["command"][1]) if hook else 0
    # Beyond the drain a stop waits up to 10 s for a load that hangs.
    least = seconds_before + flags["drain_seconds"] + 10
    assert release.pod["terminationGracePeriodSeconds"] > least


def test_pods_keep_restricted_pod_security(release: Release) -> None:
    for pod in pods_of(release):
        context = pod["securityContext"]
        assert context["runAsNonRoot"]
        assert f"USER {context['runAsUser']}:{context['runAsGroup']}\n" in DOCKERFILE.read_text()
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_files_of_the_server_are_on_volumes(release: Release) -> None:
    flags = parse_flags(release.container["args"])
    mounts = [mount["mountPath"] for mount in release.container["volumeMounts"]]
    paths = [str(flags[name]) for name in PATH_FLAGS if flags[name]]
    # The admin socket's directory is below /tmp.
    paths.append("/tmp/millpond-10001")
    for path in paths:
        assert any(f"{path}/".startswith(f"{mount}/") for mount in mounts), path


def test_each_mount_has_its_volume(release: Release) -> None:
    claims = release.workload["spec"].get("volumeClaimTemplates", [])
    volumes = [volume["name"] for volume in release.pod["volumes"]]
    volumes += [claim["metadata"]["name"] for claim in claims]
    assert sorted(volumes) == sorted(m["name"] for m in release.container["volumeMounts"])


def test_models_cannot_be_written_by_pods(release: Release) -> None:
    models = [mount for mount in release.container["volumeMounts"] if mount["name"] == "models"]
    assert all(mount["readOnly"] for mount in models)


def test_credentials_reach_pods_by_secret_alone() -> None:
    release = releases()["object storage"]
    assert release.container["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert "envFrom" not in releases()["defaults"].container


def test_config_change_does_not_restart_pods() -> None:
    other = render_all([{"models": [MODEL], "modelSettings": "[default]\n"}])[0]
    assert other.only("ConfigMap") != releases()["defaults"].only("ConfigMap")
    assert other.workload == releases()["defaults"].workload


# --- How objects find each other ----------------------------------------------------------------


def test_selectors_select_the_pods(release: Release) -> None:
    labels = release.workload["spec"]["template"]["metadata"]["labels"]
    selectors = [
        release.workload["spec"]["selector"]["matchLabels"],
        *(service["spec"]["selector"] for service in release.of_kind("Service")),
        *(b["spec"]["selector"]["matchLabels"] for b in release.of_kind("PodDisruptionBudget")),
        *(p["spec"]["podSelector"]["matchLabels"] for p in release.of_kind("NetworkPolicy")),
    ]
    assert all(is_selected(labels, selector) for selector in selectors)
    # The pod of `helm test` must get no requests.
    assert not any(is_selected(labels_of(release.only("Pod")), selector) for selector in selectors)


def test_monitor_scrapes_each_pod_once() -> None:
    release = releases()["everything"]
    selector = release.only("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    services = [s for s in release.of_kind("Service") if is_selected(labels_of(s), selector)]
    assert [service["metadata"]["name"] for service in services] == ["ranking"]


def test_headless_service_has_ports_of_pods(release: Release) -> None:
    headless = [s for s in release.of_kind("Service") if s["spec"].get("clusterIP") == "None"]
    ports = {port["name"]: port["containerPort"] for port in release.container["ports"]}
    for service in headless:
        assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    if release.workload["kind"] == "StatefulSet":
        assert release.workload["spec"]["serviceName"] == headless[0]["metadata"]["name"]


def test_autoscaler_scales_the_workload() -> None:
    release = releases()["everything"]
    target = release.only("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    workload = release.workload
    assert target == {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "name": workload["metadata"]["name"],
    }
    # A number here would undo the autoscaler's at each upgrade.
    assert "replicas" not in workload["spec"]


def test_notes_name_services_and_workload(release: Release) -> None:
    for item in (*release.of_kind("Service"), release.workload):
        assert item["metadata"]["name"] in release.notes


def test_values_of_the_page_are_taken() -> None:
    texts = [block.text for block in blocks_of(PAGE) if block.language == "yaml"]
    values = [item for item in map(yaml.safe_load, texts) if "models" in item]
    assert len(values) == 2
    assert [release.error for release in render_all(values)] == ["", ""]


# --- The values ---------------------------------------------------------------------------------


def test_schema_has_each_value_and_no_other() -> None:
    def properties(schema: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[Any]:
        for name, child in schema.get("properties", {}).items():
            yield (*prefix, name)
            yield from properties(child, (*prefix, name))

    # Helm adds "global"; a probe may have what is not given here.
    optional = {("global",), ("resources", "claims")}
    known = {p for p in properties(SCHEMA) if p[0] != "probes"} - optional
    given = {path[:n] for path in paths_of(VALUES) for n in range(1, len(path) + 1)}
    given = {
        p
        for p in given
        if p[0] != "probes" and p[:2] not in {("resources", "requests"), ("resources", "limits")}
    }
    assert known - given == {("resources", "requests"), ("resources", "limits")}
    assert given <= known


def test_templates_read_each_value() -> None:
    files = [*(CHART / "templates").glob("**/*.tpl"), *(CHART / "templates").glob("**/*.yaml")]
    read = set(re.findall(r"Values\.([\w.]+)", "\n".join(path.read_text() for path in files)))
    unread = [
        ".".join(path)
        for path in paths_of(VALUES)
        if not any(".".join(path[:n]) in read for n in range(1, len(path) + 1))
    ]
    assert unread == []
