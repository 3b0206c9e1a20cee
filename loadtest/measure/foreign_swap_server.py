"""A server of any make whose versions are swapped: it is asked for its versions while it runs."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from loadtest.drive.shell_server import ShellServer, filled_in, free_port
from loadtest.drive.version_series import VersionSeries
from loadtest.drive.version_states import has_model_service, states_by_answers, states_by_status
from loadtest.measure.setup import Setup
from loadtest.measure.swap_server import SWAP_TIMEOUT_SECONDS, SwapRecord
from loadtest.measure.version_watch import (
    LOOK_SECONDS,
    States,
    VersionWatch,
    has_failed,
    has_swapped,
    spans_of,
)
from serving.base.clock import Clock
from serving.base.errors import Unavailable

_NO_PAGES = (
    "a server of --command has no pages and no log of Millpond: its own figures of the swaps, the "
    "stages of its loads, its arenas, and its memory without a version are left out"
)
_BY_STATUS = (
    f"its versions were asked for by GetModelStatus every {LOOK_SECONDS * 1_000:g} ms: windows may "
    "be that much longer on both sides"
)
_BY_ANSWERS = (
    "it does not implement GetModelStatus: a load is from the drop to the new version's first "
    f"answer, asked for every {LOOK_SECONDS * 1_000:g} ms, and the old version's unload is not seen"
)
# The pause between two looks at the server's processes.
_CHECK_SECONDS = 1


@contextmanager
def foreign_swap_server(
    setup: Setup, series: Mapping[str, VersionSeries], clock: Clock
) -> Iterator["ForeignSwapServer"]:
    """Yields a server of the setup's command that serves version 1 of its only model.

    The version is there before the start, because a server may refuse to start without one. Raises
    Unavailable if it does not answer in time.
    """
    assert setup.command is not None
    (one,) = series.values()
    one.drop(1)
    port = free_port()
    command = filled_in(setup.command, port=port, model_name=one.name, base_path=one.base_path)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-load-")))
        shell = ShellServer(setup.preset, command, port, logs / "log", clock)
        stack.enter_context(shell)
        shell.wait_until_ready(setup.load().payloads[0])
        channel = stack.enter_context(grpc.insecure_channel(shell.target))
        server = ForeignSwapServer(setup, shell, channel, clock)
        stack.enter_context(server.watch)
        yield server


class ForeignSwapServer:
    """A ShellServer that is ready, as a `SwapServer`. The owner enters `watch`."""

    starts_empty = False

    def __init__(
        self, setup: Setup, shell: ShellServer, channel: grpc.Channel, clock: Clock
    ) -> None:
        self._shell = shell
        self._dropped_ns: dict[int, int] = {}
        self._has_status = has_model_service(channel, setup.reloaded)
        self.watch = VersionWatch(
            states_by_status(channel, setup.reloaded)
            if self._has_status
            else states_by_answers(
                channel, setup.reloaded, lambda: max(self._dropped_ns, default=1)
            ),
            clock,
        )

    @property
    def target(self) -> str:
        return self._shell.target

    def process_ids(self) -> Sequence[int]:
        return self._shell.process_ids()

    def load_first_versions(self, series: Mapping[str, VersionSeries]) -> None:
        """Does nothing: the first version was there at the start."""

    def wait_for_unload(self, version: int, dropped_ns: int) -> None:
        new = version + 1
        self._dropped_ns[new] = dropped_ns

        def is_decided(states: States) -> bool:
            return has_swapped(states, version) or has_failed(states, new)

        for _ in range(SWAP_TIMEOUT_SECONDS // _CHECK_SECONDS):
            if self.watch.wait_for(is_decided, _CHECK_SECONDS):
                break
            self._shell.check_running()
        states = self.watch.looks()[-1].states
        if not has_swapped(states, version):
            raise self.failure(
                f"no swap to version {new} in {SWAP_TIMEOUT_SECONDS} s; the last states: {states}"
            )

    def finish(self) -> SwapRecord:
        """See `SwapServer`; the server itself is stopped by the end of its `with`."""
        how = _BY_STATUS if self._has_status else _BY_ANSWERS
        return SwapRecord(
            spans=spans_of(self.watch.looks(), self._dropped_ns), unknown=(_NO_PAGES, how)
        )

    def failure(self, reason: str) -> Unavailable:
        return self._shell.failure(reason)
