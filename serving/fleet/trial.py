"""The trial of a version in a wave: the servers on which it failed, and the verdict. Pure."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest

from serving.base.clock import NS_PER_SECOND
from serving.core.model_settings import GateMode
from serving.core.servable import GateVerdict
from serving.fleet.figures import NO_REQUESTS, VersionFigures, total
from serving.fleet.reports import ModelReport
from serving.fleet.state import FleetRollout, ModelState
from serving.fleet.view import ModelView
from serving.fleet.wave_settings import WaveSettings
from serving.manager.canary import STABLE_SHARE_FACTOR_MAX, judge


@dataclass(frozen=True, slots=True)
class Baseline:
    """The figures of a version on one server when the comparison of a wave began."""

    incarnation: int
    figures: VersionFigures


@dataclass(frozen=True, kw_only=True)
class ModelWatch:
    """The observations of one coordinator. They are not kept: a new coordinator observes anew.

    `wave` is the version and the wave that the other values belong to. `members` and `controls` are
    the figures at the time when the first member served, from which the two versions are compared.
    `full_since_ns` is the time since when enough members serve, `slot_since_ns` the time since when a
    server may be swapping. `incarnations` are those with which servers were first seen to have the
    version in the last wave, which has no members. `waits_for` is the reason why nothing goes on now, for people.
    """

    wave: tuple[int, int] | None = None
    members: Mapping[str, Baseline] | None = None
    controls: Mapping[str, Baseline] = field(default_factory=dict)
    full_since_ns: int | None = None
    slot_since_ns: Mapping[str, int] = field(default_factory=dict)
    incarnations: Mapping[str, int] = field(default_factory=dict)
    waits_for: str = ""


def spread(server: str, version: int) -> int:
    """Returns the place of a server in the order of a rollout, which differs for each version."""
    return zlib.crc32(server.encode(), version & 0xFFFFFFFF)


def noted_setbacks(
    rollout: FleetRollout, view: ModelView, watch: ModelWatch, late: frozenset[str]
) -> FleetRollout:
    """Returns the rollout without the members on which the version has failed, and without unknown ones.

    Servers that are `late` have loaded it for too long.
    """
    failed = {
        name
        for name, report in view.live.items()
        if report.granted == rollout.version and has_failed_on(report, rollout.version)
    }
    restarted = {
        name
        for name, incarnation in {**watch.incarnations, **rollout.members}.items()
        if name in view.servers
        and view.live[name].granted == rollout.version
        and view.servers[name].incarnation != incarnation
    }
    setbacks = rollout.setbacks | failed | restarted | late
    members = {
        name: incarnation
        for name, incarnation in rollout.members.items()
        if name not in setbacks and (view.is_known(name) or not view.is_complete)
    }
    if setbacks == rollout.setbacks and len(members) == len(rollout.members):
        return rollout
    return replace(rollout, members=members, setbacks=frozenset(setbacks))


def has_failed_on(report: ModelReport, version: int) -> bool:
    """Returns True if the server has refused the version, or could not load it."""
    row = report.versions.get(version)
    return version in report.blocked or (row is not None and row.has_failed)


def needed_count(rollout: FleetRollout, view: ModelView, settings: WaveSettings) -> int:
    """Returns how many members must serve, so that the wave is full: its quota, if so many are left."""
    quota = settings.quota(rollout.wave, view.fleet_size)
    return max(1, min(quota, view.fleet_size - len(rollout.setbacks)))


def fault(rollout: FleetRollout, view: ModelView, settings: WaveSettings) -> str:
    """Returns why the version is at fault by its loads and its servers' ends; "" if it is not."""
    refusal = next(_refusals(rollout.version, view), None)
    if refusal is not None and next(view.serving(rollout.version), None) is None:
        return f"server {refusal[0]} refused it before any server served it: {refusal[1]}"
    quota = settings.quota(rollout.wave, view.fleet_size)
    lost = _blamed_lost(rollout, view)
    count = len(rollout.setbacks) + len(lost)
    # Half of the fleet is too many for a stable version, however small the fleet is.
    is_half = 0 < view.fleet_size <= 2 * len(rollout.setbacks)
    if count <= settings.setback_count_max(quota) and not is_half:
        return ""
    examples = sorted(rollout.setbacks | lost)[:3]
    text = f"it failed on {count} servers of a wave of {quota}, as on {', '.join(examples)}"
    return text if refusal is None else f"{text}: {refusal[1]}"


def _refusals(version: int, view: ModelView) -> Iterator[tuple[str, str]]:
    for name, report in view.live.items():
        if report.granted != version:
            continue
        if version in report.blocked:
            yield name, report.blocked[version]
            continue
        row = report.versions.get(version)
        if row is not None and row.is_refused:
            yield name, row.health.message


def _blamed_lost(rollout: FleetRollout, view: ModelView) -> frozenset[str]:
    """Returns the members that are lost, unless servers without the version are lost nearly as often.

    Then the network is at fault. The rule is that of a canary's failures.
    """
    lost = frozenset(rollout.members.keys() & view.lost)
    if not lost:
        return lost
    others = view.fleet_size - len(rollout.members)
    share = len(lost) / len(rollout.members)
    share_of_others = (len(view.lost) - len(lost)) / max(others, 1)
    return frozenset() if share_of_others > share * STABLE_SHARE_FACTOR_MAX else lost


def watched(
    watch: ModelWatch, state: ModelState, view: ModelView, settings: WaveSettings, now_ns: int
) -> ModelWatch:
    """Returns the watch after this look: a new wave begins with a new comparison."""
    since_ns = {name: watch.slot_since_ns.get(name, now_ns) for name in state.loading}
    rollout = state.rollout
    if rollout is None:
        return ModelWatch(slot_since_ns=since_ns)
    wave = (rollout.version, rollout.wave)
    if watch.wave != wave:
        watch = ModelWatch(wave=wave)
    watch = replace(watch, slot_since_ns=since_ns, waits_for="")
    if settings.is_last(rollout.wave):
        seen = {
            name: watch.incarnations.get(name, view.servers[name].incarnation)
            for name, report in view.live.items()
            if report.granted == rollout.version
        }
        watch = replace(watch, incarnations=seen)
        return _full_since(watch, now_ns, is_full=is_everywhere(rollout, state, view))
    serving = [name for name in rollout.members if _serves(view, name, rollout.version)]
    if watch.members is None and serving:
        watch = replace(
            watch,
            members=_baselines(view, serving, rollout.version),
            controls=_controls(state, rollout, view, settings),
        )
    is_full = len(serving) >= needed_count(rollout, view, settings)
    return _full_since(watch, now_ns, is_full=is_full)


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
    others = (name for name in view.serving(stable) if name not in rollout.members)
    chosen = nsmallest(
        settings.control_count_max, others, key=lambda name: spread(name, rollout.version + 1)
    )
    return _baselines(view, chosen, stable)


def _baselines(view: ModelView, names: list[str], version: int) -> dict[str, Baseline]:
    return {
        name: Baseline(view.servers[name].incarnation, view.live[name].versions[version].figures)
        for name in names
    }


def compared(
    watch: ModelWatch, state: ModelState, rollout: FleetRollout, view: ModelView
) -> tuple[VersionFigures, VersionFigures]:
    """Returns the requests of the new and of the old version since both are watched side by side.

    The old version's are those of other servers. A server that has restarted meanwhile is left out.
    """
    members = watch.members or {}
    new = [
        _since(view, name, rollout.version, members.get(name))
        for name in rollout.members
        if _serves(view, name, rollout.version)
    ]
    if state.stable is None:
        return total(new), NO_REQUESTS
    old = [
        _since(view, name, state.stable, baseline)
        for name, baseline in watch.controls.items()
        if _serves(view, name, state.stable)
        and name not in rollout.members
        and view.servers[name].incarnation == baseline.incarnation
    ]
    return total(new), total(old)


def _since(view: ModelView, name: str, version: int, baseline: Baseline | None) -> VersionFigures:
    figures = view.live[name].versions[version].figures
    # A member that began to serve after the comparison began is compared with all its requests.
    return figures if baseline is None else figures.since(baseline.figures)


def wave_verdict(
    watch: ModelWatch,
    state: ModelState,
    rollout: FleetRollout,
    view: ModelView,
    settings: WaveSettings,
    now_ns: int,
) -> GateVerdict | None:
    """Returns the verdict on a wave by its requests; None while it needs more of them.

    The judgement is that of a canary on one server.
    """
    if watch.members is None:
        return None
    new, old = compared(watch, state, rollout, view)
    gate = f"wave {rollout.wave + 1}"
    verdict = judge(settings.judgement, new, old)
    if verdict is not None:
        return _of_wave(verdict, gate, new, old)
    if not has_held(watch, state, settings, now_ns):
        return None
    if new.request_count == 0:
        reason = f"no request in {settings.judged_seconds:g} s"
        return GateVerdict(gate=gate, mode=GateMode.ENFORCE.value, is_passed=True, reason=reason)
    verdict = judge(replace(settings.judgement, request_count=1), new, old)
    return None if verdict is None else _of_wave(verdict, gate, new, old)


def _of_wave(
    verdict: GateVerdict, gate: str, new: VersionFigures, old: VersionFigures
) -> GateVerdict:
    """Returns a canary's verdict as that of a wave. The p99 is for people: p999 alone is judged."""
    figures = {
        **verdict.figures,
        "latency_seconds_p99": new.latency_ns_p99 / NS_PER_SECOND,
        "stable_latency_seconds_p99": old.latency_ns_p99 / NS_PER_SECOND,
    }
    return replace(verdict, gate=gate, figures=figures)
