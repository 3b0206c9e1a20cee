"""Mirrors: the mirrors of all models whose base paths are in object storage."""

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from serving.base.clock import Clock
from serving.base.name_text import file_name
from serving.loading.background_work import BackgroundWork
from serving.source.listing import FilesCheck
from serving.storage.fsspec_store import FsspecStore
from serving.storage.mirror import Mirror, MirrorSettings, MirrorThread, Versions
from serving.storage.stored_objects import ObjectStore

_DIGEST_LENGTH = 12


class Mirrors:
    """Starts and stops a mirror for each model. Any thread."""

    def __init__(
        self,
        cache_directory: Path,
        settings: MirrorSettings,
        *,
        check: FilesCheck,
        background: BackgroundWork,
        clock: Clock,
        make_store: Callable[[str], ObjectStore] = FsspecStore,
    ) -> None:
        """The threads of the mirrors work in the `background`, and are raised while a look starves."""
        self._cache_directory = cache_directory
        self._settings = settings
        self._check = check
        self._background = background
        self._clock = clock
        self._make_store = make_store
        self._lock = threading.Lock()
        self._threads: dict[str, MirrorThread] = {}
        self._ending: list[MirrorThread] = []

    def directory(self, model: str, url: str) -> Path:
        """The local directory of a model's URL. Each URL has its own."""
        return self._cache_directory / mirror_name(model, url)

    def open(self, model: str, url: str, versions: Versions) -> None:
        """Starts the mirror of `url` in place of the model's former one."""
        mirror = Mirror(
            model,
            url,
            self.directory(model, url),
            store=self._make_store(url),
            settings=self._settings,
            versions=versions,
            check=self._check,
            clock=self._clock,
        )
        thread = MirrorThread(mirror, model, background=self._background, clock=self._clock)
        self.close(model)
        with self._lock:
            self._threads[model] = thread
        thread.start()

    def close(self, model: str) -> None:
        """Stops the model's mirror, if it has one, and returns at once. Its copies stay on disk."""
        with self._lock:
            thread = self._threads.pop(model, None)
            if thread is not None:
                self._ending.append(thread)
        if thread is not None:
            thread.stop()

    def stop(self) -> None:
        """Stops all mirrors and returns at once."""
        for model in list(self._threads):
            self.close(model)

    def join(self, timeout_seconds: float) -> bool:
        """Waits, after `stop`, for each mirror, up to the timeout; False if the network still holds one."""
        has_ended = [thread.join(timeout_seconds) for thread in self._ending]
        return all(has_ended)


def mirror_name(model: str, url: str) -> str:
    """The name of a model's directory in the cache, which is the same in the next process."""
    digest = hashlib.sha256(
        f"{model}\n{url.rstrip('/')}".encode(errors="surrogatepass")
    ).hexdigest()
    return f"{file_name(model)[:100]}-{digest[:_DIGEST_LENGTH]}"
