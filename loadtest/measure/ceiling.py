"""The ceiling: requests per second of a loaded version without a network.

    python -m loadtest.measure.ceiling VERSION_DIRECTORY --rows 100 --requests 5000

One thread per core calls the data plane with the bytes of a request, decode and encode included. A
server on the same cores stays below this figure. Each call takes the interpreter's lock twice, on
the way in and for the answer, and the threads queue for it. At one row that time is not small
compared to the model's, so the figure is a lower bound of the ceiling. Prints only the requests per
second.
"""

import argparse
import os
import sys
import threading
from pathlib import Path

from serving.base.clock import NS_PER_SECOND, SystemClock
from serving.commands.ctr_model import request_inputs
from serving.commands.ctr_request import predict_request

_LOAD_STEPS = ("read_graph", "create_session", "restore", "run_init", "make_callables")
# Requests before the clock starts, to warm the version up.
_WARM_UP_COUNT = 50


def main() -> int:
    """Runs the measurement, in its own process because TensorFlow's pools belong to the process."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("directory", type=Path, help="a version's directory, like /models/ctr/1")
    parser.add_argument("--rows", type=int, default=1, help="rows of the request")
    parser.add_argument("--requests", type=int, default=5_000, help="requests of each thread")
    parsed = parser.parse_args()
    print(ceiling_per_second(parsed.directory, parsed.rows, parsed.requests))
    return 0


def ceiling_per_second(directory: Path, rows: int, request_count: int) -> float:
    """Returns the requests per second of the version in `directory`, with one thread per core."""
    from serving.data_plane.plane import RuntimeOptions, native_module

    plane = native_module()
    plane.initialize(RuntimeOptions(intra_op_thread_count=0, inter_op_thread_count=0))
    load = plane.SavedModelLoad("ctr", int(directory.name), str(directory), ["serve"])
    for step in _LOAD_STEPS:
        getattr(load, step)()
    servable = load.finish()
    request = predict_request("ctr", request_inputs(0, rows)).SerializeToString()

    def run(count: int) -> None:
        for _ in range(count):
            servable.predict(request)

    run(_WARM_UP_COUNT)
    thread_count = os.cpu_count() or 1
    threads = [threading.Thread(target=run, args=(request_count,)) for _ in range(thread_count)]
    clock = SystemClock()
    started_ns = clock.now_ns()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return thread_count * request_count * NS_PER_SECOND / (clock.now_ns() - started_ns)


if __name__ == "__main__":
    sys.exit(main())
