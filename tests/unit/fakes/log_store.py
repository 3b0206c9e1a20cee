"""Request logs: object storage in memory, and a log that has been used."""

from collections.abc import Callable
from pathlib import Path

from serving.base.clock import Clock
from serving.base.errors import InvalidConfig, Unavailable
from serving.core.model_config import ModelConfig
from serving.core.request_logging import RequestLogging
from serving.request_log.log_uploads import LogUploads
from serving.request_log.request_logs import RequestLogs
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.data_plane import FakePlane


class FakeLogStores:
    """All stores by URL. While `failure` is set, uploads fail with it, and those of the names `refused` always."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failure = ""
        self.attempt_count = 0
        self.refused: set[str] = set()
        self.before_upload: Callable[[], object] = lambda: None

    def store(self, url: str) -> "_Store":
        return _Store(self, url)


class _Store:
    def __init__(self, stores: FakeLogStores, url: str) -> None:
        self._stores = stores
        self._url = url

    def upload(self, path: Path, name: str) -> None:
        self._stores.attempt_count += 1
        self._stores.before_upload()
        if name in self._stores.refused:
            raise Unavailable("refused")
        if self._stores.failure:
            raise Unavailable(self._stores.failure)
        self._stores.objects[f"{self._url}/{name}"] = path.read_bytes()


def uploads_to(
    stores: FakeLogStores, directory: Path | None = None, clock: Clock | None = None
) -> LogUploads:
    """The uploads of files that wait in `directory`; without one, there is no place for them."""

    def find() -> Path:
        if directory is None:
            raise InvalidConfig("there is no directory")
        return directory

    return LogUploads(find, stores.store, clock=clock or FakeClock())


def no_uploads() -> LogUploads:
    """The uploads of a server whose logs have no URL."""
    return uploads_to(FakeLogStores())


_LOGGED = ModelConfig(
    name="m",
    base_path="/m",
    logging=RequestLogging(sampling_rate=0.5, filename_prefix="/no/such/directory/m"),
)


def used_log() -> RequestLogs:
    """The log of the model `m`: two records on a disk that fails, one in the queue, and one without room."""
    plane, clock = FakePlane(), FakeClock()
    logs = RequestLogs(plane, uploads=no_uploads(), clock=clock)
    logs.set_models([_LOGGED])
    (log,) = plane.request_logs
    log.put(b"a", b"b")
    logs.write_now()
    log.put(b"c")
    log.queue.is_full = True
    log.put(b"d")
    return logs
