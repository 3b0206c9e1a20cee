"""Requests per second by h2load (Debian's nghttp2-client), which repeats one raw gRPC frame."""

import re
import shutil
import statistics
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loadtest.drive.rest_load import logged_latencies_ns
from loadtest.measure.latency import percentile_ms
from serving.base.errors import FailedPrecondition, Unavailable

PREDICT = "/tensorflow.serving.PredictionService/Predict"

# 16 requests in flight, as for the prototype's figures (docs/figures.md).
_CONNECTION_COUNT = 4
_STREAM_COUNT = 4
_TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Throughput:
    """The figures of h2load. Latencies are from sending to the last byte, in closed loop.

    `data_bytes` are those of all DATA frames that were received.
    """

    requests_per_second: float
    p50_ms: float
    p99_ms: float
    data_bytes: int


def median_throughput(runs: list[Throughput]) -> Throughput:
    """The median of each figure."""
    return Throughput(
        statistics.median(run.requests_per_second for run in runs),
        statistics.median(run.p50_ms for run in runs),
        statistics.median(run.p99_ms for run in runs),
        round(statistics.median(run.data_bytes for run in runs)),
    )


def framed(message: bytes) -> bytes:
    """Frames a gRPC message as in HTTP/2 DATA: flag 0 (not compressed), length, message."""
    return struct.pack(">BI", 0, len(message)) + message


def drive(target: str, message: bytes, request_count: int) -> Throughput:
    """Sends `message` to Predict of `target` (HOST:PORT) `request_count` times, 16 in flight.

    h2load reads only the HTTP status; the version's failed_count has the gRPC failures. Raises
    FailedPrecondition if h2load is not installed, and Unavailable if requests fail.
    """
    if shutil.which("h2load") is None:
        raise FailedPrecondition("h2load is not installed: apt-get install nghttp2-client")
    with tempfile.TemporaryDirectory(prefix="millpond-h2load-") as name:
        body, log = Path(name, "body"), Path(name, "log")
        body.write_bytes(framed(message))
        command = [
            "h2load",
            f"--requests={request_count}",
            f"--clients={_CONNECTION_COUNT}",
            f"--max-concurrent-streams={_STREAM_COUNT}",
            "--header=te: trailers",
            "--header=content-type: application/grpc",
            f"--data={body}",
            f"--log-file={log}",
            f"http://{target}{PREDICT}",
        ]
        result = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
        )
        return parse(result.stdout, log.read_text() if log.exists() else "")


def parse(report: str, log: str) -> Throughput:
    """Parses h2load's report and its log: a line a request with start, status and duration in
    µs.
    """
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", report)
    failed = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", report)
    data = re.search(r"traffic: .*\((\d+)\) data", report)
    if (
        rate is None
        or failed is None
        or data is None
        or any(int(count) for count in failed.groups()[1:])
    ):
        raise Unavailable(f"h2load's requests failed; its report:\n{report}")
    latencies_ns = logged_latencies_ns(log)
    return Throughput(
        float(rate[1]),
        percentile_ms(latencies_ns, 500),
        percentile_ms(latencies_ns, 990),
        int(data[1]),
    )
