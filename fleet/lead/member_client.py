"""The client with which a coordinator calls a member."""

from pathlib import Path

from fleet.config.config import AdminTls
from fleet.rollout.report_document import REPORT_BYTES_MAX
from serving.client import Client, Tls


def member_client(target: str, tls: Tls | None = None) -> Client:
    """A client of a member's admin listener, which reads no reply that is too long for a report."""
    options = {"grpc.max_receive_message_length": REPORT_BYTES_MAX}
    return Client(target, tls=tls, channel_options=options)


def tls_of(settings: AdminTls) -> Tls | None:
    """The client's TLS; None if no file is configured."""
    if not (settings.ca or settings.cert or settings.key):
        return None
    return Tls(
        ca_file=Path(settings.ca) if settings.ca else None,
        certificate_file=Path(settings.cert) if settings.cert else None,
        key_file=Path(settings.key) if settings.key else None,
        server_name=settings.server_name,
    )
