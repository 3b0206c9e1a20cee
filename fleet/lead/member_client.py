"""The client with which a coordinator calls a member."""

from fleet.rollout.report_document import REPORT_BYTES_MAX
from serving.client import Client, Tls


def member_client(target: str, tls: Tls | None = None) -> Client:
    """A client of a member's admin listener, which reads no reply that is too long for a report."""
    options = {"grpc.max_receive_message_length": REPORT_BYTES_MAX}
    return Client(target, tls=tls, channel_options=options)
