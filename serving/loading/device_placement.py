"""Chooses the devices of a model, on a server with several accelerators."""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from serving.base.clock import NS_PER_SECOND, Clock
from serving.base.errors import FailedPrecondition
from serving.data_plane.loads import Accelerator, AcceleratorState

_BUSY_STEP = 0.1
"""A smaller difference of busy shares is left to memory to decide, because shares of some seconds are rough."""


@dataclass(frozen=True)
class Device:
    """One accelerator, as a placement sees it. Sizes are in bytes."""

    limit_bytes: int
    """The most that parameters and runs may take; 0: unlimited."""
    taken_bytes: int
    """The bytes of parameters that are there, or will be after a load under way."""
    idle_bytes: int = 0
    """The part of them that may be dropped for a version that needs room."""
    busy_ratio: float = 0.0
    """The share of the time since the last choice, a second or more, in which it ran requests."""
    is_failing: bool = False
    """The last run or upload there failed."""

    def has_room(self, size_bytes: int, *, with_drops: bool) -> bool:
        """True if parameters of this size fit beside the others; `with_drops`: without the idle ones."""
        taken_bytes = self.taken_bytes - (self.idle_bytes if with_drops else 0)
        return self.limit_bytes == 0 or taken_bytes + size_bytes <= self.limit_bytes


def choose_devices(
    devices: Sequence[Device],
    size_bytes: int,
    *,
    allowed: Collection[int],
    replica_count: int,
    before: Collection[int] = (),
) -> tuple[int, ...]:
    """Chooses the devices of a version whose parameters take `size_bytes`, by their places in `devices`.

    Takes `replica_count` of the `allowed` devices; 0, or more than there are: all of them. A device that does
    not fail is better than a device that fails; then a device with room, then with room once idle parameters
    are dropped, then any; then one that had the model `before`; then the least busy, and the one with the
    fewest bytes in use. If no device has room, the CPU answers until the chosen one has.
    """

    def badness(place: int) -> tuple[int, int, bool, int, float, int]:
        device = devices[place]
        had_it = place in before
        # The predecessor there is idle soon, and then its bytes are free.
        fits = device.has_room(size_bytes, with_drops=had_it)
        fits_later = device.has_room(size_bytes, with_drops=True)
        used = device.taken_bytes / device.limit_bytes if device.limit_bytes else 0.0
        return (
            int(device.is_failing),
            0 if fits else 1 if fits_later else 2,
            not had_it,
            int(device.busy_ratio / _BUSY_STEP),
            used,
            device.taken_bytes,
        )

    ordered = sorted(allowed, key=lambda place: (badness(place), place))
    return tuple(sorted(ordered[: replica_count or len(ordered)]))


class DevicePlacement:
    """The devices of each model. A load holds its place from `place` on, so loads at once see each other.

    Thread: any, at once.
    """

    def __init__(self, accelerators: Sequence[Accelerator], clock: Clock) -> None:
        self._accelerators = accelerators
        self._clock = clock
        self._lock = threading.Lock()
        self._by_model: dict[str, tuple[int, ...]] = {}
        self._reserved = [0] * len(accelerators)
        self._busy_ratios = [0.0] * len(accelerators)
        self._busy_ns = [0] * len(accelerators)
        self._looked_ns = clock.now_ns()

    def check(self, model: str, allowed: Sequence[int]) -> None:
        """Raises FailedPrecondition unless the devices that `model` may be on exist."""
        every = range(len(self._accelerators))
        if missing := sorted(set(allowed) - set(every)):
            raise FailedPrecondition(
                f"accelerator_devices of model '{model}' has {_listed(missing)}, and this server has "
                f"{_listed(every)}; correct the settings, or see if CUDA_VISIBLE_DEVICES leaves devices out"
            )

    @contextmanager
    def place(
        self, model: str, size_bytes: int, *, allowed: Sequence[int], replica_count: int
    ) -> Iterator[Sequence[Accelerator]]:
        """Chooses the devices of a version of `model` (`choose_devices`), for the upload inside the block.

        `allowed` are places among the accelerators, of which `check` found all; none means all.
        """
        every = range(len(self._accelerators))
        with self._lock:
            chosen = choose_devices(
                self._devices(),
                size_bytes,
                allowed=allowed or every,
                replica_count=replica_count,
                before=self._by_model.get(model, ()),
            )
            self._by_model[model] = chosen
            self._reserve(chosen, size_bytes)
        try:
            yield [self._accelerators[place] for place in chosen]
        finally:
            with self._lock:
                self._reserve(chosen, -size_bytes)

    def _reserve(self, places: Sequence[int], size_bytes: int) -> None:
        for place in places:
            self._reserved[place] += size_bytes

    def _devices(self) -> Sequence[Device]:
        states = [accelerator.state() for accelerator in self._accelerators]
        self._look_at_times(states)
        return [
            Device(
                limit_bytes=state.limit_bytes,
                taken_bytes=state.parameter_bytes + reserved_bytes,
                idle_bytes=state.idle_bytes,
                busy_ratio=busy_ratio,
                is_failing=state.is_failing,
            )
            for state, reserved_bytes, busy_ratio in zip(
                states, self._reserved, self._busy_ratios, strict=True
            )
        ]

    def _look_at_times(self, states: Sequence[AcceleratorState]) -> None:
        now_ns = self._clock.now_ns()
        passed_ns = now_ns - self._looked_ns
        if passed_ns < NS_PER_SECOND:
            return
        busy_ns = [state.busy_ns for state in states]
        self._busy_ratios = [
            (now - before) / passed_ns for now, before in zip(busy_ns, self._busy_ns, strict=True)
        ]
        self._busy_ns, self._looked_ns = busy_ns, now_ns


def _listed(places: Sequence[int]) -> str:
    return f"device{'s' if len(places) > 1 else ''} {', '.join(map(str, places))}"
