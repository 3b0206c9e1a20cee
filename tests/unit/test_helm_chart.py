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

from fleet.commands.command import make_parser as fleet_command_parser
from fleet.config.config import FleetConfig, host_and_port, parse_fleet_config
from fleet.config.kubernetes_settings import KubernetesSettings
from fleet.http.metrics import METRICS_PATH as FLEET_METRICS_PATH
from fleet.http.standby import HEALTH_PATH
from fleet.kubernetes.documents import membership_of
from fleet.kubernetes.engine import made_engine
from fleet.rollout.changes import Change
from fleet.rollout.reports import Grant
from fleet.rollout.state import FleetState
from fleet.rollout.wave_settings import WaveSettings, WaveSize
from serving.config.flags import FLAGS, Flag, parse_flags
from serving.config.model_config_file import parse_model_config
from serving.config.model_settings_file import parse_model_settings
from serving.core.store_urls import BACKENDS
from serving.core.version_selection import All, Latest, Specific
from serving.http.health_routes import health_routes
from serving.monitoring.metric_families import FAMILIES
from serving.monitoring.metrics_routes import PATHS as METRICS_PATHS
from serving.server.drain import READERS_SECONDS, REPORT_SECONDS_MAX
from tests.documents import blocks_of
from tests.kubernetes.fake_cluster import FakeCluster, permits, selects
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
from tests.unit.fakes.clocks import FakeClock

# From the oldest that Chart.yaml takes to the newest that kubernetes-validate has.
VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
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
        "flags": {"max_request_bytes": 100_000_000, "enable_batching": True, "arena": "false",
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
    "fleet": {
        "workload": {"kind": "StatefulSet"},
        "fleet": {"enabled": True},
    },
    "fleet with all values": {
        "fullnameOverride": "a-name-of-fifty-letters-is-the-longest-that-it-take",
        "imagePullSecrets": [{"name": "registry"}],
        "networkPolicy": {"enabled": True, "clients": [PEER], "monitoring": [MONITORING]},
        "serviceMonitor": {"enabled": True, "interval": "5s", "labels": {"release": "prometheus"}},
        "priorityClassName": "high",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "inference", "operator": "Exists"}],
        "fleet": {
            "enabled": True,
            "replicas": 3,
            "pollSeconds": 2.5,
            "leaseSeconds": 20,
            "tls": {"secretName": "fleet-tls", "serverName": "millpond.prod"},
            "operators": [PEER],
            "waves": {
                "sizes": ["1", 3, "12.5%"], "load_count_max": 5, "request_count": 5_000_000,
                "judged_seconds": 30, "latency_ratio_max": 1.5, "error_ratio_max": 3,
                "control_count_max": 100, "lost_seconds": 20, "load_seconds_max": 600,
                "setback_share_max": 0.2, "warned_gates": "pass",
            },
        },
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
    "flag of the chart": ({"flags": {"port": 9000}}, "at '/flags': additional properties 'port' not"),
    "unknown flag": ({"flags": {"enable_batchin": True}}, "at '/flags': additional properties 'enable_batchin' not"),
    "gates that neither hold nor pass": ({"fleet": {"waves": {"warned_gates": "stop"}}}, "/fleet/waves/warned_gates"),
    "flag with dashes": ({"flags": {"--arena": False}}, "at '/flags': additional properties '--arena' not"),
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
    "unknown key of waves": ({"fleet": {"waves": {"size": ["1"]}}}, "/fleet/waves"),
    "whole fleet as a wave": ({"fleet": {"waves": {"sizes": ["100%"]}}}, "/fleet/waves/sizes/0"),
    "no load at once": ({"fleet": {"waves": {"load_count_max": 0}}}, "/fleet/waves/load_count_max"),
    "short lease": ({"fleet": {"leaseSeconds": 5}}, "/fleet/leaseSeconds"),
    "no coordinator": ({"fleet": {"enabled": True, "replicas": 0}}, "/fleet/replicas"),
    "quote in certificate": ({"fleet": {"tls": {"serverName": 'a"'}}}, "/fleet/tls/serverName"),
    "admin address of a member": (
        {"fleet": {"enabled": True}, "flags": {"admin_address": "off"}}, "fleet.enabled sets admin_address"
    ),
    "member by a flag": (
        {"fleet": {"enabled": True}, "flags": {"fleet_member": False}}, "fleet.enabled sets fleet_member"
    ),
    "one port twice": ({"service": {"grpcPort": 80, "httpPort": 80}}, "service: grpcPort and httpPort are both 80"),
    "name of digits": ({"fullnameOverride": "1"}, "/fullnameOverride"),
    "dot in a name": ({"nameOverride": "a.b"}, "/nameOverride"),
    "label with a space": ({"podLabels": {"team": "a b"}}, "/podLabels/team"),
    "label of the selector": ({"podLabels": {"app.kubernetes.io/name": "x"}}, "/podLabels/app.kubernetes.io~1name"),
    "unknown affinity": ({"affinity": {"nodes": {}}}, "/affinity"),
    "variable without name": ({"extraEnv": [{"value": "1"}]}, "/extraEnv/0"),
    "volume of the chart": ({"extraVolumes": [{"name": "models"}]}, "/extraVolumes/0/name"),
    "mount without path": ({"extraVolumeMounts": [{"name": "x"}]}, "/extraVolumeMounts/0"),
    "secret without name": ({"imagePullSecrets": ["registry"]}, "/imagePullSecrets/0"),
    "more pods than numbers": ({"autoscaling": {"maxReplicas": 10**12}}, "/autoscaling/maxReplicas"),
    "other probe": ({"probes": {"readiness": {"httpGet": {"path": "/"}}}}, "httpGet"),
}  # fmt: skip
PAGE = REPOSITORY / "docs" / "kubernetes.md"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
# Tables of Kubernetes' own, whose keys nobody lists.
UNLISTED = {
    (*prefix, "resources", key) for prefix in ((), ("fleet",)) for key in ("requests", "limits")
}
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
    """The objects of the servers in each case."""
    found = releases()[request.param]
    assert not found.error
    return found.servers


@pytest.fixture(params=[case for case, values in CASES.items() if "fleet" in values])
def fleet(request: pytest.FixtureRequest) -> Release:
    """Both parts of a release with a fleet."""
    found = releases()[request.param]
    assert not found.error
    return found


@cache
def refusals() -> dict[str, str]:
    """Returns the error of each case of REFUSED; "" if its values are taken."""
    rendered = render_all([values for values, _ in REFUSED.values()])
    return {name: release.error for name, release in zip(REFUSED, rendered)}


def objects_of_kubernetes() -> list[Object]:
    """Returns the objects of all cases, each once."""
    found = (item for release in releases().values() for item in release.objects)
    known = (item for item in found if item["kind"] not in FOREIGN_KINDS)
    return [*{json.dumps(item, sort_keys=True): item for item in known}.values()]


def paths_of(values: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the path of each value that is not a table with keys."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from paths_of(value, (*prefix, key))
    else:
        yield prefix


def parts_of(values: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the path of each table and of each value in tables."""
    for key, value in values.items():
        yield (*prefix, key)
        if isinstance(value, dict) and (*prefix, key) not in UNLISTED:
            yield from parts_of(value, (*prefix, key))


def value_at(path: tuple[str, ...]) -> Any:
    value: Any = VALUES
    for key in path:
        value = value[key]
    return value


def valued(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Returns values in which the one at a path is `value`."""
    for key in reversed(path):
        value = {key: value}
    found: dict[str, Any] = value
    return found


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values with changes, as Helm merges tables."""
    found = dict(values)
    for key, value in changes.items():
        before = found.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            found[key] = merged(before, value)
        else:
            found[key] = value
    return found


def labels_of(item: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = item["metadata"]["labels"]
    return found


def is_selected(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()


def data_ports(release: Release) -> dict[str, int]:
    """Returns the ports of a server that clients reach."""
    ports = {port["name"]: port["containerPort"] for port in release.container["ports"]}
    ports.pop("admin", None)
    return ports


def pods_of(release: Release) -> list[Object]:
    """Returns the specification of each pod: the server's and the test's."""
    return [release.pod, *(item["spec"] for item in release.of_kind("Pod"))]


def test_helm_lint_is_clean(release: Release) -> None:
    assert list(release.lint) == []


@cache
def problems_of_versions() -> Mapping[str, Any]:
    """The refusals of each version of Kubernetes, asked at once: one question takes half a second."""
    objects = objects_of_kubernetes()
    questions = [{"version": version, "objects": objects} for version in VERSIONS]
    return dict(zip(VERSIONS, asked("validate", questions), strict=True))


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_fit_schemas_of_kubernetes(version: str) -> None:
    assert problems_of_versions()[version] == []


def test_wrong_object_does_not_fit() -> None:
    deployment = json.loads(json.dumps(releases()["defaults"].workload))
    deployment["spec"]["template"]["spec"]["containers"][0]["port"] = 1
    (problems,) = asked("validate", [{"version": VERSIONS[-1], "objects": [deployment]}])
    assert ["'port' was unexpected" in text for text in problems] == [True]


def test_service_monitor_fits_its_operator() -> None:
    cases = ("everything", "fleet with all values")
    monitors = [item for case in cases for item in releases()[case].of_kind("ServiceMonitor")]
    assert asked("fit", monitors) == [[], [], []]


def test_kinds_of_all_cases_are_complete() -> None:
    kinds = {item["kind"] for release in releases().values() for item in release.objects}
    assert kinds == {
        *("Deployment", "StatefulSet", "Service", "ConfigMap", "ServiceAccount", "ServiceMonitor"),
        *("PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "Pod"),
        *("PersistentVolumeClaim", "Role", "RoleBinding"),
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
    given = ("max_request_bytes", "enable_batching", "arena", "load_seconds_target")
    assert [flags[name] for name in given] == [100_000_000, True, False, 2.5]
    assert (
        parse_flags(releases()["object storage"].container["args"])["model_cache_bytes"]
        == 50 * 10**9
    )


def test_flags_of_the_chart_are_refused_as_values() -> None:
    taken = SCHEMA["properties"]["flags"]["properties"].keys()
    used = {
        argument.partition("=")[0].removeprefix("--")
        for argument in releases()["object storage"].container["args"]
    }
    assert used & taken == set()


def test_schema_has_each_flag_of_the_server() -> None:
    taken = SCHEMA["properties"]["flags"]["properties"].keys()
    flags = {name for name, flag in FLAGS.items() if isinstance(flag, Flag)}
    assert flags - taken == {
        *("port", "host", "rest_api_port", "model_name", "model_base_path", "log_format"),
        *("model_config_file", "model_config_file_poll_wait_seconds", "model_settings_file"),
        *("model_cache_directory", "model_cache_bytes", "model_store_poll_wait_seconds"),
        *("state_directory", "drain_seconds"),
    }
    assert taken <= flags


def test_config_map_is_what_the_server_reads() -> None:
    read = {}
    for case, release in releases().items():
        data = release.servers.only("ConfigMap")["data"]
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
    ports = data_ports(release)
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


def test_tls_of_rest_reaches_probes_and_monitor() -> None:
    (found,) = render_all(
        [
            {
                "models": [MODEL],
                "flags": {"rest_ssl_config_file": "/etc/tls/config"},
                "serviceMonitor": {"enabled": True, "tlsConfig": {"insecureSkipVerify": True}},
            }
        ]
    )
    release = found.servers
    assert {probe["scheme"] for _, probe in http_probes(release.container)} == {"HTTPS"}
    (endpoint,) = release.only("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}


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
    # A member of a fleet serves on first. Beyond the drain a stop waits up to 10 s for a load that hangs.
    notice_seconds = REPORT_SECONDS_MAX + READERS_SECONDS if flags["fleet_member"] else 0
    least = seconds_before + notice_seconds + flags["drain_seconds"] + 10
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
    ports = data_ports(release)
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
    values = [item for item in map(yaml.safe_load, texts) if {"models", "fleet"} & {*item}]
    assert len(values) == 3
    assert [release.error for release in render_all(values)] == ["", "", ""]


# --- The fleet ----------------------------------------------------------------------------------


def fleet_config(fleet: Release) -> FleetConfig:
    return parse_fleet_config(fleet.coordinator.only("ConfigMap")["data"]["fleet.toml"])


def settings_of(fleet: Release) -> KubernetesSettings:
    settings = fleet_config(fleet).kubernetes
    assert settings is not None
    return settings


def rules_of(fleet: Release) -> list[Mapping[str, Any]]:
    rules: list[Mapping[str, Any]] = fleet.coordinator.only("Role")["rules"]
    return rules


def pod_of(fleet: Release) -> Object:
    """Returns a pod of a server, as the cluster would run it."""
    template = fleet.servers.workload["spec"]["template"]
    status = {"podIP": "10.0.0.1", "phase": "Running"}
    return {**template, "metadata": {**template["metadata"], "name": "web-0"}, "status": status}


def test_release_without_fleet_has_no_coordinator() -> None:
    assert releases()["defaults"].coordinator.objects == []
    assert "Role" not in [item["kind"] for item in releases()["everything"].objects]


def test_coordinator_is_a_command_of_the_program(fleet: Release) -> None:
    command = fleet.coordinator.container["command"]
    assert command[:2] == ["millpond", "fleet"]
    parsed = fleet_command_parser().parse_args(command[2:])
    mounts = {m["name"]: m["mountPath"] for m in fleet.coordinator.container["volumeMounts"]}
    assert str(parsed.config) == f"{mounts['config']}/fleet.toml"


def test_coordinator_finds_the_pods_of_the_servers(fleet: Release) -> None:
    settings = settings_of(fleet)
    assert selects(settings.selector, pod_of(fleet))
    assert not selects(settings.selector, fleet.coordinator.workload["spec"]["template"])
    (server,) = membership_of([pod_of(fleet)], settings).servers
    flags = parse_flags(fleet.servers.container["args"])
    assert flags["fleet_member"]
    assert flags["admin_address"].rpartition(":")[2] == server.admin.rpartition(":")[2]
    assert (server.grpc, server.http) == ("10.0.0.1:8500", "10.0.0.1:8501")


def test_services_do_not_select_the_coordinator(fleet: Release) -> None:
    labels = fleet.coordinator.workload["spec"]["template"]["metadata"]["labels"]
    for service in fleet.servers.of_kind("Service"):
        assert not is_selected(labels, service["spec"]["selector"])
    selectors = [
        fleet.coordinator.workload["spec"]["selector"]["matchLabels"],
        fleet.coordinator.only("Service")["spec"]["selector"],
        fleet.coordinator.only("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(is_selected(labels, selector) for selector in selectors)


def test_values_of_the_fleet_reach_the_coordinator() -> None:
    config = fleet_config(releases()["fleet with all values"])
    assert config.coordinator.poll_seconds == 2.5
    assert config.kubernetes is not None
    assert config.kubernetes.lease_seconds == 20
    assert config.waves.sizes == (WaveSize(1), WaveSize(3), WaveSize(share=0.125))
    assert (config.waves.load_count_max, config.waves.setback_share_max) == (5, 0.2)
    assert config.waves.judgement.request_count == 5_000_000
    assert config.tls.server_name == "millpond.prod"
    assert fleet_config(releases()["fleet"]).waves == WaveSettings()


def test_schema_has_the_keys_of_waves() -> None:
    page = (REPOSITORY / "docs" / "fleet.md").read_text()
    table = page.partition("| key of `[waves]`")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    keys = {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}
    assert keys == set(SCHEMA["properties"]["fleet"]["properties"]["waves"]["properties"])
    assert keys == set(CASES["fleet with all values"]["fleet"]["waves"])


def test_coordinator_listens_where_its_service_leads(fleet: Release) -> None:
    port, *_ = fleet.coordinator.container["ports"]
    assert host_and_port(fleet_config(fleet).coordinator.listen) == ("0.0.0.0", 8700)
    assert (port["name"], port["containerPort"]) == ("http", 8700)
    exposed, *_ = fleet.coordinator.only("Service")["spec"]["ports"]
    assert (exposed["targetPort"], exposed["port"]) == ("http", 8700)
    probes = dict(http_probes(fleet.coordinator.container))
    assert {probe["path"] for probe in probes.values()} == {HEALTH_PATH}


def test_coordinator_keeps_restricted_pod_security(fleet: Release) -> None:
    pod, container = fleet.coordinator.pod, fleet.coordinator.container
    assert pod["securityContext"] == fleet.servers.pod["securityContext"]
    assert container["securityContext"] == fleet.servers.container["securityContext"]
    mounts = sorted(mount["name"] for mount in container["volumeMounts"])
    assert mounts == sorted(volume["name"] for volume in pod["volumes"])
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    tls = fleet_config(fleet).tls
    for file in filter(None, (tls.ca, tls.cert, tls.key)):
        assert file.rpartition("/")[0] in paths


def test_rights_suffice_and_none_is_idle(fleet: Release) -> None:
    """A coordinator that takes over, writes, follows the pods and reports needs each right."""
    settings, rules = settings_of(fleet), rules_of(fleet)
    cluster = FakeCluster(allowed=rules)
    clock = FakeClock()
    for _ in range(2):
        engine = made_engine(cluster, settings, clock, "10.0.0.9", "")
        holder = engine.leadership._holder  # type: ignore[attr-defined]
        holder.turn()
        holder.turn()
        term = engine.leadership.term()
        assert term is not None
        term.store.read()
        term.store.write(FleetState().as_json())
        engine.notice([], [Grant("web-0", "ctr", 1, 1)])
        events = engine._events
        assert events.post_next()
        engine.place.turn()  # type: ignore[attr-defined]
        assert engine.place.membership() is not None
        holder.release()
    assert len(cluster.events) == 2
    for rule in rules:
        for verb in rule["verbs"]:
            assert any(permits({**rule, "verbs": [verb]}, deed) for deed in cluster.deeds), rule


def test_rights_are_bound_to_the_coordinator_alone(fleet: Release) -> None:
    part = fleet.coordinator
    account = part.only("ServiceAccount")["metadata"]["name"]
    assert part.pod["serviceAccountName"] == account
    assert fleet.servers.pod["serviceAccountName"] != account
    binding = part.only("RoleBinding")
    assert binding["roleRef"]["name"] == part.only("Role")["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    # Whoever may write a pod may run any image in it.
    assert not any("pods" in rule["resources"] and {"patch", "update"} & set(rule["verbs"])
                   for rule in rules_of(fleet))  # fmt: skip


def test_state_is_not_an_object_of_the_chart(fleet: Release) -> None:
    names = {item["metadata"]["name"] for item in fleet.objects if item["kind"] == "ConfigMap"}
    assert settings_of(fleet).name not in names
    assert all(len(item["metadata"]["name"]) <= 63 for item in fleet.objects)


def test_only_the_coordinator_reaches_admin_listeners(fleet: Release) -> None:
    rules = [
        rule
        for policy in fleet.servers.of_kind("NetworkPolicy")
        for rule in policy["spec"]["ingress"]
    ]
    with_admin = [rule for rule in rules if "admin" in str(rule["ports"])]
    (peer,) = with_admin[0]["from"]
    assert len(with_admin) == 1
    labels = fleet.coordinator.workload["spec"]["template"]["metadata"]["labels"]
    assert is_selected(labels, peer["podSelector"]["matchLabels"])
    open_ports = [port["port"] for rule in rules if "from" not in rule for port in rule["ports"]]
    # Without a policy of the clients' own, the one for admin must not lock them out.
    is_closed = len(fleet.servers.of_kind("NetworkPolicy")) > 1
    assert open_ports == ([] if is_closed else ["grpc", "http"])


def test_operators_have_a_port_only_if_they_are_named() -> None:
    without_any, named = releases()["fleet"], releases()["fleet with all values"]
    assert fleet_config(without_any).coordinator.operators == ""
    _, port = host_and_port(fleet_config(named).coordinator.operators)
    (_, of_pod) = named.coordinator.container["ports"]
    (_, of_service) = named.coordinator.only("Service")["spec"]["ports"]
    assert (of_pod["name"], of_pod["containerPort"]) == ("operators", port)
    assert (of_service["targetPort"], of_service["port"]) == ("operators", port)
    by_port = {
        rule["port"]: policy["from"]
        for policy in named.coordinator.only("NetworkPolicy")["spec"]["ingress"]
        for rule in policy["ports"]
        if rule["port"] == "operators"
    }
    assert by_port["operators"][1:] == [PEER]


def test_only_operators_reach_the_coordinator() -> None:
    peers = {
        case: releases()[case].coordinator.only("NetworkPolicy")["spec"]["ingress"][0]["from"]
        for case in ("fleet", "fleet with all values")
    }
    assert len(peers["fleet"]) == 1
    assert peers["fleet with all values"][1:] == [PEER]


def test_monitoring_reaches_the_coordinator() -> None:
    part = releases()["fleet with all values"].coordinator
    rule = part.only("NetworkPolicy")["spec"]["ingress"][1]
    assert (rule["from"], rule["ports"]) == ([MONITORING], [{"port": "http", "protocol": "TCP"}])
    assert len(releases()["fleet"].coordinator.only("NetworkPolicy")["spec"]["ingress"]) == 1


def test_coordinator_is_scraped_at_its_metrics() -> None:
    part = releases()["fleet with all values"].coordinator
    monitor, service = part.only("ServiceMonitor"), part.only("Service")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["path"], endpoint["interval"]) == (FLEET_METRICS_PATH, "5s")
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert is_selected(labels_of(service), monitor["spec"]["selector"]["matchLabels"])
    assert labels_of(monitor)["release"] == "prometheus"
    # The job of the alerts.
    assert labels_of(service)[monitor["spec"]["jobLabel"]] == "millpond-fleet"
    assert "millpond-fleet" in (REPOSITORY / "deploy/prometheus/fleet_rules.yml").read_text()
    assert not releases()["fleet"].coordinator.of_kind("ServiceMonitor")


def test_written_objects_fit_schemas_of_kubernetes() -> None:
    cluster = FakeCluster()
    clock = FakeClock()
    engine = made_engine(cluster, settings_of(releases()["fleet"]), clock, "10.0.0.9", "")
    holder = engine.leadership._holder  # type: ignore[attr-defined]
    holder.turn()
    holder.turn()
    term = engine.leadership.term()
    assert term is not None
    term.store.read()
    for order in (1, 2):
        term.store.write(FleetState(order=order).as_json())
    engine.notice(
        [Change(event="fleet_wave_began", model="m", values={"version": 2, "wave": 1})],
        [Grant("web-0", "ctr", 1, 1)],
    )
    events = engine._events
    assert events.post_next()
    assert events.post_next()
    holder.release()
    # The checker wants a name in its messages; Kubernetes makes that of an Event.
    objects = [
        {**item, "metadata": {"name": "made", **item["metadata"]}} for item in cluster.written
    ]
    assert {item["kind"] for item in objects} == {"Lease", "ConfigMap", "Event"}
    questions = [{"version": version, "objects": objects} for version in VERSIONS]
    assert asked("validate", questions) == [[]] * len(VERSIONS)


# --- The values ---------------------------------------------------------------------------------


def test_schema_has_each_value_and_no_other() -> None:
    def properties(schema: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[Any]:
        for name, child in schema.get("properties", {}).items():
            yield (*prefix, name)
            if child is not False:
                yield from properties(child, (*prefix, name))

    # Helm adds "global"; a probe may have what is not given here.
    optional = {("global",), ("resources", "claims"), ("fleet", "resources", "claims")}
    tables = ("probes", "flags", "affinity", "podLabels")
    known = {p for p in properties(SCHEMA) if p[0] not in tables or len(p) == 1} - optional
    known.remove(("probes",))
    known = {p for p in known if p[:2] != ("fleet", "waves") or len(p) == 2}
    given = {path[:n] for path in paths_of(VALUES) for n in range(1, len(path) + 1)}
    given = {p for p in given if p[0] != "probes" and not {"requests", "limits"} & {*p}}
    assert known - given == UNLISTED
    assert given <= known


def test_value_that_is_taken_away_is_named() -> None:
    """Helm takes a key away that is null. A template would fail without a path, or render nonsense."""
    paths = [path for path in parts_of(VALUES) if path not in UNLISTED]
    cases = [valued(path, None) for path in paths]
    for path, release in zip(paths, render_all(cases)):
        *parents, name = path
        where = "".join(f"/{parent}" for parent in parents)
        assert f"at '{where}'" in release.error, (path, release.error)
        assert f"'{name}'" in release.error, (path, release.error)


def test_odd_value_is_refused_or_fits_kubernetes() -> None:
    """A value of the wrong form is refused with its path, and a value that is taken renders objects that
    fit.
    """
    full = merged(CASES["everything"], {"fleet": {"enabled": True}})
    # One value for each type of a default: a text that YAML reads as something else, a number that it writes as 1e+12,
    # and a table and a list whose parts are wrong.
    odd_values: Mapping[type, Any] = {str: "true", int: 10**12, dict: {"a b": "c"}, list: [{}]}
    kinds = {path: type(value_at(path)) for path in parts_of(VALUES)}
    cases = [(path, odd_values[kind]) for path, kind in kinds.items() if kind in odd_values]
    rendered = render_all([merged(full, valued(path, odd)) for path, odd in cases])
    # Most objects are the same in each case.
    objects: dict[str, Object] = {}
    for (path, odd), release in zip(cases, rendered):
        if release.error:
            has_path = "at '" in release.error or f"{path[0]}: " in release.error
            assert has_path, (path, odd, release.error)
            continue
        assert list(release.lint) == [], (path, odd)
        found = (item for item in release.objects if item["kind"] not in FOREIGN_KINDS)
        objects |= {json.dumps(item, sort_keys=True): item for item in found}
    question = {"version": VERSIONS[-1], "objects": [*objects.values()]}
    assert asked("validate", [question]) == [[]]


def test_templates_read_each_value() -> None:
    files = [*(CHART / "templates").glob("**/*.tpl"), *(CHART / "templates").glob("**/*.yaml")]
    read = set(re.findall(r"Values\.([\w.]+)", "\n".join(path.read_text() for path in files)))
    unread = [
        ".".join(path)
        for path in paths_of(VALUES)
        if not any(".".join(path[:n]) in read for n in range(1, len(path) + 1))
    ]
    assert unread == []
