"""HTTP visitors of a server under load: a Prometheus that scrapes, and a page that polls.

Each visitor keeps one connection, as the real ones do. It parses the answer only if it must, so that
a load test measures the server's cost and not the visitor's.
"""

import http.client
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from urllib.parse import urlencode, urlsplit

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import Unavailable
from serving.base.periodic_thread import PeriodicThread

_TIMEOUT_SECONDS = 10
# Lower priority than every request thread: on two cores the visitors share the server's cores.
_NICE = 19
# The headers of Prometheus 2.42.
_PROMETHEUS_HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
    "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}

Visit = Callable[[http.client.HTTPConnection], None]


def scrape(connection: http.client.HTTPConnection) -> None:
    """Reads the metrics as Prometheus does. Raises OSError, HTTPException, Unavailable."""
    _get(connection, "/metrics", _PROMETHEUS_HEADERS)


class PagePolls:
    """Polls as the page does: each answer has the cursor of the next poll."""

    def __init__(self) -> None:
        self._question = {"cursor": "", "swaps_tag": ""}

    def __call__(self, connection: http.client.HTTPConnection) -> None:
        """Raises as `scrape` does."""
        answer = json.loads(_get(connection, f"/v1/page?{urlencode(self._question)}", {}))
        self._question = {key: answer[key] for key in self._question}


class Visitor:
    """Visits once a second, inside `with`, from its own thread.

    `check`, after the end, raises Unavailable if a visit failed.
    """

    def __init__(
        self, name: str, url: str, visit: Visit, clock: Clock, period_seconds: float = 1
    ) -> None:
        self.visit_count = 0
        self._visit = visit
        self._clock = clock
        self._period_ns = round(period_seconds * NS_PER_SECOND)
        self._name = name
        self._address = urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT_SECONDS)
        self._due_ns = clock.now_ns()
        self._failure: Exception | None = None
        self._thread = PeriodicThread(
            name,
            self._visit_once,
            wait_seconds=self._until_due_seconds,
            failure_event="visit_failed",
            at_start=_lower_priority,
            at_end=self._connection.close,
            clock=clock,
        )

    def __enter__(self) -> "Visitor":
        self._due_ns = self._clock.now_ns()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.stop()
        self._thread.join(None)

    def check(self) -> None:
        """Raises Unavailable with the error of a failed visit, if there was one."""
        if self._failure is not None:
            raise Unavailable(f"{self._name} of {self._address}: {self._failure!r}")

    def _until_due_seconds(self) -> float:
        return max(0, self._due_ns - self._clock.now_ns()) / NS_PER_SECOND

    def _visit_once(self) -> None:
        try:
            self._visit(self._connection)
        except (OSError, http.client.HTTPException, Unavailable) as error:
            self._failure = error
            self._thread.stop()
            return
        self.visit_count += 1
        self._due_ns += self._period_ns


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


@contextmanager
def visited(visitors: Sequence[Visitor]) -> Iterator[None]:
    """Runs all visitors inside `with`. Raises Unavailable at the end if a visit failed."""
    with ExitStack() as stack:
        for visitor in visitors:
            stack.enter_context(visitor)
        yield
    for visitor in visitors:
        visitor.check()


def _get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> bytes:
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    content = response.read()
    if response.status != http.client.OK:
        raise Unavailable(f"{path}: status {response.status}")
    return content
