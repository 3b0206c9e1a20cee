"""ConfigRefusals: why changed files of a server are not in effect."""

from serving.reload.config_watch import ConfigRefusal, ConfigWatcher
from serving.rpc.transport import Transport


class ConfigRefusals:
    """The refusals of configuration files and of certificates. Any thread."""

    def __init__(self, watcher: ConfigWatcher | None, transport: Transport) -> None:
        """`watcher` is None if no configuration file is read again."""
        self._watcher = watcher
        self._transport = transport

    @property
    def first(self) -> ConfigRefusal | None:
        """The refusal to show: that of the configuration goes before that of the certificates.

        None if all files are in effect.
        """
        of_config = self._watcher.refusal if self._watcher is not None else None
        return of_config or self._transport.refusal
