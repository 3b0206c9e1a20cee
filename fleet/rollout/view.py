"""The servers of a fleet as one decision sees them, model by model. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from fleet.rollout.reports import ModelReport, ServerReport, Sighting
from fleet.rollout.state import ModelState
from serving.base.clock import NS_PER_SECOND


@dataclass(kw_only=True)
class ModelView:
    """The servers of one model. Built once for each decision, and not changed after that.

    Each server is in one of `live`, `lost` and `unknown`.
    """

    # The servers that have reported lately, with their last reports on the model.
    live: dict[str, ModelReport] = field(default_factory=dict)
    # The servers that have not reported for `lost_seconds`, with their last reports on the model; None if a
    # server has never reported.
    lost: dict[str, ModelReport | None] = field(default_factory=dict)
    # The servers that have not reported to this coordinator yet, and are not lost.
    unknown: set[str] = field(default_factory=set)
    # The whole reports of the live servers.
    servers: dict[str, ServerReport] = field(default_factory=dict)
    # The live servers that drain, and so get no new version.
    draining: set[str] = field(default_factory=set)
    _unable: dict[int, frozenset[str]] = field(default_factory=dict)
    _confirmed: frozenset[int] | None = None

    @property
    def is_complete(self) -> bool:
        """False while a coordinator that has just started waits for first reports."""
        return not self.unknown

    @property
    def fleet_size(self) -> int:
        """The number of servers of which a wave is a share.

        Lost servers count, so that a coordinator that reaches only one server does not take that server for the
        whole fleet. Draining servers do not count.
        """
        return len(self.live) + len(self.lost) + len(self.unknown) - len(self.draining)

    def is_known(self, server: str) -> bool:
        return server in self.live or server in self.lost or server in self.unknown

    def found(self) -> frozenset[int]:
        """The versions that at least one live server has on its disk."""
        return frozenset().union(*{report.found for report in self.live.values()})

    def confirmed(self) -> frozenset[int]:
        """The versions with which a rollout may begin, because two servers have them.

        One server alone may have made a version up, perhaps with a number so high that no real version could
        replace it. A lost server counts with its last report. If only one server is live, the versions that it
        has found are enough. The result is kept, because finding it takes a look at each server.
        """
        if self._confirmed is None:
            self._confirmed = self._found_by_two() if len(self.live) > 1 else self.found()
        return self._confirmed

    def _found_by_two(self) -> frozenset[int]:
        # Most servers of a large fleet have found the same versions. So each different set is looked at only
        # once.
        known = [*self.live.values(), *(row for row in self.lost.values() if row is not None)]
        sets = {report.found for report in known}
        confirmed: set[int] = set()
        if len(sets) < len(known):
            counts = Counter([report.found for report in known])
            confirmed.update(*(found for found, count in counts.items() if count > 1))
        seen: set[int] = set()
        for found in sets:
            confirmed |= seen & found
            seen |= found
        return self.found() & confirmed

    def most_served(self, blocked: Collection[int]) -> int | None:
        """The version with which most live servers answer by default; None if no server answers.

        Leaves out `blocked` versions. If two versions have as many servers, chooses the lower one.
        """
        counts = Counter(
            report.default_version
            for report in self.live.values()
            if report.default_version is not None and report.default_version not in blocked
        )
        return min(counts, key=lambda version: (-counts[version], version), default=None)

    def serving(self, version: int) -> Iterator[str]:
        """Yields the live servers on which `version` is AVAILABLE."""
        return (name for name, report in self.live.items() if report.serves(version))

    def answers_with(self, server: str, version: int | None) -> bool:
        """True if a live server serves the version, and answers with it each request that names no version."""
        report = self.live[server]
        return version is not None and report.default_version == version and report.serves(version)

    def unable(self, version: int) -> frozenset[str]:
        """The live servers that cannot have `version`. Kept, because finding them takes a look at each server."""
        if version not in self._unable:
            self._unable[version] = frozenset(
                name for name, report in self.live.items() if cannot_have(report, version)
            )
        return self._unable[version]

    def swapping_count(self, state: ModelState) -> int:
        """The number of servers that swap or may be swapping.

        Counts each server with a slot. Also counts each server that reports a swap without a slot, because it
        was lost or rolled back while it swapped.
        """
        return len(state.loading) + sum(
            report.is_swapping and name not in state.loading for name, report in self.live.items()
        )


def can_serve(report: ModelReport, version: int) -> bool:
    """True if a server serves the version, or has it on its disk."""
    return version in report.found or report.serves(version)


def has_failed_on(report: ModelReport, version: int) -> bool:
    """True if the server has refused the version, or could not load it."""
    row = report.versions.get(version)
    return version in report.blocked or (row is not None and row.has_failed)


def cannot_have(report: ModelReport, version: int) -> bool:
    """True if a server has failed to load the version, or lacks its files."""
    return has_failed_on(report, version) or not can_serve(report, version)


def is_silent(sighting: Sighting, lost_seconds: float, now_ns: int) -> bool:
    """True if a server is lost, because it has not reported for more than `lost_seconds`."""
    return now_ns - sighting.seen_at_ns > round(lost_seconds * NS_PER_SECOND)


def silent_servers(
    sightings: Mapping[str, Sighting], lost_seconds: float, now_ns: int
) -> frozenset[str]:
    """The names of the servers that have not reported for more than `lost_seconds`."""
    return frozenset(
        name for name, sighting in sightings.items() if is_silent(sighting, lost_seconds, now_ns)
    )


def model_views(
    sightings: Mapping[str, Sighting],
    models: Mapping[str, ModelState],
    lost_seconds: float,
    now_ns: int,
) -> dict[str, ModelView]:
    """The view of each model that is in the state or in a report.

    A server that is both leaving and lost is left out, so that nothing waits for it. A server that has not
    reported is in the view of each model in its sighting's `models`, or of every model if these are not known.
    """
    reported = (sighting.report.models for sighting in sightings.values() if sighting.report)
    views = {name: ModelView() for name in {*models}.union(*reported)}
    for name, sighting in sightings.items():
        report, is_lost = sighting.report, is_silent(sighting, lost_seconds, now_ns)
        if sighting.is_leaving and (is_lost or report is None):
            continue
        if report is None:
            may_have = views.keys() if sighting.models is None else sighting.models & views.keys()
            for model in may_have:
                if is_lost:
                    views[model].lost[name] = None
                else:
                    views[model].unknown.add(name)
            continue
        for model, of_model in report.models.items():
            view = views[model]
            if is_lost:
                view.lost[name] = of_model
                continue
            view.live[name] = of_model
            view.servers[name] = report
            if sighting.is_draining:
                view.draining.add(name)
    return views
