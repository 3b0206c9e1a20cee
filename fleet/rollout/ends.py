"""Decides which servers ended because of the version on its way. Pure.

| what became of a server that has the version     | counts against the version          | until                 |
|--------------------------------------------------|-------------------------------------|-----------------------|
| *failed*: refused it, or could not load it       | yes                                 | the rollout ends      |
| *late*: loads it longer than `load_seconds_max`  | yes                                 | the rollout ends      |
| *restarted*: has another incarnation             | unless it was drained or is cut off | the rollout ends      |
| *left*: was lost, and is not in the fleet now    | unless it is cut off                | the rollout ends      |
| *lost*: reports no more                          | unless it is cut off                | it reports again      |
| *drained*: was draining at its last report       | no, because an operator ended it    | it reports, undrained |
| *cut off*: was lost with as many servers without | no, because the network is at fault | it reports again      |

The servers of the first four rows are the *failed servers* of the rollout. They go back to the stable
version, and other servers take their places. A server that has restarted may have lost its grant, because
it keeps the grant only if it has a state directory. A server that has left may be back under another name.
In the last wave a restart does not count against a first version, because servers have no version to go
back to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fleet.rollout.state import FleetRollout
from fleet.rollout.trial import Trial
from fleet.rollout.view import ModelView, has_failed_on
from serving.manager.canary import STABLE_SHARE_FACTOR_MAX

WITHOUT_CAUSE = "it ended, was lost, or took longer than load_seconds_max to load it"
"""The cause shown for a failed server whose reports show none."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """The servers that have the version of a rollout, and the servers of the last three rows above.

    `incarnations` has, by server, the incarnation in which the server was first seen with the version. So a
    restart shows in the last wave too, although that wave lists no members. A server stays in `lost` even if
    a later server has taken its name.
    """

    incarnations: Mapping[str, int] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    cut_off: frozenset[str] = frozenset()

    @property
    def not_at_fault(self) -> frozenset[str]:
        """The servers that are drained or cut off."""
        return self.drained | self.cut_off

    def with_lost(self, trial: Trial) -> "Ends":
        """Adds the *lost* servers that have the version, or may have taken its grant.

        Call it before this step takes slots back. A server may be lost before it has reported that it took a
        grant. Then only its slot shows that it may have the version.
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
        """Updates the *drained* servers, the servers that are *cut off*, and the incarnations of all others.

        Keeps the incarnation of a lost or unknown server, so that a restart shows when the server is back.
        """
        view = trial.view
        drained = view.draining | (self.drained - view.live.keys())
        cut_off = (self.cut_off | self._cut_off_now(trial)) - view.live.keys()
        not_at_fault = drained | cut_off
        incarnations = {
            name: incarnation
            for name, incarnation in self.incarnations.items()
            if name not in not_at_fault and (name in view.lost or name in view.unknown)
        }
        if trial.stable is not None:
            incarnations |= {
                name: self.incarnations.get(name, view.servers[name].incarnation)
                for name, report in view.live.items()
                if name not in not_at_fault and trial.may_have_version(name, report)
            }
        return Ends(
            incarnations=incarnations,
            lost=self.lost,
            drained=frozenset(drained),
            cut_off=frozenset(cut_off),
        )

    def noted_failures(self, trial: Trial, late: frozenset[str]) -> FleetRollout:
        """Adds the servers of the first four rows to the failed servers, and removes them from the members.

        Also removes members that have left the fleet. A member that was drained or cut off stays a member when
        it is back, with its new incarnation.
        """
        rollout, view, not_at_fault = trial.rollout, trial.view, self.not_at_fault
        failed = {
            name
            for name, report in view.live.items()
            if trial.has_version(report) and has_failed_on(report, rollout.version)
        }
        restarted = {
            name
            for name, incarnation in {**self.incarnations, **rollout.members}.items()
            if name in view.servers
            and name not in not_at_fault
            and view.servers[name].incarnation != incarnation
        }
        left = {name for name in self.lost - self.cut_off if not view.is_known(name)}
        failed_servers = rollout.failed_servers | failed | restarted | late | left
        members = {
            name: view.servers[name].incarnation
            if name in not_at_fault and name in view.servers
            else incarnation
            for name, incarnation in rollout.members.items()
            if name not in failed_servers and view.is_known(name)
        }
        if failed_servers == rollout.failed_servers and members == rollout.members:
            return rollout
        return replace(rollout, members=members, failed_servers=failed_servers)

    def _cut_off_now(self, trial: Trial) -> frozenset[str]:
        """All lost servers that have the version, if servers without the version are lost nearly as often.

        "Nearly as often" is the share by which a canary's failures are compared (STABLE_SHARE_FACTOR_MAX).
        """
        view = trial.view
        lost = self.lost & view.lost.keys()
        if not lost:
            return lost
        count = len(lost) + sum(map(trial.has_version, view.live.values()))
        share_of_others = (len(view.lost) - len(lost)) / max(view.fleet_size - count, 1)
        is_shared = share_of_others > len(lost) / count * STABLE_SHARE_FACTOR_MAX
        return lost if is_shared else frozenset()

    def fault(self, trial: Trial) -> str:
        """The reason why the version is at fault by the table above; "" if it is not.

        Call it on the result of `after`, because `after` finds out which servers are cut off.
        """
        view, failed = trial.view, trial.rollout.failed_servers
        refusal = next(_refusals(trial), None)
        if refusal is not None and next(view.serving(trial.version), None) is None:
            return f"server {refusal[0]} refused it before any server served it: {refusal[1]}"
        lost = (self.lost & view.lost.keys()) - self.cut_off - failed
        count = len(failed) + len(lost)
        # A version that fails on half of the fleet must not become stable, however small the fleet is.
        is_half = 0 < view.fleet_size <= 2 * len(failed)
        if count <= trial.settings.failed_server_count_max(trial.quota) and not is_half:
            return ""
        examples = sorted(failed | lost)[:3]
        text = (
            f"it failed on {count} servers of a wave of {trial.quota}, as on {', '.join(examples)}"
        )
        if refusal is not None:
            return f"{text}: {refusal[1]}"
        reported = (cause_on(view, name, trial.version) for name in sorted(failed))
        return f"{text}: {next(filter(None, reported), WITHOUT_CAUSE)}"


def cause_on(view: ModelView, server: str, version: int) -> str:
    """The reason why a live server could not load the version, or has blocked it; "" if neither is so."""
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
