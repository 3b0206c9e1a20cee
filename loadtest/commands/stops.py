"""`life stops`: servers that are stopped under load. Each request is answered, or it has not run."""

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console

from loadtest.commands.options import Command, add_json_option, positive_integer
from loadtest.drive.generator import Generator
from loadtest.drive.small_model import write_small_models
from loadtest.measure.outcome_figures import error_messages
from loadtest.plan.plan import Outcome, Plan
from loadtest.report.report import machine
from loadtest.report.tables import write_json
from serving.base.clock import SystemClock, pause
from serving.base.errors import StatusCode
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import to_tensor_proto
from serving.server.model_server import ModelServer

_IN_FLIGHT = 64
_SECONDS_UNDER_LOAD = 0.5
# More than any machine answers before its stop.
_REQUEST_COUNT = 1_000_000


@dataclass
class Stops:
    """The results of all stops: answers by code, and the requests that ran without an answer."""

    codes: Counter[str] = field(default_factory=Counter)
    unanswered_run_count: int = 0
    messages: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome, run_count: int) -> None:
        """Adds the outcome of one stop, and the number of requests that the server ran."""
        codes = Counter(StatusCode(int(code)).name for code in outcome.codes)
        self.codes.update(codes)
        self.unanswered_run_count += run_count - codes["OK"]
        self.messages += [text for text in error_messages([outcome]) if " x 14" not in text]


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stops", type=positive_integer, default=10, help="default 10")
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, stops = Console(), Stops()
    with TemporaryDirectory(prefix="millpond-stops-") as directory:
        (name, base_path), *_ = write_small_models(Path(directory), 1).items()
        for number in range(1, parsed.stops + 1):
            stops.add(*_stop_under_load(name, base_path, Path(directory) / f"log-{number}"))
            if number % 10 == 0:
                console.print(f"{number} stops: {dict(stops.codes)}")
    report = stops_report(stops, parsed.stops)
    console.print(
        f"{report['stops']} stops under load: {report['codes']}; "
        f"{report['lost_count']} requests lost, {stops.unanswered_run_count} ran in vain"
    )
    for message in stops.messages:
        console.print(f"  {message}", markup=False)
    write_json(parsed.json, report)
    return 1 if report["lost_count"] or stops.unanswered_run_count else 0


def _stop_under_load(name: str, base_path: Path, log_path: Path) -> tuple[Outcome, int]:
    with ModelServer(model_name=name, base_path=base_path, log_path=log_path) as server:
        server.wait_until_available(name, 1)
        with Generator(_plan(name), server.target) as generator:
            pause(SystemClock(), _SECONDS_UNDER_LOAD)
            server.stop()
            outcome = generator.stop()
        (unloaded,) = (event for event in server.events() if event["event"] == "version_unloaded")
    return outcome, int(unloaded["request_count"])


def _plan(name: str) -> Plan:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.inputs["x"].CopyFrom(to_tensor_proto(np.array([1.0], np.float32)))
    return Plan(
        offsets_ns=np.zeros(_REQUEST_COUNT, np.int64),
        payload_of=np.zeros(_REQUEST_COUNT, np.int32),
        payloads=[request.SerializeToString()],
        in_flight_max=_IN_FLIGHT,
    )


def stops_report(stops: Stops, stop_count: int) -> Mapping[str, Any]:
    """Makes the counts.

    A request is lost if its answer is neither OK nor UNAVAILABLE, which sends clients to another server.
    """
    lost = {code: n for code, n in stops.codes.items() if code not in ("OK", "UNAVAILABLE")}
    return {
        "stops": stop_count,
        "codes": dict(stops.codes),
        "lost_count": sum(lost.values()),
        "unanswered_run_count": stops.unanswered_run_count,
        "machine": machine(),
    }


STOPS = Command("servers that are stopped under load: no request is lost", _add_options, _run)
