"""The rollout of one model as one decision sees it, with its servers and settings. Pure."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from fleet.rollout.reports import ModelReport
from fleet.rollout.state import FleetRollout, ModelState
from fleet.rollout.view import ModelView, cannot_have
from fleet.rollout.wave_settings import WaveSettings


class WaveId(NamedTuple):
    """Identifies a wave: by the order with which its rollout began, and the index of the wave.

    The version cannot identify a rollout, because a version that an operator aborts and then allows has another
    rollout.
    """

    since_order: int
    wave_index: int


@dataclass(frozen=True)
class Trial:
    """The rollout of a model in one look at the fleet. A value: another state makes another trial.

    `rollout` is `state.rollout`, which is not None here.
    """

    state: ModelState
    rollout: FleetRollout
    view: ModelView
    settings: WaveSettings
    now_ns: int

    @property
    def version(self) -> int:
        return self.rollout.version

    @property
    def stable(self) -> int | None:
        return self.state.stable

    @property
    def wave(self) -> WaveId:
        return WaveId(self.rollout.since_order, self.rollout.wave_index)

    @property
    def is_last_wave(self) -> bool:
        return self.settings.is_last(self.rollout.wave_index)

    @property
    def quota(self) -> int:
        """The number of servers that the settings give to the wave, also if fewer servers are left."""
        return self.settings.quota(self.rollout.wave_index, self.view.fleet_size)

    @cached_property
    def needed_count(self) -> int:
        """The number of members that must serve the version to fill the wave: its quota, or fewer if too few
        servers are left.
        """
        failed_count = sum(map(self.view.is_known, self.rollout.failed_servers))
        left = self.view.fleet_size - failed_count - len(self.kept_for_last_wave)
        return max(1, min(self.quota, left))

    @cached_property
    def kept_for_last_wave(self) -> frozenset[str]:
        """The servers that may not join before the last wave, because they cannot have the stable version.

        Such a server may be unable to load any version, so its failure would say nothing about this version. No
        server is kept back if only such servers could try the version.
        """
        if self.stable is None:
            return frozenset()
        view, rollout = self.view, self.rollout
        taken = {*rollout.members, *rollout.failed_servers, *view.draining}
        kept = view.unable(self.stable) - taken
        if not kept or rollout.members:
            return kept
        return frozenset() if len(kept) == len(view.live.keys() - taken) else kept

    @cached_property
    def serving_members(self) -> tuple[str, ...]:
        """The members that are live and serve the version."""
        return tuple(name for name in self.rollout.members if self._serves(name))

    @property
    def is_full(self) -> bool:
        """True if as many servers serve the version as the wave needs."""
        if self.is_last_wave:
            return self.is_everywhere
        return len(self.serving_members) >= self.needed_count

    @cached_property
    def missing_count(self) -> int:
        """The number of members that the wave still lacks; negative if it has more members than it needs.

        Counts each member that serves the version or will serve it. Members that are lost, or drain before
        they serve, do not count.
        """
        view = self.view
        sound_count = sum(
            name not in view.lost
            and (name not in view.draining or view.live[name].serves(self.version))
            for name in self.rollout.members
        )
        return self.needed_count - sound_count

    @property
    def room(self) -> int:
        """The number of servers that may join the wave now."""
        quota = self.quota
        if self.is_last_wave:
            return quota
        touched = len(self.rollout.members) + len(self.rollout.failed_servers)
        room = quota + self.settings.failed_server_count_max(quota) - touched
        return max(0, min(self.missing_count, room))

    @property
    def lacks_substitutes(self) -> bool:
        """True if the wave needs further servers in place of lost ones, but may take no more.

        The number is limited, so that a bad version that makes servers unreachable is not tried on all servers,
        one after the other.
        """
        return self.missing_count > 0 and self.room == 0

    @property
    def is_widespread(self) -> bool:
        """True if more than half of the fleet serves the version."""
        return 2 * sum(1 for _ in self.view.serving(self.version)) > self.view.fleet_size

    @property
    def is_everywhere(self) -> bool:
        """True if more than half of the fleet serves the version, and no other server could swap to it now.

        Servers that are lost, or that lack the files of the version, follow later.
        """
        version, view, rollout = self.version, self.view, self.rollout
        slots = self.state.loading.values()
        if not view.is_complete or any(slot.version == version for slot in slots):
            return False
        return self.is_widespread and all(
            report.serves(version)
            or version not in report.found
            or name in rollout.failed_servers
            or name in view.draining
            for name, report in view.live.items()
        )

    @cached_property
    def lacks_files(self) -> bool:
        """True if the wave needs more servers, and no server that may try the version has its files."""
        version, view, rollout = self.version, self.view, self.rollout
        # The slot of a failed server does not count, because that server may report forever that it loads
        # the version.
        if any(
            slot.version == version and name not in rollout.failed_servers
            for name, slot in self.state.loading.items()
        ):
            return False
        has_enough = self.is_widespread if self.is_last_wave else self.missing_count <= 0
        if has_enough:
            return False
        untried = [
            report
            for name, report in view.live.items()
            if not report.serves(version)
            and name not in rollout.members
            and name not in rollout.failed_servers
            and name not in view.draining
        ]
        return bool(untried) and not any(version in report.found for report in untried)

    def has_version(self, report: ModelReport) -> bool:
        """True if the server was granted the version in this rollout.

        A grant from an earlier rollout of the same version does not count, because an operator has allowed
        the version again since then.
        """
        return report.granted == self.version and report.order >= self.rollout.since_order

    def has_old_grant(self, report: ModelReport) -> bool:
        """True if a server answers with no version, and got its last grant before the rollout began."""
        is_granted = report.granted is not None and report.order < self.rollout.since_order
        return is_granted and report.default_version is None

    def may_have_version(self, server: str, report: ModelReport | None) -> bool:
        """True if a server has the version, or has a slot for it and so may have taken its grant."""
        slot = self.state.loading.get(server)
        is_granted = slot is not None and slot.version == self.version
        return is_granted or (report is not None and self.has_version(report))

    def includes(self, server: str, report: ModelReport) -> bool:
        """True for a server that should have the version.

        These are the members, and in the last wave all other servers that may have the version, except the
        failed servers.
        """
        rollout = self.rollout
        if server in rollout.members:
            return True
        may_try = self.is_last_wave and server not in rollout.failed_servers
        return may_try and self.may_have_version(server, report)

    def other_servers(self) -> Iterator[str]:
        """Yields the live servers that serve the stable version and do not try the new one."""
        if self.stable is not None:
            members = self.rollout.members
            yield from (name for name in self.view.serving(self.stable) if name not in members)

    def may_join(self, server: str, report: ModelReport) -> bool:
        """True if the version that a server has now allows it to try the new version."""
        stable = self.stable
        if stable is None or self.is_last_wave:
            return True
        if server in self.kept_for_last_wave:
            return False
        return report.default_version == stable or cannot_have(report, stable)

    def _serves(self, server: str) -> bool:
        report = self.view.live.get(server)
        return report is not None and report.serves(self.version)


def trial_of(
    state: ModelState, view: ModelView, settings: WaveSettings, now_ns: int
) -> Trial | None:
    """Makes the trial of a model; None if no version is on its way."""
    if state.rollout is None:
        return None
    return Trial(state, state.rollout, view, settings, now_ns)


def spread(server: str, version: int) -> int:
    """The place of a server in the order in which servers try `version`: lower numbers go first.

    Each version has another order, so that the same servers do not always go first.
    """
    return zlib.crc32(server.encode(), version & 0xFFFFFFFF)
