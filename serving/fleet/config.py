"""The configuration of a fleet: a TOML file that `millpond fleet start` reads.

[coordinator]
state_directory = "/var/lib/millpond-fleet"
listen = "127.0.0.1:8700"

[servers.a]
admin = "10.0.0.1:8599"
grpc = "10.0.0.1:8500"

[waves]
sizes = ["1", "10%"]

Instead of `state_directory` and servers, a table `[kubernetes]` finds the servers' pods by their labels.
"""

import dataclasses
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from serving.base.errors import InvalidConfig
from serving.base.name_text import listed
from serving.core.model_settings import CanarySettings
from serving.fleet.haproxy import HaproxySettings
from serving.fleet.kubernetes.settings import KubernetesSettings
from serving.fleet.ray_settings import RayModel, RaySettings
from serving.fleet.wave_settings import Wave, WaveSettings

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

DEFAULT_LISTEN = "127.0.0.1:8700"
"""The address of the coordinator's HTTP, at which the commands look for it."""

STATUS_PATH = "/fleet/status"
OPERATION_PATH = "/fleet/operations"
REPLICAS_PATH = "/fleet/replicas"

# A dataclass of this module.
Made = TypeVar("Made", bound=Any)

_JUDGEMENT_KEYS = ("request_count", "p999_ratio_max", "error_ratio_max")


@dataclass(frozen=True, kw_only=True)
class FleetServer:
    """A server of the fleet: its admin listener, and the addresses that clients reach."""

    name: str
    admin: str
    grpc: str = ""
    http: str = ""


@dataclass(frozen=True, kw_only=True)
class AdminTls:
    """The files for admin listeners with TLS; "": none."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    # The name in the servers' certificates if it is not the host of `admin`; a pod's host is a number.
    server_name: str = ""


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """The coordinator's own files, address and pace."""

    # The state, and a lock; "": an engine like Kubernetes or Ray has both.
    state_directory: str = ""
    listen: str = DEFAULT_LISTEN
    poll_seconds: float = 1.0
    # The most calls to servers at the same time.
    poll_threads: int = 16
    # The registry's document is written there as well; "": only HTTP has it.
    registry_file: str = ""


@dataclass(frozen=True, kw_only=True)
class HaproxyFiles:
    """The files of a HAProxy that the fleet configures: its configuration, and its master's pid."""

    file: str
    pid_file: str = ""
    settings: HaproxySettings = field(default_factory=HaproxySettings)


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """All of the file. With `kubernetes` it has no servers, and no directory for the state."""

    coordinator: CoordinatorSettings
    servers: tuple[FleetServer, ...]
    waves: WaveSettings = field(default_factory=WaveSettings)
    tls: AdminTls = field(default_factory=AdminTls)
    haproxy: HaproxyFiles | None = None
    kubernetes: KubernetesSettings | None = None
    # If it is there, the fleet starts its servers itself, and `servers` is empty.
    ray: RaySettings | None = None

    def __post_init__(self) -> None:
        if self.ray is not None:
            self.ray.check_pace(self.coordinator.poll_seconds)
        has_directory = bool(self.coordinator.state_directory)
        engines = {"kubernetes": self.kubernetes, "ray": self.ray}
        names = [f"[{name}]" for name, settings in engines.items() if settings is not None]
        if len(names) > 1:
            raise InvalidConfig(
                f"a fleet has one engine, not {' and '.join(names)}: remove one of them"
            )
        if names:
            if self.servers or has_directory:
                table = "[servers]" if self.servers else "state_directory"
                raise InvalidConfig(f"{table} has no use beside {names[0]}: remove one of them")
            return
        if not has_directory:
            raise InvalidConfig("coordinator: state_directory is missing")
        if not self.servers:
            raise InvalidConfig(
                "no server is configured: add a table [servers.NAME] with its admin address, "
                "[kubernetes] or [ray]"
            )


def read_fleet_config(path: Path) -> FleetConfig:
    """Reads the file. Raises OSError, and InvalidConfig with the file's name."""
    try:
        return parse_fleet_config(path.read_text(encoding="utf-8"))
    except (InvalidConfig, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: {error}") from error


def parse_fleet_config(text: str) -> FleetConfig:
    """Parses a configuration. Raises InvalidConfig with the table and the key."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"not TOML: {error}") from error
    _check_keys("the file", document, [item.name for item in dataclasses.fields(FleetConfig)])
    servers = _table(document, "servers")
    coordinator = _table(document, "coordinator")
    return FleetConfig(
        coordinator=_made(CoordinatorSettings, "coordinator", coordinator),
        servers=tuple(
            _made(FleetServer, f"servers.{name}", {**_table(servers, name), "name": name})
            for name in sorted(servers)
        ),
        waves=_waves(_table(document, "waves")),
        tls=_made(AdminTls, "tls", _table(document, "tls")),
        haproxy=_haproxy(_table(document, "haproxy")) if "haproxy" in document else None,
        kubernetes=_made(KubernetesSettings, "kubernetes", _table(document, "kubernetes"))
        if "kubernetes" in document
        else None,
        ray=_ray(_table(document, "ray")) if "ray" in document else None,
    )


def _waves(table: Mapping[str, Any]) -> WaveSettings:
    values = dict(table)
    judgement = {key: values.pop(key) for key in _JUDGEMENT_KEYS if key in values}
    default = WaveSettings().judgement
    _check_types(CanarySettings, "waves", judgement)
    if "sizes" in values:
        values["waves"] = tuple(_wave(size) for size in values.pop("sizes"))
    values["judgement"] = dataclasses.replace(default, **judgement)
    return _made(WaveSettings, "waves", values)


def _wave(size: object) -> Wave:
    """Returns the wave of a size like 3, "3" or "10%"."""
    text = str(size)
    number = text.removesuffix("%")
    if not number.replace(".", "", 1).isdecimal() or (number == text and "." in text):
        raise InvalidConfig(
            f'waves: size {text!r} is not a number of servers like "3", or a share like "10%"'
        )
    return Wave(int(number)) if number == text else Wave(share=float(number) / 100)


def _haproxy(table: Mapping[str, Any]) -> HaproxyFiles:
    files = {key: table[key] for key in ("file", "pid_file") if key in table}
    settings = {key: value for key, value in table.items() if key not in files}
    return _made(
        HaproxyFiles,
        "haproxy",
        {**files, "settings": _made(HaproxySettings, "haproxy", settings)},
    )


def _ray(table: Mapping[str, Any]) -> RaySettings:
    models = _table(table, "models")
    if not models:
        raise InvalidConfig(
            "ray: no model is configured: add a table [ray.models.NAME] with its base_path"
        )
    made = tuple(
        _made(RayModel, f"ray.models.{name}", {**_table(models, name), "name": name})
        for name in sorted(models)
    )
    return _made(RaySettings, "ray", {**table, "models": made})


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise InvalidConfig(f"{name} is not a table")
    return table


def _made(kind: type[Made], name: str, values: Mapping[str, Any]) -> Made:
    """Returns a value of a dataclass from a table. Raises InvalidConfig for a wrong key or type."""
    _check_types(kind, name, values)
    missing = [
        item.name
        for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING
        and item.default_factory is dataclasses.MISSING
        and item.name not in values
    ]
    if missing:
        raise InvalidConfig(f"{name}: {missing[0]} is missing")
    made: Made = kind(**values)
    return made


def _check_types(kind: type[Any], name: str, values: Mapping[str, Any]) -> None:
    fields = {item.name: item.type for item in dataclasses.fields(kind)}
    _check_keys(name, values, tuple(fields))
    for key, value in values.items():
        allowed = {"str": (str,), "int": (int,), "float": (int, float)}.get(str(_name(fields[key])))
        if allowed is not None and (not isinstance(value, allowed) or isinstance(value, bool)):
            raise InvalidConfig(
                f"{name}: {key} is {value!r}; give a value of type {_name(fields[key])}"
            )


def _name(kind: object) -> object:
    return kind.__name__ if isinstance(kind, type) else kind


def _check_keys(name: str, table: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = sorted(table.keys() - {*known})
    if unknown:
        raise InvalidConfig(f"{name}: unknown key {unknown[0]!r}; known: {listed(sorted(known))}")
