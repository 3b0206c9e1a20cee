"""Decides which ends of servers, while a version is on its way, are the version's fault. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fleet.waves.state import FleetRollout
from fleet.waves.trial import Trial
from fleet.waves.view import ModelView, has_failed_on
from serving.manager.canary import STABLE_SHARE_FACTOR_MAX

WITHOUT_CAUSE = "it ended, was lost, or took longer than load_seconds_max to load it"
"""The cause of a setback of which no report shows a cause."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """The servers that have the version of a rollout, and what became of them during it.

    `incarnations` are those with which servers were first seen to have the version; the last wave has no
    members. `lost` are servers with the version that are lost, or whose name another server has now. Two
    kinds of ends are not the version's fault: `drained` were draining when they were seen last, and
    `excused` were lost together with as many other servers.
    """

    incarnations: Mapping[str, int] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    excused: frozenset[str] = frozenset()

    def with_lost(self, trial: Trial) -> "Ends":
        """Adds the lost servers that have the version on its way, or may have taken it.

        The trial must have the slots from before this look, because a server may be lost before it has
        reported that it took a grant.
        """
        view = trial.view
        lost = {
            name
            for name, report in view.lost.items()
            if name not in self.drained
            and (
                name in self.lost
                or name in trial.rollout.members
                or name in self.incarnations
                or trial.may_have_version(name, report)
            )
        }
        gone = {name for name in self.lost if name in view.unknown or not view.is_known(name)}
        return replace(self, lost=frozenset(lost | gone))

    def after(self, trial: Trial) -> "Ends":
        """Notes what shows later if the end of a server is the version's fault.

        A server is spared until it is seen again. A server that is lost or unknown keeps its incarnation,
        so that a restart shows when it comes back. A first version is not blamed for a restart in the last
        wave, because there is nothing better to go back to.
        """
        view = trial.view
        drained = view.draining | (self.drained - view.live.keys())
        shared = self.lost - self.blamed_lost(trial)
        excused = (self.excused | shared) - view.live.keys()
        spared = drained | excused
        incarnations = {
            name: incarnation
            for name, incarnation in self.incarnations.items()
            if name not in spared and (name in view.lost or name in view.unknown)
        }
        if trial.stable is not None:
            incarnations |= {
                name: self.incarnations.get(name, view.servers[name].incarnation)
                for name, report in view.live.items()
                if name not in spared and trial.may_have_version(name, report)
            }
        return Ends(
            incarnations=incarnations,
            lost=self.lost,
            drained=frozenset(drained),
            excused=frozenset(excused),
        )

    def noted_failures(self, trial: Trial, late: frozenset[str]) -> FleetRollout:
        """Makes setbacks of the members on which the version has failed, and drops members that left.

        Servers that are `late` have loaded it for too long. A server that was lost with the version, and
        has left the fleet since, has failed too: its place may give it another name. A server that has
        restarted counts too, also if it has lost its grant, which it keeps only in a state directory. It
        does not count if its end is not the version's fault.
        """
        rollout, view = trial.rollout, trial.view
        failed = {
            name
            for name, report in view.live.items()
            if trial.has_version(report) and has_failed_on(report, rollout.version)
        }
        spared = self.drained | self.excused
        restarted = {
            name
            for name, incarnation in {**self.incarnations, **rollout.members}.items()
            if name in view.servers
            and name not in spared
            and view.servers[name].incarnation != incarnation
        }
        vanished = {name for name in self.lost if not view.is_known(name)}
        setbacks = rollout.failed_servers | failed | restarted | late | vanished
        members = {
            name: view.servers[name].incarnation
            if name in spared and name in view.servers
            else incarnation
            for name, incarnation in rollout.members.items()
            if name not in setbacks and view.is_known(name)
        }
        if setbacks == rollout.failed_servers and members == rollout.members:
            return rollout
        return replace(rollout, members=members, failed_servers=frozenset(setbacks))

    def blamed_lost(self, trial: Trial) -> frozenset[str]:
        """The lost servers with the version, unless servers without it are lost nearly as often, because
        then the network is at fault.

        The rule is that of a canary's failures.
        """
        view = trial.view
        lost = self.lost & view.lost.keys()
        if not lost:
            return lost
        count = len(lost) + sum(map(trial.has_version, view.live.values()))
        share_of_others = (len(view.lost) - len(lost)) / max(view.fleet_size - count, 1)
        is_shared = share_of_others > len(lost) / count * STABLE_SHARE_FACTOR_MAX
        return frozenset() if is_shared else lost

    def fault(self, trial: Trial) -> str:
        """The reason why the version is at fault by its loads and its servers' ends; "" if it is not."""
        view, setbacks = trial.view, trial.rollout.failed_servers
        refusal = next(_refusals(trial), None)
        if refusal is not None and next(view.serving(trial.version), None) is None:
            return f"server {refusal[0]} refused it before any server served it: {refusal[1]}"
        lost = self.blamed_lost(trial) - setbacks
        count = len(setbacks) + len(lost)
        # Half of the fleet is too many for a stable version, however small the fleet is.
        is_half = 0 < view.fleet_size <= 2 * len(setbacks)
        if count <= trial.settings.failed_server_count_max(trial.quota) and not is_half:
            return ""
        examples = sorted(setbacks | lost)[:3]
        text = (
            f"it failed on {count} servers of a wave of {trial.quota}, as on {', '.join(examples)}"
        )
        if refusal is not None:
            return f"{text}: {refusal[1]}"
        reported = (cause_on(view, name, trial.version) for name in sorted(setbacks))
        return f"{text}: {next(filter(None, reported), WITHOUT_CAUSE)}"


def cause_on(view: ModelView, server: str, version: int) -> str:
    """The reason why a live server could not load the version, or has blocked it; "" if it did neither."""
    report = view.live.get(server)
    if report is None or not has_failed_on(report, version):
        return ""
    row = report.versions.get(version)
    return report.blocked.get(version) or (row.health.message if row is not None else "")


def _refusals(trial: Trial) -> Iterator[tuple[str, str]]:
    version = trial.version
    for name, report in trial.view.live.items():
        if not trial.has_version(report):
            continue
        if version in report.blocked:
            yield name, report.blocked[version]
            continue
        row = report.versions.get(version)
        if row is not None and row.is_refused:
            yield name, row.health.message
