"""PortCertificates: the certificates of one port with TLS, kept as new as their file."""

from pathlib import Path

import structlog

from serving.base.clock import Clock
from serving.config.tls_config import read_tls_config
from serving.data_plane.plane import DataPlane
from serving.data_plane.requests import ServerCertificates
from serving.reload.certificate_watch import CertificateWatcher
from serving.reload.config_watch import ConfigRefusal

POLL_SECONDS = 1.0
"""The time between two reads of a file of certificates: some kB, once a second."""

_log = structlog.get_logger(__name__)


class PortCertificates:
    """The certificates of one port, and the thread that replaces them when their file has changed.

    A port without a file has none, and needs no thread.
    """

    def __init__(self, file: str, plane: DataPlane, clock: Clock) -> None:
        """Reads the SSLConfig in `file`, unless it is "". Raises InvalidConfig if it is invalid."""
        self.value: ServerCertificates | None = None
        self._watcher: CertificateWatcher | None = None
        if not file:
            return
        tls = read_tls_config(Path(file))
        if tls.client_ca and not tls.is_client_required:
            _log.warning(
                "clients_not_verified",
                file=file,
                reason="custom_ca has no effect without client_verify: true",
            )
        self.value = plane.ServerCertificates(
            key=tls.key,
            chain=tls.chain,
            client_ca=tls.client_ca,
            is_client_required=tls.is_client_required,
        )
        self._watcher = CertificateWatcher(
            file, tls, self.value, period_seconds=POLL_SECONDS, clock=clock
        )

    @property
    def refusal(self) -> ConfigRefusal | None:
        """The reason why the file's certificates are not in effect, or None. Any thread."""
        return self._watcher.refusal if self._watcher else None

    def start(self) -> None:
        """Starts to check for new certificates."""
        if self._watcher is not None:
            self._watcher.start()

    def stop(self) -> None:
        """Ends the checks for new certificates. Returns at once."""
        if self._watcher is not None:
            self._watcher.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the thread after `stop`; returns False if it still runs at the timeout."""
        return self._watcher is None or self._watcher.join(timeout_seconds)
