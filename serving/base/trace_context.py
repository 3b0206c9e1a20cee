"""Of which trace a call is a part, and what the log says of it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from structlog.contextvars import bound_contextvars


class TraceContext(Protocol):
    """What a client says of its trace (`_native.TraceContext`): hexadecimal ids, W3C's."""

    @property
    def trace_id(self) -> str: ...
    @property
    def parent_id(self) -> str: ...
    @property
    def is_sampled(self) -> bool: ...
    @property
    def state(self) -> str: ...


@dataclass(frozen=True)
class CallTrace:
    """A call's own place in the trace of its client: `span_id` is new, and below `context.parent_id`."""

    context: TraceContext
    span_id: str


def new_trace_id() -> str:
    """32 hexadecimal digits at random."""
    return secrets.token_hex(16)


def new_span_id() -> str:
    """16 of them."""
    return secrets.token_hex(8)


@contextmanager
def traced(context: TraceContext | None) -> Iterator[CallTrace | None]:
    """Within it each line that this thread logs has `trace_id` and `span_id`, sampled or not.

    So has what it posts to the control thread to be done for it. None: in no trace, and nothing is
    bound.
    """
    if context is None:
        yield None
        return
    trace = CallTrace(context, new_span_id())
    with bound_contextvars(trace_id=context.trace_id, span_id=trace.span_id):
        yield trace
