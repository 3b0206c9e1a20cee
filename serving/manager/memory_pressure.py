"""MemoryPressure: chooses the version that is unloaded so that another one fits. Control thread only."""

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
    """Makes a stream unload before it loads while a load does not fit. Ends that when the load fails.

    `stream_of` returns the stream of a life; None if the version has a new life.
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
        """Returns True if a version is being unloaded for the load of `harness`, which is then retried.

        Gives up the version that is kept for a rollback first, if its memory is enough.
        Otherwise, a policy that yields to pressure unloads the version that serves.
        """
        stream = self._stream_of(harness)
        if stream is None or harness.is_cancelled or not isinstance(error, DoesNotFitBeside):
            return False
        if any(item.status.state is UNLOADING for item in stream.harnesses.values()):
            # That unload already frees memory, so no other version is unloaded yet.
            return True
        if self._give_up_previous(stream, harness, error):
            return True
        # Versions that are aspired or have a label are never unloaded for another one.
        if not stream.yields_to_pressure or not self._superfluous_versions(stream, harness):
            return False
        if stream.pressure.begin(harness.id.version, error.message):
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
        version = stream.previous_that_frees_memory(error.missing_bytes)
        if version is None:
            return False
        stream.kept.give_up(version)
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
        """Records whether a load lacks memory that no unload can free.

        Returns `error`. If no unload can free memory, the message also lists the versions that stay.
        """
        stream = self._stream_of(harness)
        if stream is None:
            return error
        stream.pressure.note_lack(harness.id.version, is_lacking=False)
        if not isinstance(error, DoesNotFitBeside):
            return error
        has_previous = stream.previous_that_frees_memory(error.missing_bytes) is not None
        if has_previous or self._superfluous_versions(stream, harness):
            return error
        stream.pressure.note_lack(harness.id.version, is_lacking=True)
        if not stream.ready_versions:
            return error
        staying = ", ".join(map(str, stream.ready_versions))
        return DoesNotFitBeside(
            f"{error.message}; no version can be unloaded to make room: {staying} aspired, or kept by "
            "a label or a canary",
            missing_bytes=error.missing_bytes,
        )

    def _superfluous_versions(self, stream: Stream, harness: LoaderHarness) -> list[int]:
        return stream.superfluous_versions(self._router.routing(harness.id.name))

    def take_back(self, harness: LoaderHarness) -> None:
        """Restores the old version after the new one has failed for the last time.

        Applies if the old version was unloaded first or rolled back. Blocks the new version if no
        version answers any more.
        """
        stream = self._stream_of(harness)
        if stream is None or harness.status.state is not END or stream.is_outdated(harness):
            return
        if not stream.unloads_first and not stream.blocks.rolled_back:
            return
        stream.pressure.end()
        # A blocked version that a label keeps in memory does not count: it does not answer.
        if not harness.is_cancelled and self._router.answering(harness.id.name) is None:
            reason = harness.status.health.message
            self._rollout.block(
                harness.id.name, stream, {harness.id.version}, by=BlockedBy.FAILURE, reason=reason
            )
