"""The server's side of supervision: takes the crash page and the number of restarts from the supervisor.

A standby process also waits here until the supervisor lets it serve.
"""

import os
import signal
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING

from serving.base.errors import InvalidConfig
from serving.supervisor.child_process import RESTART_COUNT_VARIABLE, STANDBY_VARIABLE
from serving.supervisor.crash_page import DESCRIPTOR_VARIABLE

if TYPE_CHECKING:  # `millpond serve --help` imports this module, and none of the data plane.
    from serving.data_plane.plane import DataPlane


def wait_as_standby(environment: MutableMapping[str, str], load: Callable[[], object]) -> None:
    """Calls `load`, and waits until the supervisor lets this process serve. Only a standby process waits.

    Call it before the flags are read, because flags name files that may change meanwhile. Raises SystemExit
    if the supervisor ends first, and InvalidConfig if the variable is not a number.
    """
    text = environment.pop(STANDBY_VARIABLE, "")
    if not text:
        return
    descriptor = _descriptor(STANDBY_VARIABLE, text)
    # Ctrl-C on a terminal reaches the supervisor too, which ends this process itself.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        load()
        line = os.read(descriptor, 64)
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(descriptor)
    if not line:
        raise SystemExit(0)
    environment[RESTART_COUNT_VARIABLE] = line.decode().strip()


def open_crash_page(plane: "DataPlane", environment: MutableMapping[str, str]) -> None:
    """Opens the crash page that the supervisor handed to this process. Does nothing without a supervisor.

    Raises InvalidConfig if the variable is not a number, and the data plane's error if the page is of another
    release.
    """
    text = environment.pop(DESCRIPTOR_VARIABLE, "")
    if not text:
        return
    descriptor = _descriptor(DESCRIPTOR_VARIABLE, text)
    plane.open_crash_page(descriptor)
    os.close(descriptor)


def restart_count(environment: Mapping[str, str] = os.environ) -> int:
    """The number of times that the supervisor has started the server again; 0 without a supervisor."""
    text = environment.get(RESTART_COUNT_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _descriptor(variable: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidConfig(f"{variable}={text!r} is not a number; unset it")
    return int(text)
