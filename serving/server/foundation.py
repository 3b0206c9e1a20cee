"""The foundation that every part of a server stands on."""

from dataclasses import dataclass

from serving.base.clock import Clock
from serving.config.server_config import ServerConfig
from serving.data_plane.plane import DataPlane


@dataclass(frozen=True)
class Foundation:
    """The three values that factories of parts take before any other."""

    config: ServerConfig
    data_plane: DataPlane
    clock: Clock
