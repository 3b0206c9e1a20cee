"""Swaps on an accelerator whose device fails again and again, under requests of stock gRPC clients.

Each round kills the server in an upload, swaps versions with a rollback among them, removes a version in its
upload, has an upload fail, and has the device lost and back, at last with a run that never ends. The clients send a
request again if the server that had it was killed. So each request has an answer, which is right for the version that
it names. And the accelerator's memory has as many bytes of two versions after a round as before.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np

from loadtest.drive.accelerated_pair import ACCELERATOR, Machine, ServedModel
from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.faulty_device import FAIL, HANG, HOLD, LOST, FaultyDevice
from loadtest.drive.traffic import Answer, Outcome, Traffic
from loadtest.drive.version_series import VersionSeries, content_of
from loadtest.measure.accelerator_parts import Bench, Figures
from loadtest.measure.server_pages import ServerPages
from serving.base.clock import Clock, pause, seconds_since
from serving.base.errors import Unavailable
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto
from serving.client import Client
from serving.client.stubs import PredictionServiceStub
from serving.commands.ctr_model import reference_answers, request_inputs
from serving.commands.ctr_request import predict_request
from serving.core.servable import ServableState
from serving.loading.accelerator_use import CUDA, cuda_plugin_path
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

# The requests differ in their ids and are sent in turn.
_SEEDS = range(16)
_TOLERANCE = 1e-5
_THREAD_COUNT = 8
# More than a device that hangs has: 30 s.
_REQUEST_SECONDS = 90
_RETRY_SECONDS = 0.05
_SWAPS_PER_ROUND = 20
_LOAD_SECONDS = 400
_POLL_SECONDS = 0.02
_LONGEST_SECONDS = 120
# The server that follows one that was killed takes no request before it can answer it.
_SUPERVISED = {"supervise": "true", "listen_before_ready": "false"}


class Kills:
    """The times in which the server is killed and starts anew: a request of such a time may be sent again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_end_ns: int | None = -1  # None: a kill is under way

    def begin(self) -> None:
        self._last_end_ns = None

    def end(self) -> None:
        self._last_end_ns = self._clock.now_ns()

    def excuse(self, issued_ns: int) -> bool:
        """True if a kill may have taken a request that was sent then."""
        end_ns = self._last_end_ns
        return end_ns is None or issued_ns < end_ns


class CheckedClients:
    """Stock gRPC clients of the CTR model, which check each answer, inside `with`."""

    def __init__(
        self, bench: Bench, server: ModelServer, kills: Kills, rows: int, rate_per_second: float
    ) -> None:
        inputs = [request_inputs(seed, rows, bench.table_rows) for seed in _SEEDS]
        self._requests = [predict_request(MODEL_NAME, arrays) for arrays in inputs]
        self._expected = reference_answers((1, 2), inputs, bench.table_rows)
        self._clock, self._kills = bench.clock, kills
        options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(server.target, options)
        self._stub = PredictionServiceStub(self._channel)
        self.traffic = Traffic(
            self._send,
            rate_per_second=rate_per_second,
            thread_count=_THREAD_COUNT,
            clock=bench.clock,
        )
        self.retried_count = 0

    def __enter__(self) -> "CheckedClients":
        self.traffic.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.traffic.__exit__(*exception)
        self._channel.close()

    def ask(self) -> Answer:
        """Sends one request now."""
        return self._send(0)

    def _send(self, number: int) -> Answer:
        index = number % len(self._requests)
        while True:
            issued_ns = self._clock.now_ns()
            try:
                response = self._stub.Predict(self._requests[index], timeout=_REQUEST_SECONDS)
            except grpc.RpcError as error:
                failed: Any = error
                is_excused = failed.code() is grpc.StatusCode.UNAVAILABLE
                if not (is_excused and self._kills.excuse(issued_ns)):
                    raise
                self.retried_count += 1
                pause(self._clock, _RETRY_SECONDS)
            else:
                return self._checked(response, index)

    def _checked(self, response: predict_pb2.PredictResponse, index: int) -> Answer:
        version = response.model_spec.version.value
        export = content_of(version)
        expected = self._expected[export][index]
        ctr, versions = (from_tensor_proto(response.outputs[name]) for name in ("ctr", "version"))
        is_right = (
            ctr.shape == expected.shape
            and bool(np.allclose(ctr, expected, rtol=0, atol=_TOLERANCE))
            and bool((versions == export).all())
        )
        return Answer(version, is_right)


def measure_faults(
    bench: Bench,
    shown: Figures,
    plugin: Path,
    swaps: int,
    rows: int,
    rate_per_second: float,
    hangs: bool,
) -> None:
    """Swaps until there were so many, with `plugin` over the accelerator's. The device `hangs` at the end of rounds."""
    bench.kept.stop()
    with ExitStack() as stack:
        work = Path(stack.enter_context(TemporaryDirectory(prefix="millpond-faults-")))
        device = FaultyDevice(work / "faults", Path(_plugin_of(bench.machine)))
        series = stack.enter_context(VersionSeries(bench.ctr, MODEL_NAME, "records", ()))
        series.drop(1)
        settings = {"keep_previous_seconds": 3600, "accelerator_tables": "device"}
        machine = replace(
            bench.machine,
            accelerator=f"pjrt:{plugin}",
            environment=device.environment,
            more_flags={**bench.machine.more_flags, **_SUPERVISED},
        )
        models = {MODEL_NAME: ServedModel(series.base_path, settings)}
        server = stack.enter_context(bench.one(ACCELERATOR, models, machine))
        faulty = FaultySwaps(server, series, device, bench.clock)
        faulty.swap()
        memory_bytes = shown["memory_bytes"] = faulty.memory_bytes()
        outcomes: list[Outcome] = []

        @contextmanager
        def asking() -> Iterator[CheckedClients]:
            with CheckedClients(bench, server, faulty.kills, rows, rate_per_second) as clients:
                yield clients
            outcomes.extend(clients.traffic.outcomes())
            faulty.counts["attempts_again"] += clients.retried_count

        while faulty.swaps < swaps:
            with asking() as clients:
                faulty.take_round(min(swaps, faulty.swaps + _SWAPS_PER_ROUND), clients)
            faulty.check_memory(memory_bytes)
            if hangs:
                with asking() as clients:
                    faulty.hang(clients)
            shown |= faulty_figures(faulty, outcomes)
            lost = f"{shown['errors']} lost and {shown['wrong_answers']} wrong of {len(outcomes)}"
            bench.say(f"faults: {faulty.swaps} swaps, {lost}")


def faulty_figures(faulty: "FaultySwaps", outcomes: Sequence[Outcome]) -> Figures:
    """The counts, and the first messages of requests that were lost."""
    lost = [outcome for outcome in outcomes if outcome.answer is None]
    return {
        "swaps": faulty.swaps,
        **faulty.counts,
        "memory_bytes_left": faulty.memory_bytes_left,
        "request_count": len(outcomes),
        "errors": len(lost),
        "error_messages": [outcome.error for outcome in lost[:8]],
        "wrong_answers": sum(
            outcome.answer is not None and not outcome.answer.is_right for outcome in outcomes
        ),
    }


def _plugin_of(machine: Machine) -> str:
    """The plugin of the accelerator. Raises InvalidConfig if that of CUDA is missing."""
    which = machine.accelerator
    return cuda_plugin_path() if which == CUDA else which.removeprefix("pjrt:")


class FaultySwaps:
    """The swaps and the faults of one server. Version 1 serves already."""

    def __init__(
        self, server: ModelServer, series: VersionSeries, device: FaultyDevice, clock: Clock
    ) -> None:
        self._server, self._series, self._device, self._clock = server, series, device, clock
        self._pages = ServerPages(server.url)
        self._version = 1
        self._there = [1]
        self.kills = Kills(clock)
        self.swaps = 0
        self.memory_bytes_left = 0
        """The bytes in the accelerator's memory at the end of a round beyond those before; the most of all rounds."""
        self.counts = dict.fromkeys(
            (
                *("rollbacks", "late_count", "killed_in_upload", "removed_in_upload"),
                *("failed_uploads", "lost_devices", "hung_devices", "attempts_again"),
            ),
            0,
        )

    def swap(self) -> None:
        """Swaps to another version, beside which the one before is kept."""
        self._drop()
        self._await_swap()

    def _drop(self) -> int:
        self._version += 1
        self._series.drop(self._version)
        return self._version

    def _await_swap(self) -> None:
        self._server.wait_until_available(MODEL_NAME, self._version, _LOAD_SECONDS)
        self.swaps += 1
        self._there.append(self._version)
        while len(self._there) > 2:
            self._series.remove(self._there.pop(0))

    def take_round(self, goal: int, clients: CheckedClients) -> None:
        """Has each fault once, and swaps until there were `goal` swaps."""
        self._kill_in_upload()
        self.swap()
        self._roll_back(clients)
        self._remove_in_upload()
        self.swap()
        self._fail_upload()
        self.swap()
        self._lose_device(clients)
        self.swap()
        self._check_it_runs_there(clients)
        while self.swaps < goal:
            self.swap()

    def check_memory(self, before_bytes: int) -> None:
        """Notes what the device has of two versions beyond `before_bytes`, while no client asks."""
        self._wait(lambda: self.memory_bytes() == before_bytes, "", fails=False)
        left_bytes = abs(self.memory_bytes() - before_bytes)
        self.memory_bytes_left = max(self.memory_bytes_left, left_bytes)

    def memory_bytes(self) -> int:
        """The bytes in use on all devices now, as their plugin counts them."""
        return int(self._pages.metrics().total("serving_accelerator_memory_used_bytes"))

    def _kill_in_upload(self) -> None:
        """Kills the server while it copies a version to the device. The next one serves that version."""
        with self._device.while_it(HOLD):
            begun = self._device.transfer_count()
            self._drop()
            self._wait(lambda: self._device.transfer_count() > begun, "an upload")
            self.kills.begin()
            self._kill()
        self._await_swap()
        self.kills.end()
        self.counts["killed_in_upload"] += 1

    def _kill(self) -> None:
        supervisor = self._server.process_id
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children")
        serving = int(children.read_text().split()[0])
        os.kill(serving, signal.SIGKILL)
        self._wait(lambda: str(serving) not in children.read_text().split(), "the end of a server")

    def _roll_back(self, clients: CheckedClients) -> None:
        new, old = self._there[-1], self._there[-2]
        with Client(self._server.admin_target) as client:
            client.rollback(MODEL_NAME)
            self.counts["late_count"] += clients.ask().version != old
            clients.traffic.wait_for_answer_from(old, _LONGEST_SECONDS)
            client.allow(MODEL_NAME, new)
        clients.traffic.wait_for_answer_from(new, _LONGEST_SECONDS)
        self.counts["rollbacks"] += 1

    def _remove_in_upload(self) -> None:
        with self._device.while_it(HOLD):
            begun = self._device.transfer_count()
            version = self._drop()
            self._wait(lambda: self._device.transfer_count() > begun, "an upload")
            self._series.remove(version)
        self._await_end(version)
        self.counts["removed_in_upload"] += 1

    def _fail_upload(self) -> None:
        with self._device.while_it(FAIL):
            self._fail_a_load()
        self.counts["failed_uploads"] += 1

    def _fail_a_load(self) -> None:
        """Drops a version that does not load now, and removes it."""
        version = self._drop()

        def has_failed(event: LogEvent) -> bool:
            return (event["event"], event.get("version")) == ("load_failed", version)

        self._server.wait_for_event(has_failed, _LOAD_SECONDS)
        self._series.remove(version)
        self._await_end(version)

    def _await_end(self, version: int) -> None:
        with Client(self._server.target) as client:
            self._wait(lambda: _has_ended(client, version), f"the end of version {version}")

    def _lose_device(self, clients: CheckedClients) -> None:
        """Has the device lost: the CPU answers, and no version loads."""
        with self._device.while_it(LOST):
            self._await_cpu_runs()
            self._fail_a_load()
            clients.traffic.wait_for_answer_from(self._there[-1], _LONGEST_SECONDS)
        self.counts["lost_devices"] += 1

    def hang(self, clients: CheckedClients) -> None:
        """Has the device end no run any more: the CPU answers, until the server starts anew."""
        with self._device.while_it(HANG):
            self._await_cpu_runs()
            clients.traffic.wait_for_answer_from(self._there[-1], _LONGEST_SECONDS)
        # Each of the requests whose runs hang has an answer: no client has given up.
        count = len(clients.traffic.outcomes())
        clients.traffic.wait_for_count(count + _THREAD_COUNT, _LONGEST_SECONDS)
        self.kills.begin()
        self._kill()
        self._server.wait_until_available(MODEL_NAME, self._there[-1], _LOAD_SECONDS)
        self.kills.end()
        self.swap()
        self.counts["hung_devices"] += 1

    def _await_cpu_runs(self) -> None:
        """Waits until the CPU answers requests because the device is lost."""

        def count() -> float:
            metrics = self._pages.metrics()
            return metrics.total("serving_accelerator_cpu_runs_total", reason="lost")

        before = count()
        self._wait(lambda: count() > before, "answers of the CPU")

    def _check_it_runs_there(self, clients: CheckedClients) -> None:
        """Waits for a run of the newest version on the device."""
        version = str(self._version)

        def runs() -> float:
            metrics = self._pages.metrics()
            return metrics.total("serving_accelerator_runs_total", version=version)

        clients.ask()
        self._wait(lambda: runs() > 0, f"a run of version {version} on the accelerator")

    def _wait(self, is_so: Callable[[], bool], what: str, *, fails: bool = True) -> None:
        """Waits until it is so. Raises Unavailable if it is not in time, unless it may fail."""
        began_ns = self._clock.now_ns()
        while not is_so():
            if seconds_since(self._clock, began_ns) > _LONGEST_SECONDS:
                if not fails:
                    return
                raise Unavailable(f"waited {_LONGEST_SECONDS} s for {what}")
            pause(self._clock, _POLL_SECONDS)


def _has_ended(client: Client, version: int) -> bool:
    states = {status.version: status.state for status in client.model_status(MODEL_NAME)}
    return states.get(version, ServableState.END) is ServableState.END
