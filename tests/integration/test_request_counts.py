"""The server's counts at /metrics, compared with those of its clients, to the last request.

Every request that reached the server is counted once, under one code. The codes compare as follows:

- If the client waits for its answer, its code is the server's: the counts are equal by code.
- If the client cancels an endless request, its code is the server's too. If its deadline passes,
  the server counts DEADLINE_EXCEEDED. It counts CANCELLED if the client's cancellation came before
  the deadline had passed at the server: the wire gives no reason with a cancellation.
- If the client cancels while the answer may be on its way, the server counts OK or a cancellation:
  the sum is equal, and OK is no less than the clients'.
- If the client cancels before the request may have been sent, the server has counted it or never
  saw it.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from loadtest.measure.server_pages import Metrics, ServerPages
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import Caller, predict_request, wait_until
from tests.integration.exports import drop
from tests.integration.model_host import HostedModel

CLIENT_THREAD_COUNT = 4
REQUESTS = "serving_requests_total"
LATENCY_COUNT = "serving_request_latency_seconds_count"
TFS_COUNT = ":tensorflow:serving:request_count"
GIVEN_UP = frozenset({"OK", "DEADLINE_EXCEEDED", "CANCELLED"})
"""Codes under which the server may count a request that its client has cancelled."""

# Long enough for the request to reach the server, if the client gets a core; then the answer and the client's
# cancellation race.
RUN_SECONDS = 0.2
PATIENCE_SECONDS = (0.199, 0.2, 0.201, 0.202, 0.205, 0.25)
# About the time of sending a request.
NO_PATIENCE_SECONDS = (0.0003, 0.0005, 0.001, 0.002, 0.004)
LONG_SECONDS = 30.0
"""Longer than any deadline: such a run ends by its deadline or its cancellation."""

Counts = Counter[str]
Calls = list[Callable[[], str]]


class CountsSince:
    """The counts of the server's page since the test began. Requests for no model count too."""

    def __init__(self, url: str) -> None:
        self._pages = ServerPages(url)
        self._before = self._pages.metrics()

    def metrics(self) -> Metrics:
        """Returns the page as it is now."""
        return self._pages.metrics()

    def by(self, label: str, name: str, **labels: str) -> Counts:
        """Returns the new counts for each value of `label`."""
        now = self._pages.metrics().counts_by(label, name, **labels)
        return now - self._before.counts_by(label, name, **labels)

    def predicted(self) -> Counts:
        """Returns the requests by code, summed over versions and including requests that found no
        version.
        """
        return self.by("code", REQUESTS, method="Predict")

    def assert_all_names_say(self, counts: Counts) -> None:
        """Checks that the counter, the histogram, and TensorFlow Serving's counter, which has no
        version, agree.
        """
        assert self.predicted() == +counts
        assert self.by("code", LATENCY_COUNT, method="Predict") == +counts
        assert self.by("status", TFS_COUNT) == +counts

    def settle(self, total: int) -> None:
        """Waits until `total` requests have ended: the server learns of a cancellation later."""
        wait_until(lambda: self.predicted().total() >= total, f"{total} requests counted")
        self.wait_until_in_flight(0)

    def wait_until_in_flight(self, count: int) -> None:
        """Waits until so many requests are in the server."""
        in_flight = "serving_servable_handles"
        wait_until(lambda: self.metrics().total(in_flight) == count, f"{count} requests in flight")


@pytest.fixture
def counts(slow: HostedModel) -> CountsSince:
    return CountsSince(slow.server.url)


# --- Requests of clients --------------------------------------------------------------------------


def code_of(call: Callable[[], object]) -> str:
    """Returns the name of the code with which a call ends for its client."""
    try:
        call()
    except grpc.FutureCancelledError:
        return "CANCELLED"
    except grpc.RpcError as error:
        failed: Any = error
        name: str = failed.code().name
        return name
    return "OK"


def quick(name: str, version: int | None = None) -> Any:
    return predict_request(name, {"x": np.int32(1)}, version=version, signature_name="quick")


def of_wrong_dtype(name: str) -> Any:
    return predict_request(name, {"x": np.float32(1)}, signature_name="quick")


def of_no_signature(name: str) -> Any:
    return predict_request(name, {}, signature_name="none")


def run_of(name: str, seconds: float) -> Any:
    return predict_request(name, {"seconds": np.float64(seconds)})


def cancelled_after(caller: Caller, request: Any, seconds: float) -> str:
    """Cancels the call unless it was answered before."""
    call = caller.start_predict(request)
    with suppress(grpc.FutureTimeoutError, grpc.RpcError):
        call.result(timeout=seconds)
    call.cancel()
    return code_of(call.result)


def waited_calls(caller: Caller, name: str, count: int) -> Calls:
    """Yields calls of all kinds, mixed, with clients that wait for the answer."""
    requests: list[tuple[int, Any]] = [
        (6, quick(name)),
        (1, of_wrong_dtype(name)),
        (1, quick("nobody")),
        (1, quick(name, version=99)),
        (1, of_no_signature(name)),
    ]
    calls: Calls = [
        partial(code_of, partial(caller.predict, request))
        for share, request in requests
        for _ in range(share * count // 10)
    ]
    random.Random(1).shuffle(calls)
    return calls


def given_up_calls(
    caller: Caller, request: Any, patience_seconds: Sequence[float], count: int
) -> Calls:
    """Yields calls that end by their deadline and by their client in turn, each after one of these
    times.
    """
    draw = random.Random(2)
    calls: Calls = []
    for _ in range(count // 2):
        one, other = draw.choice(patience_seconds), draw.choice(patience_seconds)
        calls.append(partial(code_of, partial(caller.predict, request, timeout=one)))
        calls.append(partial(cancelled_after, caller, request, other))
    return calls


def sent(calls: Calls) -> Counts:
    """Runs the calls from several threads at once and counts the codes with which they ended."""
    with ThreadPoolExecutor(CLIENT_THREAD_COUNT) as pool:
        return Counter(pool.map(lambda call: call(), calls))


def without(counts: Counts, codes: Collection[str]) -> Counts:
    return Counter({code: count for code, count in counts.items() if code not in codes})


@contextmanager
def swaps_under_way(
    model: HostedModel, slow_export: Path, versions: range
) -> Iterator[Future[None]]:
    """Swaps versions one after the other from here on, and waits for the last at the end of `with`."""

    def swap_all() -> None:
        for version in versions:
            drop(slow_export, model.base_path, version)
            model.wait_for_states({version: AVAILABLE, version - 1: END})

    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(swap_all)
        yield swapping
        swapping.result()


# --- Tests ----------------------------------------------------------------------------------------------


def test_counts_by_code_match_clients_across_swaps(
    slow: HostedModel, slow_caller: Caller, counts: CountsSince, slow_export: Path
):
    waited: Counts = Counter()
    versions = range(2, 6)
    waited += sent(waited_calls(slow_caller, slow.name, 100))
    with swaps_under_way(slow, slow_export, versions) as swapping:
        # This lasts until the last swap, however slow the machine: each version answers some
        # requests.
        while not swapping.done():
            waited += sent(waited_calls(slow_caller, slow.name, 100))
    waited += sent(waited_calls(slow_caller, slow.name, 100))
    counts.assert_all_names_say(waited)
    assert set(waited) == {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}
    # Ended versions stay on the page for ten minutes: the sum includes them.
    by_version = counts.by("version", REQUESTS, model=slow.name, method="Predict", code="OK")
    assert set(by_version) <= {"1", *map(str, versions)}
    assert by_version["1"] > 0
    assert by_version["5"] > 0


def test_endless_requests_given_up_are_counted_once(
    slow: HostedModel, slow_caller: Caller, counts: CountsSince
):
    """A cancellation counts as CANCELLED; a deadline may have passed at the client first."""
    seen = sent(waited_calls(slow_caller, slow.name, 100))
    request = run_of(slow.name, LONG_SECONDS)
    cancelled = [slow_caller.start_predict(request, timeout=3_600) for _ in range(3)]
    counts.wait_until_in_flight(3)
    expiring = [slow_caller.start_predict(request, timeout=2) for _ in range(3)]
    for call in cancelled:
        call.cancel()
    assert {code_of(call.result) for call in cancelled} == {"CANCELLED"}
    assert {code_of(call.result) for call in expiring} == {"DEADLINE_EXCEEDED"}
    counts.settle(seen.total() + 6)
    counted = counts.predicted()
    assert counted.total() == seen.total() + 6
    assert without(counted, GIVEN_UP - {"OK"}) == seen
    assert counted["CANCELLED"] >= 3
    counts.assert_all_names_say(counted)


def test_cancelled_answers_count_once_during_swaps(
    slow: HostedModel, slow_caller: Caller, counts: CountsSince, slow_export: Path
):
    waited = sent(waited_calls(slow_caller, slow.name, 100))
    with swaps_under_way(slow, slow_export, range(2, 4)):
        runs = given_up_calls(slow_caller, run_of(slow.name, RUN_SECONDS), PATIENCE_SECONDS, 30)
        given_up = sent(runs)
        waited += sent(waited_calls(slow_caller, slow.name, 200))
    assert set(given_up) <= GIVEN_UP
    assert given_up.total() - given_up["OK"] > 0
    # A client that had no core for so long gave up before it sent. All others were read before the last answers.
    answered = waited.total() + given_up["OK"]
    counts.settle(answered)
    counted = counts.predicted()
    assert answered <= counted.total() <= waited.total() + given_up.total()
    assert without(counted, GIVEN_UP) == without(waited, GIVEN_UP)
    assert counted["OK"] >= waited["OK"] + given_up["OK"]
    counts.assert_all_names_say(counted)


def test_cancelled_sends_count_at_most_once(
    slow: HostedModel, slow_caller: Caller, counts: CountsSince
):
    waited = sent(waited_calls(slow_caller, slow.name, 100))
    given_up = sent(given_up_calls(slow_caller, quick(slow.name), NO_PATIENCE_SECONDS, 400))
    waited += sent(waited_calls(slow_caller, slow.name, 100))
    answered = waited.total() + given_up["OK"]
    counts.settle(answered)
    counted = counts.predicted()
    assert answered <= counted.total() <= waited.total() + given_up.total()
    assert without(counted, GIVEN_UP) == without(waited, GIVEN_UP)
    assert counted["OK"] >= waited["OK"] + given_up["OK"]


def test_returning_version_counts_anew_model_goes_on(
    slow: HostedModel, slow_caller: Caller, counts: CountsSince, slow_export: Path, tmp_path: Path
):
    of_version = {"model": slow.name, "method": "Predict", "version": "1"}
    seen = sent(waited_calls(slow_caller, slow.name, 100))
    (slow.base_path / "1").rename(tmp_path / "1")
    drop(slow_export, slow.base_path, 2)
    slow.wait_for_states({1: END, 2: AVAILABLE})
    counts.assert_all_names_say(seen)
    (slow.base_path / "2").rename(tmp_path / "2")
    (tmp_path / "1").rename(slow.base_path / "1")
    slow.wait_for_states({1: AVAILABLE, 2: END})
    assert +counts.metrics().counts_by("code", REQUESTS, **of_version) == Counter()
    seen += sent(waited_calls(slow_caller, slow.name, 50))
    assert counts.by("status", TFS_COUNT) == +seen
    assert counts.metrics().total(REQUESTS, code="OK", **of_version) == 30
