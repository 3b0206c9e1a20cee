"""VersionUnload: frees one retired version without losing a request."""

from collections.abc import Callable

import structlog

from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.core.servable import ServableId, UnloadStage
from serving.data_plane.servables import Servable
from serving.loading.arenas import report_remains

QUIESCE_SLICE_SECONDS = 0.05
"""The wait of one turn for the last handle. It is short so that a request of 30 s on one version does
not keep an unloader thread from freeing another model's memory."""

QUIESCE_WARNING_SECONDS = 10.0
"""The wait after which a warning is logged. It is above the usual deadlines of clients."""

_log = structlog.get_logger(__name__)


class VersionUnload:
    """Unloads one version: quiesces it, then destroys it. Runs in turns, on unloader threads.

    Make it when the version has been retired, because its time to quiesce begins then. `stage_ended`
    receives the seconds of each stage, on an unloader thread.
    """

    def __init__(
        self,
        servable_id: ServableId,
        servable: Servable,
        *,
        clock: Clock,
        stage_ended: Callable[[UnloadStage, float], None],
    ) -> None:
        self._id = servable_id
        self._servable = servable
        self._clock = clock
        self._stage_ended = stage_ended
        self._retired_at_ns = clock.now_ns()
        self._has_warned = False

    def take_turn(self) -> bool:
        """Waits up to QUIESCE_SLICE_SECONDS for the last handle, and destroys the version after it.

        The result is True if the version is gone, and False if another turn is needed. An exception is a
        bug, or an error of the data plane; do not call it again then.
        """
        if not self._servable.quiesce(QUIESCE_SLICE_SECONDS):
            self._warn_once()
            return False
        quiesce_seconds = seconds_since(self._clock, self._retired_at_ns)
        self._stage_ended(UnloadStage.QUIESCE, quiesce_seconds)
        self._destroy(quiesce_seconds)
        return True

    def _warn_once(self) -> None:
        waited_seconds = seconds_since(self._clock, self._retired_at_ns)
        if waited_seconds < QUIESCE_WARNING_SECONDS or self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "quiesce_slow",
            model=self._id.name,
            version=self._id.version,
            handle_count=self._servable.handle_count,
            waited_seconds=round(waited_seconds, 1),
        )

    def _destroy(self, quiesce_seconds: float) -> None:
        statistics = self._servable.statistics()
        start_ns = self._clock.now_ns()
        remains = self._servable.destroy()
        destroy_seconds = seconds_since(self._clock, start_ns)
        self._stage_ended(UnloadStage.DESTROY, destroy_seconds)
        report_remains(self._id, remains)
        _log.info(
            "version_unloaded",
            model=self._id.name,
            version=self._id.version,
            request_count=statistics.request_count,
            failed_count=statistics.failed_count,
            latency_seconds_p50=statistics.latency_ns_p50 / NS_PER_SECOND,
            latency_seconds_p99=statistics.latency_ns_p99 / NS_PER_SECOND,
            latency_seconds_p999=statistics.latency_ns_p999 / NS_PER_SECOND,
            quiesce_seconds=round(quiesce_seconds, 4),
            destroy_seconds=round(destroy_seconds, 4),
            arena_live_bytes=remains.live_bytes,
        )
