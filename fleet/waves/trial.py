"""The trial of a version in a wave: the servers on which it failed, and the verdict. Pure."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest

from fleet.waves.figures import NO_REQUESTS, VersionFigures, total
from fleet.waves.reports import ModelReport
from fleet.waves.state import FleetRollout, ModelState
from fleet.waves.view import ModelView, has_failed_on
from fleet.waves.wave_settings import HOLD, WaveSettings
from serving.base.clock import NS_PER_SECOND
from serving.core.model_settings import GateMode
from serving.core.servable import GateVerdict
from serving.gates.gates import Gate
from serving.manager.canary import STABLE_SHARE_FACTOR_MAX, Judgement, judge

WITHOUT_CAUSE = "it ended, was lost, or took longer than load_seconds_max to load it"
"""The cause of a setback that no report shows."""


GATES_THAT_HOLD_NOTHING = frozenset(
    gate.value for gate in (Gate.GOLDEN, Gate.SHAPES, Gate.LATENCY, Gate.CONVERGENCE)
)
"""The gates whose warnings are shown only. Other gates look for what is never meant or fails requests.

A retrained version that is as good as its predecessor may differ from the golden answers of a file that was
copied to it, or declare other shapes. A wave compares latencies itself, over more requests.
"""

# A server may report any text as a gate's name. Only these are kept.
_GATES = frozenset(gate.value for gate in Gate)

WARNED_COUNT_MAX = 10
"""The servers with a warning that are kept: one holds the rollout, and the state stays small."""

WARNED_LENGTH_MAX = 500
"""The characters of a warning that are kept."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The figures of a version on one server when the comparison of a wave began."""

    incarnation: int
    figures: VersionFigures


@dataclass(frozen=True, kw_only=True)
class ModelWatch:
    """The observations of one coordinator. They are not kept: a new coordinator observes anew.

    `wave` is the version and the wave that the other values belong to. `members` and `controls` are the
    figures from which on the two versions are compared: those at the time when the first member served,
    or when too few controls were left and others took their place. In the last wave `members` are the
    servers that had the version when it began, and `seen` are the latest counts of its controls, some
    of which have swapped since. `full_since_ns` is the time since when enough members serve,
    `slot_since_ns` the time since when a server may be swapping, or loads what was granted before the
    rollout. `incarnations` are those with which servers were first seen to have the version; the last
    wave has no members. `lost` are servers with the version that are lost, or whose place has started
    another one under their name. `drained` drained when they were seen last, and `excused` were lost
    while as many others were: neither end is the version's fault. `doubt` is the reason why the versions are
    compared once more in this wave. `waits_for` is the reason why nothing goes on now, for people.
    """

    wave: tuple[int, int] | None = None
    members: Mapping[str, Baseline] | None = None
    controls: Mapping[str, Baseline] = field(default_factory=dict)
    seen: Mapping[str, VersionFigures] = field(default_factory=dict)
    is_late: bool = False
    full_since_ns: int | None = None
    doubt: str = ""
    slot_since_ns: Mapping[str, int] = field(default_factory=dict)
    incarnations: Mapping[str, int] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()
    waits_for: str = ""


def spread(server: str, version: int) -> int:
    """Returns the place of a server in the order of a rollout, which differs for each version."""
    return zlib.crc32(server.encode(), version & 0xFFFFFFFF)


def noted_setbacks(
    rollout: FleetRollout, view: ModelView, watch: ModelWatch, late: frozenset[str]
) -> FleetRollout:
    """Returns the rollout without the members on which the version has failed, and without those that left.

    Servers that are `late` have loaded it for too long. A server that was lost with the version, and
    has left the fleet since, has failed too: its place may give it another name. So has a server that
    has restarted, unless its end is not the version's fault. It may have lost its grant: without a state
    directory it keeps none.
    """
    failed = {
        name
        for name, report in view.live.items()
        if has_version(report, rollout) and has_failed_on(report, rollout.version)
    }
    spared = watch.drained | watch.excused
    restarted = {
        name
        for name, incarnation in {**watch.incarnations, **rollout.members}.items()
        if name in view.servers
        and name not in spared
        and view.servers[name].incarnation != incarnation
    }
    vanished = {name for name in watch.lost if not view.is_known(name)}
    setbacks = rollout.setbacks | failed | restarted | late | vanished
    members = {
        name: view.servers[name].incarnation
        if name in spared and name in view.servers
        else incarnation
        for name, incarnation in rollout.members.items()
        if name not in setbacks and view.is_known(name)
    }
    if setbacks == rollout.setbacks and members == rollout.members:
        return rollout
    return replace(rollout, members=members, setbacks=frozenset(setbacks))


def noted_warnings(rollout: FleetRollout, view: ModelView) -> FleetRollout:
    """Returns the rollout with the servers on which a gate has warned about the version.

    They stay, because a server that has restarted has nothing to compare the version with any more.
    """
    warned, is_doubtful = dict(rollout.warned), rollout.is_doubtful
    alone, excused = set(rollout.warned_alone), set(rollout.excused)
    for name, report in view.live.items():
        row = report.versions.get(rollout.version)
        if row is None or not has_version(report, rollout):
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
    """Adds a server's warning if there is room. One that may hold the version takes the place of one that cannot."""
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
    """Returns True if the first gate of a kept warning is one that holds a version."""
    gate = warning.partition(":")[0].removeprefix("gate ")
    return gate not in GATES_THAT_HOLD_NOTHING


def is_held(rollout: FleetRollout, settings: WaveSettings) -> bool:
    """Returns True if the version waits for an operator, because a gate has warned about it on a server.

    A warning of a server that had no predecessor does not count if the gate has passed like answers on
    another one, or on the same one before it restarted.
    """
    is_doubtful = rollout.is_doubtful or bool(rollout.warned_alone - rollout.excused)
    return is_doubtful and settings.warned_gates == HOLD and not rollout.is_promoted


def has_version(report: ModelReport, rollout: FleetRollout) -> bool:
    """Returns True if the server was granted the version in this rollout.

    A grant of an earlier rollout does not count: an operator has allowed the version since.
    """
    return report.granted == rollout.version and report.order >= rollout.since_order


def has_old_grant(report: ModelReport, rollout: FleetRollout) -> bool:
    """Returns True if a server answers with no version, and loads one that was granted before the rollout."""
    is_granted = report.granted is not None and report.order < rollout.since_order
    return is_granted and report.default_version is None


def may_have_version(
    state: ModelState, rollout: FleetRollout, server: str, report: ModelReport | None
) -> bool:
    """Returns True if a server has the version, or has a slot for it and may have taken its grant."""
    slot = state.loading.get(server)
    is_granted = slot is not None and slot.version == rollout.version
    return is_granted or (report is not None and has_version(report, rollout))


def needed_count(
    rollout: FleetRollout, state: ModelState, view: ModelView, settings: WaveSettings
) -> int:
    """Returns how many members must serve, so that the wave is full: its quota, if so many are left."""
    quota = settings.quota(rollout.wave, view.fleet_size)
    setback_count = sum(map(view.is_known, rollout.setbacks))
    apart_count = len(servers_apart(rollout, state, view))
    return max(1, min(quota, view.fleet_size - setback_count - apart_count))


def servers_apart(rollout: FleetRollout, state: ModelState, view: ModelView) -> frozenset[str]:
    """Returns the servers that wait for the last wave, because they cannot have the stable version.

    They may be unable to load any version. None of them waits if no other server is left that could try
    the version.
    """
    stable = state.stable
    if stable is None:
        return frozenset()
    taken = {*rollout.members, *rollout.setbacks, *view.draining}
    apart = view.unable(stable) - taken
    if not apart or rollout.members:
        return apart
    return frozenset() if len(apart) == len(view.live.keys() - taken) else apart


def fault(rollout: FleetRollout, watch: ModelWatch, view: ModelView, settings: WaveSettings) -> str:
    """Returns why the version is at fault by its loads and its servers' ends; "" if it is not."""
    refusal = next(_refusals(rollout, view), None)
    if refusal is not None and next(view.serving(rollout.version), None) is None:
        return f"server {refusal[0]} refused it before any server served it: {refusal[1]}"
    quota = settings.quota(rollout.wave, view.fleet_size)
    lost = _blamed_lost(rollout, watch, view) - rollout.setbacks
    count = len(rollout.setbacks) + len(lost)
    # Half of the fleet is too many for a stable version, however small the fleet is.
    is_half = 0 < view.fleet_size <= 2 * len(rollout.setbacks)
    if count <= settings.setback_count_max(quota) and not is_half:
        return ""
    examples = sorted(rollout.setbacks | lost)[:3]
    text = f"it failed on {count} servers of a wave of {quota}, as on {', '.join(examples)}"
    if refusal is not None:
        return f"{text}: {refusal[1]}"
    reported = (cause_on(view, name, rollout.version) for name in sorted(rollout.setbacks))
    return f"{text}: {next(filter(None, reported), WITHOUT_CAUSE)}"


def cause_on(view: ModelView, server: str, version: int) -> str:
    """Returns why a live server could not load the version, or has blocked it; "" if it did not."""
    report = view.live.get(server)
    if report is None or not has_failed_on(report, version):
        return ""
    row = report.versions.get(version)
    return report.blocked.get(version) or (row.health.message if row is not None else "")


def _refusals(rollout: FleetRollout, view: ModelView) -> Iterator[tuple[str, str]]:
    version = rollout.version
    for name, report in view.live.items():
        if not has_version(report, rollout):
            continue
        if version in report.blocked:
            yield name, report.blocked[version]
            continue
        row = report.versions.get(version)
        if row is not None and row.is_refused:
            yield name, row.health.message


def with_lost(watch: ModelWatch, state: ModelState, view: ModelView) -> ModelWatch:
    """Returns the watch with the lost servers that have the version on its way, or may have taken it.

    `state` has the slots of before: a server may be lost before it has reported that it took a grant.
    """
    rollout = state.rollout
    if rollout is None:
        return watch
    watch = _of_version(watch, rollout.version)
    before = watch.lost
    lost = {
        name
        for name, report in view.lost.items()
        if name not in watch.drained
        and (
            name in before
            or name in rollout.members
            or name in watch.incarnations
            or may_have_version(state, rollout, name, report)
        )
    }
    gone = {name for name in before if name in view.unknown or not view.is_known(name)}
    return replace(watch, lost=frozenset(lost | gone))


def _blamed_lost(rollout: FleetRollout, watch: ModelWatch, view: ModelView) -> frozenset[str]:
    """Returns the lost servers with the version, unless those without it are lost nearly as often.

    Then the network is at fault. The rule is that of a canary's failures.
    """
    lost = watch.lost & view.lost.keys()
    if not lost:
        return lost
    count = len(lost) + sum(has_version(report, rollout) for report in view.live.values())
    share_of_others = (len(view.lost) - len(lost)) / max(view.fleet_size - count, 1)
    return frozenset() if share_of_others > len(lost) / count * STABLE_SHARE_FACTOR_MAX else lost


def watched(
    watch: ModelWatch, state: ModelState, view: ModelView, settings: WaveSettings, now_ns: int
) -> ModelWatch:
    """Returns the watch after this look: a new wave begins with a new comparison."""
    rollout = state.rollout
    loading = {*state.loading}
    if rollout is not None and state.stable is None:
        loading |= {name for name, report in view.live.items() if has_old_grant(report, rollout)}
    since_ns = {name: watch.slot_since_ns.get(name, now_ns) for name in loading}
    if rollout is None:
        return ModelWatch(slot_since_ns=since_ns)
    wave = (rollout.version, rollout.wave)
    if watch.wave != wave:
        # Another wave is compared anew. The ends of servers are those of the whole rollout.
        before = _of_version(watch, rollout.version)
        watch = replace(
            before,
            wave=wave,
            members=None,
            controls={},
            seen={},
            is_late=before.wave is None,
            full_since_ns=None,
            doubt="",
        )
    watch = _with_ends(watch, state, rollout, view)
    watch = replace(watch, slot_since_ns=since_ns, waits_for="")
    if settings.is_last(rollout.wave):
        watch = _with_last_wave(watch, state, rollout, view, settings)
        return _full_since(watch, now_ns, is_full=is_everywhere(rollout, state, view))
    serving = [name for name in rollout.members if _serves(view, name, rollout.version)]
    if serving and (watch.members is None or _lacks_controls(watch, state, rollout, view)):
        watch = replace(
            watch,
            members=_baselines(view, serving, rollout.version),
            controls=_controls(state, rollout, view, settings),
            full_since_ns=None,
        )
    is_full = len(serving) >= needed_count(rollout, state, view, settings)
    return _full_since(watch, now_ns, is_full=is_full)


def _of_version(watch: ModelWatch, version: int) -> ModelWatch:
    """Returns the watch if it is of the rollout of `version`, or else one that has seen nothing of it."""
    is_same = watch.wave is not None and watch.wave[0] == version
    return watch if is_same else ModelWatch(slot_since_ns=watch.slot_since_ns)


def _with_ends(
    watch: ModelWatch, state: ModelState, rollout: FleetRollout, view: ModelView
) -> ModelWatch:
    """Returns the watch with what tells later whether the end of a server is the version's fault.

    A server is spared until it is seen again. One that is lost or unknown keeps its incarnation, so that it
    is known to have restarted when it comes back. Without an earlier version no restart in the last
    wave is blamed on a first one: there is nothing better to go back to.
    """
    drained = view.draining | (watch.drained - view.live.keys())
    shared = watch.lost - _blamed_lost(rollout, watch, view)
    excused = (watch.excused | shared) - view.live.keys()
    spared = drained | excused
    incarnations = {
        name: incarnation
        for name, incarnation in watch.incarnations.items()
        if name not in spared and (name in view.lost or name in view.unknown)
    }
    if state.stable is not None:
        incarnations |= {
            name: watch.incarnations.get(name, view.servers[name].incarnation)
            for name, report in view.live.items()
            if name not in spared and may_have_version(state, rollout, name, report)
        }
    return replace(
        watch,
        drained=frozenset(drained),
        excused=frozenset(excused),
        incarnations=incarnations,
    )


def _with_last_wave(
    watch: ModelWatch,
    state: ModelState,
    rollout: FleetRollout,
    view: ModelView,
    settings: WaveSettings,
) -> ModelWatch:
    """Returns the watch with the counts of the last wave, which begin once all servers are known.

    A coordinator that takes over in this wave counts the requests of both versions since they were loaded:
    otherwise one that takes over again and again would see no failures.
    """
    if watch.members is None:
        if not view.is_complete:
            return watch
        controls = _last_controls(state, view, rollout, settings)
        old = list(view.serving(rollout.version))
        if watch.is_late:
            # A server without a grant of this rollout still has the version of an earlier one.
            old = [name for name in old if not has_version(view.live[name], rollout)]
            if any(has_version(report, rollout) for report in view.live.values()):
                controls = {
                    name: replace(baseline, figures=NO_REQUESTS)
                    for name, baseline in controls.items()
                }
        members = _count_baselines(view, old, rollout.version)
        watch = replace(watch, members=members, controls=controls)
    seen = {
        name: counts_of(view, name, state.stable)
        for name, baseline in watch.controls.items()
        if state.stable is not None and is_comparable(view, name, state.stable, baseline)
    }
    return replace(watch, seen={**watch.seen, **seen})


def is_comparable(view: ModelView, name: str, stable: int, baseline: Baseline) -> bool:
    """Returns True if a control still answers with the stable version, and counts on."""
    if not answers_with(view, name, stable):
        return False
    is_same = view.servers[name].incarnation == baseline.incarnation
    return is_same and counts_of(view, name, stable).is_continued_from(baseline.figures.counts)


def _last_controls(
    state: ModelState, view: ModelView, rollout: FleetRollout, settings: WaveSettings
) -> dict[str, Baseline]:
    """Returns servers that still answer with the stable version when the last wave begins."""
    stable = state.stable
    if stable is None:
        return {}
    names = (name for name in view.serving(stable) if answers_with(view, name, stable))
    chosen = nsmallest(settings.control_count_max, names, key=_place_of_control(rollout))
    return _count_baselines(view, chosen, stable)


def answers_with(view: ModelView, name: str, version: int) -> bool:
    """Returns True if a live server serves the version, and answers with it unless another one is named."""
    report = view.live.get(name)
    return report is not None and report.default_version == version and report.serves(version)


def _count_baselines(view: ModelView, names: Iterable[str], version: int) -> dict[str, Baseline]:
    return {
        name: Baseline(view.servers[name].incarnation, counts_of(view, name, version))
        for name in names
    }


def counts_of(view: ModelView, name: str, version: int) -> VersionFigures:
    """Returns the requests of a version on a live server, without their latencies."""
    return view.live[name].versions[version].figures.counts


def _full_since(watch: ModelWatch, now_ns: int, *, is_full: bool) -> ModelWatch:
    since_ns = now_ns if watch.full_since_ns is None else watch.full_since_ns
    return replace(watch, full_since_ns=since_ns if is_full else None)


def is_everywhere(rollout: FleetRollout, state: ModelState, view: ModelView) -> bool:
    """Returns True if no server must swap to the version any more.

    More than half of the fleet must serve it. The rest may be lost, or miss its files, and follows.
    """
    version = rollout.version
    if not view.is_complete or any(slot.version == version for slot in state.loading.values()):
        return False
    if 2 * sum(1 for _ in view.serving(version)) <= view.fleet_size:
        return False
    return all(
        report.serves(version)
        or version not in report.found
        or name in rollout.setbacks
        or name in view.draining
        for name, report in view.live.items()
    )


def has_held(watch: ModelWatch, state: ModelState, settings: WaveSettings, now_ns: int) -> bool:
    """Returns True if a full wave has lasted as long as a judgement. A first version need not wait."""
    if watch.full_since_ns is None:
        return False
    waited_ns = now_ns - watch.full_since_ns
    return state.stable is None or waited_ns >= settings.judged_seconds * NS_PER_SECOND


def _serves(view: ModelView, name: str, version: int) -> bool:
    return name in view.live and view.live[name].serves(version)


def _controls(
    state: ModelState, rollout: FleetRollout, view: ModelView, settings: WaveSettings
) -> dict[str, Baseline]:
    stable = state.stable
    if stable is None:
        return {}
    others = _other_servers(state, rollout, view)
    chosen = nsmallest(settings.control_count_max, others, key=_place_of_control(rollout))
    return _baselines(view, chosen, stable)


def _place_of_control(rollout: FleetRollout) -> Callable[[str], int]:
    return lambda name: spread(name, rollout.version + 1)


def _other_servers(state: ModelState, rollout: FleetRollout, view: ModelView) -> Iterator[str]:
    """Yields the live servers that serve the stable version, without those that try the new one."""
    if state.stable is not None:
        yield from (name for name in view.serving(state.stable) if name not in rollout.members)


def _lacks_controls(
    watch: ModelWatch, state: ModelState, rollout: FleetRollout, view: ModelView
) -> bool:
    """Returns True if less than half of the controls are left, and other servers can take their place."""
    count = sum(1 for _ in _controls_left(watch, state, rollout, view))
    if count and 2 * count >= len(watch.controls):
        return False
    return next(_other_servers(state, rollout, view), None) is not None


def _baselines(view: ModelView, names: list[str], version: int) -> dict[str, Baseline]:
    return {
        name: Baseline(view.servers[name].incarnation, view.live[name].versions[version].figures)
        for name in names
    }


def compared(
    watch: ModelWatch, state: ModelState, rollout: FleetRollout, view: ModelView
) -> tuple[VersionFigures, VersionFigures]:
    """Returns the requests of the new and of the old version since both are watched side by side.

    The old version's are those of other servers. A server whose counts have begun again is left out.
    """
    members = watch.members or {}
    new = [
        _member_figures(view, name, rollout.version, members.get(name))
        for name in rollout.members
        if _serves(view, name, rollout.version)
    ]
    old = _controls_left(watch, state, rollout, view)
    return total(new), total(figures.since(baseline.figures) for figures, baseline in old)


def _member_figures(
    view: ModelView, name: str, version: int, baseline: Baseline | None
) -> VersionFigures:
    return since_baseline(view.live[name].versions[version].figures, baseline)


def since_baseline(figures: VersionFigures, baseline: Baseline | None) -> VersionFigures:
    """Returns the requests since a comparison began."""
    # A version that was loaded after the comparison began is compared with all its requests.
    if baseline is None or not figures.is_continued_from(baseline.figures):
        return figures
    return figures.since(baseline.figures)


def _controls_left(
    watch: ModelWatch, state: ModelState, rollout: FleetRollout, view: ModelView
) -> Iterator[tuple[VersionFigures, Baseline]]:
    """Yields the figures of each control that can still be compared with, now and at first."""
    if state.stable is None:
        return
    for name, baseline in watch.controls.items():
        if (
            _serves(view, name, state.stable)
            and name not in rollout.members
            and view.servers[name].incarnation == baseline.incarnation
        ):
            figures = view.live[name].versions[state.stable].figures
            if figures.is_continued_from(baseline.figures):
                yield figures, baseline


def lacks_comparison(
    watch: ModelWatch, state: ModelState, rollout: FleetRollout, view: ModelView
) -> bool:
    """Returns True if servers have the stable version, or load it, and none can be compared with now."""
    stable = state.stable
    if stable is None or next(_controls_left(watch, state, rollout, view), None) is not None:
        return False
    lost = (view.lost[name] for name in view.lost.keys() - rollout.members.keys())
    live = (view.live[name] for name in view.live.keys() - rollout.members.keys())
    return any(report is None or report.granted == stable for report in lost) or any(
        report.serves(stable) or _will_serve(report, stable) for report in live
    )


def _will_serve(report: ModelReport, version: int) -> bool:
    is_granted = report.granted == version and version in report.found
    return is_granted and not has_failed_on(report, version)


def doubted(watch: ModelWatch, verdict: GateVerdict) -> ModelWatch:
    """Returns the watch of a wave that was slow: the comparison begins again, on other requests."""
    return replace(watch, members=None, controls={}, doubt=verdict.reason)


def wave_judgement(
    watch: ModelWatch,
    state: ModelState,
    rollout: FleetRollout,
    view: ModelView,
    settings: WaveSettings,
    now_ns: int,
) -> Judgement | None:
    """Returns the judgement of a wave by its requests; None while it needs more of them.

    It is that of a canary on one server. A version that has a predecessor passes only beside
    it: by its requests, or after the time of a judgement if the predecessor had none.
    """
    if watch.members is None or lacks_comparison(watch, state, rollout, view):
        return None
    new, old = compared(watch, state, rollout, view)
    gate = gate_of(rollout)
    judgement = judge(settings.judgement, new, old)
    is_beside = state.stable is None or old.request_count > 0
    if judgement is not None and (is_beside or not judgement.verdict.is_passed):
        return _of_wave(judgement, gate, new, old)
    if not has_held(watch, state, settings, now_ns):
        return None
    if new.request_count == 0:
        reason = f"no request in {settings.judged_seconds:g} s"
        if state.stable is None:
            reason = "no request; a first version does not wait for any"
        mode = GateMode.ENFORCE.value
        return Judgement(GateVerdict(gate=gate, mode=mode, is_passed=True, reason=reason))
    judgement = judge(replace(settings.judgement, request_count=1), new, old)
    return None if judgement is None else _of_wave(judgement, gate, new, old)


def gate_of(rollout: FleetRollout) -> str:
    """Returns the name of the verdicts on the present wave."""
    return f"wave {rollout.wave + 1}"


def _of_wave(
    judgement: Judgement, gate: str, new: VersionFigures, old: VersionFigures
) -> Judgement:
    """Returns a canary's judgement as that of a wave, with p99 for people."""
    figures = dict(judgement.verdict.figures)
    if not old.request_count:
        # A ratio to nothing.
        del figures["error_ratio"]
    figures |= {
        "latency_seconds_p99": new.latency_ns_p99 / NS_PER_SECOND,
        "stable_latency_seconds_p99": old.latency_ns_p99 / NS_PER_SECOND,
    }
    verdict = replace(judgement.verdict, gate=gate, figures=figures)
    return replace(judgement, verdict=verdict)
