"""Lets threads that answer no request work in the background, without starving there."""

import threading
from contextlib import AbstractContextManager, nullcontext

from serving.loading.load_priority import LoadPriority
from serving.loading.starvation_watch import Helpers, StarvationWatch, no_helpers


class BackgroundWork:
    """Lowers the priority of threads, and raises it again for work that starves. Any thread."""

    def __init__(self, priority: LoadPriority, watch: StarvationWatch | None) -> None:
        """If `watch` is None, work may starve, or no thread is lowered."""
        self._priority = priority
        self._watch = watch

    def enter(self) -> None:
        """Gives the calling thread the priority of the background."""
        self._priority.enter_background()

    def watched(
        self, thread_id: int | None = None, helpers: Helpers = no_helpers
    ) -> AbstractContextManager[None]:
        """Wraps work of a thread. If the thread or its `helpers` starve, all of them are raised until its end.

        `thread_id` is the kernel's id of the thread; None for the calling thread.
        """
        if self._watch is None:
            return nullcontext()
        return self._watch.watched(thread_id or threading.get_native_id(), helpers)
