"""The parts of a server that its supervisor hands in: the crash page, and the number of restarts."""

import os
from collections.abc import Mapping, MutableMapping
from typing import Protocol

from serving.base.errors import InvalidConfig
from serving.supervisor.child_process import RESTART_COUNT_VARIABLE
from serving.supervisor.crash_page import DESCRIPTOR_VARIABLE


class CrashPages(Protocol):
    """The part of the data plane that marks crash pages."""

    def open_crash_page(self, descriptor: int) -> None: ...


def open_crash_page(plane: CrashPages, environment: MutableMapping[str, str]) -> None:
    """Opens the page that the supervisor handed in; does nothing without a supervisor.

    Raises InvalidConfig if the variable is not a number, and the data plane's error if the page is of
    another release.
    """
    text = environment.pop(DESCRIPTOR_VARIABLE, "")
    if not text:
        return
    if not (text.isascii() and text.isdigit()):
        raise InvalidConfig(f"{DESCRIPTOR_VARIABLE}={text!r} is not a number; unset it")
    plane.open_crash_page(int(text))
    os.close(int(text))


def restart_count(environment: Mapping[str, str] = os.environ) -> int:
    """Returns how often the supervisor has started the server again; 0 without a supervisor."""
    text = environment.get(RESTART_COUNT_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() else 0
