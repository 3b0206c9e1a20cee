"""The client with which a coordinator calls the admin listener of a server."""

from pathlib import Path

from fleet.config.config import AdminTls
from fleet.rollout.report_document import REPORT_BYTES_MAX
from serving.client import Client, Tls


def member_client(target: str, tls: Tls | None = None) -> Client:
    """Makes a client for the admin listener at `target`. It refuses replies of more than REPORT_BYTES_MAX."""
    options = {"grpc.max_receive_message_length": REPORT_BYTES_MAX}
    return Client(target, tls=tls, channel_options=options)


def tls_of(settings: AdminTls) -> Tls | None:
    """The TLS of these settings; None if they name no file."""
    if not (settings.ca or settings.cert or settings.key):
        return None
    return Tls(
        ca_file=Path(settings.ca) if settings.ca else None,
        certificate_file=Path(settings.cert) if settings.cert else None,
        key_file=Path(settings.key) if settings.key else None,
        server_name=settings.server_name,
    )
