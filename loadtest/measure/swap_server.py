"""The server that `swap` measures: one of Millpond, or any other server of the PredictionService."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtest.drive.version_series import VersionSeries
from loadtest.measure.server_swaps import ServerSwap
from loadtest.measure.swaps import Swap
from loadtest.measure.timeline import SwapSpans
from serving.base.errors import Unavailable

SWAP_TIMEOUT_SECONDS = 400
"""Enough for a version of 500 MB from a cold disk, at idle priority beside a load."""


@dataclass(frozen=True, kw_only=True)
class SwapRecord:
    """The swaps of a run, as far as the server reports them. Instants are of `Clock.now_ns`.

    `unknown` has sentences on what is not reported, and why. `server_swaps` are the
    swaps by the server's own figures.
    """

    spans: Sequence[SwapSpans]
    stages: Sequence[Swap] = ()
    arena_live_bytes: int | None = None
    server_swaps: Sequence[ServerSwap] = ()
    # The unload of the last version, at the server's stop.
    last_unload_ns: int | None = None
    unknown: Sequence[str] = ()


class SwapServer(Protocol):
    """A server inside `with`. Not safe to use from several threads at once."""

    starts_empty: bool
    """True if the server runs before its first version is there."""

    @property
    def target(self) -> str:
        """`HOST:PORT`, for a gRPC channel."""
        ...

    def process_ids(self) -> Sequence[int]:
        """The processes of the server."""
        ...

    def load_first_versions(self, series: Mapping[str, VersionSeries]) -> None:
        """Drops version 1 of each model and waits until it serves. Raises Unavailable."""
        ...

    def wait_for_unload(self, version: int, dropped_ns: int) -> None:
        """Waits until `version` is unloaded, whose successor was dropped at `dropped_ns`.

        Raises Unavailable if the successor does not load, or at the timeout.
        """
        ...

    def finish(self) -> SwapRecord:
        """Stops the server, if its log has a part of the record, and returns the record of its swaps.

        Raises Unavailable.
        """
        ...

    def failure(self, reason: str) -> Unavailable:
        """An error with the reason and what helps to find its cause."""
        ...
