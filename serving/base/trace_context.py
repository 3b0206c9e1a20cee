"""The trace that a call belongs to, and its ids in the log."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from structlog.contextvars import bound_contextvars


@dataclass(frozen=True)
class TraceContext:
    """A client's W3C trace context; ids are hexadecimal."""

    trace_id: str
    parent_id: str
    is_sampled: bool
    state: str


@dataclass(frozen=True)
class CallTrace:
    """The place of a call in its client's trace: `span_id` is new, a child of `context.parent_id`."""

    context: TraceContext
    span_id: str


def new_trace_id() -> str:
    """Draws 32 random hexadecimal digits."""
    return secrets.token_hex(16)


def new_span_id() -> str:
    """Draws 16 random hexadecimal digits."""
    return secrets.token_hex(8)


@contextmanager
def traced(context: TraceContext | None) -> Iterator[CallTrace | None]:
    """Adds `trace_id` and `span_id` to each line that this thread logs in the context, sampled or not.

    Tasks that this thread posts to the control thread have them too. Without a trace context, nothing
    is added.
    """
    if context is None:
        yield None
        return
    trace = CallTrace(context, new_span_id())
    with bound_contextvars(trace_id=context.trace_id, span_id=trace.span_id):
        yield trace
