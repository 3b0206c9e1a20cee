"""Puts the engine of a fleet of pods together: its parts and their threads."""

import socket
import threading
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import structlog

from fleet.config.config import FleetConfig
from fleet.config.kubernetes_settings import RENEW_SECONDS, KubernetesSettings
from fleet.kubernetes.cluster import Cluster
from fleet.kubernetes.events import Events
from fleet.kubernetes.lease import LeaseHolder
from fleet.kubernetes.pods import PodPlace
from fleet.lead.engine import Engine
from fleet.lead.leadership import Leadership
from fleet.lead.member_client import tls_of
from fleet.lead.places import ServerPlace
from fleet.rollout.changes import Change
from fleet.rollout.reports import Grant
from serving.base.clock import Clock
from serving.base.errors import FailedPrecondition
from serving.base.periodic_thread import PeriodicThread
from serving.client import Tls

_STOP_SECONDS = 5.0
# The longest that one turn of the Lease takes: it reads and writes two objects, each within OBJECT_SECONDS.
_TURN_SECONDS = 15.0

_log = structlog.get_logger(__name__)


class KubernetesEngine(Engine):
    """The engine of a fleet of pods: a Lease gives the right to lead, and Events show changes to people."""

    def __init__(
        self, place: ServerPlace, leadership: Leadership, events: Events, tls: Tls | None = None
    ) -> None:
        super().__init__(place, leadership, tls)
        self._events = events
        self._thread = threading.Thread(target=self._post, name="fleet-events", daemon=True)

    def start(self, port: int) -> None:
        """See `Engine`."""
        self._thread.start()
        super().start(port)

    def stop(self) -> None:
        """See `Engine`."""
        super().stop()
        self._events.stop()
        self._thread.join(_STOP_SECONDS)

    def notice(self, changes: Sequence[Change], grants: Sequence[Grant]) -> None:
        """See `Engine`."""
        self._events.notice(changes, grants)

    def _post(self) -> None:
        while self._events.post_next():
            pass


def kubernetes_engine(config: FleetConfig, settings: KubernetesSettings, clock: Clock) -> Engine:
    """Makes the engine. Raises InvalidConfig, and FailedPrecondition if the extra is not installed."""
    try:
        from fleet.kubernetes.client import connected
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            f"[kubernetes] needs a package that is not installed ({error.name}): "
            "pip install 'millpond[kubernetes]'"
        ) from error
    cluster = connected(settings.kubeconfig, settings.namespace)
    host = config.coordinator.listen.rpartition(":")[0].strip("[]")
    return made_engine(cluster, settings, clock, host, cluster.host, tls_of(config.tls))


def made_engine(
    cluster: Cluster,
    settings: KubernetesSettings,
    clock: Clock,
    host: str,
    api_url: str,
    tls: Tls | None = None,
) -> KubernetesEngine:
    """Makes the engine on a cluster, whose API is at `api_url`. The coordinator listens at `host`."""
    # The random part distinguishes this process from earlier ones of the same pod, which had the same hostname.
    identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"
    place = PodPlace(cluster, settings, clock)
    events = Events(cluster, state_name=settings.name, instance=identity, pods=place, clock=clock)
    holder = LeaseHolder(
        cluster,
        name=settings.name,
        state_name=settings.name,
        identity=identity,
        duration_seconds=settings.lease_seconds,
        clock=clock,
        events=events,
    )
    lease = _RenewedLease(holder, host, api_url, clock)
    return KubernetesEngine(place, lease, events, tls)


def own_address(host: str, api_url: str) -> str:
    """The host at which other machines reach this one: `host`, unless that stands for all addresses.

    If `host` stands for all addresses, finds the address from which this machine reaches the API server. Sends
    no packet to find it.
    """
    if host not in ("0.0.0.0", "::", ""):
        return host
    parts = urlsplit(api_url)
    port = parts.port or 443
    found: list[Any] = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


class _RenewedLease:
    """Implements `Leadership` with a thread that acquires and renews the Lease."""

    def __init__(
        self,
        holder: LeaseHolder,
        host: str,
        api_url: str,
        clock: Clock,
        turn_seconds: float = _TURN_SECONDS,
    ) -> None:
        self._holder = holder
        self._turn_seconds = turn_seconds
        self._host = host
        self._api_url = api_url
        self.term = holder.term
        self.leader = holder.leader
        self._thread = PeriodicThread(
            "fleet-lease",
            holder.turn,
            wait_seconds=RENEW_SECONDS,
            failure_event="fleet_lease_failed",
            clock=clock,
        )

    def start(self, port: int) -> None:
        host = own_address(self._host, self._api_url)
        self._holder.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._thread.wake()
        self._thread.start()

    def stop(self) -> None:
        """Gives up the Lease.

        If a turn hangs, lets the Lease lapse instead, because that turn might take the Lease again.
        """
        self._thread.stop()
        if self._thread.join(self._turn_seconds):
            self._holder.release()
        else:
            _log.warning("fleet_lease_left_to_lapse", seconds=self._turn_seconds)
