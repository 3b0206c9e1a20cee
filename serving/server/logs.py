"""Sets up the log on standard error: text for people on a terminal, or one JSON object a line for machines.

An event is a short name and its values: `log.info("listening", port=8500)`. Its JSON has the keys `event`,
`level`, `timestamp` (UTC, ISO 8601) and one for each value. Lines of TensorFlow, which are not JSON, may come
between the events.
"""

import io
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

from serving.base.clock import SystemClock
from serving.base.log_line import is_for_people, log_line
from serving.base.name_text import encodable, printable
from serving.server.log_writer import LogWriter, unblock, write_at_once

FLUSH_SECONDS = 1.0
"""The longest that the process waits, before it ends, until a slow or missing reader takes the last lines."""

_log = structlog.get_logger(__name__)
# The writer of the log; empty before `start_logs`. It belongs to the process, which has one standard error.
_writers: list[LogWriter] = []
# The descriptor to which `write_last_line` writes; empty before `start_logs`.
_last_line_descriptor: list[int] = []
# The format that `configure_logs` has chosen, for `write_last_line`.
_format = {"is_human": True}


def start_logs(log_format: str, first_line: str = "", processors: Sequence[Processor] = ()) -> None:
    """Sets up structlog on standard error, so that no thread ever waits for the reader of the log.

    Native threads do not wait either, because their lines go to the same descriptors. `first_line` is
    written before all other lines. `processors` get each event before it is formatted.
    """
    with suppress(OSError):  # Standard output may be closed.
        unblock(sys.__stdout__.fileno() if sys.__stdout__ else 1)
    is_unblocked = unblock(sys.stderr.fileno())
    # The log keeps duplicates of standard error, because `native_log_lines` replaces descriptor 2 by a pipe.
    if _last_line_descriptor:
        os.close(_last_line_descriptor.pop())
    _last_line_descriptor.append(os.dup(sys.stderr.fileno()))
    writer = LogWriter(
        os.dup(sys.stderr.fileno()),
        may_block=not is_unblocked,
        on_dropped=lambda count: _log.warning("log_lines_dropped", count=count),
        clock=SystemClock(),
    )
    _writers.append(writer)
    writer.start()
    if first_line:
        writer.write(first_line)
    configure_logs(log_format, cast("TextIO", writer), processors)


def write_lines(text: str) -> None:
    """Writes lines that are formatted already to the log."""
    for writer in _writers[-1:]:
        writer.write(text)


def write_last_line(event: str, message: str) -> None:
    """Writes a warning when the process is about to end at once.

    Takes no lock of the log, and writes before the lines that still wait. If the line does not fit into the
    pipe, it is lost.
    """
    line = log_line(
        event,
        message,
        SystemClock().wall_ns(),
        is_human=_format["is_human"],
        level="warning",
    )
    write_at_once(_last_line_descriptor[0] if _last_line_descriptor else 2, line.encode())


def flush_logs(timeout_seconds: float = FLUSH_SECONDS) -> None:
    """Writes the lines that still wait, for at most `timeout_seconds`, and closes the log."""
    while _writers:
        _writers.pop().close_within(timeout_seconds)


def dropped_line_count() -> int:
    """The number of log lines that were dropped because the log's reader was too slow."""
    return sum(writer.dropped_count for writer in _writers)


def configure_logs(
    log_format: str, stream: TextIO | None = None, processors: Sequence[Processor] = ()
) -> None:
    """Sets up structlog for the process. `log_format` is `human`, `json` or `auto`.

    `auto` is human if the stream (by default standard error) is a terminal, and JSON otherwise, because a
    collector of logs must be able to parse each line.
    """
    stream = stream or sys.stderr
    is_human = is_for_people(log_format, is_terminal=stream.isatty())
    _format["is_human"] = is_human
    structlog.configure(
        processors=[
            *processors,
            _encodable_values,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not is_human),
            *(_human(stream) if is_human else _json()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # This logger writes a line with one call, so that the lines of two threads are never mixed.
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _LossyStream(stream))),
        cache_logger_on_first_use=True,
    )


class _LossyStream(io.TextIOBase):
    """A stream that drops text which its own stream does not accept.

    A load must not fail because the reader of the log is gone, or because the disk is full.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _human(stream: TextIO) -> list[Processor]:
    return [
        _printable_values,
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        ),
    ]


def _encodable_values(logger: object, method: str, event: EventDict) -> EventDict:
    """Replaces bytes in paths that are not valid text, because each line is written as UTF-8."""
    del logger, method
    return {key: _encodable_value(value) for key, value in event.items()}


def _encodable_value(value: object) -> object:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, PurePath):
        return encodable(str(value))
    if isinstance(value, list | tuple):
        return [_encodable_value(item) for item in value]
    return value


def _printable_values(logger: object, method: str, event: EventDict) -> EventDict:
    """Escapes control characters, because clients choose some of the names and messages."""
    del logger, method
    return {
        key: printable(value) if isinstance(value, str) else value for key, value in event.items()
    }


def _json() -> list[Processor]:
    return [
        structlog.processors.dict_tracebacks,
        # A value that JSON does not have, like a path, is written as its text, because logging must not
        # raise.
        structlog.processors.JSONRenderer(default=str),
    ]
