"""Load on REST: h2load (Debian's nghttp2-client) over HTTP/1.1, which repeats one body."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from serving.base.clock import Clock, pause
from serving.base.errors import FailedPrecondition, Unavailable
from serving.commands.ctr_model import request_inputs

# The same number in flight as in gRPC's closed loop.
CONNECTION_COUNT = 16
NS_PER_US = 1_000
_TIMEOUT_SECONDS = 120
# The client shares the server's cores, so it runs below the server's priority.
_BELOW_REQUESTS = ("nice", "-n", "19")


def rows_body(rows: int, table_rows: int, seed: int) -> bytes:
    """Makes a Predict body in rows, as clients of TensorFlow Serving write it."""
    inputs = request_inputs(seed, rows, table_rows)
    columns = zip(inputs["dense"].tolist(), inputs["sparse"].tolist(), strict=True)
    instances = [{"dense": dense, "sparse": sparse} for dense, sparse in columns]
    return json.dumps({"instances": instances}).encode()


def command(
    url: str, body: Path, *, limits: list[str], connection_count: int = CONNECTION_COUNT
) -> list[str]:
    """Makes h2load's command line; `limits` are its options for the count or the time."""
    return [
        "h2load",
        "--h1",
        f"--clients={connection_count}",
        "--header=content-type: application/json",
        f"--data={body}",
        *limits,
        url,
    ]


def rate_of(report: str) -> float:
    """Reads the requests per second. Raises Unavailable if a request failed or `report` does not parse."""
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", report)
    failed = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", report)
    if rate is None or failed is None or any(int(count) for count in failed.groups()[1:]):
        raise Unavailable(f"h2load's requests failed; its report:\n{report}")
    return float(rate[1])


def closed_loop_rate(url: str, body: bytes, request_count: int) -> float:
    """Measures requests per second with CONNECTION_COUNT in flight.

    Raises FailedPrecondition, Unavailable.
    """
    with _body_file(body) as path:
        given = command(url, path, limits=[f"--requests={request_count}"])
        result = subprocess.run(
            given, check=False, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
    return rate_of(result.stdout)


@dataclass
class SteadyLoad:
    """The latencies of a load at a fixed rate, once it is over."""

    latencies_ns: list[int] = field(default_factory=list)


@contextmanager
def steady_load(
    url: str, body: bytes, rate_per_second: float, seconds: float, clock: Clock
) -> Iterator[SteadyLoad]:
    """Sends `rate_per_second` requests a second for `seconds` inside `with`, and then waits for
    them.

    Each connection has its own program, started one after the other, because the connections of one
    program send at the same moments. Latencies begin when a request is sent. Raises Unavailable at
    the end if a request failed.
    """
    each = max(1, round(rate_per_second / CONNECTION_COUNT))
    limits = [f"--rps={each}", f"--duration={seconds:g}"]
    load = SteadyLoad()
    with _body_file(body) as path, ExitStack() as stack:
        programs = []
        for number in range(CONNECTION_COUNT):
            log = path.with_name(f"log{number}")
            given = command(url, path, limits=[*limits, f"--log-file={log}"], connection_count=1)
            programs.append((stack.enter_context(_program(given)), log))
            pause(clock, 1 / (each * CONNECTION_COUNT))
        yield load
        for process, log in programs:
            report, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
            rate_of(report)
            load.latencies_ns += logged_latencies_ns(log.read_text())


@contextmanager
def _program(given: list[str]) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([*_BELOW_REQUESTS, *given], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def logged_latencies_ns(log: str) -> list[int]:
    """Parses h2load's log: a line a request with start, status and duration in µs."""
    return [int(line.split("\t")[2]) * NS_PER_US for line in log.splitlines()]


@contextmanager
def _body_file(body: bytes) -> Iterator[Path]:
    if shutil.which("h2load") is None:
        raise FailedPrecondition("h2load is not installed: apt-get install nghttp2-client")
    with tempfile.TemporaryDirectory(prefix="millpond-h2load-") as name:
        path = Path(name, "body")
        path.write_bytes(body)
        yield path
