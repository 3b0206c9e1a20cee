"""Reads the certificates of a TLS server: TensorFlow Serving's SSLConfig, as text in a file."""

import hashlib
import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format

from serving.base.bounded_files import SETTINGS_BYTES_MAX, read_bounded_text
from serving.base.compiled_protos import message_class
from serving.base.errors import InvalidConfig

_CERTIFICATE = "-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """The PEM texts of one server. `client_ca` is "" if clients need no certificates."""

    key: str = field(repr=False)
    chain: str
    client_ca: str
    is_client_required: bool

    @property
    def fingerprint(self) -> str:
        """The server certificate's SHA-256, as `openssl x509 -fingerprint` prints it, in lower case."""
        last = "-----END CERTIFICATE-----"
        start = self.chain.index(_CERTIFICATE)
        first = self.chain[start : self.chain.index(last, start) + len(last)]
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()


def read_tls_config(path: Path) -> TlsConfig:
    """Reads a text SSLConfig. Raises InvalidConfig if it is unreadable, or as `parse_tls_config`."""
    try:
        text = read_bounded_text(path, SETTINGS_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}") from error
    return parse_tls_config(text, str(path))


def parse_tls_config(text: str, where: str) -> TlsConfig:
    """Parses a text SSLConfig from `where`.

    Raises InvalidConfig if the text is not an SSLConfig, if OpenSSL refuses a PEM text, if the key
    belongs to another certificate, or if clients must have certificates but there is no CA to verify
    them. The message has the field and the remedy, but never a key.
    """
    message = message_class("tensorflow.serving.SSLConfig")()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        # The error's own text quotes the line, which may contain the key.
        raise InvalidConfig(
            f"{where}: not a text protobuf of SSLConfig at line {error.GetLine()}, column "
            f"{error.GetColumn()}; its fields are server_key, server_cert, custom_ca, client_verify"
        ) from None
    config = TlsConfig(
        key=message.server_key,
        chain=message.server_cert,
        client_ca=message.custom_ca,
        is_client_required=message.client_verify,
    )
    _check(config, where)
    return config


def _check(config: TlsConfig, where: str) -> None:
    if "PRIVATE KEY-----" not in config.key:
        raise InvalidConfig(f"{where}: server_key must be a private key as PEM text, not a path")
    if _CERTIFICATE not in config.chain:
        raise InvalidConfig(f"{where}: server_cert must be certificates as PEM text, not a path")
    if config.is_client_required and not config.client_ca:
        # No client's certificate could be verified.
        raise InvalidConfig(
            f"{where}: client_verify needs custom_ca, the certificates that sign those of clients"
        )
    _check_pair(config, where)
    if config.client_ca:
        _check_client_ca(config.client_ca, where)


def _check_pair(config: TlsConfig, where: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with ExitStack() as files:
        chain = files.enter_context(_unnamed_file(config.chain))
        key = files.enter_context(_unnamed_file(config.key))
        try:
            # Without a password OpenSSL asks for one on the terminal.
            context.load_cert_chain(chain, key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise InvalidConfig(
                f"{where}: server_cert and server_key are not a certificate and its key without a "
                f"password: {getattr(error, 'reason', None) or error}"
            ) from None


def _check_client_ca(client_ca: str, where: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cadata=client_ca)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InvalidConfig(
            f"{where}: custom_ca must be certificates as PEM text: {reason}"
        ) from None


@contextmanager
def _unnamed_file(text: str) -> Iterator[str]:
    """Yields a path to `text` in memory, which no other user can open: OpenSSL takes only files."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
