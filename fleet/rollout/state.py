"""The decisions of a fleet that must outlive its coordinator. Values only, with their JSON.

The state has what reports of servers cannot show. It is written before an action that follows from it
is sent, so a coordinator that starts again never knows less than its servers.
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
"""The verdicts that are kept for the status. Older ones are dropped."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A server that may be swapping: it was granted `version` with this `order`."""

    version: int
    order: int


@dataclass(frozen=True, kw_only=True)
class FleetRollout:
    """A version on its way through the waves, since the state with the number `since_order`.

    `members` are the servers that try it, with the incarnation that was granted it. The last wave lists no
    members, because every server may try the version there. `failed_servers` are those on which it failed:
    they are back at the stable version. If an operator has promoted the version (`is_promoted`), its
    requests do not count. `warned` are servers on which a gate has warned about the version, with its
    reason; only the first ones are kept. The version `is_doubtful` if one of these gates looks for what is
    never meant. `warned_alone` are gates of this kind that warned on a server without a predecessor.
    `excused` are gates that passed the version elsewhere, because the answers of its predecessor there are
    as suspicious.
    """

    version: int
    wave_index: int = 0
    members: Mapping[str, int] = field(default_factory=dict)
    failed_servers: frozenset[str] = frozenset()
    since_order: int = 0
    is_promoted: bool = False
    warned: Mapping[str, str] = field(default_factory=dict)
    is_doubtful: bool = False
    warned_alone: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """One model in the fleet.

    `stable` is the version of all servers outside the rollout; None before a first version has passed.
    `previous` was stable before. `loading` are the slots: the servers that may be swapping, also those of
    which no report has come since.
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
    """The state of all models. `order` grows with each change, and numbers the grants."""

    order: int = 0
    models: Mapping[str, ModelState] = field(default_factory=dict)

    def changed(self, models: Mapping[str, ModelState]) -> "FleetState":
        """Replaces these models. The order grows if one of them differs."""
        return self if models == self.models else FleetState(order=self.order + 1, models=models)

    def taken_over(self, order_min: int = 0) -> "FleetState":
        """Takes a new order, so that grants of an earlier coordinator are stale.

        `order_min` is above the orders that an earlier coordinator may still decide on.
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
            # The documents, the log and the metrics call a failed server a setback, as ever.
            "setbacks": sorted(rollout.failed_servers),
            "since_order": rollout.since_order,
            "is_promoted": rollout.is_promoted,
            "warned": dict(rollout.warned),
            "is_doubtful": rollout.is_doubtful,
            "warned_alone": sorted(rollout.warned_alone),
            "excused": sorted(rollout.excused),
        },
        "blocked": as_rows(model.blocked),
        "loading": {name: [slot.version, slot.order] for name, slot in model.loading.items()},
        "verdicts": [_verdict_document(verdict) for verdict in model.verdicts],
    }


def _verdict_document(verdict: GateVerdict) -> dict[str, Any]:
    """Leaves out what no verdict of a fleet has, because an earlier release could not read it."""
    document = asdict(verdict)
    del document["has_predecessor"]
    return document


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
            # The state of an earlier release does not have them.
            is_promoted=rollout.get("is_promoted", False),
            warned=rollout.get("warned", {}),
            is_doubtful=rollout.get("is_doubtful", False),
            warned_alone=frozenset(rollout.get("warned_alone", ())),
            excused=frozenset(rollout.get("excused", ())),
        ),
        blocked=from_rows(document["blocked"]),
        loading={name: Slot(*slot) for name, slot in document["loading"].items()},
        verdicts=tuple(GateVerdict(**verdict) for verdict in document["verdicts"]),
    )
