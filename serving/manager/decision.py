"""Decides who answers, and what is loaded and unloaded next, for one model. Pure functions on values.

An *event* (`events.py`, `rollback.py`, `blocking.py`, `canary_turns.py`) changes the state at once: the source
aspires versions, a load ends, an operator rolls back. `decide` finds out what follows from a state. The control
thread applies each `Decision`, and asks again until the stream is at rest.

`decide` settles first, and acts only on a settled state:

1. A version that crashed the server may have waited long enough to be the fallback.
2. Failures worth a retry are cleared, so that the policy sees these versions in START.
3. Lives that are over are dropped, and each aspired version gets a life.
4. The canary ends, resumes, or is judged. It goes before the policy, because it changes the routing, and
   the routing keeps versions in memory.
5. The version that the answering one has replaced is noted, because the policy may keep it.
6. If any of these must be applied, `decide` returns. Otherwise it asks the policy for one action, and
   starts the retries that are due.

So each decision changes what requests see at most once. The promises:

- A blocked version is the default only while no other version is ready. A version that began as a canary is
  the default only if it was promoted, or if no verified version is ready.
- Labels, the default and the canary lead only to AVAILABLE versions.
- A version that is AVAILABLE and aspired is not unloaded.
- Without an event and before `due_ns`, a second decision on the same figures changes nothing.
"""

from collections.abc import Iterator
from dataclasses import replace

from serving.base.clock import NS_PER_SECOND, Now
from serving.core.aspired_version_policy import Action, Load
from serving.manager import canary
from serving.manager.blocking import forget_failures, unblock, update_fallback
from serving.manager.canary_turns import is_judged_by_rule, judge_canary, resume_canary
from serving.manager.lives import end_canary_unless_aspired, reconcile
from serving.manager.stream import StreamState
from serving.manager.turn import (
    Decision,
    Ended,
    Figures,
    Found,
    StartLoad,
    StartUnload,
    Turn,
)


def decide(state: StreamState, found: Found, figures: Figures, now: Now) -> Decision:
    """Decides the next state of a stream, and what follows from it (see the module)."""
    turn = Turn(state, now, found, figures)
    _settle(turn)
    if not turn.is_rest:
        return turn.decision()
    policy, snapshots = turn.state.policy, turn.state.snapshots(now.ns)
    action = policy.next_action(snapshots)
    if action is not None:
        _note_swap(turn, action)
        if not _is_delayed(turn.state, action, now.ns):
            _act(turn, action)
            return turn.decision()
    may_retry = policy.may_retry(snapshots)
    if may_retry:
        _retry_due_loads(turn)
    _note_rest(turn)
    instants = _due_instants_ns(turn, action, may_retry=may_retry)
    # An instant in the past has had its effect already, or waits for an event like the end of a load.
    return turn.decision(min((at_ns for at_ns in instants if at_ns > now.ns), default=None))


def _settle(turn: Turn) -> None:
    turn.state = turn.state.without_past_failures()
    if turn.state.blocks.crashed:
        update_fallback(turn)
    _try_again(turn)
    reconcile(turn)
    end_canary_unless_aspired(turn)
    resume_canary(turn)
    judge_canary(turn)
    kept = turn.state.kept_after(turn.now.ns)
    if kept is not turn.state.kept:
        turn.change(kept=kept)


def _try_again(turn: Turn) -> None:
    """Clears failures worth a retry.

    A failure is worth a retry if a setting that the load failed under has changed, or if another
    version can now be unloaded to free memory.
    """
    for version, reason in turn.state.worth_another_try().items():
        turn.log("info", "load_tried_again", version=version, reason=reason)
        state = turn.state
        turn.change(
            failed={key: item for key, item in state.failed.items() if key != version},
            harnesses={key: item for key, item in state.harnesses.items() if key != version},
        )
        unblock(turn, version, reason)


def _act(turn: Turn, action: Action) -> None:
    """Performs the action of the policy on the state."""
    version = action.id.version
    harness = turn.state.harnesses[version]
    if isinstance(action, Load):
        turn.move(harness.begin_load(turn.state.settings, turn.now))
        turn.log("info", "load_started", version=version)
        turn.effects.append(StartLoad(version))
        return
    makes_room = turn.state.swap_of(action) is not None
    turn.move(harness.begin_unload(turn.now, makes_room=makes_room))
    is_last = not turn.state.ready_versions
    turn.reroute(
        unverified=turn.state.unverified - {version},
        served_since_ns=None if is_last else turn.state.served_since_ns,
    )
    turn.log("info", "unload_started", version=version)
    turn.effects.append(StartUnload(version))


def _note_swap(turn: Turn, action: Action) -> None:
    """Draws when the swap that `action` is part of may begin, once for each swap.

    The load, and an unload that makes room for it, wait until then. The first version of a model does not.
    """
    state, longest_seconds = turn.state, turn.state.rules.swap_jitter_seconds
    version = state.swap_of(action)
    if version is None or version in state.swap_at_ns or longest_seconds == 0:
        return
    if state.ready_versions:
        delay_ns = round(turn.figures.drawn * longest_seconds * NS_PER_SECOND)
        turn.change(swap_at_ns={**state.swap_at_ns, version: turn.now.ns + delay_ns})
        turn.log("info", "load_delayed", version=version, seconds=delay_ns / NS_PER_SECOND)


def _is_delayed(state: StreamState, action: Action, now_ns: int) -> bool:
    version = state.swap_of(action)
    at_ns = None if version is None else state.swap_at_ns.get(version)
    return at_ns is not None and now_ns < at_ns and bool(state.ready_versions)


def _retry_due_loads(turn: Turn) -> None:
    for version, harness in turn.state.harnesses.items():
        if harness.retry_at_ns is not None and harness.retry_at_ns <= turn.now.ns:
            turn.state = turn.state.with_harness(harness.begin_retry(turn.state.settings))
            turn.effects.append(StartLoad(version))


def _note_rest(turn: Turn) -> None:
    """Notes when the last version of the stream is gone, and when it has versions again."""
    state = turn.state
    is_empty = not state.aspired and not state.harnesses
    if is_empty and not state.is_idle:
        turn.change(
            is_idle=True,
            canary=None,
            unverified=frozenset(),
            kept=replace(state.kept, given_up=None),
        )
        if not state.selected:
            forget_failures(turn)
        turn.notices.append(Ended())
    elif state.is_idle and not is_empty:
        turn.change(is_idle=False)


def _due_instants_ns(turn: Turn, action: Action | None, *, may_retry: bool) -> Iterator[int]:
    """Yields when something follows without an event.

    That is a retry, a delayed swap, the unload of a previous version, the judgement of a canary, or
    the return of a version that crashed.
    """
    state, now = turn.state, turn.now
    crash_wait_ns = state.blocks.wait_ns(now.wall_ns) if state.blocks.crashed else None
    if crash_wait_ns is not None:
        yield now.ns + crash_wait_ns
    for harness in state.harnesses.values() if may_retry else ():
        if harness.retry_at_ns is not None:
            yield harness.retry_at_ns
    swap_version = None if action is None else state.swap_of(action)
    if swap_version is not None and swap_version in state.swap_at_ns:
        yield state.swap_at_ns[swap_version]
    keep_until_ns = None if state.unloads_first else state.keep_until_ns()
    if keep_until_ns is not None:
        yield keep_until_ns
    if is_judged_by_rule(state):
        yield now.ns + round(canary.PERIOD_SECONDS * NS_PER_SECOND)
