"""The plan and the outcome of a run, in the files that the issue loop reads and writes.

native/load_generator/plan.cc and outcome.cc define the same layouts.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from loadtest.plan.arrivals import Offsets, payload_numbers
from serving.base.errors import DataLoss, StatusCode

_PLAN_MAGIC, _OUTCOME_MAGIC = b"MPPLAN02", b"MPOUTC01"
_PLAN_HEADER = struct.Struct("=8s7q")
_OUTCOME_HEADER = struct.Struct("=8s5q")
_REPLY_HEADER = struct.Struct("=iiq")
NOT_KEPT = -1
"""In `Outcome.reply_of`: the issue loop had no space left for this reply."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The requests of a run and their times.

    `payload_of` has for each of `offsets_ns` the index of its payload in `payloads`.
    """

    offsets_ns: npt.NDArray[np.int64]
    payload_of: npt.NDArray[np.int32]
    payloads: Sequence[bytes]
    # The count of a few client processes.
    channel_count: int = 4
    # Longer than the slowest request of any swap, so that slow answers are not counted as lost.
    deadline_ns: int = 10_000_000_000
    # Above all threads of the server, below the kernel's own threads.
    realtime_priority: int = 10
    # Enough for some hundred versions of the CTR model at 100 rows, and for the distinct answers of two
    # thousand delta versions to 16 requests of 32 ids.
    kept_reply_bytes_max: int = 64 << 20
    # 0 means open loop. Otherwise a due request waits while this many requests are unanswered.
    in_flight_max: int = 0

    @classmethod
    def drawn(cls, payloads: Sequence[bytes], offsets_ns: Offsets, seed: int) -> Self:
        """Plans one request at each of `offsets_ns`, whose payloads are drawn by `seed`."""
        numbers = payload_numbers(len(offsets_ns), len(payloads), seed)
        return cls(offsets_ns=offsets_ns, payload_of=numbers, payloads=payloads)


class PlanSource(Protocol):
    """The clients of one model."""

    def plan(self, offsets_ns: Offsets, seed: int) -> Plan:
        """Plans one request at each of `offsets_ns`, drawn by `seed`."""
        ...


@dataclass(frozen=True)
class Reply:
    """A distinct reply to its payload; for errors, `data` is the status's text."""

    payload: int
    code: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of the issued requests, which are the first requests of the plan.

    Instants are of `Clock.now_ns`, which is the same clock in every process of a machine.
    """

    scheduled_ns: npt.NDArray[np.int64]
    issued_ns: npt.NDArray[np.int64]
    completed_ns: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]
    reply_of: npt.NDArray[np.int32]
    replies: Sequence[Reply]
    started_ns: int
    cpu_ns: int
    is_realtime: bool

    def wrong(self, is_right: Callable[[Reply], bool]) -> npt.NDArray[np.bool_]:
        """Checks each request: True if it was answered with OK, but with a reply that is not right.

        `is_right` is asked once for each distinct reply with OK. Replies that were not kept count as wrong.
        """
        is_wrong = [reply.code == StatusCode.OK and not is_right(reply) for reply in self.replies]
        # The last element stands for NOT_KEPT, which is -1.
        mask: npt.NDArray[np.bool_] = np.array([*is_wrong, True])[self.reply_of]
        mask &= self.codes == StatusCode.OK
        return mask


def write_plan(plan: Plan, path: Path) -> None:
    """Writes the input file of `issue_loop run`. Raises OSError."""
    header = _PLAN_HEADER.pack(
        _PLAN_MAGIC,
        len(plan.offsets_ns),
        len(plan.payloads),
        plan.channel_count,
        plan.deadline_ns,
        plan.realtime_priority,
        plan.kept_reply_bytes_max,
        plan.in_flight_max,
    )
    sizes = np.array([len(payload) for payload in plan.payloads], np.int64)
    arrays = (plan.offsets_ns.astype(np.int64), plan.payload_of.astype(np.int32), sizes)
    path.write_bytes(b"".join([header, *(a.tobytes() for a in arrays), *plan.payloads]))


def read_outcome(path: Path, plan: Plan) -> Outcome:
    """Reads the file that `issue_loop run` wrote for `plan`. Raises DataLoss, OSError."""
    reader = _Reader(path.read_bytes(), path)
    magic, request_count, reply_count, started_ns, cpu_ns, is_realtime = reader.take(
        _OUTCOME_HEADER
    )
    if magic != _OUTCOME_MAGIC:
        raise DataLoss(f"{path} is not an outcome of this version's issue_loop; rebuild issue_loop")
    return Outcome(
        scheduled_ns=started_ns + plan.offsets_ns[:request_count],
        issued_ns=reader.array(np.int64, request_count),
        completed_ns=reader.array(np.int64, request_count),
        codes=reader.array(np.int32, request_count),
        reply_of=reader.array(np.int32, request_count),
        replies=tuple(reader.reply() for _ in range(reply_count)),
        started_ns=started_ns,
        cpu_ns=cpu_ns,
        is_realtime=bool(is_realtime),
    )


class _Reader:
    """Takes values from the front of a file's bytes. Raises DataLoss if the file is too short."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._data = data
        self._path = path
        self._position = 0

    def bytes(self, size_bytes: int) -> bytes:
        taken = self._data[self._position : self._position + size_bytes]
        if len(taken) < size_bytes:
            raise DataLoss(f"{self._path} is cut short at byte {len(self._data)}")
        self._position += size_bytes
        return taken

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.bytes(layout.size))

    def array(self, dtype: type[Any], count: int) -> npt.NDArray[Any]:
        return np.frombuffer(self.bytes(count * np.dtype(dtype).itemsize), dtype)

    def reply(self) -> Reply:
        payload, code, size_bytes = self.take(_REPLY_HEADER)
        return Reply(payload, code, self.bytes(size_bytes))
