"""Loaders: do the work of loading one version. Chosen by platform name in `server.py`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from serving.clock import Clock, seconds_since
from serving.errors import Cancelled, NotFound, from_status
from serving.servable import LoadStage, Servable, ServableId

WarmUp = Callable[[Path, Callable[[bytes], bytes], Callable[[], bool]], object]
"""Replays the warm-up records of a version directory through a servable's `predict`.

The last asks, before each request, whether to stop; then it raises Cancelled.
"""

_log = structlog.get_logger(__name__)


class LoadProgress(Protocol):
    """What a load tells about itself, and asks, on the loader thread."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the version is no longer wanted."""
        ...

    def stage_began(self, stage: LoadStage) -> None: ...
    def stage_ended(self, stage: LoadStage, seconds: float) -> None: ...


class Loader(Protocol):
    """Loads one version; whoever calls it then owns the servable."""

    def load(self, progress: LoadProgress) -> Servable:
        """Runs on a loader thread for as long as it takes; the servable is not yet published.

        Raises with everything freed: Cancelled where `progress` said so, else a MillpondError or
        what `errors.from_exception` makes one of.
        """
        ...


MakeLoader = Callable[[ServableId, str], Loader]
"""From an id and the version's directory to its loader."""


class SavedModelLoad(Protocol):
    """The steps of `_native.SavedModelLoad`, in order. Dropping it before `finish` frees all."""

    def read_graph(self) -> None: ...
    def create_session(self) -> None: ...
    def restore(self) -> None: ...
    def run_init(self) -> None: ...
    def make_callables(self) -> None: ...
    def finish(self) -> Servable: ...


class SavedModelPlane(Protocol):
    """The part of `serving._native` that loads SavedModels."""

    @property
    def StatusError(self) -> type[Exception]: ...  # noqa: N802 (the module's name for it)
    @property
    def SavedModelLoad(  # noqa: N802
        self,
    ) -> Callable[[str, int, str, Sequence[str]], SavedModelLoad]: ...
    def check_saved_model(self, directory: str) -> None: ...


@contextmanager
def statuses_as_errors(status_error: type[Exception]) -> Iterator[None]:
    """Raises the data plane's `StatusError` as the MillpondError of its code."""
    try:
        yield
    except status_error as error:
        code, message = error.args
        raise from_status(code, message) from error


class SavedModelLoader:
    """Loads one SavedModel step by step, each step a timed stage, and warms it up.

    The load stops before the next stage, or the next warm-up request, once the version is not
    wanted any more, and before the next stage once its directory is gone. `directory` is the
    version's, `tags` those of its meta graph.
    """

    def __init__(
        self,
        servable_id: ServableId,
        directory: str,
        *,
        tags: Sequence[str],
        plane: SavedModelPlane,
        warm_up: WarmUp,
        clock: Clock,
    ) -> None:
        self._id = servable_id
        self._directory = Path(directory)
        self._tags = tags
        self._plane = plane
        self._warm_up = warm_up
        self._clock = clock

    def load(self, progress: LoadProgress) -> Servable:
        """See `Loader`."""
        with statuses_as_errors(self._plane.StatusError):
            servable = self._load(progress)
            try:
                self._run_stage(
                    progress, LoadStage.WARM_UP, partial(self._replay, servable, progress)
                )
            except BaseException:
                servable.destroy()
                raise
            return servable

    def _load(self, progress: LoadProgress) -> Servable:
        run = partial(self._run_stage, progress)
        # Checked again: the source looked a while ago, and a retry may meet other files.
        run(LoadStage.CHECK, partial(self._plane.check_saved_model, str(self._directory)))
        load = self._plane.SavedModelLoad(
            self._id.name, self._id.version, str(self._directory), self._tags
        )
        run(LoadStage.READ_GRAPH, load.read_graph)
        run(LoadStage.CREATE_SESSION, load.create_session)
        run(LoadStage.RESTORE, load.restore)
        run(LoadStage.INIT, load.run_init)
        run(LoadStage.MAKE_CALLABLES, load.make_callables)
        return load.finish()

    def _run_stage(
        self, progress: LoadProgress, stage: LoadStage, step: Callable[[], None]
    ) -> None:
        if progress.is_cancelled:
            raise Cancelled(f"{self._id}: no longer aspired; stopped before {stage.value}")
        progress.stage_began(stage)
        start_ns = self._clock.now_ns()
        try:
            step()
        except Exception as error:
            self._raise_if_directory_gone(stage, error)
            raise
        finally:
            progress.stage_ended(stage, seconds_since(self._clock, start_ns))
        self._raise_if_directory_gone(stage)

    def _raise_if_directory_gone(self, stage: LoadStage, cause: Exception | None = None) -> None:
        """A file that is missing because its directory went away is not a broken model."""
        if not self._directory.is_dir():
            raise NotFound(
                f"{self._id}: {self._directory} went away while it was loaded (in {stage.value}); "
                "drop the version again"
            ) from cause

    def _replay(self, servable: Servable, progress: LoadProgress) -> None:
        result = self._warm_up(
            self._directory, partial(self._predict, servable), lambda: progress.is_cancelled
        )
        _log.debug("warmed_up", model=self._id.name, version=self._id.version, result=result)

    def _predict(self, servable: Servable, request: bytes) -> bytes:
        with statuses_as_errors(self._plane.StatusError):
            return servable.predict(request)
