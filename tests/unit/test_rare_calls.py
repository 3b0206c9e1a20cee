import threading
from collections.abc import Mapping
from typing import Any

import pytest
import structlog
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from serving.base.errors import NotFound, PermissionDenied, StatusCode
from serving.data_plane.requests import RareCall
from serving.rpc.operator_access import Caller
from serving.rpc.rare_calls import (
    AnsweredCall,
    AnyHandler,
    Deferred,
    Guarded,
    Handler,
    RareCallThreads,
    Waiting,
    answer,
    patience_seconds,
)
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.servers import FakeGrpcServer, FakeRareCall
from tests.unit.fakes.tracing import FakeTraceContext


def reverse(request: bytes) -> bytes:
    return request[::-1]


def refuse(request: bytes) -> bytes:
    raise NotFound("no such model")


def break_down(request: bytes) -> bytes:
    raise KeyError("secret")


def reply_time(request: bytes, remaining_seconds: float | None) -> bytes:
    return f"{request.decode()} {remaining_seconds}".encode()


HANDLERS: dict[str, Handler] = {
    "/s/Reverse": reverse,
    "/s/Refuse": refuse,
    "/s/Break": break_down,
    "/s/Wait": Waiting(reply_time),
}


def test_answer_sends_result_of_handler() -> None:
    call = FakeRareCall("/s/Reverse", b"abc")
    answer(call, HANDLERS)
    assert call.answers == [b"cba"]


def test_deferred_call_is_answered_later() -> None:
    taken: list[RareCall] = []
    call = FakeRareCall("/s/Later", b"abc")
    assert answer(call, {"/s/Later": Deferred(taken.append)}) is None
    assert (taken, call.answers) == ([call], [])


def test_deferred_call_that_is_not_taken_fails() -> None:
    def refuse_call(call: RareCall) -> None:
        raise NotFound("no such trace")

    call = FakeRareCall("/s/Later")
    assert answer(call, {"/s/Later": Deferred(refuse_call)}) == StatusCode.NOT_FOUND
    assert call.answers == [(5, "no such trace")]


def test_guarded_deferred_call_is_checked_first() -> None:
    def refuse_caller(caller: Caller) -> None:
        raise PermissionDenied(f"{caller.address} may not")

    taken: list[RareCall] = []
    call = FakeRareCall("/s/Later")
    answer(call, {"/s/Later": Guarded(Deferred(taken.append), refuse_caller)})
    assert (taken, call.answers) == ([], [(7, "127.0.0.1 may not")])


def test_answer_fails_with_error_code_and_message() -> None:
    call = FakeRareCall("/s/Refuse")
    answer(call, HANDLERS)
    assert call.answers == [(5, "no such model")]


@pytest.mark.parametrize("remaining_seconds", [3.0, None])
def test_answer_passes_caller_deadline_to_handler(
    remaining_seconds: float | None,
) -> None:
    call = FakeRareCall("/s/Wait", b"abc", remaining_seconds)
    answer(call, HANDLERS)
    assert call.answers == [f"abc {remaining_seconds}".encode()]


@pytest.mark.parametrize(
    ("remaining_seconds", "expected"),
    [(None, 60), (3_600, 60), (60.2, 59.7), (3, 2.5), (0.4, 0.2), (0, 0)],
)
def test_patience_seconds_leave_time_for_the_answer(
    remaining_seconds: float | None, expected: float
) -> None:
    assert patience_seconds(remaining_seconds, 60) == pytest.approx(expected)


def test_answer_to_bug_is_internal_and_hides_details() -> None:
    call = FakeRareCall("/s/Break")
    with capture_logs() as logs:
        answer(call, HANDLERS)
    assert call.answers == [(13, "KeyError in /s/Break; see the server's log")]
    assert [log["event"] for log in logs] == ["rare_call_failed"]


def test_answer_of_unknown_method_is_unimplemented() -> None:
    call = FakeRareCall("/s/Unknown")
    answer(call, HANDLERS)
    assert call.answers == [(12, "unknown method /s/Unknown")]


def threads_of(handlers: Mapping[str, AnyHandler], thread_count: int = 2) -> RareCallThreads:
    return RareCallThreads(
        handlers,
        thread_count=thread_count,
        on_answered=list[AnsweredCall]().append,
        clock=FakeClock(),
    )


def test_threads_answer_until_stopped() -> None:
    grpc = FakeGrpcServer()
    threads = threads_of(HANDLERS)
    calls = [FakeRareCall("/s/Reverse", b"ab"), FakeRareCall("/s/Refuse")]
    for call in calls:
        grpc.call(call)
    threads.start(grpc.take_rare_call)
    assert all(call.is_answered.wait(10) for call in calls)
    grpc.shutdown(0)
    assert threads.stop(timeout_seconds=10)
    assert [call.answers for call in calls] == [[b"ba"], [(5, "no such model")]]


def test_threads_end_with_their_server() -> None:
    grpc, ended = FakeGrpcServer(), threading.Semaphore(0)

    def take(timeout_seconds: float) -> RareCall | None:
        try:
            return grpc.take_rare_call(timeout_seconds)
        except StopIteration:
            ended.release()
            raise

    threads = threads_of(HANDLERS, thread_count=1)
    threads.start(take)
    grpc.shutdown(0)
    assert ended.acquire(timeout=10)
    # Nobody has stopped them yet, and they ask no more.
    assert not ended.acquire(timeout=0.1)
    assert threads.stop(timeout_seconds=10)


def test_threads_survive_unanswerable_call() -> None:
    class Lost(FakeRareCall):
        def reply(self, response: bytes) -> None:
            raise RuntimeError("answered already")

    grpc = FakeGrpcServer()
    threads = threads_of(HANDLERS, thread_count=1)
    sound = FakeRareCall("/s/Reverse", b"ab")
    grpc.call(Lost("/s/Reverse"))
    grpc.call(sound)
    with capture_logs() as logs:
        threads.start(grpc.take_rare_call)
        assert sound.is_answered.wait(10)
        grpc.shutdown(0)
        assert threads.stop(timeout_seconds=10)
    assert [log["event"] for log in logs] == ["rare_call_lost"]


def test_rare_call_threads_never_started_stop() -> None:
    assert threads_of(HANDLERS).stop()


# --- Traced calls ---------------------------------------------------------------------------------


def answered_in_trace(call: FakeRareCall) -> tuple[list[AnsweredCall], list[dict[str, Any]]]:
    """Returns the result and the logs of one call that the threads answer."""
    grpc, answered, clock = FakeGrpcServer(), list[AnsweredCall](), FakeClock()

    def work(request: bytes) -> bytes:
        clock.advance(0.5)
        structlog.get_logger().info("working")
        return refuse(request) if request == b"no" else request

    threads = RareCallThreads({"/s/Work": work}, on_answered=answered.append, clock=clock)
    with capture_logs(processors=[merge_contextvars]) as logs:
        threads.start(grpc.take_rare_call)
        grpc.call(call)
        assert call.is_answered.wait(30)
        grpc.shutdown(0)
        assert threads.stop()
    return answered, [dict(line) for line in logs]


@pytest.mark.parametrize("is_sampled", [True, False])
def test_traced_call_logs_its_ids_and_has_span(is_sampled: bool) -> None:
    context = FakeTraceContext(is_sampled=is_sampled)
    (answered,), (line,) = answered_in_trace(FakeRareCall("/s/Work", b"yes", trace_context=context))
    assert (line["trace_id"], line["span_id"]) == (context.trace_id, answered.trace.span_id)
    assert answered.trace.context is context
    assert answered.trace.span_id not in (context.parent_id, "")
    assert (answered.method, answered.code) == ("/s/Work", StatusCode.OK)
    assert answered.ended_ns - answered.taken_ns == 500_000_000


def test_failing_traced_call_reports_its_code() -> None:
    call = FakeRareCall("/s/Work", b"no", trace_context=FakeTraceContext())
    (answered,), _ = answered_in_trace(call)
    assert answered.code is StatusCode.NOT_FOUND
    assert call.answers == [(5, "no such model")]


def test_call_of_no_trace_logs_no_ids() -> None:
    answered, (line,) = answered_in_trace(FakeRareCall("/s/Work", b"yes"))
    assert answered == []
    assert set(line) == {"event", "log_level"}
