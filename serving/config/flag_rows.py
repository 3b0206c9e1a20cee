"""The rows of the tables of flags, and the readers that turn a flag's text into its value."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.config.server_config import HttpPort

WAIT_SECONDS_MAX = 1_000_000_000
"""Thirty years, in effect for ever. Threads can still wait so long, and int64 holds it in ns."""

DRAIN_SECONDS_MAX = 86_400
"""A day, which is longer than any orchestrator waits before it kills a process."""

ACCELERATOR_ROWS_MAX = 1_000_000
"""More rows than one run of a request has."""

ACCELERATOR_ROWS_COUNT_MAX = 32
"""Each number of rows is a program of each signature, which takes up to 1 s to compile."""

Reader = Callable[[str], Any]
"""Turns a flag's text into its value; raises ValueError with the valid values."""


def boolean(text: str) -> bool:
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise ValueError("must be true or false")


def integer(minimum: int, maximum: int = 2**63 - 1) -> Reader:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not minimum <= value <= maximum:
            raise ValueError(f"must be between {minimum} and {maximum}")
        return value

    return read


def http_port(text: str) -> HttpPort:
    """Reads a port. As in TensorFlow Serving, 0 turns HTTP off; `auto` takes a free port."""
    if text == "auto":
        return HttpPort(0)
    number: int = integer(0, 65535)(text)
    return HttpPort(number or None)


def seconds(maximum: int) -> Reader:
    """A reader of finite seconds, which may be negative: some flags give that a meaning."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("must be a number of seconds") from None
        if not abs(value) < float("inf"):
            raise ValueError("must be a finite number of seconds")
        if value > maximum:
            raise ValueError(f"must be at most {maximum} seconds")
        return value

    return read


def seconds_not_negative(maximum: int) -> Reader:
    return _seconds_from(0, "must not be negative", maximum)


def seconds_from_one(maximum: int) -> Reader:
    return _seconds_from(1, "must be at least 1 second", maximum)


def _seconds_from(minimum: int, refusal: str, maximum: int) -> Reader:
    def read(text: str) -> float:
        value: float = seconds(maximum)(text)
        if value < minimum:
            raise ValueError(refusal)
        return value

    return read


def share(text: str) -> float:
    """Reads a share from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not 0 <= value <= 1:
        raise ValueError("must be between 0 and 1")
    return value


def choice(*names: str) -> Reader:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text

    return read


def not_empty(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def host(text: str) -> str:
    """Reads a name or an address. An IPv6 address may be in brackets, as in HOST:PORT."""
    return not_empty(text[1:-1] if text.startswith("[") and text.endswith("]") else text)


def local_path(text: str) -> str:
    """Reads a path on a local file system and makes it absolute."""
    if not text:
        raise ValueError("must not be empty")
    if "://" in text:
        raise ValueError("must be a local path; mount remote storage and name the mount point")
    return os.path.abspath(text)


def base_path(text: str) -> str:
    """Reads a path like `local_path`, or the URL of a directory in object storage as it is.

    The URL is checked later, because an error here shows the text, which may hold a password.
    """
    return text if "://" in text else local_path(text)


def optional_path(text: str) -> str:
    """Reads a path like `local_path`, or "", which means that the flag is not set."""
    return local_path(text) if text else ""


def accelerator(text: str) -> str:
    """An accelerator: "cuda", or "pjrt:" and the path of a plugin."""
    name, colon, path = text.partition(":")
    if text == "cuda":
        return text
    if name != "pjrt" or not colon or not path:
        raise ValueError("must be cuda or pjrt:PLUGIN.so")
    return f"pjrt:{local_path(path)}"


def row_counts(text: str) -> tuple[int, ...]:
    """Numbers of rows, such as "1,8,64", in any order."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ValueError("must be numbers of rows, like 1,8,64") from None
    if (
        counts[0] < 1
        or counts[-1] > ACCELERATOR_ROWS_MAX
        or len(counts) > ACCELERATOR_ROWS_COUNT_MAX
    ):
        raise ValueError(
            f"must be at most {ACCELERATOR_ROWS_COUNT_MAX} numbers of rows, from 1 to {ACCELERATOR_ROWS_MAX}"
        )
    return tuple(counts)


def admin_address(text: str) -> str:
    """Reads `auto`, `off`, `unix:PATH` or `HOST:PORT`."""
    if text in ("auto", "off"):
        return text
    if text.startswith("unix:"):
        return f"unix:{local_path(text.removeprefix('unix:'))}"
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not port.isascii() or not 0 < int(port) <= 65535:
        raise ValueError("must be auto, off, unix:PATH or HOST:PORT")
    return text


def http_url(text: str) -> str:
    """Reads the URL of an HTTP server, with or without a path."""
    if text and not re.fullmatch(r"https?://[^/?#\s]+[^?#\s]*", text):
        raise ValueError("must be a URL like http://collector:4318")
    return text


def names(text: str) -> tuple[str, ...]:
    """Reads distinct, non-empty names separated by commas."""
    items = tuple(text.split(","))
    if not all(items) or len(set(items)) < len(items):
        raise ValueError("must be names separated by commas, without empty or duplicate names")
    return items


def optional_names(text: str) -> tuple[str, ...]:
    """Reads names like `names`, or "", which means that the flag is not set."""
    return names(text) if text else ()


def channel_arguments(text: str) -> Mapping[str, int | str]:
    """Reads `k=v,k=v`. A value that can be read as a whole number becomes an int32, as in gRPC."""
    arguments: dict[str, int | str] = {}
    for item in text.split(",") if text else []:
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise ValueError(f"{item!r} is not name=value; write name=value,name=value")
        try:
            arguments[key] = int(value)
        except ValueError:
            arguments[key] = value
            continue
        if not -(2**31) <= int(value) < 2**31:
            raise ValueError(f"{item!r} must be between {-(2**31)} and {2**31 - 1}")
    return arguments


def always_on(text: str) -> bool:
    if not boolean(text):
        raise ValueError("cannot be switched off: Millpond always answers grpc.health.v1")
    return True


@dataclass(frozen=True)
class Flag:
    """A supported flag. `metavar` is "" for a boolean, which may be given without a value."""

    name: str
    read: Reader
    default: Any
    help: str
    metavar: str = "VALUE"
    # If True, the flag may be given several times, and its value is the tuple of all values.
    is_repeatable: bool = False


@dataclass(frozen=True)
class RefusedFlag:
    """A flag of TensorFlow Serving that Millpond does not support (yet), with the reason.

    `harmless` are the values, as `read` returns them, that match Millpond's behaviour anyway. They are
    accepted and change nothing. `replaced_by` are the flags to use instead.
    """

    name: str
    reason: str
    read: Reader = str
    harmless: tuple[Any, ...] = ()
    replaced_by: tuple[str, ...] = ()

    @property
    def metavar(self) -> str:
        """The placeholder of the value; "" for a boolean, which may be given without a value."""
        return "" if self.read is boolean else "VALUE"

    @property
    def message(self) -> str:
        """The flags to use instead, if any, and the reason."""
        instead = " and ".join(f"--{name}" for name in self.replaced_by)
        return f"use {instead}; {self.reason}" if instead else self.reason

    def permits(self, text: str) -> bool:
        """True if this value matches Millpond's behaviour anyway."""
        try:
            return self.read(text) in self.harmless
        except ValueError:
            return False
