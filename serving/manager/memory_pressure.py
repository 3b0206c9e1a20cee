"""MemoryPressure: which version goes first so that another one fits. For the manager's control thread."""

from collections.abc import Callable

import structlog

from serving.base.errors import DoesNotFitBeside, MillpondError
from serving.core.blocked_versions import BlockedBy
from serving.core.servable import END, UNLOADING
from serving.manager.harness import LoaderHarness
from serving.manager.rollout import Rollout
from serving.manager.router import Router
from serving.manager.stream import Stream

_log = structlog.get_logger(__name__)


class MemoryPressure:
    """Turns a stream to memory for one while that is needed, and back. `stream_of` is the one that
    has the life, None where it has another one by now.
    """

    def __init__(
        self,
        router: Router,
        rollout: Rollout,
        stream_of: Callable[[LoaderHarness], Stream | None],
    ) -> None:
        self._router = router
        self._rollout = rollout
        self._stream_of = stream_of

    def begin(self, harness: LoaderHarness, error: MillpondError) -> bool:
        """Returns whether a version goes, so that the load of `harness` may fit and is tried again.

        The version that is kept for a rollback goes first, if its memory is enough. Else an `auto`
        policy lets the version that serves go.
        """
        stream = self._stream_of(harness)
        if stream is None or harness.is_cancelled or not isinstance(error, DoesNotFitBeside):
            return False
        if any(item.status.state is UNLOADING for item in stream.harnesses.values()):
            # It makes room by itself: no further version has to go yet.
            return True
        if self._give_up_previous(stream, harness, error):
            return True
        # What is aspired or labelled makes no room.
        if not stream.yields_to_pressure or not self._superfluous_versions(stream, harness):
            return False
        if stream.pressing_version is None:
            stream.begin_to_make_room(harness.id.version, error.message)
            _log.warning(
                "resource_preserving_chosen",
                model=harness.id.name,
                version=harness.id.version,
                reason=error.message,
                consequence="the old version goes first, and requests fail until the new one is ready",
            )
        return True

    def _give_up_previous(
        self, stream: Stream, harness: LoaderHarness, error: DoesNotFitBeside
    ) -> bool:
        version = stream.previous_that_makes_room(error.missing_bytes)
        if version is None:
            return False
        stream.given_up_version = version
        _log.warning(
            "previous_version_given_up",
            model=harness.id.name,
            version=version,
            for_version=harness.id.version,
            reason=error.message,
            consequence="a rollback has to load an earlier version from disk (--cold)",
        )
        return True

    def note_failure(self, harness: LoaderHarness, error: MillpondError) -> MillpondError:
        """Remembers whether it is for want of memory, and none of the others may go. `error` with that."""
        stream = self._stream_of(harness)
        if stream is None:
            return error
        stream.blocked_by_memory.discard(harness.id.version)
        if not isinstance(error, DoesNotFitBeside):
            return error
        has_previous = stream.previous_that_makes_room(error.missing_bytes) is not None
        if has_previous or self._superfluous_versions(stream, harness):
            return error
        stream.blocked_by_memory.add(harness.id.version)
        if not stream.ready_versions:
            return error
        staying = ", ".join(map(str, stream.ready_versions))
        return DoesNotFitBeside(
            f"{error.message}; none goes for it: {staying} aspired, or kept by a label or a canary",
            missing_bytes=error.missing_bytes,
        )

    def _superfluous_versions(self, stream: Stream, harness: LoaderHarness) -> list[int]:
        return stream.superfluous_versions(self._router.routing(harness.id.name))

    def take_back(self, harness: LoaderHarness) -> None:
        """Where the version for which the old one went, or was rolled back, has failed for good, the
        old one comes back.
        """
        stream = self._stream_of(harness)
        if stream is None or harness.status.state is not END or stream.is_outdated(harness):
            return
        if not stream.unloads_first and not stream.has_rolled_back:
            return
        stream.end_making_room()
        # A blocked version that a label keeps in memory is no reason to stop here: it does not answer.
        if not harness.is_cancelled and self._router.answering(harness.id.name) is None:
            reason = harness.status.health.message
            self._rollout.block(
                harness.id.name, stream, {harness.id.version}, by=BlockedBy.FAILURE, reason=reason
            )
