"""The decisions of a fleet that must outlive its coordinator, as values, and their JSON.

The state has only what the reports of servers cannot show. The coordinator writes the state before it sends a
grant that follows from it. So a coordinator that starts again never knows less than its servers.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from serving.base.errors import DataLoss
from serving.core.blocked_versions import (
    BlockedBy,
    BlockedVersion,
    BlockedVersions,
    as_rows,
    from_rows,
)
from serving.core.servable import GateVerdict

VERDICT_COUNT_MAX = 20
"""The number of verdicts that are kept for the status. Older verdicts are dropped."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The right of a server to swap. The server was granted `version` with this `order`."""

    version: int
    order: int


@dataclass(frozen=True, slots=True)
class GateWarning:
    """The reasons why gates have warned about a version on one server.

    `may_hold` is True if one of these gates may hold the version (`warned_gates.py`).
    """

    reason: str
    may_hold: bool = True


@dataclass(frozen=True, kw_only=True)
class FleetRollout:
    """A version on its way through the waves."""

    version: int
    wave_index: int = 0
    # The servers that try the version, with the incarnation in which each of them was granted it. It is
    # empty in the last wave, because every server may try the version there.
    members: Mapping[str, int] = field(default_factory=dict)
    # The servers on which the version has failed. They go back to the stable version.
    failed_servers: frozenset[str] = frozenset()
    # The order of the state in which the rollout began.
    since_order: int = 0
    # True if an operator has promoted the version, so that its requests do not count any more.
    is_promoted: bool = False
    # By server, the warning of its gates about the version. Only the first WARNED_COUNT_MAX servers are kept
    # (`warned_gates.py`).
    warned: Mapping[str, GateWarning] = field(default_factory=dict)
    # True if a gate that may hold the version has warned about it on a server with a predecessor.
    is_doubtful: bool = False
    # The gates that may hold the version, and have warned about it on a server without a predecessor.
    warned_alone: frozenset[str] = frozenset()
    # The gates that found the version's answers suspicious on some server, but passed it, because the answers
    # of its predecessor there are as suspicious.
    excused: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """One model in the fleet.

    `stable` is the version of all servers outside the rollout; None before a first version has passed.
    `previous` was stable before it. `loading` has the slot of each server that may be swapping. A server
    keeps its slot until a report shows that its swap is over.
    """

    stable: int | None = None
    previous: int | None = None
    rollout: FleetRollout | None = None
    is_paused: bool = False
    blocked: BlockedVersions = field(default_factory=dict)
    loading: Mapping[str, Slot] = field(default_factory=dict)
    verdicts: tuple[GateVerdict, ...] = ()

    def with_verdict(self, verdict: GateVerdict, version: int) -> "ModelState":
        """Adds a verdict on `version`, which its figures name."""
        verdict = replace(verdict, figures={**verdict.figures, "version": version})
        return replace(self, verdicts=(*self.verdicts, verdict)[-VERDICT_COUNT_MAX:])

    def with_block(self, version: int, by: BlockedBy, reason: str, wall_ns: int) -> "ModelState":
        """Blocks `version` in the fleet, and ends its rollout."""
        block = BlockedVersion(by=by, reason=reason, since_wall_ns=wall_ns)
        rollout = self.rollout
        if rollout is not None and rollout.version == version:
            rollout = None
        return replace(self, rollout=rollout, blocked={**self.blocked, version: block})


@dataclass(frozen=True, kw_only=True)
class FleetState:
    """The state of all models. `order` grows with each change, and each grant carries the order of its state."""

    order: int = 0
    models: Mapping[str, ModelState] = field(default_factory=dict)

    def changed(self, models: Mapping[str, ModelState]) -> "FleetState":
        """Replaces these models. The order grows if one of them differs."""
        return self if models == self.models else FleetState(order=self.order + 1, models=models)

    def taken_over(self, order_min: int = 0) -> "FleetState":
        """Raises the order, so that servers ignore the grants of earlier coordinators.

        The new order is at least `order_min`, which must be above each order that an earlier coordinator may
        still use.
        """
        return replace(self, order=max(self.order + 1, order_min))

    def as_json(self) -> str:
        models = {name: _model_document(self.models[name]) for name in sorted(self.models)}
        return json.dumps({"order": self.order, "models": models})


def fleet_state_from_json(text: str) -> FleetState:
    """Reads the text that `as_json` returned. Raises DataLoss for another text."""
    try:
        document = json.loads(text)
        models = {name: _model(entry) for name, entry in document["models"].items()}
        return FleetState(order=int(document["order"]), models=models)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLoss(f"not the state of a fleet: {error!r}") from error


def _model_document(model: ModelState) -> dict[str, Any]:
    rollout = model.rollout
    return {
        "stable": model.stable,
        "previous": model.previous,
        "is_paused": model.is_paused,
        "rollout": rollout
        and {
            "version": rollout.version,
            "wave": rollout.wave_index,
            "members": dict(rollout.members),
            # "setbacks" is the word of the first release for failed servers. Documents, the log and metrics
            # keep it.
            "setbacks": sorted(rollout.failed_servers),
            "since_order": rollout.since_order,
            "is_promoted": rollout.is_promoted,
            # Texts, because earlier releases read this document too and expect texts.
            "warned": {name: warning.reason for name, warning in rollout.warned.items()},
            "warnings_only_shown": sorted(
                name for name, warning in rollout.warned.items() if not warning.may_hold
            ),
            "is_doubtful": rollout.is_doubtful,
            "warned_alone": sorted(rollout.warned_alone),
            "excused": sorted(rollout.excused),
        },
        "blocked": as_rows(model.blocked),
        "loading": {name: [slot.version, slot.order] for name, slot in model.loading.items()},
        "verdicts": [_verdict_document(verdict) for verdict in model.verdicts],
    }


def _verdict_document(verdict: GateVerdict) -> dict[str, Any]:
    """Leaves out a field that no verdict of a fleet needs, because earlier releases cannot read it."""
    document = asdict(verdict)
    del document["has_predecessor"]
    return document


def _warned(rollout: Mapping[str, Any]) -> dict[str, GateWarning]:
    only_shown = rollout.get("warnings_only_shown", ())
    return {
        name: GateWarning(reason, may_hold=name not in only_shown)
        for name, reason in rollout.get("warned", {}).items()
    }


def _model(document: Mapping[str, Any]) -> ModelState:
    rollout = document["rollout"]
    return ModelState(
        stable=document["stable"],
        previous=document["previous"],
        is_paused=document["is_paused"],
        rollout=rollout
        and FleetRollout(
            version=rollout["version"],
            wave_index=rollout["wave"],
            members=rollout["members"],
            failed_servers=frozenset(rollout["setbacks"]),
            since_order=rollout["since_order"],
            # States that were written by an earlier release lack these values.
            is_promoted=rollout.get("is_promoted", False),
            warned=_warned(rollout),
            is_doubtful=rollout.get("is_doubtful", False),
            warned_alone=frozenset(rollout.get("warned_alone", ())),
            excused=frozenset(rollout.get("excused", ())),
        ),
        blocked=from_rows(document["blocked"]),
        loading={name: Slot(*slot) for name, slot in document["loading"].items()},
        verdicts=tuple(GateVerdict(**verdict) for verdict in document["verdicts"]),
    )
