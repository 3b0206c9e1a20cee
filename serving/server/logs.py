"""Log lines on standard error: for people on a terminal, one JSON object a line for machines.

An event is a short name and its values: `log.info("listening", port=8500)`. In JSON these are the
keys `event`, `level`, `timestamp` (UTC, ISO 8601) and the values. TensorFlow's own lines, which are
not JSON, may stand between them.
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
"""How long the process's end waits for unwritten lines, if their reader is slow or missing."""

_log = structlog.get_logger(__name__)
# The process has one standard error.
_writers: list[LogWriter] = []
# Standard error, for `write_last_line`.
_last_line_descriptor: list[int] = []
# The choice of `configure_logs`, for `write_last_line`.
_format = {"is_human": True}


def start_logs(log_format: str, first_line: str = "", processors: Sequence[Processor] = ()) -> None:
    """Sets up structlog on standard error, so that no thread ever waits for its reader.

    Native threads do not wait either: their lines go to the same descriptors. `first_line` is written
    before all other lines. `processors` get each event before it is formatted.
    """
    with suppress(OSError):  # Standard output may be closed.
        unblock(sys.__stdout__.fileno() if sys.__stdout__ else 1)
    is_unblocked = unblock(sys.stderr.fileno())
    # Duplicates: from the start on, descriptor 2 is a pipe of `native_log_lines`.
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
    """Writes formatted lines, as if they were logged."""
    for writer in _writers[-1:]:
        writer.write(text)


def write_last_line(event: str, message: str) -> None:
    """Writes a warning without the log's locks and before its waiting lines, when the process ends
    at once.

    A line that does not fit is lost.
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
    """Writes the lines that wait for their reader, for at most `timeout_seconds`. The last call."""
    while _writers:
        _writers.pop().close_within(timeout_seconds)


def dropped_line_count() -> int:
    """The count of log lines that were dropped because their reader did not keep up."""
    return sum(writer.dropped_count for writer in _writers)


def configure_logs(
    log_format: str, stream: TextIO | None = None, processors: Sequence[Processor] = ()
) -> None:
    """Sets up structlog for the process. `log_format` is `human`, `json` or `auto`.

    `auto` is human if the stream (default: standard error) is a terminal, and JSON otherwise: a
    file or a collector needs lines that parse.
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
        # Writes a line with one call, so that lines of several threads do not run into each other.
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _LossyStream(stream))),
        cache_logger_on_first_use=True,
    )


class _LossyStream(io.TextIOBase):
    """Drops text that its stream does not accept: if the reader is gone or the disk is full,
    neither a load nor the server may fail.
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
    """Replaces bytes of paths that are not text: a line is written as UTF-8."""
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
    """Escapes control characters: values hold names and messages that clients made up."""
    del logger, method
    return {
        key: printable(value) if isinstance(value, str) else value for key, value in event.items()
    }


def _json() -> list[Processor]:
    return [
        structlog.processors.dict_tracebacks,
        # A value that JSON cannot represent (a path, an id) is written as its text: logging must
        # not raise.
        structlog.processors.JSONRenderer(default=str),
    ]
