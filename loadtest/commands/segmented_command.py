"""The run of a command that measures segments on one server of the demo's model."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rich.console import Console

from loadtest.commands.plain_run import load_of, rate_of
from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.demo_server import demo_server
from loadtest.measure.segments import Segment, SegmentedRun
from loadtest.plan.ctr_load import CtrLoad
from loadtest.report.tables import exit_status, write_json
from serving.base.clock import Clock, SystemClock
from serving.server.model_server import ModelServer

OfSegment = TypeVar("OfSegment", bound=Segment)

Measure = Callable[
    [argparse.Namespace, CtrLoad, float, ModelServer, Clock, Callable[[str], None]],
    SegmentedRun[OfSegment],
]
"""Measures the load, at requests per second, on the server. The last argument prints progress."""


def measure_on_demo_server(
    parsed: argparse.Namespace,
    *,
    measure: Measure[OfSegment],
    report_of: Callable[[SegmentedRun[OfSegment], float], dict[str, Any]],
    print_report: Callable[[Mapping[str, Any], Console], None],
) -> int:
    """Measures, prints the report and writes it to `--json`. Returns the exit status.

    Raises the errors of `demo_server` and `rate_of`.
    """
    console = Console()
    load = load_of(parsed, MODEL_NAME)
    with demo_server(parsed, console.print) as server:
        rate_per_second = rate_of(parsed, load, server.target)
        run = measure(parsed, load, rate_per_second, server, SystemClock(), console.print)
    report = report_of(run, rate_per_second)
    print_report(report, console)
    write_json(parsed.json, report)
    return exit_status(report)
