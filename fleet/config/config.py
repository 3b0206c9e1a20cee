"""The configuration of a fleet: a TOML file that `millpond fleet start` reads.

[coordinator]
state_directory = "/var/lib/millpond-fleet"
listen = "127.0.0.1:8700"

[servers.a]
admin = "10.0.0.1:8599"
grpc = "10.0.0.1:8500"

[waves]
sizes = ["1", "10%"]

A table `[kubernetes]` replaces `state_directory` and `[servers]`: the servers are pods, found by their labels.
A table `[ray]` replaces them too: the fleet starts its servers itself, on a Ray cluster.
"""

import dataclasses
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from fleet.config.kubernetes_settings import KubernetesSettings
from fleet.config.ray_settings import Flags, RayModel, RaySettings
from fleet.files.haproxy import Backend, HaproxySettings, haproxy_text
from fleet.rollout.wave_settings import WaveSettings, WaveSize
from serving.base.bounded_files import CONFIG_BYTES_MAX, read_bounded_text
from serving.base.errors import InvalidConfig
from serving.base.name_text import listed
from serving.core.model_settings import CanarySettings

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

DEFAULT_LISTEN = "127.0.0.1:8700"
"""The default address of the coordinator's HTTP. The commands look for a coordinator there."""

STATUS_PATH = "/fleet/status"
OPERATION_PATH = "/fleet/operations"
REPLICAS_PATH = "/fleet/replicas"

# Any dataclass that is made from a table.
Made = TypeVar("Made", bound=Any)

NUMBER_MAX = 10**15
"""The largest number that a file may give: a petabyte, or 30 million years. Infinity and NaN are refused."""

THREAD_COUNT_MAX = 1_000
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.01, 3_600.0

_JUDGEMENT_KEYS = ("request_count", "latency_ratio_max", "error_ratio_max")
_WAVE_KEYS = (
    "sizes",
    *_JUDGEMENT_KEYS,
    *(
        item.name
        for item in dataclasses.fields(WaveSettings)
        if item.name not in ("sizes", "judgement")
    ),
)
# By the annotation of a dataclass's field, the Python types of the TOML values that fit it.
_TYPES: Mapping[str, tuple[type[Any], ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "table": (dict,),
}
_SERVER_KEYS = ("admin", "grpc", "http")
_SIZE = re.compile(r"[0-9]{1,9}|[0-9]{1,9}(\.[0-9]{1,9})?%")


@dataclass(frozen=True, kw_only=True)
class FleetServer:
    """A server of the fleet: the address of its admin listener, and its addresses for clients ("": none)."""

    name: str
    admin: str
    grpc: str = ""
    http: str = ""


@dataclass(frozen=True, kw_only=True)
class AdminTls:
    """The files for calls to admin listeners over TLS; "" if a file is not needed."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    # The name in the servers' certificates, if that differs from the host of `admin`. Pods need it, because
    # their hosts are IP addresses.
    server_name: str = ""


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings:
    """The table `[coordinator]`: the coordinator's own files, addresses and pace."""

    # The directory of the state and of its lock; "" if Kubernetes or Ray keeps the state.
    state_directory: str = ""
    listen: str = DEFAULT_LISTEN
    # The address of the operators' door: HOST:PORT, `unix:PATH` or `off`. "" is a UNIX socket in the run
    # directory of the coordinator's user.
    operators: str = ""
    poll_seconds: float = 1.0
    # At most this many prompt servers are asked for a report at the same time, and as many may get a grant.
    poll_threads: int = 16
    # The file to which the registry's document is written; "" if clients read it over HTTP only.
    registry_file: str = ""

    def __post_init__(self) -> None:
        host_and_port(self.listen)
        if self.operators not in ("", "off") and not self.operators.startswith("unix:"):
            host_and_port(self.operators, "operators")
        if not POLL_SECONDS_MIN <= self.poll_seconds <= POLL_SECONDS_MAX:
            raise InvalidConfig(
                f"coordinator: poll_seconds {self.poll_seconds:g} is not a pause between two polls; "
                f"give {POLL_SECONDS_MIN:g} to {POLL_SECONDS_MAX:g}"
            )
        if not 1 <= self.poll_threads <= THREAD_COUNT_MAX:
            raise InvalidConfig(
                f"coordinator: poll_threads {self.poll_threads} is not a number of threads; "
                f"give 1 to {THREAD_COUNT_MAX}"
            )


@dataclass(frozen=True, kw_only=True)
class HaproxyFiles:
    """A HAProxy that the fleet configures: its configuration file, and the file with its master's pid."""

    file: str
    pid_file: str = ""
    settings: HaproxySettings = field(default_factory=HaproxySettings)


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """The whole file. With `kubernetes` or `ray`, `servers` and the state's directory are empty."""

    coordinator: CoordinatorSettings
    servers: tuple[FleetServer, ...]
    waves: WaveSettings = field(default_factory=WaveSettings)
    tls: AdminTls = field(default_factory=AdminTls)
    haproxy: HaproxyFiles | None = None
    kubernetes: KubernetesSettings | None = None
    ray: RaySettings | None = None

    def __post_init__(self) -> None:
        self._check_engine()
        self._check_addresses()
        if self.waves.lost_seconds <= self.coordinator.poll_seconds:
            raise InvalidConfig(
                f"waves: lost_seconds {self.waves.lost_seconds:g} is not above poll_seconds "
                f"{self.coordinator.poll_seconds:g}: every server would be lost between two polls; "
                "give several times as much"
            )
        if self.haproxy is not None:
            _check_haproxy(self.servers, self.haproxy.settings)
        if self.ray is not None:
            self.ray.check_pace(self.coordinator.poll_seconds)

    def _check_addresses(self) -> None:
        """Raises InvalidConfig if two servers have the same address, because both would be the same server."""
        for key in ("admin", "grpc", "http"):
            names: dict[str, str] = {}
            for server in self.servers:
                address = getattr(server, key)
                other = names.setdefault(address, server.name)
                if address and other != server.name:
                    raise InvalidConfig(
                        f"servers.{server.name}: {key} {address!r} is that of {other!r} too; give each "
                        "server its own"
                    )

    def _check_engine(self) -> None:
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


def read_fleet_text(path: Path) -> str:
    """Reads the text of the file. Raises OSError, UnicodeDecodeError, and InvalidConfig for a file that is too long."""
    return read_bounded_text(path, CONFIG_BYTES_MAX)


def read_fleet_config(path: Path) -> FleetConfig:
    """Reads the file. Raises InvalidConfig with the file's name."""
    try:
        return parse_fleet_config(read_fleet_text(path))
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read: {error.strerror}") from error
    except (InvalidConfig, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: {error}") from error


def parse_fleet_config(text: str) -> FleetConfig:
    """Parses a configuration. Raises InvalidConfig with the table and the key."""
    try:
        document = tomllib.loads(text)
    # A number with thousands of digits raises ValueError, and thousands of nested tables RecursionError.
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"not TOML: {error}") from error
    _check_keys("the file", document, [item.name for item in dataclasses.fields(FleetConfig)])
    servers = _table(document, "servers")
    coordinator = _table(document, "coordinator")
    return FleetConfig(
        coordinator=_made(CoordinatorSettings, "coordinator", coordinator),
        servers=tuple(_server(name, _table(servers, name)) for name in sorted(servers)),
        waves=_waves(_table(document, "waves")),
        tls=_made(AdminTls, "tls", _table(document, "tls")),
        haproxy=_haproxy(_table(document, "haproxy")) if "haproxy" in document else None,
        kubernetes=_made(KubernetesSettings, "kubernetes", _table(document, "kubernetes"))
        if "kubernetes" in document
        else None,
        ray=_ray(_table(document, "ray")) if "ray" in document else None,
    )


def _server(name: str, table: Mapping[str, Any]) -> FleetServer:
    where = f"servers.{name}"
    _check_keys(where, table, _SERVER_KEYS)
    server = _made(FleetServer, where, {**table, "name": name})
    if not name:
        raise InvalidConfig("servers: a server has an empty name; give [servers.NAME]")
    if not server.admin.startswith("unix:") and not is_host_and_port(server.admin):
        raise InvalidConfig(
            f"{where}: admin {server.admin!r} is not an address; give HOST:PORT or unix:PATH"
        )
    for key in ("grpc", "http"):
        address = getattr(server, key)
        if address and not is_host_and_port(address):
            raise InvalidConfig(f"{where}: {key} {address!r} is not an address; give HOST:PORT")
    return server


def is_host_and_port(text: str) -> bool:
    """True for HOST:PORT with a port from 1 to 65535."""
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) <= 65_535
    return is_port and bool(host) and not any(char.isspace() for char in host)


def host_and_port(listen: str, key: str = "listen") -> tuple[str, int]:
    """Splits the HOST:PORT of a listener. Port 0 is any free port. Raises InvalidConfig, which names `key`."""
    host, _, port = listen.rpartition(":")
    if not is_host_and_port(listen) and not (host and port == "0"):
        raise InvalidConfig(f"coordinator: {key} {listen!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _check_haproxy(servers: Sequence[FleetServer], settings: HaproxySettings) -> None:
    """Raises InvalidConfig for a name or an address that HAProxy's configuration cannot hold."""
    models = frozenset(settings.binds)
    haproxy_text(
        [
            Backend(name=server.name, address=server.grpc, models=models)
            for server in servers
            if server.grpc
        ],
        settings,
    )


def _waves(table: Mapping[str, Any]) -> WaveSettings:
    _check_keys("waves", table, _WAVE_KEYS)
    values = dict(table)
    judgement = {key: values.pop(key) for key in _JUDGEMENT_KEYS if key in values}
    default = WaveSettings().judgement
    _check_types(CanarySettings, "waves", judgement)
    if "sizes" in values:
        sizes = values.pop("sizes")
        if not isinstance(sizes, list):
            raise InvalidConfig(f'waves: sizes is {sizes!r}; give a list like ["1", "10%"]')
        values["sizes"] = tuple(map(_wave_size, sizes))
        _check_growth(values["sizes"], sizes)
    values["judgement"] = dataclasses.replace(default, **judgement)
    return _made(WaveSettings, "waves", values)


def _check_growth(sizes: Sequence[WaveSize], texts: Sequence[object]) -> None:
    """Raises InvalidConfig if, whatever the fleet's size, a wave has no more servers than the wave before it."""
    for number, (before, after) in enumerate(pairwise(sizes), start=1):
        if after.server_count <= before.server_count and after.share <= before.share:
            raise InvalidConfig(
                f"waves: size {texts[number]!r} is not above the {texts[number - 1]!r} before it, so that wave "
                "would add no server"
            )


def _wave_size(size: object) -> WaveSize:
    """Reads a size like 3, "3" or "10%"."""
    text = str(size)
    number = text.removesuffix("%")
    if not _SIZE.fullmatch(text):
        raise InvalidConfig(
            f'waves: size {text!r} is not a number of servers like "3", or a share like "10%"'
        )
    if number == text:
        return WaveSize(int(number))
    if float(number) >= 100:
        raise InvalidConfig(
            f"waves: size {text!r} is not a part of the fleet; give less than 100%: the last wave, of "
            "all servers, comes by itself"
        )
    return WaveSize(share=float(number) / 100)


def _haproxy(table: Mapping[str, Any]) -> HaproxyFiles:
    files = {key: table[key] for key in ("file", "pid_file") if key in table}
    settings = {key: value for key, value in table.items() if key not in files}
    if "bind" in table and "binds" in table:
        raise InvalidConfig(
            "haproxy: bind is the address of all models, and binds has one for each; remove one of them"
        )
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
    made = tuple(_ray_model(name, _table(models, name)) for name in sorted(models))
    return _made(RaySettings, "ray", {**table, "models": made})


def _ray_model(name: str, table: Mapping[str, Any]) -> RayModel:
    where = f"ray.models.{name}"
    known = [item.name for item in dataclasses.fields(RayModel) if item.name != "name"]
    _check_keys(where, table, known)
    return _made(RayModel, where, {**table, "name": name})


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise InvalidConfig(f"{name} is not a table")
    return table


def _made(kind: type[Made], name: str, values: Mapping[str, Any]) -> Made:
    """Makes a dataclass from a table. Raises InvalidConfig for a wrong key or type."""
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
        kind_name = "table" if fields[key] is Flags else str(_name(fields[key]))
        allowed = _TYPES.get(kind_name)
        if allowed is not None and (not isinstance(value, allowed) or isinstance(value, bool)):
            raise InvalidConfig(f"{name}: {key} is {value!r}; give a value of type {kind_name}")
        if isinstance(value, int | float) and not -NUMBER_MAX <= value <= NUMBER_MAX:
            raise InvalidConfig(f"{name}: {key} is {value!r}; give a number up to {NUMBER_MAX:g}")


def _name(kind: object) -> object:
    return kind.__name__ if isinstance(kind, type) else kind


def _check_keys(name: str, table: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = sorted(table.keys() - {*known})
    if unknown:
        raise InvalidConfig(f"{name}: unknown key {unknown[0]!r}; known: {listed(sorted(known))}")
