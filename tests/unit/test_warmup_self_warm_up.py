from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import Cancelled, InvalidArgument, ResourceExhausted
from serving.base.protos import predict_pb2
from serving.core.cancellation import Cancellation
from tests.unit.fakes.clocks import SetClock
from warmup.self_warm_up import SelfWarmUpResult, self_warm_up, warm_joint_runs


def request_of(name: str, output_filter: Sequence[str] = (), signature_name: str = "") -> bytes:
    request = predict_pb2.PredictRequest(output_filter=output_filter)
    request.model_spec.name = name
    request.model_spec.signature_name = signature_name
    serialized: bytes = request.SerializeToString()
    return serialized


def name_of(request: bytes) -> str:
    name: str = predict_pb2.PredictRequest.FromString(request).model_spec.name
    return name


class FakeVersion:
    """Records its calls as lines; each predict takes a second, and some calls fail."""

    def __init__(self, failures: dict[str, Exception] | None = None) -> None:
        self.clock = SetClock()
        self.calls: list[str] = []
        self.cancellation = Cancellation()
        self.cancel_after: str | None = None
        self._failures = failures or {}

    def make_callable(self, request: bytes) -> None:
        self._take(f"make_callable {name_of(request)}")

    def predict(self, request: bytes) -> bytes:
        self.clock.ns += NS_PER_SECOND
        self._take(f"predict {name_of(request)}")
        return b""

    def _take(self, call: str) -> None:
        self.calls.append(call)
        if call == self.cancel_after:
            self.cancellation.cancel()
        if call in self._failures:
            raise self._failures[call]

    def warm_up(
        self, requests: Sequence[bytes], *, iterations: int = 2, time_budget_seconds: float = 100
    ) -> SelfWarmUpResult:
        return self_warm_up(
            requests,
            make_callable=self.make_callable,
            predict=self.predict,
            cancellation=self.cancellation,
            iterations=iterations,
            time_budget_seconds=time_budget_seconds,
            clock=self.clock,
        )


def test_self_warm_up_without_requests_calls_nothing():
    version = FakeVersion()
    assert version.warm_up([]) == SelfWarmUpResult(
        run_count=0, failed_count=0, skipped_count=0, first_error="", seconds=0
    )
    assert version.calls == []


def test_self_warm_up_makes_callable_then_runs_twice():
    version = FakeVersion()
    result = version.warm_up([request_of("a"), request_of("b")])
    assert version.calls == [
        *["make_callable a", "predict a", "predict a"],
        *["make_callable b", "predict b", "predict b"],
    ]
    assert result == SelfWarmUpResult(
        run_count=2, failed_count=0, skipped_count=0, first_error="", seconds=4
    )


def test_self_warm_up_without_iterations_runs_once():
    version = FakeVersion()
    version.warm_up([request_of("a")], iterations=0)
    assert version.calls == ["make_callable a", "predict a"]


def test_self_warm_up_counts_failure_and_continues():
    failing_call = "predict a"
    version = FakeVersion(
        {failing_call: InvalidArgument("input 'x' is missing"), "predict b": ResourceExhausted("b")}
    )
    result = version.warm_up([request_of("a"), request_of("b"), request_of("c")])
    assert (result.run_count, result.failed_count) == (1, 2)
    assert result.first_error == "input 'x' is missing"
    assert version.calls[-3:] == ["make_callable c", "predict c", "predict c"]
    assert version.calls.count(failing_call) == 1


def test_self_warm_up_runs_requests_without_callable():
    version = FakeVersion({"make_callable a": ResourceExhausted("64 sets of outputs")})
    result = version.warm_up([request_of("a")])
    assert (result.run_count, result.failed_count) == (1, 0)
    assert version.calls == ["make_callable a", "predict a", "predict a"]


def test_self_warm_up_runs_unparsable_request():
    calls: list[bytes] = []
    result = self_warm_up(
        [b"\xff\xff"],
        make_callable=calls.append,
        predict=lambda request: b"",
        cancellation=Cancellation(),
        clock=SetClock(),
    )
    assert calls == [b"\xff\xff"]
    assert result.run_count == 1


def test_self_warm_up_late_runs_first_of_each_pair():
    version = FakeVersion()
    requests = [
        request_of("all"),
        request_of("y", ["y"]),
        request_of("all again"),
        request_of("y and z", ["y", "z"]),
        request_of("z and y", ["z", "y"]),
        request_of("classify", signature_name="classify"),
    ]
    result = version.warm_up(requests, iterations=1, time_budget_seconds=1.5)
    assert [call for call in version.calls if call.startswith("predict")] == [
        "predict all",
        "predict y",
        "predict y and z",
        "predict classify",
    ]
    assert (result.run_count, result.skipped_count, result.seconds) == (4, 2, 4)


def test_self_warm_up_failed_pair_tries_next_request():
    version = FakeVersion({"predict old": InvalidArgument("no such input")})
    result = version.warm_up(
        [request_of("old"), request_of("new")], iterations=1, time_budget_seconds=0
    )
    assert version.calls[-1] == "predict new"
    assert (result.run_count, result.failed_count) == (1, 1)


@pytest.mark.parametrize("last_call", ["make_callable a", "predict a", "predict b"])
def test_self_warm_up_cancelled_stops_before_next_call(last_call: str):
    version = FakeVersion()
    version.cancel_after = last_call
    with pytest.raises(Cancelled, match="no longer aspired"):
        version.warm_up([request_of(name) for name in "abc"], iterations=2)
    assert version.calls[-1] == last_call


def test_self_warm_up_cancelled_during_failure_raises():
    version = FakeVersion({"predict a": InvalidArgument("no such input")})
    version.cancel_after = "predict a"
    with pytest.raises(Cancelled, match="no longer aspired"):
        version.warm_up([request_of("a")])


@given(
    pairs=st.lists(st.integers(0, 3), max_size=20),
    time_budget_seconds=st.floats(0, 20, allow_nan=False),
)
def test_self_warm_up_runs_each_pair_in_any_time(pairs: list[int], time_budget_seconds: float):
    version = FakeVersion()
    requests = [request_of(str(pair), [f"y{pair}"]) for pair in pairs]
    result = version.warm_up(requests, time_budget_seconds=time_budget_seconds)
    assert {call.split()[-1] for call in version.calls} == {str(pair) for pair in pairs}
    assert result.run_count + result.failed_count + result.skipped_count == len(requests)


def test_self_warm_up_of_failing_pairs_ends_by_itself():
    # A predict of this fake takes a second.
    names = [f"endless {index}" for index in range(200)]
    version = FakeVersion({f"predict {name}": InvalidArgument("too slow") for name in names})
    result = version.warm_up([request_of(name) for name in names], iterations=1)
    assert (result.failed_count, result.skipped_count) == (120, 80)


def test_warm_joint_runs_answers_each_request_twice():
    version = FakeVersion()
    warm_joint_runs(
        [request_of("a"), request_of("b")],
        answer=version.predict,
        cancellation=version.cancellation,
        clock=SetClock(),
    )
    assert version.calls == ["predict a", "predict a", "predict b", "predict b"]


def test_warm_joint_runs_goes_on_after_a_failure():
    version = FakeVersion({"predict a": InvalidArgument("no such signature")})
    errors = warm_joint_runs(
        [request_of("a"), request_of("b")],
        answer=version.predict,
        cancellation=version.cancellation,
        clock=SetClock(),
    )
    # The failed request is not repeated.
    assert version.calls == ["predict a", "predict b", "predict b"]
    assert errors == ["no such signature"]


def test_warm_joint_runs_begins_none_after_its_time():
    clock, answered = SetClock(), []

    def answer_slowly(request: bytes) -> bytes:
        answered.append(request)
        clock.ns += 6 * NS_PER_SECOND
        return b""

    requests = [request_of("a"), request_of("b"), request_of("c")]
    warm_joint_runs(
        requests,
        answer=answer_slowly,
        cancellation=Cancellation(),
        iterations=1,
        time_budget_seconds=10,
        clock=clock,
    )
    assert answered == requests[:2]


def test_warm_joint_runs_stops_once_cancelled():
    version = FakeVersion()
    version.cancel_after = "predict a"
    with pytest.raises(Cancelled):
        warm_joint_runs(
            [request_of("a"), request_of("b")],
            answer=version.predict,
            cancellation=version.cancellation,
            clock=SetClock(),
        )
    assert version.calls == ["predict a"]
