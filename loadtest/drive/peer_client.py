"""A client of a server that answers TensorFlow Serving's body in rows over HTTP."""

import json
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from loadtest.drive.rest_load import rows_body
from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import Unavailable
from serving.commands.ctr_model import reference_answers, request_inputs

_READY_SECONDS = 180
_POLL_SECONDS = 0.2
_CALL_SECONDS = 30
# The answers are float32 sums of 429 products; the reference sums in float64.
_TOLERANCE = 1e-5
_TOGETHER = 16


def wait_for_reply(url: str, body: bytes, clock: Clock, check: Callable[[], None]) -> None:
    """Waits until `url` replies to `body` with 200. `check` is called after each failure and may
    raise. Raises Unavailable at the timeout.
    """
    start_ns = clock.now_ns()
    while True:
        try:
            post(url, body)
        except OSError as error:
            failure = error
        else:
            return
        check()
        if seconds_since(clock, start_ns) > _READY_SECONDS:
            raise Unavailable(f"{url}: no reply in {_READY_SECONDS} s: {failure}")
        pause(clock, _POLL_SECONDS)


def wrong_replies(url: str, rows: int, table_rows: int) -> int:
    """Sends distinct requests at the same time and returns how many replies are wrong or missing:
    batches must not mix their answers.
    """

    def is_right(check: tuple[bytes, np.ndarray[Any, Any]]) -> bool:
        body, reference = check
        try:
            return is_right_reply(post(url, body), reference)
        except OSError:
            return False

    with ThreadPoolExecutor(_TOGETHER) as pool:
        return list(pool.map(is_right, _checks(rows, table_rows))).count(False)


@lru_cache
def _checks(rows: int, table_rows: int) -> Sequence[tuple[bytes, np.ndarray[Any, Any]]]:
    """Returns the requests' bodies with the right `ctr` of each. Takes seconds, the first time."""
    seeds = range(2 * _TOGETHER)
    inputs = [request_inputs(seed, rows, table_rows) for seed in seeds]
    references = reference_answers((1,), inputs, table_rows)[1]
    bodies = [rows_body(rows, table_rows, seed) for seed in seeds]
    return list(zip(bodies, references, strict=True))


def is_right_reply(reply: bytes, reference: Sequence[Any] | np.ndarray[Any, Any]) -> bool:
    """Returns True if the predictions, in `predictions` or as the whole body, fit the reference."""
    try:
        document = json.loads(reply)
        rows = document["predictions"] if isinstance(document, dict) else document
        found = np.array([row["ctr"] for row in rows], np.float64)
    except (ValueError, KeyError, TypeError):
        return False
    wanted = np.asarray(reference)
    return found.shape == wanted.shape and bool(np.all(np.abs(found - wanted) <= _TOLERANCE))


def post(url: str, body: bytes) -> bytes:
    """Returns the reply's body. Raises OSError for a failure, also for a status other than 200."""
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    # Without a proxy: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_CALL_SECONDS) as response:
        reply: bytes = response.read()
    return reply
