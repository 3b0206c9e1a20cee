"""CertificateWatcher: a TLS server shows the new certificates when somebody has edited its file."""

from pathlib import Path

import structlog

from serving.base.clock import Clock, pause
from serving.base.errors import InvalidConfig
from serving.base.periodic_thread import PeriodicThread
from serving.config.tls_config import TlsConfig, parse_tls_config, read_tls_config
from serving.data_plane.requests import ServerCertificates
from serving.reload.config_watch import SETTLE_SECONDS, ConfigRefusal

_log = structlog.get_logger(__name__)


class CertificateWatcher:
    """Reads an SSLConfig every so often on a thread `certificates`.

    What is new there is for handshakes from then on, and no connection notices. A file with
    something wrong changes nothing, the log says what, once, and `refusal` as long as it is so: the
    server goes on with what it has.
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
        """`shown`: what `certificates` were made of."""
        self._file = file
        self._shown = shown
        self._certificates = certificates
        self._clock = clock
        self._seen: str | None = None
        self._refusal: ConfigRefusal | None = None
        self._thread = PeriodicThread(
            "certificates",
            self.poll,
            wait_seconds=lambda: period_seconds,
            failure_event="certificate_poll_failed",
            clock=clock,
        )

    @property
    def refusal(self) -> ConfigRefusal | None:
        """What keeps the server with the certificates before. Any thread."""
        return self._refusal

    def start(self) -> None:
        """Starts looking."""
        self._thread.start()

    def stop(self) -> None:
        """Ends looking. Returns at once."""
        self._thread.stop()

    def join(self, timeout_seconds: float) -> bool:
        """After `stop`: False where the disk still holds the thread after `timeout_seconds`."""
        return self._thread.join(timeout_seconds)

    def poll(self) -> None:
        """Looks once. On one thread at a time."""
        text = self._read()
        if text == self._seen:
            return
        # Half a file is no config: it may be being written.
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
        """What the file holds, or has to hold for it to be told once why it cannot be read."""
        try:
            return Path(self._file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""

    def _parse(self, text: str) -> TlsConfig:
        # An empty one says why it is: unreadable, perhaps.
        path = Path(self._file)
        config = parse_tls_config(text, self._file) if text else read_tls_config(path)
        if config.is_client_required != self._shown.is_client_required:
            raise InvalidConfig(
                f"{self._file}: client_verify is taken at the start of the server only; restart it "
                "for another one"
            )
        return config

    def _refuse(self, reason: str) -> None:
        self._refusal = ConfigRefusal.after(self._refusal, self._file, reason, self._clock)
        _log.error(
            "certificates_refused",
            file=self._file,
            reason=reason,
            consequence="the server goes on with the certificates before",
        )

    def _show(self, config: TlsConfig) -> None:
        self._refusal = None
        if config == self._shown:
            return
        self._certificates.replace(key=config.key, chain=config.chain, client_ca=config.client_ca)
        self._shown = config
        _log.info("certificates_replaced", file=self._file, sha256=config.fingerprint)
