"""Decides which servers start, leave and stop on the nodes of a cluster. Pure.

The promises, as long as a model is configured:

- A replica leaves for good only if as many other replicas of its model are ready as the configuration asks
  for.
- A replica restarts only while all other replicas of its model are ready, unless it was never ready itself.
  At most one replica of the fleet restarts at a time.
- No replica leaves while a version of its model is on its way, because a wave must not be judged by servers
  that restart.

If a node drains and its deadline is near, the first and the last promise do not hold for its replicas.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet.replicas.layers import placed
from fleet.replicas.placement import replicas_needed
from fleet.replicas.replica_step import ReplicaInputs, ReplicaStep
from fleet.replicas.replicas import (
    LEAVING,
    STOPPING,
    UP,
    Ports,
    Replica,
    ReplicaState,
    replica_order,
)
from serving.base.clock import NS_PER_SECOND

BACKOFF_SECONDS_MAX = 60.0
"""The longest pause before a replica that ends again and again is launched once more.

A replica that has been ready for this time counts as one that has never failed.
"""

SILENT_SECONDS_MAX = 180.0
"""A server that has started and does not report for this time hangs, and is given up."""

START_SECONDS_MAX = 420.0
"""A launch that has not started in this time is given up: Ray has no room for it, or its node hangs.

Ray may take a while to start the actor of the server. The actor waits 300 s for the server, and then ends.
"""

STOP_MARGIN_SECONDS = 60.0
"""A server that has not ended this long after `drain_seconds` is given up.

It needs time after its drain, because it also frees its versions.
"""

DEADLINE_MARGIN_SECONDS = 20.0
"""A server on a draining node is to end this long before the node's deadline.

After its requests it waits up to 7 s for its coordinator and for readers, and it frees its versions.
"""


@dataclass(frozen=True, kw_only=True)
class ReplicaDecision:
    """The next state, and the actions. The caller writes `state` before it does the first action.

    Each start and each end is in one decision only. Each stop is in every decision until it is done.
    """

    state: ReplicaState
    # The replicas to launch.
    starts: tuple[Replica, ...] = ()
    # The replicas to drain and stop.
    stops: tuple[Replica, ...] = ()
    # Launches that have ended, are lost or hang. The caller removes whatever is left of them.
    ends: tuple[Replica, ...] = ()
    # By model, the number of replicas for which no node has room.
    missing: Mapping[str, int] = field(default_factory=dict)
    # The waits that go on. The next decision takes them over (`ReplicaInputs`).
    since_ns: Mapping[tuple[int, str], int] = field(default_factory=dict)


def decide_replicas(state: ReplicaState, inputs: ReplicaInputs) -> ReplicaDecision:
    """Decides the next state, and which servers start, stop and are given up."""
    ended = _without_ended(ReplicaStep(inputs=inputs, state=_with_ports(state, inputs)))
    matched = _matched(ended)
    step = _with_leaving(matched.step, matched.surplus)
    step = _with_restart(step, matched.staying)
    step = _with_stops(step)
    return _decision(step)


def _with_ports(state: ReplicaState, inputs: ReplicaInputs) -> ReplicaState:
    """Notes the first ports of each replica, and drops ports of models that the fleet no longer has."""
    seen = {name: row.ports for name, row in inputs.sightings.items() if any(row.ports)}
    # A replica's first ports stay noted even if it has other ports now, because its next launch takes the first
    # ports if they are free.
    ports: Mapping[str, Ports] = {**seen, **state.ports}
    # A fleet without models was stopped, and is to start again with the same ports.
    if inputs.models:
        models = inputs.models
        ports = {name: row for name, row in ports.items() if name.rpartition("-")[0] in models}
    return replace(state, ports=ports)


# --- Launches that have ended ---


@dataclass(frozen=True, kw_only=True)
class _Ended:
    """A step without the replicas that have ended for good.

    `to_relaunch` has the names of replicas that have ended and are launched again if they have a place.
    `lost` are replicas that were lost with their nodes. The next new replicas of their models take over
    their names.
    """

    step: ReplicaStep
    to_relaunch: frozenset[str]
    lost: tuple[Replica, ...]


def _without_ended(step: ReplicaStep) -> _Ended:
    """Removes replicas that have ended and do not come back, and replicas that have lost their nodes."""
    step = _with_waits_for_launches(step)
    hanging = _hanging(step)
    to_relaunch: set[str] = set()
    lost = []
    for row in [*step.rows]:
        room, sighting = step.inputs.nodes.get(row.node), step.sighting(row)
        if room is not None and not sighting.is_gone and row.name not in hanging:
            if sighting.is_ready:
                step = _with_ready(step, row)
            continue
        # A launch that never started may find room on another node.
        never_started = row.name in hanging and not sighting.has_started
        comes_back = row.model in step.inputs.models and (row.phase == UP or row.comes_back)
        if comes_back and not (room is None or room.is_draining or never_started):
            to_relaunch.add(row.name)
            continue
        step = step.ended(row)
        if comes_back:
            lost.append(row)
    return _Ended(step=step, to_relaunch=frozenset(to_relaunch), lost=tuple(lost))


def _with_waits_for_launches(step: ReplicaStep) -> ReplicaStep:
    """Notes since when each launch has been due to end, to start or to report."""
    for row in step.rows:
        if row.phase == STOPPING:
            step = step.with_wait(row, STOPPING)
        elif row.phase == UP and not step.sighting(row).is_gone and not step.sighting(row).answers:
            step = step.with_wait(row, _silence(step, row))
    return step


def _silence(step: ReplicaStep, row: Replica) -> str:
    return "silent" if step.sighting(row).has_started else "starting"


def _hanging(step: ReplicaStep) -> set[str]:
    """The names of replicas whose launches are given up, because they neither answer nor end."""
    names = {
        row.name
        for row in step.rows
        if row.phase == STOPPING
        and step.has_waited(row, STOPPING, row.drain_seconds + STOP_MARGIN_SECONDS)
    }
    up = [row for row in step.rows if row.phase == UP and not step.sighting(row).is_gone]
    silent = {row.name for row in up if _is_silent(step, row)}
    if not any(step.sighting(row).answers for row in step.rows):
        # No launch answers, so perhaps all launches serve and only the coordinator is cut off. So only one
        # replica is given up at first: its next launch shows whether the coordinator is cut off.
        silent &= {row.name for row in sorted(up, key=replica_order)[:1]}
    return names | silent


def _is_silent(step: ReplicaStep, row: Replica) -> bool:
    """True if a launch that should run has not started in time, or has not answered for too long."""
    sighting = step.sighting(row)
    seconds = SILENT_SECONDS_MAX if sighting.has_started else START_SECONDS_MAX
    return not sighting.answers and step.has_waited(row, _silence(step, row), seconds)


def _with_ready(step: ReplicaStep, row: Replica) -> ReplicaStep:
    """Notes that a replica is ready. Forgets its failures once it has been ready for BACKOFF_SECONDS_MAX."""
    failure_count = row.failure_count
    if failure_count:
        step = step.with_wait(row, "ready")
        if step.has_waited(row, "ready", BACKOFF_SECONDS_MAX):
            failure_count = 0
    return step.with_row(replace(row, was_ready=True, failure_count=failure_count))


# --- Places ---


@dataclass(frozen=True, kw_only=True)
class _Matched:
    """A step after its launches. `staying` are the replicas with a place, `surplus` the replicas without one."""

    step: ReplicaStep
    staying: Sequence[Replica]
    surplus: Sequence[Replica]


def _matched(ended: _Ended) -> _Matched:
    """Divides the replicas into staying and surplus ones, and launches the replicas that are missing."""
    step, inputs = ended.step, ended.step.inputs
    chosen, missing = placed(inputs.wanted, inputs.rooms, step.rows)
    step = replace(step, missing=missing)
    free = {model: Counter(nodes) for model, nodes in chosen.items()}
    staying, surplus = [], []
    # If a node has too many replicas of a model, those with the lowest names stay.
    for row in sorted(step.rows, key=replica_order):
        if row.phase != UP and not row.comes_back:
            continue
        is_ended = row.name in ended.to_relaunch
        has_place = free.get(row.model, Counter())[row.node] > 0
        # A replica that has ended may need more memory now than its node has.
        outgrew_place = (
            is_ended
            and has_place
            and not step.has_room(inputs.models[row.model], row.node, row.name)
        )
        if has_place and not outgrew_place:
            free[row.model][row.node] -= 1
            step = _launched_again(step, row) if is_ended else step
            staying.append(step.state.replicas[row.name])
        elif is_ended:
            step = step.ended(row)
        else:
            surplus.append(row)
    return _Matched(step=_with_new(step, free, ended.lost), staying=staying, surplus=surplus)


def _launched_again(step: ReplicaStep, row: Replica) -> ReplicaStep:
    """Launches a replica anew after its launch has ended, once the pause after its failures is over."""
    if row.phase == UP:
        step = step.with_wait(row, "gone")
        if not step.has_waited(row, "gone", _backoff_seconds(row)):
            return step
    failure_count = row.failure_count + (row.phase == UP)
    step = replace(step, ends=(*step.ends, row))
    return step.launched(row.name, step.inputs.models[row.model], row.node, failure_count)


def _with_new(
    step: ReplicaStep, free: Mapping[str, Counter[str]], lost: Sequence[Replica]
) -> ReplicaStep:
    """Launches a replica in each free place, and counts the places whose nodes lack the memory now."""
    missing = Counter(step.missing)
    for name, nodes in free.items():
        model = step.inputs.models[name]
        # The names of replicas that were lost with their nodes come first.
        names = [row.name for row in sorted(lost, key=replica_order) if row.model == name]
        for node in sorted(nodes.elements()):
            if step.has_room(model, node):
                step = step.launched(names.pop(0) if names else _free_name(step, name), model, node)
            else:
                missing[name] += 1
    return replace(step, missing=missing)


def _free_name(step: ReplicaStep, model: str) -> str:
    """The lowest name that no replica of the model has."""
    number = 0
    while f"{model}-{number}" in step.state.replicas:
        number += 1
    return f"{model}-{number}"


def _backoff_seconds(row: Replica) -> float:
    """The pause before a replica that has ended is launched again: 0 s at first, then 2 s, 4 s and so on."""
    if row.failure_count == 0:
        return 0.0
    return min(BACKOFF_SECONDS_MAX, 2.0 ** min(row.failure_count, 10))


# --- Replicas that leave, restart and stop ---


def _with_leaving(step: ReplicaStep, surplus: Sequence[Replica]) -> ReplicaStep:
    """Lets surplus replicas leave, if enough other replicas of their models are ready.

    Replicas on a node that ends soon leave first, so that they do not count as ready for the others.
    """
    ending = [row for row in surplus if _is_deadline_near(step.inputs, row)]
    others = [row for row in reversed(surplus) if row not in ending]
    for row in (*ending, *others):
        if _may_leave(step, row):
            # A surplus replica that was leaving to restart does not come back now.
            phase = LEAVING if row.phase == UP else row.phase
            step = step.with_row(replace(row, phase=phase, comes_back=False))
    return step


def _may_leave(step: ReplicaStep, row: Replica) -> bool:
    inputs = step.inputs
    model = inputs.models.get(row.model)
    if model is None or _is_deadline_near(inputs, row):
        return True
    if row.model in inputs.swapping:
        return False
    ready_count = sum(
        other.model == row.model and other.name != row.name and step.is_ready(other)
        for other in step.rows
    )
    usable = [room for room in inputs.rooms if not room.is_draining]
    wanted_count = replicas_needed(model.need, usable) if usable else model.need.replica_count
    if ready_count >= wanted_count:
        return True
    # A replica that was never ready may leave, because no client has its address. But it stays if its model
    # lacks a place elsewhere.
    return not row.was_ready and not step.missing.get(row.model, 0)


def _is_deadline_near(inputs: ReplicaInputs, row: Replica) -> bool:
    deadline_ns = inputs.nodes[row.node].drain_deadline_ns
    seconds = inputs.leave_seconds + row.drain_seconds + DEADLINE_MARGIN_SECONDS
    return deadline_ns != 0 and inputs.wall_ns >= deadline_ns - seconds * NS_PER_SECOND


def _with_restart(step: ReplicaStep, staying: Sequence[Replica]) -> ReplicaStep:
    """Lets one replica that is to restart leave, if no other replica of the fleet is leaving or stopping."""
    restarts = step.state.restarts & step.state.replicas.keys()
    step = replace(step, state=replace(step.state, restarts=restarts))
    if any(row.phase != UP for row in step.rows):
        return step
    for row in sorted(staying, key=replica_order):
        is_due = row.name in restarts or row.spec != step.inputs.models[row.model].spec
        if is_due and _may_restart(step, row, staying):
            return step.with_row(replace(row, phase=LEAVING, comes_back=True))
    return step


def _may_restart(step: ReplicaStep, row: Replica, staying: Sequence[Replica]) -> bool:
    if row.model in step.inputs.swapping:
        return False
    if not row.was_ready:
        # A replica that was never ready does not wait: if bad flags keep all servers from getting ready,
        # corrected flags must still reach them.
        return True
    return all(
        step.is_ready(other)
        for other in (*staying, *step.starts)
        if other.model == row.model and other.name != row.name
    )


def _with_stops(step: ReplicaStep) -> ReplicaStep:
    """Stops each replica that has been leaving for `leave_seconds`, the time that clients need to go."""
    for row in [*step.rows]:
        if row.phase == LEAVING:
            step = step.with_wait(row, LEAVING)
            if step.has_waited(row, LEAVING, step.inputs.leave_seconds):
                step = step.with_row(replace(row, phase=STOPPING))
    return step


def _decision(step: ReplicaStep) -> ReplicaDecision:
    stopping = [row for _, row in sorted(step.state.replicas.items()) if row.phase == STOPPING]
    return ReplicaDecision(
        state=step.state,
        starts=step.starts,
        stops=tuple(row for row in stopping if not step.sighting(row).is_gone),
        ends=step.ends,
        missing={model: count for model, count in step.missing.items() if count},
        since_ns=step.since_ns,
    )
