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
from serving import ModelServer
from serving.client import Client
from serving.core.servable import ServableState
from tests.integration.clients import (
    Caller,
    caller_to,
    predict_request,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import drop

MODEL = "slow"
CLIENT_THREAD_COUNT = 4
REQUESTS = "serving_requests_total"
LATENCY_COUNT = "serving_request_latency_seconds_count"
TFS_COUNT = ":tensorflow:serving:request_count"
GIVEN_UP = frozenset({"OK", "DEADLINE_EXCEEDED", "CANCELLED"})
"""Codes under which the server may count a request that its client has cancelled."""

# Long enough for the request to reach the server on any machine; then the answer and the client's
# cancellation race.
RUN_SECONDS = 0.2
PATIENCE_SECONDS = (0.199, 0.2, 0.201, 0.202, 0.205, 0.25)
# About the time of sending a request.
NO_PATIENCE_SECONDS = (0.0003, 0.0005, 0.001, 0.002, 0.004)
LONG_SECONDS = 30.0
"""Longer than any deadline: such a run ends by its deadline or its cancellation."""

Counts = Counter[str]
Calls = list[Callable[[], str]]


@pytest.fixture
def server(start_server: StartServer, slow_export: Path, base_path: Path) -> ModelServer:
    """Starts a server on which version 1 of `slow` answers."""
    drop(slow_export, base_path, 1)
    server = start_server(model_name=MODEL, base_path=base_path)
    server.wait_until_available(MODEL, 1)
    return server


@pytest.fixture
def pages(server: ModelServer) -> ServerPages:
    return ServerPages(server.url)


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


def quick(name: str = MODEL, version: int | None = None) -> Any:
    return predict_request(name, {"x": np.int32(1)}, version=version, signature_name="quick")


def of_wrong_dtype() -> Any:
    return predict_request(MODEL, {"x": np.float32(1)}, signature_name="quick")


def of_no_signature() -> Any:
    return predict_request(MODEL, {}, signature_name="none")


def run_of(seconds: float) -> Any:
    return predict_request(MODEL, {"seconds": np.float64(seconds)})


def cancelled_after(caller: Caller, request: Any, seconds: float) -> str:
    """Cancels the call unless it was answered before."""
    call = caller.start_predict(request)
    with suppress(grpc.FutureTimeoutError, grpc.RpcError):
        call.result(timeout=seconds)
    call.cancel()
    return code_of(call.result)


def waited_calls(caller: Caller, count: int) -> Calls:
    """Yields calls of all kinds, mixed, with clients that wait for the answer."""
    requests: list[tuple[int, Any]] = [
        (6, quick()),
        (1, of_wrong_dtype()),
        (1, quick("nobody")),
        (1, quick(version=99)),
        (1, of_no_signature()),
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


# --- Counts of the server -------------------------------------------------------------------------


def predicted(metrics: Metrics) -> Counts:
    """Returns the requests by code, summed over versions and including requests that found no
    version.
    """
    return metrics.counts_by("code", REQUESTS, method="Predict")


def assert_all_names_say(metrics: Metrics, counts: Counts) -> None:
    """Checks that the counter, the histogram, and TensorFlow Serving's counter, which has no
    version, agree.
    """
    assert +predicted(metrics) == +counts
    assert +metrics.counts_by("code", LATENCY_COUNT, method="Predict") == +counts
    assert +metrics.counts_by("status", TFS_COUNT) == +counts


def without(counts: Counts, codes: Collection[str]) -> Counts:
    return Counter({code: count for code, count in counts.items() if code not in codes})


def settled(pages: ServerPages, total: int) -> Metrics:
    """Returns the page once `total` requests have ended: the server learns of a cancellation later."""
    wait_until(lambda: predicted(pages.metrics()).total() >= total, f"{total} requests counted")
    wait_until_in_flight(pages, 0)
    return pages.metrics()


def wait_until_in_flight(pages: ServerPages, count: int) -> None:
    """Waits until so many requests are in the server."""
    in_flight = "serving_requests_in_flight"
    wait_until(lambda: pages.metrics().total(in_flight) == count, f"{count} requests in flight")


@contextmanager
def swaps_under_way(
    server: ModelServer, slow_export: Path, base_path: Path, versions: range
) -> Iterator[Future[None]]:
    """Swaps versions one after the other from here on, and waits for the last at the end of `with`."""

    def swap_all() -> None:
        with Client(server.target) as client:
            for version in versions:
                drop(slow_export, base_path, version)
                states = {version: ServableState.AVAILABLE, version - 1: ServableState.END}
                wait_for_states(client, MODEL, states)

    with ThreadPoolExecutor(1) as pool:
        swapping = pool.submit(swap_all)
        yield swapping
        swapping.result()


# --- Tests ----------------------------------------------------------------------------------------------


def test_counts_by_code_match_clients_across_swaps(
    server: ModelServer, pages: ServerPages, slow_export: Path, base_path: Path
):
    waited: Counts = Counter()
    versions = range(2, 6)
    with caller_to(server.target) as caller:
        waited += sent(waited_calls(caller, 100))
        with swaps_under_way(server, slow_export, base_path, versions) as swapping:
            # This lasts until the last swap, however slow the machine: each version answers some
            # requests.
            while not swapping.done():
                waited += sent(waited_calls(caller, 100))
        waited += sent(waited_calls(caller, 100))
    metrics = pages.metrics()
    assert_all_names_say(metrics, waited)
    assert set(waited) == {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}
    # Ended versions stay on the page for ten minutes: the sum includes them.
    by_version = metrics.counts_by("version", REQUESTS, method="Predict", code="OK")
    assert set(by_version) == {"1", *map(str, versions)}
    assert by_version["1"] > 0
    assert by_version["5"] > 0


def test_endless_requests_given_up_are_counted_once(server: ModelServer, pages: ServerPages):
    """A cancellation counts as CANCELLED; a deadline may have passed at the client first."""
    with caller_to(server.target) as caller:
        seen = sent(waited_calls(caller, 100))
        expiring = [caller.start_predict(run_of(LONG_SECONDS), timeout=5) for _ in range(3)]
        cancelled = [caller.start_predict(run_of(LONG_SECONDS), timeout=3_600) for _ in range(3)]
        wait_until_in_flight(pages, 6)
        for call in cancelled:
            call.cancel()
        assert {code_of(call.result) for call in cancelled} == {"CANCELLED"}
        assert {code_of(call.result) for call in expiring} == {"DEADLINE_EXCEEDED"}
    metrics = settled(pages, seen.total() + 6)
    counted = predicted(metrics)
    assert counted.total() == seen.total() + 6
    assert without(counted, GIVEN_UP - {"OK"}) == seen
    assert counted["CANCELLED"] >= 3
    assert_all_names_say(metrics, counted)


def test_cancelled_answers_count_once_during_swaps(
    server: ModelServer, pages: ServerPages, slow_export: Path, base_path: Path
):
    with caller_to(server.target) as caller:
        waited = sent(waited_calls(caller, 100))
        with swaps_under_way(server, slow_export, base_path, range(2, 4)):
            given_up = sent(given_up_calls(caller, run_of(RUN_SECONDS), PATIENCE_SECONDS, 60))
            waited += sent(waited_calls(caller, 500))
    assert set(given_up) <= GIVEN_UP
    assert given_up.total() - given_up["OK"] > 0
    metrics = settled(pages, waited.total() + given_up.total())
    counted = predicted(metrics)
    assert counted.total() == waited.total() + given_up.total()
    assert without(counted, GIVEN_UP) == without(waited, GIVEN_UP)
    assert counted["OK"] >= waited["OK"] + given_up["OK"]
    assert_all_names_say(metrics, counted)


def test_cancelled_sends_count_at_most_once(server: ModelServer, pages: ServerPages):
    with caller_to(server.target) as caller:
        waited = sent(waited_calls(caller, 100))
        given_up = sent(given_up_calls(caller, quick(), NO_PATIENCE_SECONDS, 400))
        waited += sent(waited_calls(caller, 100))
    answered = waited.total() + given_up["OK"]
    counted = predicted(settled(pages, answered))
    assert answered <= counted.total() <= waited.total() + given_up.total()
    assert without(counted, GIVEN_UP) == without(waited, GIVEN_UP)
    assert counted["OK"] >= waited["OK"] + given_up["OK"]


def test_returning_version_counts_anew_model_goes_on(
    server: ModelServer, pages: ServerPages, slow_export: Path, base_path: Path
):
    with caller_to(server.target) as caller, Client(server.target) as client:
        seen = sent(waited_calls(caller, 100))
        (base_path / "1").rename(base_path.parent / "1")
        drop(slow_export, base_path, 2)
        ended = {1: ServableState.END, 2: ServableState.AVAILABLE}
        wait_for_states(client, MODEL, ended)
        assert_all_names_say(pages.metrics(), seen)
        (base_path / "2").rename(base_path.parent / "2")
        (base_path.parent / "1").rename(base_path / "1")
        wait_for_states(client, MODEL, {1: ServableState.AVAILABLE, 2: ServableState.END})
        of_version = pages.metrics().counts_by("code", REQUESTS, method="Predict", version="1")
        assert +of_version == Counter()
        seen += sent(waited_calls(caller, 50))
    metrics = pages.metrics()
    assert +metrics.counts_by("status", TFS_COUNT) == +seen
    assert metrics.total(REQUESTS, method="Predict", version="1", code="OK") == 30
