import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serving.base.errors import StatusCode
from serving.http.connections import Holder
from serving.loading.request_cores import RequestCores
from serving.rest import bridge as bridge_module
from serving.rest.bridge import RestBridge, RestTarget
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.servers import FakeEndedRequest, FakeRestWorkers

TARGET = RestTarget("RestPredict", "m", 3)
HEADERS = [(b"accept", b"*/*")]


class FakeConnection:
    """A client's connection that a test closes."""

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] | None = None
        self.answer_hold: Holder | None = None
        self.has_whole_request = True

    async def wait_until_sent(self) -> None:
        pass


@pytest.fixture
def workers():
    workers = FakeRestWorkers()
    workers.start()
    yield workers
    workers.shutdown(0)


def run(
    workers: FakeRestWorkers,
    body: Callable[[RestBridge], Awaitable[None]],
    timeout_seconds: float = 30,
) -> None:
    async def main() -> None:
        await body(RestBridge(workers, timeout_seconds=timeout_seconds, status_error=StatusError))

    asyncio.run(main())


async def submitted(workers: FakeRestWorkers, count: int) -> None:
    while len(workers.submitted) < count:
        await asyncio.sleep(0)


def test_submit_brings_each_request_its_own_answer(workers):
    async def body(bridge: RestBridge) -> None:
        first = asyncio.create_task(bridge.submit(TARGET, HEADERS, b"one"))
        second = asyncio.create_task(bridge.submit(TARGET, HEADERS, b"two", timeout_seconds=5))
        await submitted(workers, 2)
        workers.ends(FakeEndedRequest(2, body=b"second"))
        workers.ends(FakeEndedRequest(1, body=b"first"))
        assert [(await first).take_body(), (await second).take_body()] == [b"first", b"second"]

    run(workers, body)
    assert workers.submitted[1] == ("RestPredict", "m", 3, None, HEADERS, b"one", 30)
    assert workers.submitted[2][-1] == 5
    assert workers.cancelled == []


def test_submit_answers_refusal_of_workers(workers):
    workers.refusal = StatusError(8, "1024 requests wait")

    async def body(bridge: RestBridge) -> None:
        answer = await bridge.submit(TARGET, HEADERS, b"")
        assert (answer.code, answer.message, answer.version) == (8, "1024 requests wait", None)

    run(workers, body)


def test_submit_cancels_run_of_lost_client(workers):
    connection = FakeConnection()

    async def body(bridge: RestBridge) -> None:
        task = asyncio.create_task(bridge.submit(TARGET, HEADERS, b"", connection=connection))
        await submitted(workers, 1)
        assert connection.on_lost is not None
        connection.on_lost()
        workers.ends(FakeEndedRequest(1, code=int(StatusCode.CANCELLED)))
        assert (await task).code == StatusCode.CANCELLED

    run(workers, body)
    assert workers.cancelled == [1]


def test_submit_releases_connection_once_answered(workers):
    connection = FakeConnection()

    async def body(bridge: RestBridge) -> None:
        task = asyncio.create_task(bridge.submit(TARGET, HEADERS, b"", connection=connection))
        await submitted(workers, 1)
        workers.ends(FakeEndedRequest(1))
        await task

    run(workers, body)
    assert connection.on_lost is None


def test_submit_cancelled_task_takes_late_answer(workers):
    async def body(bridge: RestBridge) -> None:
        cancelled = asyncio.create_task(bridge.submit(TARGET, HEADERS, b""))
        other = asyncio.create_task(bridge.submit(TARGET, HEADERS, b""))
        await submitted(workers, 2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        workers.ends(FakeEndedRequest(1))
        workers.ends(FakeEndedRequest(2))
        assert (await other).code == StatusCode.OK

    run(workers, body)
    assert workers.cancelled == [1]


def test_submit_times_out_if_run_never_ends(workers, monkeypatch):
    monkeypatch.setattr(bridge_module, "SWEEP_SECONDS", 0.001)

    async def body(bridge: RestBridge) -> None:
        answer = await bridge.submit(TARGET, HEADERS, b"")
        assert answer.code == StatusCode.DEADLINE_EXCEEDED
        assert "--rest_api_timeout_in_ms" in answer.message
        # Its answer comes after all and is dropped.
        workers.ends(FakeEndedRequest(1))
        second = asyncio.create_task(bridge.submit(TARGET, HEADERS, b"", timeout_seconds=30))
        await submitted(workers, 2)
        workers.ends(FakeEndedRequest(2, body=b"mine"))
        assert (await second).take_body() == b"mine"

    run(workers, body, timeout_seconds=0.001)


def test_cores_are_held_while_requests_come(workers, monkeypatch):
    monkeypatch.setattr(bridge_module, "SWEEP_SECONDS", 0)
    monkeypatch.setattr(bridge_module, "LINGER_SECONDS", 0)
    held: list[bool] = []

    async def main() -> None:
        released = asyncio.Event()

        def pin(is_held: bool) -> bool:
            held.append(is_held)
            if not is_held:
                released.set()
            return True

        cores = RequestCores(core_count=2)
        cores.add_listener(pin)
        bridge = RestBridge(workers, timeout_seconds=30, status_error=StatusError, cores=cores)
        answers = [asyncio.create_task(bridge.submit(TARGET, HEADERS, b"")) for _ in range(2)]
        await submitted(workers, 2)
        # While one request runs, however long.
        workers.ends(FakeEndedRequest(1))
        await answers[0]
        for _ in range(20):  # turns of the loop, each with a sweep
            await asyncio.sleep(0)
        assert held == [True]
        workers.ends(FakeEndedRequest(2))
        await answers[1]
        await released.wait()
        again = asyncio.create_task(bridge.submit(TARGET, HEADERS, b""))
        await submitted(workers, 3)
        assert held == [True, False, True]
        workers.ends(FakeEndedRequest(3))
        await again

    asyncio.run(main())
