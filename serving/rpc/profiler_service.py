"""`tensorflow.ProfilerService`: traces of TensorFlow's work in this process, one at a time.

A trace takes seconds, so it has a thread of its own (`profiler`), which exists only as long as the
trace. It answers the call when the trace is over, and sooner if the client is gone or the server stops.
"""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial

import structlog

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.compiled_protos import PROFILER_SERVICE, message_class
from serving.base.errors import (
    CallerError,
    Cancelled,
    InternalError,
    MillpondError,
    StatusCode,
    Unavailable,
)
from serving.data_plane.plane import DataPlane
from serving.data_plane.requests import RareCall
from serving.data_plane.status_errors import statuses_as_errors
from serving.data_plane.traces import TraceSession
from serving.rpc.profiler_requests import (
    MonitorQuestion,
    ProfileQuestion,
    TracePlan,
    describe_totals,
    early_end,
    monitor_response,
    profile_response,
    read_monitor_request,
    read_profile_request,
    read_terminate_request,
)
from serving.rpc.rare_calls import Deferred, Handler

PROFILE = f"/{PROFILER_SERVICE}/Profile"
MONITOR = f"/{PROFILER_SERVICE}/Monitor"
TERMINATE = f"/{PROFILER_SERVICE}/Terminate"
METHODS = (PROFILE, MONITOR, TERMINATE)

LOOK_SECONDS = 0.05
"""The time between two checks of the client and of the free memory."""

XSPACE_BYTES_MAX = 2**28
"""More than TensorBoard opens. On its way to the client, a trace is in memory several times."""

TOTAL_COUNT_MAX = 30
"""The names in Monitor's text: a screen."""

PROFILER_NICE = 10
"""The thread's priority. Writing a trace must not take a core from requests."""

_log = structlog.get_logger(__name__)


class TraceRuns(CallerError):
    """Another trace runs; there is one trace at a time."""

    code = StatusCode.ALREADY_EXISTS


@dataclass
class _Trace:
    """A trace and the call that asked for it. The service's lock guards `is_terminated`.

    `answer` takes the session whose time is over and the warning for the user, and returns the response.
    """

    call: RareCall
    plan: TracePlan
    answer: Callable[[TraceSession, str], bytes]
    is_terminated: bool = False


class ProfilerService:
    """Runs one trace at a time and answers its call. Thread-safe.

    `available_bytes` returns the free memory.
    """

    def __init__(
        self,
        plane: DataPlane,
        *,
        available_bytes: Callable[[], int],
        xspace_bytes_max: int,
        clock: Clock,
    ) -> None:
        self._plane = plane
        self._available_bytes = available_bytes
        self._xspace_bytes_max = min(xspace_bytes_max, XSPACE_BYTES_MAX)
        self._clock = clock
        # Guards the members below, and is notified when they change.
        self._changed = threading.Condition()
        self._running: _Trace | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    @property
    def handlers(self) -> Mapping[str, Handler | Deferred]:
        """The handlers, by the full name of the method."""
        return {
            PROFILE: Deferred(self._profile),
            MONITOR: Deferred(self._monitor),
            TERMINATE: self._terminate,
        }

    def stop(self) -> None:
        """Ends the trace early and starts no other. Its client gets the events so far. Returns at once."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the thread after `stop`; False if it still runs after `timeout_seconds`."""
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)
        return thread is None or not thread.is_alive()

    def _profile(self, call: RareCall) -> None:
        question = read_profile_request(call.request, self._clock.wall_ns())
        self._begin(_Trace(call, question.plan, partial(self._answer_profile, question)))

    def _monitor(self, call: RareCall) -> None:
        question = read_monitor_request(call.request)
        self._begin(_Trace(call, question.plan, partial(self._answer_monitor, question)))

    def _terminate(self, request: bytes) -> bytes:
        """Ends the trace of a session. As with TensorFlow, an unknown session is not an error."""
        session_id = read_terminate_request(request)
        with self._changed:
            if self._running is not None and self._running.plan.session_id == session_id:
                self._running.is_terminated = True
                self._changed.notify_all()
        response: bytes = message_class("tensorflow.TerminateResponse")().SerializeToString()
        return response

    def _begin(self, trace: _Trace) -> None:
        """Records the trace on a new thread, which answers the call. Raises TraceRuns or Unavailable."""
        with self._changed:
            if self._is_stopping:
                raise Unavailable("the server is shutting down; use another server")
            if self._running is not None:
                raise TraceRuns(
                    f"a trace of {self._running.plan.duration_ms} ms runs; try again when it is over"
                )
            thread = threading.Thread(target=self._run, args=(trace,), name="profiler", daemon=True)
            # Started first, so that a thread that cannot be started leaves nothing behind.
            thread.start()
            self._running, self._thread = trace, thread

    def _run(self, trace: _Trace) -> None:
        self._lower_priority()
        error: MillpondError | None = None
        response = b""
        try:
            with statuses_as_errors(self._plane.StatusError):
                response = self._record(trace)
        except MillpondError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 (the caller must get an answer)
            method = trace.call.method
            _log.exception("trace_failed", method=method)
            error = InternalError(f"{type(bug).__name__} in {method}; see the server's log")
        # Cleared before the answer, because a client that has its answer may ask for the next trace.
        with self._changed:
            self._running = None
        _reply(trace.call, response, error)

    def _record(self, trace: _Trace) -> bytes:
        plan = trace.plan
        self._wait(trace, plan.delay_ns)
        available_bytes = self._available_bytes()
        session = self._plane.start_trace(
            host_level=plan.host_level, includes_dataset_ops=plan.includes_dataset_ops
        )
        _log.info("trace_started", peer=trace.call.peer, duration_ms=plan.duration_ms)
        try:
            warning = self._wait(trace, plan.duration_ms * NS_PER_SECOND // 1_000, available_bytes)
            response = trace.answer(session, warning)
        finally:
            session.drop()
        _log.info("trace_ended", peer=trace.call.peer, reply_bytes=len(response), warning=warning)
        return response

    def _wait(
        self, trace: _Trace, duration_ns: int, available_bytes_at_start: int | None = None
    ) -> str:
        """Waits for `duration_ns`, or until the trace is terminated or the server stops.

        With `available_bytes_at_start`, also ends early if memory gets short, and returns this reason;
        otherwise returns "". Raises Cancelled if the client is gone.
        """
        end_ns = self._clock.now_ns() + duration_ns
        with self._changed:
            while not trace.is_terminated and not self._is_stopping:
                if not trace.call.is_wanted:
                    raise Cancelled("the client gave up the trace")
                left_ns = end_ns - self._clock.now_ns()
                if left_ns <= 0:
                    return ""
                if available_bytes_at_start is not None and (
                    reason := early_end(available_bytes_at_start, self._available_bytes())
                ):
                    return reason
                self._clock.wait(self._changed, min(LOOK_SECONDS, left_ns / NS_PER_SECOND))
        return ""

    def _answer_profile(
        self, question: ProfileQuestion, session: TraceSession, warning: str
    ) -> bytes:
        trace = session.collect(
            has_xspace=True,
            total_count_max=0,
            warning=warning,
            xspace_bytes_max=self._xspace_bytes_max,
        )
        return profile_response(
            trace.xspace, trace.event_count, is_message_wanted=question.is_message_wanted
        )

    def _answer_monitor(
        self, question: MonitorQuestion, session: TraceSession, warning: str
    ) -> bytes:
        trace = session.collect(
            has_xspace=False, total_count_max=TOTAL_COUNT_MAX, warning="", xspace_bytes_max=0
        )
        now = datetime.fromtimestamp(self._clock.wall_ns() / NS_PER_SECOND, timezone.utc)
        text = describe_totals(
            *(trace.totals, trace.event_count, question.plan.duration_ms),
            time_text=f"{now:%Y-%m-%d %H:%M:%S} UTC" if question.is_time_wanted else "",
        )
        return monitor_response(f"{text}{warning}\n" if warning else text)

    def _lower_priority(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PROFILER_NICE)
        except OSError as error:
            _log.warning(
                "profiler_priority_refused", requested=PROFILER_NICE, reason=error.strerror
            )


def _reply(call: RareCall, response: bytes, error: MillpondError | None) -> None:
    try:
        if error is not None:
            call.fail(int(error.code), error.message)
        else:
            call.reply(response)
    except Exception:  # noqa: BLE001 (the call is broken; the next one is innocent)
        _log.exception("rare_call_lost", method=call.method)
