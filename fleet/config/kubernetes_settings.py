"""The table `[kubernetes]` of a coordinator's file. Values only."""

import re
from dataclasses import dataclass

from serving.base.errors import InvalidConfig

RENEW_SECONDS = 3.0
"""The leader renews the Lease this often, and a coordinator that waits looks at the Lease this often."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
# The name of a port, or its number.
_PORT = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?|[0-9]{1,5}")
_LEASE_SECONDS_MIN = 10


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """The table `[kubernetes]`: the pods that are the servers, and the objects that coordinators share.

    A port is the name of a container's port, or its number. A pod without that port has no such address.
    """

    # The labels of the servers' pods, as in `kubectl get pods --selector`.
    selector: str
    # The name of the Lease, and of the ConfigMap that has the state. Two fleets of one namespace need two
    # names.
    name: str = "millpond-fleet"
    # The namespace of the Lease, the ConfigMap and the pods. "" is the namespace of the coordinator's own pod,
    # or of the kubeconfig's context.
    namespace: str = ""
    admin_port: str = "admin"
    grpc_port: str = "grpc"
    http_port: str = "http"
    # If the leader has not renewed the Lease for this time, another coordinator begins to lead.
    lease_seconds: int = 15
    # A kubeconfig file; "" if the coordinator uses the service account of its own pod.
    kubeconfig: str = ""

    def __post_init__(self) -> None:
        if not self.selector.strip():
            raise InvalidConfig("kubernetes: an empty selector selects every pod; give labels")
        for key in ("name", "namespace"):
            value = getattr(self, key)
            if value and not _NAME.fullmatch(value):
                raise InvalidConfig(f"kubernetes: {key} {value!r} is not a name of an object")
        if not self.name:
            raise InvalidConfig("kubernetes: name is empty")
        for key in ("admin_port", "grpc_port", "http_port"):
            if not _PORT.fullmatch(getattr(self, key)):
                raise InvalidConfig(
                    f"kubernetes: {key} {getattr(self, key)!r} is not the name or number of a port"
                )
        if self.lease_seconds < _LEASE_SECONDS_MIN:
            raise InvalidConfig(
                f"kubernetes: lease_seconds {self.lease_seconds} leaves no time for a call that is "
                f"slow; give {_LEASE_SECONDS_MIN} or more"
            )
