"""Foundation: the values that every part of a server needs."""

from dataclasses import dataclass

from serving.base.clock import Clock
from serving.config.server_config import ServerConfig
from serving.data_plane.plane import DataPlane


@dataclass(frozen=True)
class Foundation:
    """The configuration, the data plane and the clock: the first argument of each part's
    factory.
    """

    config: ServerConfig
    data_plane: DataPlane
    clock: Clock
