"""The table `[ray]` of a fleet's file: the models that a Ray cluster serves. Values only; imports no Ray."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.replicas.placement import ModelNeed
from fleet.replicas.replicas import WantedModel
from serving.base.errors import InvalidConfig
from serving.config.flags import parse_flags

OWN_FLAGS = frozenset(
    {
        *("model_name", "model_base_path", "host", "port", "admin_address", "fleet_member"),
        *("state_directory", "log_format", "listen_before_ready"),
    }
)
"""The flags that the fleet itself gives to each server. The file must not give them."""

Flags = Mapping[str, Any]

# The names of models and fleets, which become parts of the names of servers and of Ray's actors.
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class RayModel:
    """A model and the number of its replicas. `memory_bytes` is the memory of one version."""

    name: str
    base_path: str
    memory_bytes: int
    replicas: int = 1
    requests_per_second: float = 0.0
    # Flags of `millpond serve` for this model's servers. They override `RaySettings.flags`.
    flags: Flags = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name(f"ray.models.{self.name}", self.name)
        for key in ("memory_bytes", "replicas"):
            if getattr(self, key) < 1:
                raise InvalidConfig(f"ray.models.{self.name}: {key} is below 1")
        _check_number(f"ray.models.{self.name}", "requests_per_second", self.requests_per_second)
        _check_flags(f"ray.models.{self.name}", self.flags)


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """The table `[ray]`: the cluster, and the servers that the fleet runs on it."""

    models: tuple[RayModel, ...]
    # The address of the cluster: "auto", HOST:PORT or ray://HOST:PORT.
    address: str = "auto"
    # The name of the fleet in the cluster. Two fleets of one cluster need two names.
    name: str = "millpond"
    # The memory of a server process without its model.
    process_bytes: int = 700_000_000
    # The CPUs that Ray reserves for each server. With 0, only memory and requests decide on its node.
    cpus: float = 0.0
    # A server is stopped this long after the registry begins to show that it drains.
    leave_seconds: float = 5.0
    # A directory on each node in which servers keep their grants. Without it (""), a server that starts again
    # serves nothing until it gets a grant.
    state_directory: str = ""
    # A directory on each node for the servers' logs; "" is the temporary directory.
    log_directory: str = ""
    # Flags of `millpond serve` for all servers.
    flags: Flags = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_flags("ray", self.flags)
        _check_name("ray", self.name)
        _check_number("ray", "process_bytes", self.process_bytes)
        _check_number("ray", "cpus", self.cpus)

    def check_pace(self, poll_seconds: float) -> None:
        """Raises InvalidConfig if a server could stop before the registry's readers know that it drains.

        Two polls pass before they know it: one until the coordinator has decided, and one until the front
        has read the registry.
        """
        if not self.leave_seconds > 2 * poll_seconds:
            raise InvalidConfig(
                f"ray: leave_seconds {self.leave_seconds:g} is not above twice poll_seconds "
                f"({poll_seconds:g}): servers would stop before clients leave them; "
                f"give more than {2 * poll_seconds:g}"
            )

    def flags_of(self, model: RayModel) -> dict[str, Any]:
        """The flags that the file gives to the servers of a model."""
        return {**self.flags, **model.flags}

    def wanted(self) -> tuple[WantedModel, ...]:
        """The models, as values for `decide_replicas`."""
        return tuple(self._wanted(model) for model in self.models)

    def _wanted(self, model: RayModel) -> WantedModel:
        need = ModelNeed(
            name=model.name,
            version_bytes=model.memory_bytes,
            requests_per_second=model.requests_per_second,
            replica_count=model.replicas,
            process_bytes=self.process_bytes,
        )
        flags = self.flags_of(model)
        directories = [self.state_directory, self.log_directory]
        spec = json.dumps([model.base_path, *directories, sorted(flags.items())], default=str)
        drain_seconds = parse_flags([*_arguments(flags)])["drain_seconds"]
        return WantedModel(need=need, spec=spec, drain_seconds=drain_seconds)


def _check_name(table: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"{table}: name {name!r} has other characters than A-Z, 0-9 and ._-")


def _check_number(table: str, key: str, value: float) -> None:
    if not value >= 0:
        raise InvalidConfig(f"{table}: {key} {value} is negative; give 0 or more")


def _check_flags(table: str, flags: Flags) -> None:
    """Raises InvalidConfig for flags that no server would accept, or that the fleet itself gives."""
    for name in flags:
        if name in OWN_FLAGS:
            raise InvalidConfig(f"{table}: the fleet itself gives --{name} to its servers")
    try:
        parse_flags([*_arguments(flags)])
    except InvalidConfig as error:
        raise InvalidConfig(f"{table}: {error}") from None


def _arguments(flags: Flags) -> Iterator[str]:
    """Yields each flag as an argument of a command line. A list yields its flag once for each item."""
    for name, value in flags.items():
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str | int | float):
                raise InvalidConfig(f"--{name}: {item!r} is no value of a flag")
            # Flags take `true` and `false` in lower case.
            yield f"--{name}={str(item).lower() if isinstance(item, bool) else item}"
