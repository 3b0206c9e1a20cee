"""One look at the servers of a fleet on Ray: the answers of their actors, and their own reports. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.config.config import FleetServer
from fleet.ray.cluster import ActorAnswer
from fleet.replicas.placement import ServerRoom
from fleet.replicas.replicas import Replica, ReplicaSighting
from fleet.rollout.reports import Sighting

_NOT_SEEN = ActorAnswer()


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look: the nodes and the actors' answers.

    `sightings` joins the answers with the servers' reports, for `decide_replicas`.
    """

    rooms: Sequence[ServerRoom] = ()
    answers: Mapping[str, ActorAnswer] = field(default_factory=dict)
    sightings: Mapping[str, ReplicaSighting] = field(default_factory=dict)

    def answer(self, name: str) -> ActorAnswer:
        """The answer of a server's actor; an empty answer if the actor was not asked."""
        return self.answers.get(name, _NOT_SEEN)

    def ready(self) -> frozenset[str]:
        """The names of the servers that answer and serve their models."""
        return frozenset(name for name, row in self.sightings.items() if row.is_ready)

    def has_all(self, rows: Iterable[Replica]) -> bool:
        """True if every launch that was ready before has answered or has ended in this look."""
        answers = (self.answer(row.name) for row in rows if row.was_ready)
        return all(answer.grpc or answer.is_gone for answer in answers)

    def server(self, row: Replica, actor_name: str) -> FleetServer:
        """A launch as a server of the fleet, with the addresses at which it can be reached now.

        A server has no address for clients before it was ready, because a proxy takes an unchecked server for a
        healthy one.
        """
        answer = self.answer(row.name)
        if answer.is_gone or not (answer.grpc or row.was_ready):
            return FleetServer(name=row.name, admin="")
        is_shown = row.was_ready and answer.grpc
        return FleetServer(
            name=row.name,
            # The actor's name contains the launch. So a report is never taken for that of another launch.
            admin=actor_name,
            grpc=answer.grpc if is_shown else "",
            http=answer.http if is_shown else "",
        )


def look_of(
    rooms: Sequence[ServerRoom],
    answers: Mapping[str, ActorAnswer],
    rows: Mapping[str, Replica],
    sightings: Mapping[str, Sighting],
    oldest_ns: int,
) -> Look:
    """Puts a look together.

    A server whose last report came before `oldest_ns` does not count as answering. Waves wait much longer
    before a server counts as lost.
    """
    return Look(
        rooms=rooms,
        answers=answers,
        sightings={
            name: _seen(rows[name], answer, sightings.get(name), oldest_ns)
            for name, answer in answers.items()
            if name in rows
        },
    )


def _seen(
    row: Replica, answer: ActorAnswer, sighting: Sighting | None, oldest_ns: int
) -> ReplicaSighting:
    has_started = answer.grpc != "" and not answer.is_gone
    report = sighting.report if sighting is not None and sighting.seen_at_ns >= oldest_ns else None
    model = report.models.get(row.model) if report is not None else None
    return ReplicaSighting(
        is_gone=answer.is_gone,
        has_started=has_started,
        answers=has_started and report is not None,
        is_ready=has_started and model is not None and model.default_version is not None,
        ports=(_port(answer.grpc), _port(answer.http)),
    )


def _port(address: str) -> int:
    """The port of HOST:PORT; 0 if there is none."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0
