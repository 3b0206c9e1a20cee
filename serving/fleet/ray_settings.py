"""The table [ray] of a fleet's configuration: the models that a Ray cluster serves. Values only, without Ray."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.base.errors import InvalidConfig
from serving.fleet.placement import ModelNeed
from serving.fleet.replicas import WantedModel

OWN_FLAGS = frozenset(
    {
        *("model_name", "model_base_path", "host", "port", "admin_address", "fleet_member"),
        *("state_directory", "stop_at_stdin_eof", "log_format", "listen_before_ready"),
    }
)
"""Flags that the fleet itself gives to each server."""

Flags = Mapping[str, Any]

# Names of servers and of Ray's actors are made of these names.
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class RayModel:
    """A model with its replicas. `memory_bytes` is the memory of one version."""

    name: str
    base_path: str
    memory_bytes: int
    replicas: int = 1
    requests_per_second: float = 0.0
    # Flags of `millpond serve` for its servers, over those of all servers.
    flags: Flags = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name(f"ray.models.{self.name}", self.name)
        for key in ("memory_bytes", "replicas"):
            if getattr(self, key) < 1:
                raise InvalidConfig(f"ray.models.{self.name}: {key} is below 1")
        _check_flags(f"ray.models.{self.name}", self.flags)


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """The cluster, and the servers on it."""

    models: tuple[RayModel, ...]
    # "auto", the HOST:PORT of the cluster, or ray://HOST:PORT.
    address: str = "auto"
    # The name of the fleet in the cluster: another name is another fleet.
    name: str = "millpond"
    # The memory of a server process beside its model.
    process_bytes: int = 700_000_000
    # The CPUs of Ray that each server takes. 0: its node is chosen by memory and requests alone.
    cpus: float = 0.0
    # From the moment on at which the registry shows that a server drains until it is stopped.
    leave_seconds: float = 5.0
    # A directory on each node for the grants of its servers; "": a server that starts waits for one.
    state_directory: str = ""
    # A directory on each node for the servers' logs; "": a file below the temporary directory.
    log_directory: str = ""
    # Flags of `millpond serve` for all servers.
    flags: Flags = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_flags("ray", self.flags)
        _check_name("ray", self.name)

    def flags_of(self, model: RayModel) -> dict[str, Any]:
        """Returns the flags of a model's servers that the file gives."""
        return {**self.flags, **model.flags}

    def wanted(self) -> tuple[WantedModel, ...]:
        """Returns the models as the decisions take them."""
        return tuple(self._wanted(model) for model in self.models)

    def _wanted(self, model: RayModel) -> WantedModel:
        need = ModelNeed(
            name=model.name,
            version_bytes=model.memory_bytes,
            requests_per_second=model.requests_per_second,
            replica_count=model.replicas,
            process_bytes=self.process_bytes,
        )
        spec = json.dumps([model.base_path, sorted(self.flags_of(model).items())], default=str)
        return WantedModel(need=need, spec=spec)


def _check_name(table: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"{table}: name {name!r} has other characters than A-Z, 0-9 and ._-")


def _check_flags(table: str, flags: Flags) -> None:
    for name in flags:
        if name in OWN_FLAGS:
            raise InvalidConfig(f"{table}: the fleet itself gives --{name} to its servers")
