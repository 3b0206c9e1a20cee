"""Succession: which version of a model stands in for which, by a person's word or a canary's figures.

For the manager's control thread. What it decides takes effect in three places, in this order: the
router (requests), the source (what is selected from disk), the stream (what is loaded and kept).
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from serving import canary
from serving.errors import FailedPrecondition
from serving.router import Router
from serving.stream import Stream

BarsChanged = Callable[[str, frozenset[int]], None]
"""Hears which versions of a model its source should leave out."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Rollback:
    """What a rollback did: `version` answers now; None: it is being loaded from disk."""

    rolled_back: int
    version: int | None


class Succession:
    """`apply_wanted` brings a stream's lives in line with what is wanted and barred."""

    def __init__(
        self,
        router: Router,
        *,
        bars_changed: BarsChanged,
        apply_wanted: Callable[[str, Stream], None],
    ) -> None:
        self._router = router
        self._bars_changed = bars_changed
        self._apply_wanted = apply_wanted

    def roll_back(self, name: str, stream: Stream, *, is_cold_allowed: bool) -> Rollback:
        """Bars the version that answers, or the canary, and all above it; see the manager's."""
        routing = self._router.routing(name)
        ready = [version for version in stream.ready_versions if version not in stream.barred]
        current = routing.canary_version or routing.default_version or max(ready, default=None)
        if current is None:
            raise FailedPrecondition(f"model {name!r} serves no version to roll back from")
        earlier = max((version for version in ready if version < current), default=None)
        if earlier is None and not is_cold_allowed:
            raise FailedPrecondition(
                f"model {name!r} has no version before {current} in memory: keep one there by "
                "keep_previous_seconds, or allow a cold rollback (millpond rollback --cold), which "
                "loads one from disk while this one serves on"
            )
        known = stream.harnesses.keys() | {item.version for item in stream.wanted}
        barred = frozenset(version for version in known if version >= current)
        self.bar(name, stream, barred)
        _log.warning("rolled_back", model=name, version=current, to=earlier, barred=sorted(barred))
        return Rollback(rolled_back=current, version=earlier)

    def allow(self, name: str, stream: Stream, version: int) -> None:
        """Takes a bar away. FailedPrecondition where there is none."""
        if version not in stream.barred:
            known = ", ".join(map(str, sorted(stream.barred))) or "none"
            raise FailedPrecondition(
                f"model {name!r}: version {version} is not barred; barred: {known}"
            )
        self._set_barred(name, stream, stream.barred - {version})

    def bar(self, name: str, stream: Stream, versions: frozenset[int]) -> None:
        """These are not served, loaded or kept any more, as long as there is another version."""
        self._set_barred(name, stream, stream.barred | versions)

    def promote(self, name: str) -> int:
        """The canary answers everything. FailedPrecondition where there is none."""
        version = self._router.routing(name).canary_version
        if version is None:
            raise FailedPrecondition(f"model {name!r} has no canary to promote")
        self._router.set_canary(name, None)
        _log.info("canary_promoted", model=name, version=version)
        return version

    def end_canary_unless_aspired(self, name: str, stream: Stream) -> None:
        """A canary that another version takes the place of was never found good: it gets nothing."""
        version = self._router.routing(name).canary_version
        if version is None or version in stream.aspired:
            return
        if version not in stream.barred:
            _log.info("canary_ended", model=name, version=version, reason="it is no longer aspired")
            stream.barred |= {version}
            self._router.set_barred(name, stream.barred)
        self._router.set_canary(name, None)

    def is_judged_by_rule(self, name: str, stream: Stream) -> bool:
        """Whether a canary runs whose figures decide."""
        is_running = self._router.routing(name).canary_version is not None
        return is_running and stream.settings.canary.request_count > 0

    def judge_canary(self, name: str, stream: Stream) -> None:
        """Promotes the canary or rolls it back, once it has answered enough requests."""
        if not self.is_judged_by_rule(name, stream):
            return
        routing = self._router.routing(name)
        candidate = stream.harnesses.get(routing.canary_version or 0)
        stable = stream.harnesses.get(routing.default_version or 0)
        if candidate is None or stable is None or not (candidate.is_ready and stable.is_ready):
            return
        verdict = canary.judge(
            stream.settings.canary,
            candidate.servable.statistics(),
            stable.servable.statistics(),
        )
        if verdict is None:
            return
        candidate.gate_ended(verdict)
        if verdict.is_passed:
            self.promote(name)
            return
        _log.warning(
            "canary_failed", model=name, version=candidate.id.version, reason=verdict.reason
        )
        self.roll_back(name, stream, is_cold_allowed=False)

    def _set_barred(self, name: str, stream: Stream, barred: frozenset[int]) -> None:
        stream.barred = barred
        self._router.set_barred(name, barred)
        self._bars_changed(name, barred)
        self._apply_wanted(name, stream)
