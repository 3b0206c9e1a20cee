"""The rows of the tables of flags, and the readers that turn a flag's text into its value."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.config.server_config import HttpPort

WAIT_SECONDS_MAX = 1_000_000_000
"""Thirty years: for ever, and still a time that threads can wait and int64 can hold in nanoseconds."""

DRAIN_SECONDS_MAX = 86_400
"""A day: no orchestrator waits as long to kill."""

Reader = Callable[[str], Any]
"""Turns a flag's text into its value; raises ValueError that says what would be right."""


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
    """A port; 0 is none, as in TensorFlow Serving, and `auto` a free one."""
    if text == "auto":
        return HttpPort(0)
    number: int = integer(0, 65535)(text)
    return HttpPort(number or None)


def seconds(maximum: int) -> Reader:
    """A finite number of seconds; negative ones have a meaning for some flags."""

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
    def read(text: str) -> float:
        value: float = seconds(maximum)(text)
        if value < 0:
            raise ValueError("must not be negative")
        return value

    return read


def factor(text: str) -> float:
    """0, which is off, or a factor above 1."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if value != 0 and not 1 < value < float("inf"):
        raise ValueError("must be 0 (off) or a factor above 1, like 1.5")
    return value


def share(text: str) -> float:
    """From 0 to 1."""
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


def local_path(text: str) -> str:
    """A path on a local file system, made absolute."""
    if not text:
        raise ValueError("must not be empty")
    if "://" in text:
        raise ValueError("must be a local path; mount remote storage and name the mount point")
    return os.path.abspath(text)


def optional_path(text: str) -> str:
    """As `local_path`; "" is none, as where the flag is left out."""
    return local_path(text) if text else ""


def admin_address(text: str) -> str:
    """`auto`, `off`, `unix:PATH` or `HOST:PORT`."""
    if text in ("auto", "off"):
        return text
    if text.startswith("unix:"):
        return f"unix:{local_path(text.removeprefix('unix:'))}"
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not port.isascii() or not 0 < int(port) <= 65535:
        raise ValueError("must be auto, off, unix:PATH or HOST:PORT")
    return text


def http_url(text: str) -> str:
    """The URL of an HTTP server, with or without a path."""
    if text and not re.fullmatch(r"https?://[^/?#\s]+[^?#\s]*", text):
        raise ValueError("must be a URL like http://collector:4318")
    return text


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once and none empty."""
    items = tuple(text.split(","))
    if not all(items) or len(set(items)) < len(items):
        raise ValueError("must be names separated by commas, none empty and none twice")
    return items


def optional_names(text: str) -> tuple[str, ...]:
    """As `names`; "" is none, as when the flag is left out."""
    return names(text) if text else ()


def channel_arguments(text: str) -> Mapping[str, int | str]:
    """`k=v,k=v`; a value that reads as a whole number is one, and gRPC's are int32."""
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
    """A flag that is taken. `metavar` is "" for a boolean, which may stand without a value."""

    name: str
    read: Reader
    default: Any
    help: str
    metavar: str = "VALUE"
    # May be given several times: the value is a tuple of all of them.
    is_repeatable: bool = False


@dataclass(frozen=True)
class RefusedFlag:
    """A flag of TensorFlow Serving that Millpond does not have (yet), and why.

    `harmless`: values, as `read` makes them, that ask for what Millpond does anyway. They are taken
    and change nothing. `replaced_by`: the flags to use instead.
    """

    name: str
    reason: str
    read: Reader = str
    harmless: tuple[Any, ...] = ()
    replaced_by: tuple[str, ...] = ()

    @property
    def metavar(self) -> str:
        """ "" for a boolean, which may stand without a value."""
        return "" if self.read is boolean else "VALUE"

    @property
    def message(self) -> str:
        """Returns the flags to use instead, if any, and the reason."""
        instead = " and ".join(f"--{name}" for name in self.replaced_by)
        return f"use {instead}; {self.reason}" if instead else self.reason

    def permits(self, text: str) -> bool:
        """Whether this value of it asks for what Millpond does anyway."""
        try:
            return self.read(text) in self.harmless
        except ValueError:
            return False
