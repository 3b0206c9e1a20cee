"""Finds answers of rolled-back versions, which must not answer in a soak while another version can.

This is a small model of the versions that may answer, made from the server's log and the operators'
calls. It shares no code with the server's routing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from loadtest.plan.plan import Outcome
from serving.server.server_log import LogEvent

Spans = Mapping[int, Sequence[tuple[int, int]]]
"""The spans in which each version must not answer (ns of the wall clock)."""

_FOR_EVER_NS = 2**62
_MICROSECOND_NS = 1_000


@dataclass
class _Model:
    available: set[int] = field(default_factory=set)
    blocked: set[int] = field(default_factory=set)
    began_at_ns: dict[int, int] = field(default_factory=dict)
    spans: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def note(self, at_ns: int) -> None:
        """Opens and closes spans after a change at `at_ns`."""
        # Cold rollbacks and fallbacks need this: without a sound version a blocked version may answer.
        forbidden = self.blocked if self.available - self.blocked else set()
        for version in self.began_at_ns.keys() - forbidden:
            began_at_ns = self.began_at_ns.pop(version)
            self.spans.setdefault(version, []).append((began_at_ns, at_ns))
        for version in forbidden - self.began_at_ns.keys():
            self.began_at_ns[version] = at_ns

    def take(self, event: LogEvent) -> None:
        """Follows one line of the log."""
        kind, version = event["event"], event.get("version")
        if kind == "version_available":
            self.available.add(int(version))  # type: ignore[arg-type]
        elif kind == "unload_started":
            self.available.discard(int(version))  # type: ignore[arg-type]
        elif kind == "rolled_back":
            self.blocked.update(event["blocked"])
        elif kind == "version_unblocked":
            self.blocked.discard(int(version))  # type: ignore[arg-type]


def blocked_spans(
    events: Iterable[LogEvent], allowed: Iterable[tuple[int, int]], model: str
) -> Spans:
    """The spans in which each rolled-back version must not answer.

    `allowed` has the time (ns of the wall clock) and the version of each call that allows a version
    again. Each span begins after its cause took effect and ends before its end can take effect.
    """
    follows = [(_wall_ns(event), event) for event in events if event.get("model") == model]
    lifted: list[tuple[int, LogEvent]] = [
        (at_ns, {"event": "version_unblocked", "version": version}) for at_ns, version in allowed
    ]
    state = _Model()
    for at_ns, event in sorted([*follows, *lifted], key=lambda item: item[0]):
        state.take(event)
        state.note(at_ns)
    state.available.clear()
    state.note(_FOR_EVER_NS)
    return state.spans


def blocked_answers(
    outcome: Outcome, version_of: Sequence[int | None], spans: Spans, wall_offset_ns: int
) -> dict[int, int]:
    """Counts, per version, the requests that it answered completely within its spans.

    `version_of` has the version by request, None without an answer. `wall_offset_ns` is the wall clock
    minus the clock of `outcome`.
    """
    issued = outcome.issued_ns + wall_offset_ns
    completed = outcome.completed_ns + wall_offset_ns
    counts: Counter[int] = Counter()
    for request, version in enumerate(version_of):
        if version is None or version not in spans:
            continue
        began_ns, ended_ns = int(issued[request]), int(completed[request])
        is_blocked = any(begin <= began_ns and ended_ns <= end for begin, end in spans[version])
        counts[version] += int(is_blocked)
    return {version: count for version, count in sorted(counts.items()) if count}


def _wall_ns(event: LogEvent) -> int:
    """The instant of a log line. For the begin of a span it is rounded up to the next microsecond."""
    at = datetime.fromisoformat(event["timestamp"])
    seconds = int(at.replace(microsecond=0).timestamp())
    return seconds * 1_000_000_000 + (at.microsecond + 1) * _MICROSECOND_NS
