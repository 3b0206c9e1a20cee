"""The gates that have warned about a version on a server, and which of them stop the version for an
operator.

Pure.
"""

from collections.abc import Mapping
from dataclasses import replace

from fleet.rollout.state import FleetRollout
from fleet.rollout.trial import Trial
from fleet.rollout.wave_settings import HOLD, WaveSettings
from serving.gates.gates import Gate

GATES_THAT_HOLD_NOTHING = frozenset(
    gate.value for gate in (Gate.GOLDEN, Gate.SHAPES, Gate.LATENCY, Gate.CONVERGENCE)
)
"""The gates whose warnings are shown only, because good versions get them too.

A retrained version that is as good as its predecessor may differ from golden answers that were copied to
it, or declare other shapes. Latencies are compared by each wave itself, over more requests. All other gates
look for answers that are never meant, or for failing requests.
"""

# A server may report any text as a gate's name. Only known names are kept.
_GATES = frozenset(gate.value for gate in Gate)

WARNED_COUNT_MAX = 10
"""The most servers whose warnings are kept.

A single warning holds the rollout, so a few are enough, and the state stays small.
"""

WARNED_LENGTH_MAX = 500
"""The characters of a warning that are kept."""


def noted_warnings(trial: Trial, rollout: FleetRollout) -> FleetRollout:
    """Notes in the rollout on which servers a gate has warned about the version.

    `rollout` is that of the trial, with its failures noted. A note of a warning stays, because a server
    that has restarted has nothing to compare the version with any more.
    """
    warned, is_doubtful = dict(rollout.warned), rollout.is_doubtful
    alone, excused = set(rollout.warned_alone), set(rollout.excused)
    for name, report in trial.view.live.items():
        row = report.versions.get(rollout.version)
        if row is None or not trial.has_version(report):
            continue
        excused |= row.excused & _GATES
        holding = row.warned.keys() - GATES_THAT_HOLD_NOTHING
        of_row = holding & row.warned_alone & _GATES
        alone |= of_row
        is_doubtful = is_doubtful or not holding <= of_row
        if row.warned:
            _keep_warning(warned, name, row.warned)
    noted = replace(
        rollout,
        warned=warned,
        is_doubtful=is_doubtful,
        warned_alone=frozenset(alone),
        excused=frozenset(excused),
    )
    return rollout if noted == rollout else noted


def _keep_warning(warned: dict[str, str], server: str, gates: Mapping[str, str]) -> None:
    """Keeps a server's warning if there is room.

    A warning that may hold the version takes the place of one that cannot.
    """
    order = sorted(gates, key=lambda gate: (gate in GATES_THAT_HOLD_NOTHING, gate))
    text = "; ".join(f"gate {gate}: {gates[gate]}" for gate in order)[:WARNED_LENGTH_MAX]
    if server not in warned and len(warned) < WARNED_COUNT_MAX:
        warned[server] = text
    elif not may_hold(text):
        return
    elif server in warned:
        warned[server] = warned[server] if may_hold(warned[server]) else text
    else:
        others = [name for name, kept in warned.items() if not may_hold(kept)]
        if others:
            del warned[others[-1]]
            warned[server] = text


def may_hold(warning: str) -> bool:
    """True if the first gate of a kept warning is one that holds a version."""
    gate = warning.partition(":")[0].removeprefix("gate ")
    return gate not in GATES_THAT_HOLD_NOTHING


def is_held(rollout: FleetRollout, settings: WaveSettings) -> bool:
    """True if the version waits for an operator, because a gate has warned about it on a server.

    A warning of a server that had no predecessor does not count if the gate has passed such answers on
    another server, or on the same one before it restarted.
    """
    is_doubtful = rollout.is_doubtful or bool(rollout.warned_alone - rollout.excused)
    return is_doubtful and settings.warned_gates == HOLD and not rollout.is_promoted


def reason_of_hold(rollout: FleetRollout) -> str:
    """A text for people: which server's warning holds the version, and what ends that."""
    name, reason = min(rollout.warned.items(), key=lambda row: (not may_hold(row[1]), row[0]))
    more = f" and {len(rollout.warned) - 1} more" if len(rollout.warned) > 1 else ""
    return f"warned on {name}{more}: {reason}; millpond fleet promote or abort"
