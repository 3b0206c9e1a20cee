"""Sends the runs of versions that have an accelerator to the CPU if that is faster."""

from collections.abc import Mapping, Sequence

import structlog

from serving.base.clock import Clock
from serving.base.periodic_thread import Watch
from serving.core.servable import END, ServableId, ServableStatus
from serving.data_plane.servables import Servable, SizeTimes
from serving.loading.side_policy import choose_sides

PERIOD_SECONDS = 5.0
"""The time between two looks. A median needs thousands of runs, because probes are rare."""

MEASURE_SECONDS_MAX = 0.5
"""The longest measurement of a signature in a load. It is 1 % of a typical load of a model for an accelerator."""

_NS_PER_MICROSECOND = 1_000

_log = structlog.get_logger(__name__)


class SideChoices:
    """Chooses sides at the load of a version, and again while requests come. Any thread.

    Each change is logged as `sides_chosen`. A thread `side-choices` looks at the times of live runs every
    `PERIOD_SECONDS`, and sleeps while no version has a choice.
    """

    def __init__(self, clock: Clock, status_error: type[Exception]) -> None:
        self._status_error = status_error
        self._watch: Watch[ServableId, Servable] = Watch(
            "side-choices", self._look, period_seconds=PERIOD_SECONDS, clock=clock
        )

    def start(self) -> None:
        """Starts the thread."""
        self._watch.start()

    def stop(self) -> None:
        """Ends the thread if it was started."""
        self._watch.stop()

    def measure(self, servable_id: ServableId, servable: Servable) -> None:
        """Measures both sides of a version before it is published, chooses, and watches it until its end.

        Raises CANCELLED after `cancel_runs`.
        """
        servable.measure_sides(MEASURE_SECONDS_MAX)
        _choose(servable_id, servable, is_first=True)
        self._watch.add(servable_id, servable)

    def on_status(self, status: ServableStatus) -> None:
        """Stops watching a version that has ended. A listener of StateMonitor."""
        if status.state is END:
            self._watch.remove(status.id)

    def look(self) -> None:
        """Chooses anew, by the times of the last runs."""
        self._watch.look_now()

    def _look(self, versions: Mapping[ServableId, Servable]) -> None:
        for servable_id, servable in versions.items():
            try:
                _choose(servable_id, servable, is_first=False)
            except self._status_error:
                continue  # It is being destroyed.


def has_choice(servable: Servable) -> bool:
    """True if a signature may run on the CPU or on the accelerator."""
    return any(signature.sizes for signature in servable.accelerator_signatures())


def _choose(servable_id: ServableId, servable: Servable, *, is_first: bool) -> None:
    for signature in servable.accelerator_signatures():
        choices = choose_sides(signature.sizes, is_first=is_first)
        for choice in choices:
            servable.choose_side(
                signature.name, choice.rows, choice.is_on_accelerator, choice.probe_one_of
            )
        changed = {choice.rows for choice in choices if choice.is_on_accelerator} != {
            size.rows for size in signature.sizes if size.is_on_accelerator
        }
        if changed or (is_first and choices):
            on_cpu = [choice.rows for choice in choices if not choice.is_on_accelerator]
            _report(servable_id, signature.name, signature.sizes, on_cpu)


def _report(
    servable_id: ServableId,
    signature: str,
    sizes: Sequence[SizeTimes],
    rows_on_cpu: Sequence[int],
) -> None:
    _log.info(
        "sides_chosen",
        model=servable_id.name,
        version=servable_id.version,
        signature=signature,
        rows_on_cpu=rows_on_cpu,
        rows=[size.rows for size in sizes],
        cpu_us=[size.cpu_ns // _NS_PER_MICROSECOND for size in sizes],
        accelerator_us=[size.accelerator_ns // _NS_PER_MICROSECOND for size in sizes],
    )
