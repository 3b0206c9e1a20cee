"""Reports the signatures whose requests do not share runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from serving.base.clock import Clock
from serving.base.periodic_thread import Watch
from serving.core.servable import END, ServableId, ServableStatus
from serving.data_plane.servables import Servable

PERIOD_SECONDS = 1.0
"""The time between two looks: an operator who sees slower requests should find the reason in the log.
A look takes about 20 µs for each signature."""

_log = structlog.get_logger(__name__)


@dataclass
class _Watched:
    servable: Servable
    # Signatures, each with is_on: a signature that is batched without padding may be refused later.
    reported: set[tuple[str, bool]] = field(default_factory=set)


class BatchRefusals:
    """Logs `batching_refused` once for each signature of a version that is not batched, and once for
    each whose inputs are not padded. Any thread.

    The load refuses most of these signatures. The first batches of live requests are checked too, and
    any batch may have outputs of another number of rows. The data plane turns batching off at once
    then; the log has it after `PERIOD_SECONDS` at the latest, from a thread `batch-refusals`, which
    sleeps while no version is batched.
    """

    def __init__(self, clock: Clock) -> None:
        self._watch: Watch[ServableId, _Watched] = Watch(
            "batch-refusals", self._look, period_seconds=PERIOD_SECONDS, clock=clock
        )

    def start(self) -> None:
        """Starts the thread."""
        self._watch.start()

    def stop(self) -> None:
        """Ends the thread if it was started."""
        self._watch.stop()

    def add(self, servable_id: ServableId, servable: Servable) -> None:
        """Reports the signatures that the load has refused, and then watches the version until `on_status`
        reports its end.
        """
        watched = _Watched(servable)
        _report(servable_id, watched)
        self._watch.add(servable_id, watched)

    def on_status(self, status: ServableStatus) -> None:
        """Looks at a version that has ended for the last time. A listener of StateMonitor."""
        if status.state is not END:
            return
        watched = self._watch.remove(status.id)
        if watched is not None:
            _report(status.id, watched)

    def look(self) -> None:
        """Reports the signatures that have been refused since the last look."""
        self._watch.look_now()

    def _look(self, versions: Mapping[ServableId, _Watched]) -> None:
        for servable_id, watched in versions.items():
            _report(servable_id, watched)


def _report(servable_id: ServableId, watched: _Watched) -> None:
    for state in watched.servable.batching():
        if not state.refusal or (state.signature, state.is_on) in watched.reported:
            continue
        watched.reported.add((state.signature, state.is_on))
        _log.warning(
            "batching_refused",
            model=servable_id.name,
            version=servable_id.version,
            signature=state.signature,
            reason=state.refusal,
            rows=state.rows,
            rows_reason=state.rows_reason,
        )
