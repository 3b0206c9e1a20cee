"""`life store`: a base path in object storage: the time from an upload until its version serves, and the
cost of looks at a store that does not change.

The store is moto's S3 server on this machine, so its network is faster than any real one.
"""

import argparse
import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.commands.options import Command, add_json_option, positive, positive_integer
from loadtest.commands.start import Spent
from loadtest.drive.s3_server import BUCKET, S3Server, s3_environment, s3_server
from loadtest.drive.small_model import write_small_models
from loadtest.report.report import machine
from loadtest.report.tables import write_json
from serving.base.clock import Clock, SystemClock, pause, seconds_since
from serving.server.model_server import ModelServer

_MODEL = "small-0000"
_START_SECONDS = 120.0
# Without this padding the files of a version take some KB.
_PADDING_NAME = "assets.extra/padding"
_REQUEST = re.compile(rb'"(?:GET|HEAD) /')


@dataclass(frozen=True)
class Idle:
    """The cost of a server at rest. `cpu_ratio` is in processor seconds per second."""

    requests_per_minute: float
    cpu_ratio: float
    cpu_ratio_local: float


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--uploads", type=positive_integer, default=5, help="versions that are uploaded; default 5"
    )
    parser.add_argument(
        "--mib", type=positive_integer, default=100, help="MiB of each version; default 100"
    )
    parser.add_argument(
        "--poll-seconds", type=positive, default=10, help="seconds between two looks; default 10"
    )
    parser.add_argument(
        "--idle-seconds", type=positive, default=120, help="seconds at rest; default 120"
    )
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    with tempfile.TemporaryDirectory(prefix="millpond-store-") as folder:
        directory = Path(folder)
        export = write_small_models(directory, 1)[_MODEL] / "1"
        log = directory / "s3.log"
        with s3_server(log, clock) as s3:
            os.environ.update(s3_environment(s3.port))
            s3.upload(export, "m/1")
            flags = _flags(directory, parsed.poll_seconds)
            with ModelServer(model_name="m", base_path=f"s3://{BUCKET}/m", **flags) as server:
                server.wait_until_available("m", 1, timeout_seconds=_START_SECONDS)
                _pad(export, parsed.mib)
                seconds = []
                for index, wait_seconds in enumerate(
                    waits_seconds(parsed.uploads, parsed.poll_seconds)
                ):
                    pause(clock, wait_seconds)
                    seconds.append(_upload(s3, export, index + 2, server, clock))
                idle = _idle(server, export.parent, log, parsed.idle_seconds, clock)
    report = store_report(seconds, idle, parsed.mib, parsed.poll_seconds)
    print_store(report, console)
    write_json(parsed.json, {**report, "machine": machine()})
    return 0


def _flags(directory: Path, poll_seconds: float) -> dict[str, Any]:
    return {
        "model_cache_directory": directory / "cache",
        "model_store_poll_wait_seconds": poll_seconds,
        "rest_api_port": 0,
    }


def waits_seconds(upload_count: int, poll_seconds: float) -> Sequence[float]:
    """The wait before each upload, spread evenly over the time between two looks.

    Without a wait, each upload would begin right after the look that found the upload before, and would
    wait nearly the longest time for the next look.
    """
    return [poll_seconds * (index + 0.5) / upload_count for index in range(upload_count)]


def _pad(export: Path, mib: int) -> None:
    padding = export / _PADDING_NAME
    padding.parent.mkdir()
    padding.write_bytes(os.urandom(2**20) * mib)


def _upload(
    s3: S3Server, export: Path, version: int, server: ModelServer, clock: Clock
) -> Mapping[str, float]:
    """Uploads a version.

    Returns the seconds of the upload itself, and from its end until the version serves.
    """
    begin_ns = clock.now_ns()
    s3.upload(export, f"m/{version}")
    upload_seconds = seconds_since(clock, begin_ns)
    end_ns = clock.now_ns()
    server.wait_until_available("m", version, timeout_seconds=_START_SECONDS)
    return {"upload": upload_seconds, "available": seconds_since(clock, end_ns)}


def _idle(
    server: ModelServer, base_path: Path, log: Path, idle_seconds: float, clock: Clock
) -> Idle:
    # Waits until the listings that follow the last upload are over.
    pause(clock, 5)
    requests = len(_REQUEST.findall(log.read_bytes()))
    cpu_ratio = _cpu_ratio(server, idle_seconds, clock)
    requests = len(_REQUEST.findall(log.read_bytes())) - requests
    shutil.rmtree(base_path / "1" / _PADDING_NAME.partition("/")[0])
    with ModelServer(model_name="m", base_path=base_path, rest_api_port=0) as local:
        local.wait_until_available("m", 1, timeout_seconds=_START_SECONDS)
        pause(clock, 5)
        cpu_ratio_local = _cpu_ratio(local, idle_seconds, clock)
    return Idle(60 * requests / idle_seconds, cpu_ratio, cpu_ratio_local)


def _cpu_ratio(server: ModelServer, seconds: float, clock: Clock) -> float:
    before = Spent.of(server.process_id)
    pause(clock, seconds)
    after = Spent.of(server.process_id)
    used = after.user_seconds + after.system_seconds - before.user_seconds - before.system_seconds
    return used / seconds


def store_report(
    seconds: Sequence[Mapping[str, float]], idle: Idle, mib: int, poll_seconds: float
) -> dict[str, Any]:
    """Makes the JSON: medians and maxima over the uploads, and the cost at rest."""
    available = [each["available"] for each in seconds]
    return {
        "mib": mib,
        "poll_seconds": poll_seconds,
        "upload_seconds": round(statistics.median(each["upload"] for each in seconds), 2),
        "available_seconds": round(statistics.median(available), 2),
        "available_seconds_max": round(max(available), 2),
        "requests_per_minute": round(idle.requests_per_minute, 1),
        "cpu_ratio": round(idle.cpu_ratio, 4),
        "cpu_ratio_local": round(idle.cpu_ratio_local, 4),
    }


def print_store(report: Mapping[str, Any], console: Console) -> None:
    """Prints a line for the uploads and a line for the rest."""
    console.print(
        f"{report['mib']} MiB, a look every {report['poll_seconds']:g} s: from the end of the upload "
        f"to AVAILABLE {report['available_seconds']} s (longest {report['available_seconds_max']} s); "
        f"the upload itself {report['upload_seconds']} s",
        highlight=False,
    )
    console.print(
        f"at rest: {report['requests_per_minute']} requests a minute, {report['cpu_ratio']:.2%} of a "
        f"core; with a local directory {report['cpu_ratio_local']:.2%}",
        highlight=False,
    )


STORE = Command(
    "a base path in object storage: time to serve, and cost at rest", _add_options, _run
)
