"""Batching: chooses how the requests of each version share runs, when the version is loaded."""

import threading
from pathlib import Path

from serving.config.batching_parameters_file import read_batching_parameters_of_version
from serving.core.model_settings import BatchingChoice, BatchingSettings
from serving.data_plane.loads import BatchSettings, BatchSlots
from serving.data_plane.plane import DataPlane

_MS_PER_SECOND = 1_000


class Batching:
    """Makes the data plane's settings of batches. Any thread.

    The model's own settings count if they turn batching on or off. Otherwise the version's own file counts,
    if such files are read, and otherwise the server's flags. The comparison of answers always goes by the
    model's own settings.

    The server's limit of batches that run at the same time holds for all models together. A model
    whose settings or whose version's file has a limit has one of its own, for all its versions.
    """

    def __init__(
        self, plane: DataPlane, server: BatchingSettings, *, reads_version_files: bool
    ) -> None:
        self._plane = plane
        self._server = server
        self._reads_version_files = reads_version_files
        self._server_slots = self._make_slots(server.num_batch_threads)
        self._lock = threading.Lock()
        # For each model with a limit of its own: the limit, and what its versions share. Guarded by
        # `_lock`.
        self._slots: dict[str, tuple[int, BatchSlots | None]] = {}

    def of_version(
        self, name: str, model: BatchingSettings, directory: Path
    ) -> BatchSettings | None:
        """The settings for the version of model `name` in a directory; None: no batches.

        Raises InvalidConfig if the version's file is wrong, and OSError if it cannot be read.
        """
        settings = self._choose(model, directory)
        if not settings.is_on:
            return None
        return BatchSettings(
            rows_max=settings.max_batch_size,
            run_seconds_max=settings.max_batch_latency_ms / _MS_PER_SECOND,
            splits=settings.splits_large_requests,
            allowed_rows=settings.allowed_batch_sizes,
            pads_inputs=settings.pads_variable_length_inputs,
            waiting_requests_max=settings.max_enqueued_batches * settings.max_batch_size,
            slots=self._slots_of(name, settings),
            relative_tolerance=model.batch_relative_tolerance,
            may_mix_rows=model.may_mix_rows,
        )

    def forget(self, name: str) -> None:
        """Frees the limit of a model that is no longer configured."""
        with self._lock:
            self._slots.pop(name, None)

    def _choose(self, model: BatchingSettings, directory: Path) -> BatchingSettings:
        if model.enabled is not BatchingChoice.AS_FLAG:
            return model
        if not self._reads_version_files:
            return self._server
        return read_batching_parameters_of_version(directory) or self._server

    def _slots_of(self, name: str, settings: BatchingSettings) -> BatchSlots | None:
        count = settings.num_batch_threads
        if settings is self._server or count == 0:
            return self._server_slots
        with self._lock:
            if name not in self._slots or self._slots[name][0] != count:
                self._slots[name] = (count, self._make_slots(count))
            return self._slots[name][1]

    def _make_slots(self, count: int) -> BatchSlots | None:
        return self._plane.BatchSlots(count) if count else None
