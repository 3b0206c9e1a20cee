"""Reads the values of options. Each error quotes the text that the user has typed."""

import argparse
import math
from collections.abc import Callable

from serving.base.name_text import fault_of_name
from serving.source.listing import VERSION_MAX

_GRPC_SCHEMES = frozenset({"unix", "unix-abstract", "dns", "ipv4", "ipv6", "xds"})
_PORT_MAX = 65_535


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Makes the reader of an option that takes whole numbers from `least` to `most`."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        is_number = text.removeprefix("-").isdecimal() and text.isascii()
        if not is_number or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {bounds}")
        return int(text)

    return parse


version_number = whole_number(0, VERSION_MAX)


def positive_number(text: str) -> float:
    """Reads a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def model_name(text: str) -> str:
    """Reads a valid name of a model."""
    if not text:
        raise argparse.ArgumentTypeError("the name of the model is empty")
    if fault := fault_of_name(text):
        raise argparse.ArgumentTypeError(f"{text!r}: {fault}")
    return text


def target(text: str) -> str:
    """Reads HOST:PORT, `unix:PATH`, or another target with a scheme of gRPC."""
    scheme, _, rest = text.partition(":")
    if scheme in _GRPC_SCHEMES and rest:
        return text
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) <= _PORT_MAX
    if not host or "/" in text or not is_port:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither HOST:PORT, like localhost:8500, nor unix:PATH"
        )
    return text
