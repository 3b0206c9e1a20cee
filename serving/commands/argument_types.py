"""What the values of options must be, said in the words of whoever typed them."""

import argparse
import math
from collections.abc import Callable

from serving.found_versions import VERSION_MAX


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that takes whole numbers from `least` to `most`."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        is_number = text.removeprefix("-").isdecimal() and text.isascii()
        if not is_number or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number {bounds}")
        return int(text)

    return parse


version_number = whole_number(0, VERSION_MAX)


def seconds(text: str) -> float:
    """Seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value
