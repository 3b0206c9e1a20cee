"""The interface of loaders: the settings of a load, and the progress that it reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateSettings, Platform, Priority, TablePlace
from serving.core.servable import GateVerdict, LoadStage, ServableId
from serving.data_plane.loads import BatchSettings
from serving.data_plane.request_log import RequestLog
from serving.data_plane.request_statistics import RequestStatistics
from serving.data_plane.servables import RequestReservoir, Servable
from serving.loading.accelerator_use import AcceleratorUse
from serving.loading.arenas import Arenas
from serving.loading.batch_records import BatchRecords
from serving.loading.batch_refusals import BatchRefusals
from serving.loading.installed_ops import InstalledOps
from warmup.replay import Ask
from warmup.self_warm_up import SelfWarmUpResult

WarmUp = Callable[[Path, Ask, Cancellation], object]
"""Replays the warm-up records of a version directory through a servable's `answer`.

Once it is cancelled, the replay raises Cancelled before its next request.
"""


class SelfWarmUp(Protocol):
    """Sends live requests of earlier versions through a new one."""

    def __call__(
        self,
        requests: Sequence[bytes],
        *,
        make_callable: Callable[[bytes], None],
        predict: Callable[[bytes], bytes],
        cancellation: Cancellation,
    ) -> SelfWarmUpResult: ...


class LoadProgress(Protocol):
    """Receives the progress of a load, on the loader thread, and carries its cancellation."""

    @property
    def cancellation(self) -> Cancellation:
        """The cancellation of the load, set when the version stops being aspired."""
        ...

    def stage_began(self, stage: LoadStage) -> None: ...
    def stage_ended(self, stage: LoadStage, seconds: float) -> None: ...
    def gate_ended(self, verdict: GateVerdict) -> None: ...
    def measured(self, figures: Mapping[str, float]) -> None: ...
    def noted(self, notes: Mapping[str, str]) -> None: ...


class Loader(Protocol):
    """Loads versions. The caller owns the servables."""

    def load(self, servable_id: ServableId, directory: str, progress: LoadProgress) -> Servable:
        """Loads a version on the calling loader thread; the servable is not yet published.

        If it raises, everything is freed. Raises Cancelled if `progress` was cancelled, else a
        MillpondError or an error that `errors.from_exception` converts to a MillpondError.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """The settings of SavedModel loads, the same for all versions of one model.

    `arenas` is None if parameters come from the request memory. `reservoir` is None if no live
    requests are kept; each version gets it. `request_statistics` is None if requests are not
    recorded; each version gets it too. `request_log` is None if no requests can be logged.
    `incumbent` returns the version that serves the name now, or None. `follows_another` returns True if one has
    served before, and may be gone, as if it is unloaded before the load of the next one. `ops` is None if no ops
    are added to those that the process has.
    """

    tags: Sequence[str]
    warm_up: WarmUp
    self_warm_up: SelfWarmUp
    incumbent: Callable[[ServableId], Servable | None]
    follows_another: Callable[[ServableId], bool]
    batch_records: BatchRecords
    batch_refusals: BatchRefusals
    arenas: Arenas | None = None
    has_strict_input_shapes: bool = False
    # The number of the model's versions that are served between swaps.
    serving_count: int = 1
    is_sealing: bool = False
    reservoir: RequestReservoir | None = None
    request_log: RequestLog | None = None
    request_statistics: RequestStatistics | None = None
    gates: GateSettings = field(default_factory=GateSettings)
    restore_bytes_per_second: int = 0
    load_seconds_target: float = 0
    # The longest run of a warm-up request or a gate's request; 0: any time.
    replay_seconds_max: float = 0
    # Returns the settings of batches for the version in a directory, or None if its requests do not
    # share runs. Raises InvalidConfig if the version's own file is wrong.
    batching: Callable[[Path], BatchSettings | None] | None = None
    ops: InstalledOps | None = None
    # None: all versions run on the CPU.
    accelerator: AcceleratorUse | None = None
    platform: Platform = Platform.AUTO
    accelerator_tables: TablePlace = TablePlace.AUTO
    accelerator_memory_bytes: int = 0
    accelerator_priority: Priority = Priority.NORMAL
    accelerator_devices: Sequence[int] = ()
    accelerator_replicas: int = 1
