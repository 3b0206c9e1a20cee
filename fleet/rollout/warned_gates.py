"""Notes which gates have warned about a version, and holds the version for an operator if it must. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from fleet.rollout.state import FleetRollout, GateWarning
from fleet.rollout.trial import Trial
from fleet.rollout.wave_settings import HOLD, WaveSettings
from serving.gates.gates import Gate

GATES_THAT_HOLD_NOTHING = frozenset(
    gate.value for gate in (Gate.GOLDEN, Gate.SHAPES, Gate.LATENCY, Gate.CONVERGENCE)
)
"""The gates whose warnings are only shown, because good versions get them too.

A retrained version that is as good as its predecessor may differ from the golden answers of that
predecessor, or declare other shapes. Latencies are compared by each wave itself, over more requests. All
other gates look for answers that no model should give, or for failing requests.
"""

# A server may report any text as the name of a gate. Only these names are kept in the state.
_GATES = frozenset(gate.value for gate in Gate)

WARNED_COUNT_MAX = 10
"""The most servers whose warnings are kept, so that the state stays small. One warning holds the rollout."""

WARNED_LENGTH_MAX = 500
"""The most characters of a server's warning that are kept."""


def noted_warnings(trial: Trial, rollout: FleetRollout) -> FleetRollout:
    """Notes in the rollout on which servers a gate has warned about the version.

    `rollout` is the rollout of the trial after its failed servers were noted. A warning stays noted even if its
    server reports it no more, because a restarted server has no predecessor to compare with.
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
            _keep_warning(warned, name, _warning(row.warned))
    noted = replace(
        rollout,
        warned=warned,
        is_doubtful=is_doubtful,
        warned_alone=frozenset(alone),
        excused=frozenset(excused),
    )
    return rollout if noted == rollout else noted


def _warning(gates: Mapping[str, str]) -> GateWarning:
    """Joins the warnings of one server's gates. The gates that may hold the version come first."""
    holding = gates.keys() - GATES_THAT_HOLD_NOTHING
    ordered = [*sorted(holding), *sorted(gates.keys() - holding)]
    reason = "; ".join(f"gate {gate}: {gates[gate]}" for gate in ordered)
    return GateWarning(reason[:WARNED_LENGTH_MAX], may_hold=bool(holding))


def _keep_warning(warned: dict[str, GateWarning], server: str, warning: GateWarning) -> None:
    """Keeps a server's warning if there is room.

    A warning that may hold the version replaces a warning that is only shown.
    """
    if server not in warned and len(warned) < WARNED_COUNT_MAX:
        warned[server] = warning
    elif warning.may_hold:
        only_shown = [name for name, kept in warned.items() if not kept.may_hold]
        replaced = server if server in warned else next(reversed(only_shown), None)
        if replaced in only_shown:
            del warned[replaced]
            warned[server] = warning


def is_held(rollout: FleetRollout, settings: WaveSettings) -> bool:
    """True if the version waits for an operator, because a gate has warned about it on a server.

    A warning from a server without a predecessor does not count if the same gate has excused the version
    elsewhere: there the answers of the predecessor are as suspicious.
    """
    is_doubtful = rollout.is_doubtful or bool(rollout.warned_alone - rollout.excused)
    return is_doubtful and settings.warned_gates == HOLD and not rollout.is_promoted


def reason_of_hold(rollout: FleetRollout) -> str:
    """A text for people: the server whose warning holds the version, the reason, and the commands to go on."""
    names = sorted(rollout.warned)
    holding = [name for name in names if rollout.warned[name].may_hold]
    name = (holding or names)[0]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    reason = rollout.warned[name].reason
    return f"warned on {name}{more}: {reason}; millpond fleet promote or abort"
