"""Foundation: the three objects that every part of a server needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.base.clock import Clock
from serving.config.server_config import ServerConfig
from serving.data_plane.plane import DataPlane
from serving.data_plane.status_errors import statuses_as_errors


@dataclass(frozen=True)
class Foundation:
    """The configuration, the data plane and the clock. It is the first argument of each part."""

    config: ServerConfig
    data_plane: DataPlane
    clock: Clock

    def check_saved_model(self, directory: str) -> Sequence[str]:
        """Checks the files of a version, and returns its missing assets. Raises if any other file is missing."""
        with statuses_as_errors(self.data_plane.StatusError):
            return self.data_plane.check_saved_model(directory)
