"""Reads requests for traces, and decides when a trace must end before its time. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from serving.base.clock import NS_PER_SECOND
from serving.base.compiled_protos import message_class
from serving.base.errors import InvalidArgument
from serving.data_plane.traces import EventTotal

DURATION_MS_MAX = 60_000
"""The limit of a trace: TensorFlow's client waits for a minute, and the events stay in memory."""

DELAY_MS_MAX = 60_000
"""The longest delay before a trace starts: a trace that waits blocks other traces."""

HOST_LEVEL_DEFAULT = 2
"""TensorFlow's own level for clients that give no options: steps and costly ops."""

HOST_LEVEL_MAX = 3

MEMORY_SHARE_MAX = 0.25
"""The share of the memory that is free at a trace's start. Writing the events takes twice as much."""

XPLANE_TOOL = "xplane.pb"
"""TensorFlow's clients save a response's tool data as HOST_PORT.NAME in their log directory.

TensorBoard looks for this name, so this server need not write a file at a path that a client names.
"""

_MS_PER_SECOND = 1_000
_NS_PER_MS = NS_PER_SECOND // _MS_PER_SECOND


@dataclass(frozen=True, kw_only=True)
class TracePlan:
    """A requested trace. `session_id` is the name by which Terminate ends it."""

    duration_ms: int
    delay_ns: int = 0
    host_level: int = HOST_LEVEL_DEFAULT
    includes_dataset_ops: bool = True
    session_id: str = ""


@dataclass(frozen=True, kw_only=True)
class ProfileQuestion:
    """Profile's request: the trace, and the form of the response.

    The response holds the trace as a message if `is_message_wanted`, or else as tool data.
    """

    plan: TracePlan
    is_message_wanted: bool


@dataclass(frozen=True, kw_only=True)
class MonitorQuestion:
    """Monitor's request: the trace to sum up. The text begins with the time if `is_time_wanted`."""

    plan: TracePlan
    is_time_wanted: bool


def read_profile_request(request: bytes, wall_ns: int) -> ProfileQuestion:
    """Parses a ProfileRequest. Raises InvalidArgument.

    The client's start is compared with `wall_ns`, the time now. Ignores TensorFlow's repository_root,
    host_name and all tracer levels but the host's.
    """
    message = _parsed("ProfileRequest", request)
    options = message.opts
    has_options = options.version > 0
    plan = TracePlan(
        duration_ms=_checked_duration_ms(options.duration_ms or message.duration_ms),
        delay_ns=_delay_ns(options.start_timestamp_ns, wall_ns),
        host_level=(
            min(options.host_tracer_level, HOST_LEVEL_MAX) if has_options else HOST_LEVEL_DEFAULT
        ),
        includes_dataset_ops=options.include_dataset_ops or not has_options,
        session_id=message.session_id,
    )
    return ProfileQuestion(plan=plan, is_message_wanted=message.emit_xspace)


def read_monitor_request(request: bytes) -> MonitorQuestion:
    """Parses a MonitorRequest. Raises InvalidArgument. Level 2 sums up every op, level 1 costly ops."""
    message = _parsed("MonitorRequest", request)
    plan = TracePlan(
        duration_ms=_checked_duration_ms(message.duration_ms),
        host_level=HOST_LEVEL_MAX if message.monitoring_level > 1 else HOST_LEVEL_DEFAULT,
    )
    return MonitorQuestion(plan=plan, is_time_wanted=message.timestamp)


def read_terminate_request(request: bytes) -> str:
    """Reads the session that is to end. Raises InvalidArgument."""
    session_id: str = _parsed("TerminateRequest", request).session_id
    return session_id


def profile_response(xspace: bytes, event_count: int, *, is_message_wanted: bool) -> bytes:
    """Makes Profile's response. A trace without events makes TensorFlow's client try again."""
    response = message_class("tensorflow.ProfileResponse")(empty_trace=event_count == 0)
    if is_message_wanted:
        response.xspace = xspace
    elif event_count:
        response.tool_data.add(name=XPLANE_TOOL, data=xspace)
    serialized: bytes = response.SerializeToString()
    return serialized


def monitor_response(text: str) -> bytes:
    """Makes Monitor's response, with a text for people."""
    serialized: bytes = message_class("tensorflow.MonitorResponse")(data=text).SerializeToString()
    return serialized


def describe_totals(
    totals: Sequence[EventTotal], event_count: int, duration_ms: int, *, time_text: str = ""
) -> str:
    """Makes a table of the longest totals for people. A nested event also counts for its parents."""
    lines = [
        *([time_text] if time_text else []),
        f"{event_count} events in {duration_ms} ms; nested events count for their parents too",
        f"{'total ms':>10} {'count':>8} {'mean us':>10}  name",
    ]
    for total in totals:
        mean_us = total.total_ns / total.count / 1_000
        lines.append(
            f"{total.total_ns / 1_000_000:>10.3f} {total.count:>8} {mean_us:>10.1f}  {total.name}"
        )
    return "\n".join(lines) + "\n"


def early_end(available_bytes_at_start: int, available_bytes_now: int) -> str:
    """The reason why a trace must end now, as its warning; "" if it may go on."""
    taken_bytes = available_bytes_at_start - available_bytes_now
    if taken_bytes <= MEMORY_SHARE_MAX * available_bytes_at_start:
        return ""
    return (
        f"the trace ended early: free memory fell by {taken_bytes} bytes, more than "
        f"{MEMORY_SHARE_MAX:.0%} of the memory that was free as it started"
    )


def _parsed(name: str, request: bytes) -> Any:
    try:
        return message_class(f"tensorflow.{name}").FromString(request)
    except DecodeError as error:
        raise InvalidArgument(f"the request is not a valid tensorflow.{name}: {error}") from error


def _checked_duration_ms(duration_ms: int) -> int:
    if not 1 <= duration_ms <= DURATION_MS_MAX:
        raise InvalidArgument(f"duration_ms {duration_ms}: give 1 to {DURATION_MS_MAX}")
    return duration_ms


def _delay_ns(start_wall_ns: int, wall_ns: int) -> int:
    delay_ns = max(0, start_wall_ns - wall_ns) if start_wall_ns else 0
    if delay_ns > DELAY_MS_MAX * _NS_PER_MS:
        raise InvalidArgument(
            f"start_timestamp_ns {start_wall_ns} is {delay_ns // NS_PER_SECOND} s after this "
            f"server's time; start within {DELAY_MS_MAX // _MS_PER_SECOND} s, and compare the clocks"
        )
    return delay_ns
