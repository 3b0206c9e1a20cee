"""CertificateWatcher: gives a TLS server the new certificates when its file has changed."""

from pathlib import Path

import structlog

from serving.base.bounded_files import SETTINGS_BYTES_MAX, read_bounded_text
from serving.base.clock import Clock, pause
from serving.base.errors import InvalidConfig
from serving.base.periodic_thread import PeriodicThread
from serving.config.tls_config import TlsConfig, parse_tls_config, read_tls_config
from serving.data_plane.requests import ServerCertificates
from serving.reload.config_watch import SETTLE_SECONDS, ConfigRefusal

_log = structlog.get_logger(__name__)


class CertificateWatcher:
    """Reads an SSLConfig periodically on a thread `certificates`.

    New certificates are used for later handshakes; open connections are not affected. If the file is
    invalid, the server keeps its certificates. The error is logged once, and `refusal` has it until the
    file is valid.
    """

    def __init__(
        self,
        file: str,
        shown: TlsConfig,
        certificates: ServerCertificates,
        *,
        period_seconds: float,
        clock: Clock,
    ) -> None:
        """Takes the config `shown`, from which `certificates` were made."""
        self._file = file
        self._shown = shown
        self._certificates = certificates
        self._clock = clock
        self._seen: str | None = None
        self._refusal: ConfigRefusal | None = None
        self._thread = PeriodicThread(
            "certificates",
            self.poll,
            wait_seconds=period_seconds,
            failure_event="certificate_poll_failed",
            clock=clock,
        )

    @property
    def refusal(self) -> ConfigRefusal | None:
        """The reason why the server keeps its earlier certificates, or None. Any thread."""
        return self._refusal

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread. Returns at once."""
        self._thread.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits, after `stop`, for the thread; returns False if the disk holds it at the timeout."""
        return self._thread.join(timeout_seconds)

    def poll(self) -> None:
        """Reads the file once. On one thread at a time."""
        text = self._read()
        if text == self._seen:
            return
        # The file may still be written, so it is used only if it stays the same for a moment.
        pause(self._clock, SETTLE_SECONDS)
        if self._read() != text:
            return
        self._seen = text
        try:
            config = self._parse(text)
        except InvalidConfig as error:
            self._refuse(error.message)
        else:
            self._show(config)

    def _read(self) -> str:
        """Reads the file's text; "" if it cannot be read, which `_parse` then reports."""
        try:
            return read_bounded_text(Path(self._file), SETTINGS_BYTES_MAX)
        except (OSError, UnicodeDecodeError, InvalidConfig):
            return ""

    def _parse(self, text: str) -> TlsConfig:
        # If the text is empty, reading the file again raises the reason if it cannot be read.
        path = Path(self._file)
        config = parse_tls_config(text, self._file) if text else read_tls_config(path)
        if config.is_client_required != self._shown.is_client_required:
            raise InvalidConfig(
                f"{self._file}: client_verify is read only when the server starts; restart it to change "
                "the value"
            )
        return config

    def _refuse(self, reason: str) -> None:
        self._refusal = ConfigRefusal.after(self._refusal, self._file, reason, self._clock)
        _log.error(
            "certificates_refused",
            file=self._file,
            reason=reason,
            consequence="the server keeps its earlier certificates",
        )

    def _show(self, config: TlsConfig) -> None:
        self._refusal = None
        if config == self._shown:
            return
        self._certificates.replace(key=config.key, chain=config.chain, client_ca=config.client_ca)
        self._shown = config
        _log.info("certificates_replaced", file=self._file, sha256=config.fingerprint)
