"""Lists what has changed between two states of a fleet, for the log and for the engine's own tools. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.rollout.state import FleetRollout, FleetState, ModelState


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of one model: the event and the values that the coordinator logs for it."""

    event: str
    model: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_warning: bool = False


def changes(before: FleetState, after: FleetState) -> list[Change]:
    """The changes, model by model: verdicts and blocks first, then servers, the wave and the stable version."""
    if before is after:
        return []
    return [
        change
        for name, model in after.models.items()
        for change in _changes_of(name, before.models.get(name, ModelState()), model)
    ]


def _changes_of(name: str, before: ModelState, after: ModelState) -> Iterator[Change]:
    if after.verdicts != before.verdicts and after.verdicts:
        verdict = after.verdicts[-1]
        values = {
            "version": verdict.figures["version"],
            "gate": verdict.gate,
            "is_passed": verdict.is_passed,
            "reason": verdict.reason,
        }
        yield Change(
            event="fleet_verdict", model=name, values=values, is_warning=not verdict.is_passed
        )
    for version in after.blocked.keys() - before.blocked.keys():
        values = {"version": version, "reason": after.blocked[version].reason}
        yield Change(event="fleet_rolled_back", model=name, values=values, is_warning=True)
    old, new = before.rollout, after.rollout
    if new is not None:
        known = FleetRollout(version=new.version)
        if old is not None and old.version == new.version:
            known = old
        for server in sorted(new.failed_servers - known.failed_servers):
            values = {"version": new.version, "server": server}
            yield Change(event="fleet_setback", model=name, values=values, is_warning=True)
        for server in sorted(new.warned.keys() - known.warned.keys()):
            reason = new.warned[server].reason
            values = {"version": new.version, "server": server, "reason": reason}
            yield Change(event="fleet_gate_warned", model=name, values=values, is_warning=True)
    if new is not None and (
        old is None or (old.version, old.wave_index) != (new.version, new.wave_index)
    ):
        values = {"version": new.version, "wave": new.wave_index + 1}
        yield Change(event="fleet_wave_began", model=name, values=values)
    if after.stable != before.stable:
        values = {"version": after.stable, "before": before.stable}
        yield Change(event="fleet_stable_version", model=name, values=values)
