"""Measures how much longer the first requests to a new version take than later ones.

    python -m loadtest.commands.first_requests VERSION_DIRECTORY OTHER_VERSION_DIRECTORY [--swaps 20]

Runs in one process, without a network. A request thread answers from the live version. Meanwhile
another thread loads the next version and warms it with `--warm-up-requests` requests, as a server's
loader does. Then the request thread sends its first 200 requests to the new version, and 2,000 more
for comparison. Prints their latencies in microseconds, as medians over the swaps.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.base.clock import SystemClock
from serving.commands.ctr_model import request_inputs
from serving.commands.ctr_request import predict_request
from serving.server import launcher

_FIRST_COUNT = 200
_LATER_COUNT = 2_000
_PAYLOAD_COUNT = 64
_HEADROOM_BYTES = 256 * 2**20
_KEEPER_SECONDS = 60.0

Latencies = npt.NDArray[np.float64]
"""Microseconds, one for each request in order."""


def main() -> int:
    """Runs the measurement, in its own process because TensorFlow's pools belong to the process."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("directories", type=Path, nargs=2, help="versions, like /models/ctr/1")
    parser.add_argument("--rows", type=int, default=100, help="rows of a request")
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--warm-up-requests", type=int, default=64, help="of the next version")
    parsed = parser.parse_args()
    launcher.ensure_allocator("jemalloc")
    swaps = measure(parsed.directories, parsed.rows, parsed.swaps, parsed.warm_up_requests)
    print(describe([first for first, _ in swaps], [later for _, later in swaps]))
    return 0


def measure(
    directories: Sequence[Path], rows: int, swap_count: int, warm_up_count: int
) -> list[tuple[Latencies, Latencies]]:
    """Returns the latencies of the first requests and of later ones, for each swap."""
    from serving.data_plane import _native

    _native.initialize(intra_op_thread_count=0, inter_op_thread_count=0)
    pool = _native.SlabPool(spare_slab_count=1, thread_priority="idle")
    requests = [
        predict_request("ctr", request_inputs(seed, rows)).SerializeToString()
        for seed in range(_PAYLOAD_COUNT)
    ]
    live = _loaded(_native, pool, 1, directories[0])
    pool.expect("ctr", live, serving_count=1)
    pool.refill(2**63 - 1)
    pool.wait_until_idle(_KEEPER_SECONDS)
    swaps = []
    with ThreadPoolExecutor(max_workers=1) as request_thread:

        def answered(predict: Callable[[bytes], bytes], count: int) -> Latencies:
            return request_thread.submit(_latencies, predict, requests, count).result()

        answered(live.predict, _LATER_COUNT)
        for swap in range(swap_count):
            coming = _loaded(_native, pool, swap + 2, directories[(swap + 1) % 2])
            _latencies(coming.predict, requests, warm_up_count)
            answered(live.predict, _LATER_COUNT)
            swaps.append(
                (answered(coming.predict, _FIRST_COUNT), answered(coming.predict, _LATER_COUNT))
            )
            live.destroy()
            live = coming
    pool.stop()
    return swaps


def describe(first: Sequence[Latencies], later: Sequence[Latencies]) -> str:
    """Returns the table as text. Pure."""
    by_number = np.median(np.array(first), axis=0)
    steady = np.median(np.concatenate(later))
    lines = [f"{len(first)} swaps; later requests: median {steady:.0f} us"]
    for begin, end in ((0, 1), (1, 2), (2, 5), (5, 10), (10, 50), (50, _FIRST_COUNT)):
        mean = by_number[begin:end].mean()
        name = f"request {end}" if end == begin + 1 else f"requests {begin + 1} to {end}"
        lines.append(f"{name}: {mean:.0f} us, {mean / steady:.2f} times as long")
    return "\n".join(lines)


def _loaded(native: Any, pool: Any, version: int, directory: Path) -> Any:
    load = native.SavedModelLoad("ctr", version, str(directory), ["serve"])
    load.read_graph()
    load.take_arena(pool, load.plan_memory(_HEADROOM_BYTES).slab_bytes)
    for step in (load.create_session, load.restore, load.run_init, load.make_callables):
        step()
    return load.finish()


def _latencies(
    predict: Callable[[bytes], bytes], requests: Sequence[bytes], count: int
) -> Latencies:
    clock = SystemClock()
    latencies = np.empty(count)
    for number, request in enumerate(islice(cycle(requests), count)):
        started_ns = clock.now_ns()
        predict(request)
        latencies[number] = (clock.now_ns() - started_ns) / 1_000
    return latencies


if __name__ == "__main__":
    sys.exit(main())
