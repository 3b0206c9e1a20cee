"""The processor time of a request, part by part, from a profile of the server.

`perf script` prints each sample as its thread and the frames of its stack, the innermost first. A sample in
the kernel belongs to the part of its system call. Any other sample belongs to the part of its innermost
function: libraries without frame pointers have no frames above it.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadtest.drive.profile import recorded, script_of
from loadtest.drive.shell_server import ShellServer
from loadtest.measure.turns import Results, Say, take_turn, turn_request_count
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.loops import ClosedLoop
from serving.base.clock import Clock

# The fields of `perf script -F` that `samples` parses.
_SCRIPT_FIELDS = "comm,ip,sym,dso"
_SECONDS = 4

OTHER = "other"
_KERNEL = "[kernel.kallsyms]"
_MODULE = "_data_plane"
_FRAME = re.compile(r"^\s+[0-9a-f]+ (?P<symbol>.*) \((?P<dso>.*)\)$")
_MILLPOND = re.compile(r"millpond::(\w+)::")

_SYSTEM_CALLS = (
    ("kernel: receive", re.compile(r"_sys_(recv|read)")),
    ("kernel: send", re.compile(r"_sys_(send|write)")),
    ("kernel: epoll", re.compile(r"_sys_epoll")),
    ("kernel: futex", re.compile(r"_sys_futex")),
    ("kernel: page faults and mappings", re.compile(r"exc_page_fault|_sys_(m|brk)")),
)
_RUNGS = {
    "base": "ours: parse, buffers and clocks",
    "inference": "ours: decode and encode",
    "memory": "ours: count memory",
    "metrics": "ours: record",
    "rest": "ours: JSON",
    "rpc": "wire: connections, calls and threads",
    "servable": "ours: look-up and batches",
    "tensor": "ours: decode and encode",
    "tf": "ours: around the run",
}
# By the symbol. The first match counts.
_MODULE_PARTS = (
    ("wire: nghttp2", re.compile(r"^nghttp2_|^(session_|stream_|hd_|bufs?_|inflight)")),
    ("wire: TLS", re.compile(r"^(SSL_|ssl_|tls_|EVP_|aes|AES|BIO_|OPENSSL_)")),
)
_TENSORFLOW_PARTS = (
    ("TensorFlow: pools", re.compile(r"ThreadPoolTempl|RunQueue|EventCount|EigenEnvironment")),
    (
        "TensorFlow: executor",
        re.compile(r"Executor|Propagator|DirectSession|CallFrame|PendingCounts|Rendezvous"),
    ),
    (
        "TensorFlow: contexts and tensors",
        re.compile(r"OpKernelContext|tensorflow::Tensor(Shape\w*)?::|ThreadPoolDevice|Allocator"),
    ),
)
_LIBRARY_PARTS = (
    ("TensorFlow: kernels", re.compile(r"libtensorflow_cc|\[JIT\]|perf-\d+\.map|libiomp|libgomp")),
    ("TensorFlow: rest", re.compile(r"libtensorflow_framework|_pywrap_tensorflow")),
    ("memory: malloc and free", re.compile(r"libjemalloc")),
    ("Python", re.compile(r"libpython|/python3|\bpython\b")),
    ("clocks and system calls", re.compile(r"\[vdso\]")),
)
_LIBC_MEMORY = re.compile(r"mem(move|cpy|set|cmp)")
_LIBC_MALLOC = re.compile(r"malloc|free|calloc|operator (new|delete)")


@dataclass(frozen=True)
class Frame:
    """One function of a sample's stack."""

    symbol: str
    dso: str


def profiled(
    servers: Mapping[str, ShellServer],
    results: Results,
    loads: Mapping[int, CtrLoad],
    clock: Clock,
    say: Say,
) -> Mapping[str, Mapping[str, Any]]:
    """Puts each closed loop once more on each server, under `perf`, and returns the µs of a request by
    part.

    They add up to the time that the turns of `results` took.

    Raises Unavailable if there is no `perf`.
    """
    budgets: dict[str, Mapping[str, Any]] = {}
    for (loop, name), turns in results.items():
        if not isinstance(loop, ClosedLoop):
            continue
        say(f"profile of {name}, {loop}")
        server, load = servers[name], loads[loop.rows]
        count = turn_request_count(server, loop, load, _SECONDS, clock)
        with TemporaryDirectory() as directory:
            path = Path(directory) / "perf.data"
            with recorded(server.process_ids(), path):
                take_turn(server, loop, load, count, len(turns), clock)
            script = script_of(path, _SCRIPT_FIELDS)
        each_us = [turn.server_ns / len(turn.outcome.codes) / 1_000 for turn in turns]
        request_us = round(statistics.median(each_us), 1)
        parts = dict(budget_us(script, request_us))
        budgets[f"{name} {loop}"] = {"request_us": request_us, "parts": parts}
    return budgets


def samples(script: str) -> Iterator[Sequence[Frame]]:
    """Yields the frames of each sample of the text of `perf script`, the innermost first."""
    frames: list[Frame] = []
    for line in [*script.splitlines(), ""]:
        matched = _FRAME.match(line)
        if matched:
            frames.append(Frame(matched["symbol"], matched["dso"]))
        elif not line.strip() and frames:
            yield frames
            frames = []


def part_of(frames: Sequence[Frame]) -> str:
    """The part that a sample belongs to."""
    innermost = frames[0]
    if innermost.dso.startswith(_KERNEL):
        kernel = [frame.symbol for frame in frames if frame.dso.startswith(_KERNEL)]
        return _first_match(_SYSTEM_CALLS, " ".join(kernel)) or "kernel: rest"
    if _MODULE in innermost.dso:
        return _part_of_module(innermost.symbol)
    return _part_of_library(innermost)


def _part_of_module(symbol: str) -> str:
    rung = _MILLPOND.search(symbol)
    if rung:
        return _RUNGS.get(rung[1], "ours: rest")
    return _first_match(_MODULE_PARTS, symbol) or "ours: rest"


def _part_of_library(frame: Frame) -> str:
    if "libtensorflow" in frame.dso:
        return _first_match(_TENSORFLOW_PARTS, frame.symbol) or _of_dso(frame.dso)
    if _LIBC_MEMORY.search(frame.symbol):
        return "memory: copies and comparisons"
    if _LIBC_MALLOC.search(frame.symbol):
        return "memory: malloc and free"
    return _of_dso(frame.dso)


def _of_dso(dso: str) -> str:
    return _first_match(_LIBRARY_PARTS, dso) or OTHER


def _first_match(parts: Iterable[tuple[str, re.Pattern[str]]], text: str) -> str | None:
    return next((part for part, pattern in parts if pattern.search(text)), None)


def budget_us(script: str, request_us: float) -> Mapping[str, float]:
    """The µs of each part, the largest first. Together they are `request_us`, the time of a request.

    Returns an empty mapping if the profile has no samples.
    """
    counts = Counter(part_of(frames) for frames in samples(script))
    return {
        part: round(request_us * count / counts.total(), 2) for part, count in counts.most_common()
    }


def summed(parts: Mapping[str, float]) -> Mapping[str, float]:
    """Adds up the parts that have the same text before the colon, the largest sum first."""
    sums: Counter[str] = Counter()
    for part, microseconds in parts.items():
        sums[part.partition(":")[0]] += microseconds  # type: ignore[assignment]
    return {group: round(total, 2) for group, total in sums.most_common()}
