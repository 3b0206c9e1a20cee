"""The comparison of a new version with the stable one, wave by wave, and its judgement. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest

from fleet.rollout.figures import NO_REQUESTS, VersionFigures, total
from fleet.rollout.reports import ModelReport
from fleet.rollout.trial import Trial, WaveId, spread
from fleet.rollout.view import ModelView, has_failed_on
from serving.base.clock import NS_PER_SECOND
from serving.core.model_settings import GateMode
from serving.core.servable import GateVerdict
from serving.manager.canary import Judgement, judge


@dataclass(frozen=True, slots=True)
class Baseline:
    """The figures of a version on one server when the comparison of a wave began."""

    incarnation: int
    figures: VersionFigures

    def since(self, figures: VersionFigures) -> VersionFigures:
        """The requests since the comparison began; all requests if the version was loaded after that."""
        is_same = figures.is_continued_from(self.figures)
        return figures.since(self.figures) if is_same else figures


NO_BASELINE = Baseline(0, NO_REQUESTS)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Compares the requests of the two versions in one wave. Each server's requests count from its baseline.

    The baselines are taken when the first member serves the new version, and again if controls are gone and
    other servers take their place. This is a value: each look at the fleet makes another object.
    """

    # The wave whose requests are compared; None before the first look.
    wave: WaveId | None = None
    # By server, the baseline of the new version; None before the first member serves it. In the last wave
    # this lists the servers that already had the new version when the wave began.
    members: Mapping[str, Baseline] | None = None
    # By server, the baseline of the stable version on each control.
    controls: Mapping[str, Baseline] = field(default_factory=dict)
    # In the last wave, each control's latest counts. They are kept because most controls swap during that
    # wave, and a server that has swapped reports the stable version no more.
    seen: Mapping[str, VersionFigures] = field(default_factory=dict)
    # True if this coordinator has seen no earlier wave of the rollout, because it took over in this wave.
    is_first_seen: bool = False
    # The time since which enough members serve the new version to fill the wave; None while too few do.
    full_since_ns: int | None = None
    # The reason why the wave compares the two versions a second time; "" if it compares them once.
    doubt: str = ""

    @property
    def is_full(self) -> bool:
        """True if as many members serve as the wave needs."""
        return self.full_since_ns is not None

    def after(self, trial: Trial) -> "Comparison":
        """Looks at the wave: begins its comparison, and notes when it is full."""
        if self.wave != trial.wave:
            return Comparison(wave=trial.wave, is_first_seen=self.wave is None).after(trial)
        looked = self._in_last_wave(trial) if trial.is_last_wave else self._in_wave(trial)
        since_ns = trial.now_ns if looked.full_since_ns is None else looked.full_since_ns
        return replace(looked, full_since_ns=since_ns if trial.is_full else None)

    def doubted(self, trial: Trial, verdict: GateVerdict) -> "Comparison":
        """Begins the comparison anew on later requests, because a verdict found the new version too slow."""
        return replace(self, members=None, controls={}, doubt=verdict.reason).after(trial)

    def has_held(self, trial: Trial) -> bool:
        """True if the wave has been full for `judged_seconds`. Without a stable version, full is enough."""
        if self.full_since_ns is None:
            return False
        waited_ns = trial.now_ns - self.full_since_ns
        judged_ns = trial.settings.judged_seconds * NS_PER_SECOND
        return trial.stable is None or waited_ns >= judged_ns

    def lacks_controls_left(self, trial: Trial) -> bool:
        """True if servers serve or load the stable version, but no control can be compared with now."""
        stable = trial.stable
        if stable is None or any(self.controls_left(trial)):
            return False
        view, members = trial.view, trial.rollout.members.keys()
        lost = (view.lost[name] for name in view.lost.keys() - members)
        live = (view.live[name] for name in view.live.keys() - members)
        return any(report is None or report.granted == stable for report in lost) or any(
            report.serves(stable) or _will_serve(report, stable) for report in live
        )

    def may_go_on(self, trial: Trial) -> bool:
        """True if a control still answers with the stable version, so that its requests may yet grow."""
        return any(
            trial.view.answers_with(name, trial.stable) for name, _ in self.controls_left(trial)
        )

    def figures(self, trial: Trial) -> tuple[VersionFigures, VersionFigures]:
        """The requests since the baselines: of the new version on members, and of the old one on controls.

        Leaves out a control that was loaded again, because its counts began again at 0.
        """
        members, version = self.members or {}, trial.version
        new = total(
            members.get(name, NO_BASELINE).since(trial.view.live[name].versions[version].figures)
            for name in trial.serving_members
        )
        left = self.controls_left(trial)
        return new, total(figures.since(self.controls[name].figures) for name, figures in left)

    def counts_of_last_wave(self, trial: Trial) -> tuple[VersionFigures, VersionFigures]:
        """The requests of the new version and of the old version in the last wave, without latencies."""
        members, version = self.members or {}, trial.version
        new = total(
            members.get(name, NO_BASELINE).since(_counts_of(trial.view, name, version))
            for name in trial.view.serving(version)
        )
        return new, total(
            figures.since(self.controls[name].figures) for name, figures in self.seen.items()
        )

    def judgement(self, trial: Trial) -> Judgement | None:
        """Judges the wave by its requests; None while more requests are needed.

        The rule is that of a canary on one server. A version with a predecessor passes only while some controls
        can still be compared with it. If these controls get no requests, the version passes after
        `judged_seconds`.
        """
        if self.members is None or self.lacks_controls_left(trial):
            return None
        new, old = self.figures(trial)
        settings, gate = trial.settings, gate_of(trial)
        judgement = judge(settings.judgement, new, old)
        is_beside = trial.stable is None or old.request_count > 0
        if judgement is not None and (is_beside or not judgement.verdict.is_passed):
            return _of_wave(judgement, gate, new, old)
        if not self.has_held(trial):
            return None
        if new.request_count == 0:
            reason = f"no request in {settings.judged_seconds:g} s"
            if trial.stable is None:
                reason = "no request; a first version does not wait for any"
            mode = GateMode.ENFORCE.value
            return Judgement(GateVerdict(gate=gate, mode=mode, is_passed=True, reason=reason))
        judgement = judge(replace(settings.judgement, request_count=1), new, old)
        return None if judgement is None else _of_wave(judgement, gate, new, old)

    def _in_wave(self, trial: Trial) -> "Comparison":
        """Takes the baselines when the first member serves, and again if too few controls are left."""
        serving = trial.serving_members
        if not serving or not (self.members is None or self._lacks_controls(trial)):
            return self
        view = trial.view
        return replace(
            self,
            members=_baselines(view, serving, trial.version),
            controls=_baselines(view, _controls(trial, trial.other_servers()), trial.stable),
            full_since_ns=None,
        )

    def _in_last_wave(self, trial: Trial) -> "Comparison":
        """Takes the baselines once all servers are known, and notes the latest counts of the controls."""
        begun = self
        if self.members is None:
            if not trial.view.is_complete:
                return self
            begun = self._last_wave_begun(trial)
        seen = {
            name: figures.counts
            for name, figures in begun.controls_left(trial)
            if trial.view.answers_with(name, trial.stable)
        }
        return replace(begun, seen={**begun.seen, **seen})

    def _last_wave_begun(self, trial: Trial) -> "Comparison":
        """Takes the baselines of the last wave.

        A coordinator that takes over in this wave counts all requests of both versions since their loads. So
        enough failures are counted even if coordinators replace one another again and again.
        """
        view, stable = trial.view, trial.stable
        answering = (name for name in view.live if view.answers_with(name, stable))
        controls = _baselines(view, _controls(trial, answering), stable, has_latencies=False)
        had_before = [*view.serving(trial.version)]
        if self.is_first_seen:
            # Only servers that got the version in an earlier rollout have a baseline. Servers that got it in
            # this rollout count from their loads.
            had_before = [name for name in had_before if not trial.has_version(view.live[name])]
            if any(map(trial.has_version, view.live.values())):
                controls = {
                    name: replace(baseline, figures=NO_REQUESTS)
                    for name, baseline in controls.items()
                }
        members = _baselines(view, had_before, trial.version, has_latencies=False)
        return replace(self, members=members, controls=controls)

    def _lacks_controls(self, trial: Trial) -> bool:
        """True if less than half of the controls are left, although other servers could take their place."""
        count = sum(1 for _ in self.controls_left(trial))
        if count and 2 * count >= len(self.controls):
            return False
        return next(trial.other_servers(), None) is not None

    def controls_left(self, trial: Trial) -> Iterator[tuple[str, VersionFigures]]:
        """Yields each control that can still be compared with, and its figures of the stable version.

        Leaves out a control that tries the new version, has restarted, or no longer serves the stable
        version. Also leaves out a control that has loaded the stable version again, because its counts began
        again at 0.
        """
        stable, view = trial.stable, trial.view
        if stable is None:
            return
        for name, baseline in self.controls.items():
            report = view.live.get(name)
            if report is None or not report.serves(stable) or name in trial.rollout.members:
                continue
            figures = report.versions[stable].figures
            is_same = view.servers[name].incarnation == baseline.incarnation
            if is_same and figures.is_continued_from(baseline.figures):
                yield name, figures


def gate_of(trial: Trial) -> str:
    """The name of the verdicts on the present wave."""
    return f"wave {trial.rollout.wave_index + 1}"


def _of_wave(
    judgement: Judgement, gate: str, new: VersionFigures, old: VersionFigures
) -> Judgement:
    """Renames a canary's judgement to that of a wave, and adds p99 for people."""
    figures = dict(judgement.verdict.figures)
    if not old.request_count:
        # If the old version had no requests, a ratio to its errors means nothing.
        del figures["error_ratio"]
    figures |= {
        "latency_seconds_p99": new.latency_ns_p99 / NS_PER_SECOND,
        "stable_latency_seconds_p99": old.latency_ns_p99 / NS_PER_SECOND,
    }
    verdict = replace(judgement.verdict, gate=gate, figures=figures)
    return replace(judgement, verdict=verdict)


def _controls(trial: Trial, names: Iterable[str]) -> list[str]:
    """Chooses at most `control_count_max` of the servers as controls, spread over the fleet by their names."""
    count = trial.settings.control_count_max
    return nsmallest(count, names, key=lambda name: spread(name, trial.version + 1))


def _baselines(
    view: ModelView, names: Iterable[str], version: int | None, *, has_latencies: bool = True
) -> dict[str, Baseline]:
    """The present figures of a version, by server.

    `has_latencies=False` leaves out the latencies, so that sums over a large fleet are cheap.
    """
    if version is None:
        return {}
    figures = {name: view.live[name].versions[version].figures for name in names}
    return {
        name: Baseline(view.servers[name].incarnation, row if has_latencies else row.counts)
        for name, row in figures.items()
    }


def _counts_of(view: ModelView, name: str, version: int) -> VersionFigures:
    """The requests of a version on a live server, without their latencies."""
    return view.live[name].versions[version].figures.counts


def _will_serve(report: ModelReport, version: int) -> bool:
    is_granted = report.granted == version and version in report.found
    return is_granted and not has_failed_on(report, version)
