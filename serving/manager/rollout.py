"""Rollout: rollbacks, promotions and blocks, by an operator or by a canary's rule.

Control thread only. A decision takes effect in three places, in this order: the router, which directs
requests; the source, which selects versions on disk; the stream, whose versions are loaded and kept.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from serving.base.clock import Clock
from serving.base.errors import FailedPrecondition
from serving.base.name_text import listed
from serving.core.blocked_versions import BlockedBy, BlockedVersion, BlockedVersions
from serving.core.model_settings import CanarySettings
from serving.core.servable import LOADING, START, GateVerdict
from serving.manager import canary
from serving.manager.listener import PROMOTED, ROLLED_BACK, ManagerListener
from serving.manager.manager_view import ManagerView
from serving.manager.router import Canary, Router
from serving.manager.stream import Stream

BY_OPERATOR = "operator"
BY_RULE = "canary"
BY_SETTINGS = "settings"
"""The originator of a promotion in the log: a person, the canary's rule, or a weight of 0."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RollbackBlock:
    """A version that a rollback blocks. `reason` is for people.

    `has_served` is True if it was AVAILABLE since this server started.
    """

    version: int
    has_served: bool
    reason: str


@dataclass(frozen=True)
class Rollback:
    """The result of a rollback. `version` answers now; None: an earlier one is being loaded from disk.

    `warning` is the reason why the rollback may be lost when the server ends, or "". `blocked` are the
    versions that this rollback blocks: `rolled_back`, and newer ones that would serve in its place.
    """

    rolled_back: int
    version: int | None
    warning: str = ""
    blocked: tuple[RollbackBlock, ...] = ()


class Rollout:
    """Changes the answering version of a stream without a load, and blocks and unblocks versions.

    `apply_wanted` brings the lives of a stream in line with its wanted and blocked versions.
    """

    def __init__(
        self,
        router: Router,
        view: ManagerView,
        listener: ManagerListener,
        *,
        apply_wanted: Callable[[str, Stream], None],
        clock: Clock,
    ) -> None:
        self._router = router
        self._view = view
        self._listener = listener
        self._clock = clock
        self._apply_wanted = apply_wanted

    def roll_back(
        self,
        name: str,
        stream: Stream,
        *,
        is_cold_allowed: bool,
        by: BlockedBy = BlockedBy.OPERATOR,
        reason: str = "",
    ) -> Rollback:
        """Blocks the canary, or else the version that answers, and all above it.

        See `AspiredVersionsManager.rollback` for the errors.
        """
        canary_version = self._router.routing(name).canary_version
        current = self._router.answering(name) if canary_version is None else canary_version
        if current is None and is_cold_allowed:
            # No version serves: roll back from the one that cannot be loaded.
            current = max((item.version for item in stream.wanted), default=None)
        if current is None:
            raise FailedPrecondition(f"model {name!r} serves no version to roll back from")
        ready = stream.blocks.unblocked_of(stream.ready_versions)
        earlier = max((version for version in ready if version < current), default=None)
        if earlier is None:
            self._check_cold(name, stream, current, is_cold_allowed)
        known = stream.harnesses.keys() | {item.version for item in stream.wanted}
        versions = frozenset(version for version in known if version >= current)
        blocked = self._blocked_by_rollback(
            name, stream, versions, current, until="now" if earlier else "an earlier one is loaded"
        )
        to = "an earlier one on disk" if earlier is None else earlier
        self.block(name, stream, versions, by, reason or f"rolled back from {current} to {to}")
        _log.warning(
            "rolled_back",
            model=name,
            version=current,
            to=earlier,
            blocked=sorted(versions),
            never_served=[item.version for item in blocked if not item.has_served],
            is_canary=current == canary_version,
            by=by.value,
        )
        if earlier is not None:
            self._listener.default_version_changed(name, earlier, current, ROLLED_BACK)
        return Rollback(rolled_back=current, version=earlier, blocked=blocked)

    def _blocked_by_rollback(
        self, name: str, stream: Stream, versions: Iterable[int], current: int, *, until: str
    ) -> tuple[RollbackBlock, ...]:
        """Returns `current` and the versions of `versions` that were not rolled back before.

        `until` is when the versions that answer stop. Call it before the block, which changes the
        states of the versions.
        """
        # A version answers a moment before the control thread handles the end of its load.
        routing = self._router.routing(name)
        service = dict.fromkeys(stream.served, "it served earlier")
        for answering in (routing.default_version, routing.canary_version):
            if answering is not None:
                service[answering] = f"it served until {until}"
        rolled_back = stream.blocks.rolled_back.keys()
        return tuple(
            _blocked_version(stream, version, service.get(version))
            for version in sorted({*versions} - rolled_back | {current})
        )

    def _check_cold(self, name: str, stream: Stream, current: int, is_cold_allowed: bool) -> None:
        """Raises FailedPrecondition if no earlier version on disk can be loaded, or if none may be."""
        blocked = stream.blocks.blocked_of(stream.ready_versions)
        in_memory = f" ({blocked[0]} is blocked: millpond allow)" if blocked else ""
        if not is_cold_allowed:
            raise FailedPrecondition(
                f"model {name!r} has no version before {current} in memory{in_memory}: keep one "
                "there by keep_previous_seconds, or allow a cold rollback (millpond rollback "
                "--cold), which loads one from disk while this one serves on"
            )
        found = stream.blocks.unblocked_of(self._listener.found_versions(name))
        if not any(version < current for version in found):
            raise FailedPrecondition(
                f"model {name!r} has no version before {current} on disk that its version policy "
                f"selects and that is not blocked too{in_memory}; drop one"
            )

    def allow(self, name: str, stream: Stream, version: int) -> None:
        """Unblocks a version. Raises FailedPrecondition if it is not blocked."""
        if version not in stream.blocks:
            known = listed(map(str, sorted(stream.blocks.versions)))
            raise FailedPrecondition(
                f"model {name!r}: version {version} is not blocked; blocked: {known}"
            )
        self._set_blocked(name, stream, stream.blocks.without(version))

    def block(
        self, name: str, stream: Stream, versions: Iterable[int], by: BlockedBy, reason: str
    ) -> None:
        """Blocks `versions`: while another version can serve, they are not served, loaded or kept."""
        block = BlockedVersion(by=by, reason=reason, since_wall_ns=self._clock.wall_ns())
        self._set_blocked(name, stream, stream.blocks.with_block(versions, block))

    def unblock(self, name: str, stream: Stream, version: int, reason: str) -> None:
        """Unblocks a version that a failure blocked. `reason` is the change that allows it.

        Does nothing for a version that is not blocked.
        """
        block = stream.blocks.get(version)
        if block is None:
            return
        stream.loads.forget_failure(version)
        if block.needs_operator:
            # Only an operator removes this block, but the version may now be the last resort.
            self.note_last_resort(name, stream)
            return
        _log.info("version_unblocked", model=name, version=version, reason=reason)
        self._set_blocked(name, stream, stream.blocks.without(version))

    def note_last_resort(self, name: str, stream: Stream) -> None:
        """Serves a rolled back version again while every other version on disk is blocked too.

        Its block stays: any other version that loads replaces it at once.
        """
        if self._find_last_resort(name, stream):
            self.notify_blocked(name, stream)
            self._apply_wanted(name, stream)

    def _find_last_resort(self, name: str, stream: Stream) -> bool:
        """Returns True if the last resort is another version than before."""
        version = None
        if stream.blocks:
            found = self._listener.found_versions(name)
            version = stream.find_last_resort(found, self._clock.wall_ns())
        if not stream.blocks.set_last_resort(version):
            return False
        if version is not None:
            _log.error(
                "last_resort_serves",
                model=name,
                version=version,
                reason="no other version on disk can be loaded",
                blocked=sorted(stream.blocks.versions),
                remedy="drop a version that loads, or unblock this one: millpond allow",
            )
        return True

    def restore(self, name: str, stream: Stream, blocked_versions: BlockedVersions) -> None:
        """Restores the blocked versions of an earlier process. Call it once, at the start."""
        stream.blocks.replace(blocked_versions)
        self._router.set_blocked(name, stream.blocks.versions)

    def notify_blocked(self, name: str, stream: Stream) -> None:
        """Publishes the versions that the source of the model should leave out."""
        self._view.set_blocked(name, stream.blocks.left_out, stream.blocks.by_version)
        self._listener.blocked_versions_changed(name, stream.blocks.left_out)

    def promote(
        self, name: str, *, by: str = BY_OPERATOR, verdict: GateVerdict | None = None
    ) -> int:
        """Makes the canary answer all requests. Raises FailedPrecondition without a canary.

        `verdict` is that of the rule which promotes it. Its reason says what was not judged.
        """
        version = self._router.routing(name).canary_version
        if version is None:
            raise FailedPrecondition(f"model {name!r} has no canary to promote")
        previous = self._router.answering(name)
        self._router.promote(name)
        judged = {"reason": verdict.reason, **verdict.figures} if verdict else {}
        _log.info("canary_promoted", model=name, version=version, by=by, **judged)
        self._listener.default_version_changed(name, version, previous, PROMOTED)
        return version

    def end_canary_unless_aspired(self, name: str, stream: Stream) -> None:
        """Ends a canary that is withdrawn or replaced by another version."""
        version = self._router.routing(name).canary_version
        if version is None or version in stream.aspired:
            return
        if version not in stream.blocks:
            _log.info("canary_ended", model=name, version=version, reason="it is no longer aspired")
        self._router.set_canary(name, None)

    def resume_canary(self, name: str, stream: Stream, wanted: CanarySettings) -> None:
        """Resumes a canary that was rolled back or withdrawn, and is aspired again while in memory."""
        if self._router.routing(name).canary_version is not None:
            return
        answering = self._router.answering(name)
        for version in reversed(stream.ready_versions):
            is_wanted = version in stream.aspired and version not in stream.blocks
            is_newer = answering is not None and version > answering
            if not (is_wanted and is_newer and self._router.is_unverified(name, version)):
                continue
            if wanted.weight == 0:
                self._router.verify(name, version)
                _log.info("canary_promoted", model=name, version=version, by=BY_SETTINGS)
            else:
                stream.canary.resume(stream.harnesses[version])
                self._router.set_canary(name, Canary.of(version, wanted))
            return

    def change_canary(self, name: str, wanted: CanarySettings) -> None:
        """Applies changed settings to a running canary. A weight of 0 promotes it."""
        version = self._router.routing(name).canary_version
        if version is None:
            return
        if wanted.weight == 0:
            self.promote(name, by=BY_SETTINGS)
        else:
            self._router.set_canary(name, Canary.of(version, wanted))

    def is_judged_by_rule(self, name: str, stream: Stream) -> bool:
        """True if a canary runs that its rule decides on."""
        is_running = self._router.routing(name).canary_version is not None
        return is_running and stream.settings.canary.request_count > 0

    def judge_canary(self, name: str, stream: Stream) -> None:
        """Promotes the canary or rolls it back when it has answered enough requests."""
        routing = self._router.routing(name)
        if routing.canary_version is None:
            stream.canary.forget()
        if not self.is_judged_by_rule(name, stream):
            return
        candidate = stream.ready(routing.canary_version)
        stable = stream.ready(routing.default_version)
        if candidate is None or stable is None:
            return
        judgement = canary.judge(
            stream.settings.canary, *stream.canary.since_began(candidate, stable)
        )
        if judgement is None:
            return
        verdict = judgement.verdict
        is_doubted = stream.canary.is_doubted(candidate.id.version)
        if judgement.is_only_slow and not is_doubted:
            stream.canary.doubt(candidate)
            _log.warning(
                "canary_doubted",
                model=name,
                version=candidate.id.version,
                reason=verdict.reason,
                **verdict.figures,
            )
            return
        if verdict.is_passed and is_doubted and not judgement.is_of_latency:
            # The stable version needs more requests.
            return
        candidate.gate_ended(verdict)
        if verdict.is_passed:
            self.promote(name, by=BY_RULE, verdict=verdict)
            return
        _log.warning(
            "canary_failed",
            model=name,
            version=candidate.id.version,
            reason=verdict.reason,
            **verdict.figures,
        )
        self.roll_back(
            name, stream, is_cold_allowed=False, by=BlockedBy.CANARY, reason=verdict.reason
        )

    def _set_blocked(self, name: str, stream: Stream, blocked_versions: BlockedVersions) -> None:
        stream.blocks.replace(blocked_versions)
        self._find_last_resort(name, stream)
        self._router.set_blocked(name, stream.blocks.versions)
        self._listener.keep_blocked_versions(name, stream.blocks.rolled_back)
        self.notify_blocked(name, stream)
        self._apply_wanted(name, stream)


def _blocked_version(stream: Stream, version: int, service: str | None) -> RollbackBlock:
    """Returns the block with its reason: `service`, or how far a version that never served has come."""
    if service is not None:
        return RollbackBlock(version, has_served=True, reason=service)
    harness = stream.harnesses.get(version)
    state = START if harness is None else harness.status.state
    loads = {START: "its load has not begun", LOADING: "its load was under way"}
    return RollbackBlock(
        version,
        has_served=False,
        reason="it never served, and would have replaced the earlier version once loaded; "
        + loads.get(state, "its load failed"),
    )
