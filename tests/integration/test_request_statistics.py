"""The data plane's record of requests, compared with the answers that clients got."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving.base.protos import get_model_metadata_pb2, get_model_status_pb2
from tests.integration.clients import Caller, predict_request, wait_until

# Serves version 1 of "slow", refuses each GetModelStatus and prints its port. Then runs each line
# of its input and prints the result.
SERVE = """
import json, sys, threading
from serving.data_plane import _native
from serving.core.servable import Routing

_native.initialize(intra_op_thread_count=1, inter_op_thread_count=1)
statistics = _native.RequestStatistics()
serving_map = _native.ServingMap()

def load():
    load = _native.SavedModelLoad("slow", 1, sys.argv[1], ["serve"])
    for step in (
        load.read_graph, load.create_session, load.restore, load.run_init, load.make_callables,
    ):
        step()
    servable = load.finish(None, statistics)
    serving_map.publish(servable, Routing(default_version=1))
    return servable

def unload(servable):
    serving_map.retire("slow", 1, Routing())
    assert servable.quiesce(30)
    servable.destroy()

servable = load()
server = _native.GrpcServer(
    serving_map, addresses=["127.0.0.1:0"], completion_queue_count=2, max_message_bytes=1_000_000,
    channel_arguments={}, rare_methods=["/tensorflow.serving.ModelService/GetModelStatus"],
    request_statistics=statistics,
)
server.start()

def refuse():
    while (call := server.take_rare_call(3600)) is not None:
        call.fail(5, "no")

def told(method):
    return {
        "key": [method.model, method.version, method.method],
        "count_by_code": method.count_by_code,
        "has_ended": method.ended_seconds is not None,
        "in_flight_count": method.in_flight_count,
        "total_sum_ns": method.phase("total").sum_ns,
        "phase_counts": {p: method.phase(p).count for p in ("queue", "decode", "run", "encode", "total")},
        "phase_sums_ns": {p: method.phase(p).sum_ns for p in ("queue", "decode", "run", "encode")},
        "code_counts": {code: method.latency(code).count for code in method.count_by_code},
        "window_counts": [method.phase("total", seconds).count for seconds in (1, 10, 60)],
        "at_most": {code: method.cumulative_counts(code, [0, 10**6, 10**12])
                    for code in method.count_by_code},
    }

threading.Thread(target=refuse).start()
print(server.port, flush=True)
for line in sys.stdin:
    command, *arguments = json.loads(line)
    answer = None
    if command == "unload":
        unload(servable)
    elif command == "load":
        servable = load()
    elif command in ("methods", "model_methods"):
        answer = [told(method) for method in getattr(statistics, command)()]
    elif command == "cut":
        answer = statistics.cut()
    elif command == "between":
        answer = statistics.between(*arguments).count
    elif command == "history":
        answer = [[point.count, point.failed_count, point.latency.count]
                  for point in statistics.history(*arguments)]
    print(json.dumps(answer), flush=True)
server.shutdown(0)
statistics.stop()
"""

DEADLINE_SECONDS = 1.0
LONG_SECONDS = 30.0
"""Longer than any deadline: such a run ends by its deadline or its cancellation."""

Methods = dict[tuple[str, int, str], dict[str, Any]]


class RecordingServer:
    """A server process that prints its statistics."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.target = f"127.0.0.1:{json.loads(self._line())}"

    def ask(self, command: str, *arguments: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def methods(self, which: str = "methods") -> Methods:
        """Returns the statistics by model, version and method."""
        return {tuple(method["key"]): method for method in self.ask(which)}

    def counts(self) -> Counter[int]:
        """Returns the counts of Predict by code, over all versions and requests that found no
        version.
        """
        counts: Counter[int] = Counter()
        for (_, _, method), told in self.methods().items():
            if method == "Predict":
                counts.update({int(code): count for code, count in told["count_by_code"].items()})
        return counts

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture
def server(slow_export: Path) -> Iterator[RecordingServer]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(slow_export)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield RecordingServer(process)
        process.communicate(timeout=60)
    assert process.returncode == 0


def code_of(call: Callable[[], object]) -> int:
    """Returns the number of the code with which a call ends."""
    try:
        call()
    except grpc.RpcError as error:
        failed: Any = error
        number: int = failed.code().value[0]
        return number
    return 0


def quick_request(name: str = "slow", version: int | None = None) -> Any:
    return predict_request(name, {"x": np.int32(1)}, version=version, signature_name="quick")


def bad_request() -> Any:
    """The dtype differs from the signature's."""
    return predict_request("slow", {"x": np.float32(1)}, signature_name="quick")


def long_request() -> Any:
    return predict_request("slow", {"seconds": np.float64(LONG_SECONDS)})


def expired_call(caller: Caller) -> int:
    """Runs until its deadline."""
    return code_of(lambda: caller.predict(long_request(), timeout=DEADLINE_SECONDS))


def cancelled_call(caller: Caller, server: RecordingServer) -> int:
    """Cancels the request during its run: the server never sees one that is cancelled on its way."""
    wait_until(lambda: in_flight(server) == 0, "no other request runs")
    call = caller.start_predict(long_request())
    wait_until(lambda: in_flight(server) > 0, "the request runs")
    call.cancel()
    number: int = call.code().value[0]
    return number


def in_flight(server: RecordingServer) -> int:
    count: int = server.methods()["slow", 1, "Predict"]["in_flight_count"]
    return count


def mixed_calls(caller: Caller) -> list[Callable[[], object]]:
    """Returns requests that are answered or refused."""
    kinds: list[tuple[int, Callable[[], object]]] = [
        (300, lambda: caller.predict(quick_request())),
        (60, lambda: caller.predict(bad_request())),
        (40, lambda: caller.predict(quick_request("nobody"))),
        (30, lambda: caller.predict(quick_request(version=99))),
        (20, lambda: caller.predict(predict_request("slow", {}, signature_name="none"))),
    ]
    return [call for count, call in kinds for _ in range(count)]


def test_counts_by_code_match_clients_exactly(server: RecordingServer, caller: Caller) -> None:
    with ThreadPoolExecutor(4) as pool:
        got = Counter(pool.map(code_of, mixed_calls(caller)))
    got.update(expired_call(caller) for _ in range(4))
    got.update(cancelled_call(caller, server) for _ in range(3))
    # The server learns of a cancelled request later.
    wait_until(lambda: in_flight(server) == 0, "no version is held")
    assert server.counts() == got
    assert set(got) == {0, 1, 3, 4, 5, 9}


def test_request_is_counted_before_client_has_answer(
    server: RecordingServer, caller: Caller
) -> None:
    for count in range(1, 101):
        caller.predict(quick_request())
        assert server.counts() == {0: count}


def test_codes_phases_and_edges_of_a_method_agree(server: RecordingServer, caller: Caller) -> None:
    for _ in range(20):
        caller.predict(quick_request())
    for _ in range(5):
        code_of(lambda: caller.predict(bad_request()))
    told = server.methods()["slow", 1, "Predict"]
    assert told["count_by_code"] == told["code_counts"] == {"0": 20, "3": 5}
    assert told["phase_counts"] == {"queue": 25, "decode": 25, "run": 20, "encode": 20, "total": 25}
    # Each request's phases add up to its total.
    assert sum(told["phase_sums_ns"].values()) == told["total_sum_ns"]
    assert told["at_most"]["0"][0] == 0
    assert told["at_most"]["0"][2] == 20
    assert 0 <= told["at_most"]["0"][1] <= 20


def test_metadata_and_status_are_recorded_by_name(server: RecordingServer, caller: Caller) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "slow"
    caller.metadata(request)
    request.model_spec.name = "nobody"
    assert code_of(lambda: caller.metadata(request)) == 5
    status = get_model_status_pb2.GetModelStatusRequest()
    assert code_of(lambda: caller.model_status(status)) == 5
    methods = server.methods()
    assert methods["slow", 1, "GetModelMetadata"]["count_by_code"] == {"0": 1}
    assert methods["", 0, "GetModelMetadata"]["count_by_code"] == {"5": 1}
    assert methods["", 0, "GetModelStatus"]["count_by_code"] == {"5": 1}


def test_model_totals_survive_removed_version(server: RecordingServer, caller: Caller) -> None:
    def total() -> int:
        return sum(server.methods("model_methods")["slow", 0, "Predict"]["count_by_code"].values())

    for _ in range(10):
        caller.predict(quick_request())
    server.ask("unload")
    assert server.methods()["slow", 1, "Predict"]["has_ended"]
    assert total() == 10
    server.ask("load")
    assert not server.methods()["slow", 1, "Predict"]["has_ended"]
    assert server.methods()["slow", 1, "Predict"]["count_by_code"] == {}
    assert total() == 10
    caller.predict(quick_request())
    assert total() == 11


def test_two_cuts_enclose_answers_between_them(server: RecordingServer, caller: Caller) -> None:
    caller.predict(quick_request())
    from_ns = server.ask("cut")
    for _ in range(50):
        caller.predict(quick_request())
    to_ns = server.ask("cut")
    caller.predict(quick_request())
    server.ask("cut")
    assert server.ask("between", "slow", from_ns, to_ns) == 50


def test_seconds_end_and_their_counts_add_up(server: RecordingServer, caller: Caller) -> None:
    for _ in range(30):
        caller.predict(quick_request())
    for _ in range(3):
        code_of(lambda: caller.predict(quick_request("nobody")))

    def counted(model: str | None) -> int:
        return sum(count for count, _, _ in server.ask("history", model))

    wait_until(lambda: counted(None) == 33, "the second has ended")
    assert counted("slow") == 30
    assert counted("") == 3
    *_, (_, _, in_ten_seconds) = server.ask("history", "slow")
    assert in_ten_seconds == 30
    told = server.methods()["slow", 1, "Predict"]
    assert told["window_counts"][1:] == [30, 30]
