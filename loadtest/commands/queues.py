"""`queues`: the effect of the number of request threads, for the flags' defaults.

`--grpc_completion_queue_count` threads run requests while no request runs long. Up to
`--grpc_max_threads` run only if others are held up (TFS#2141 requests both as flags).
"""

import argparse
from collections.abc import Mapping

from rich.console import Console

from loadtest.commands.options import Command
from loadtest.commands.variants import (
    Variant,
    add_variant_options,
    measure_variants,
    print_variants,
    variants_report,
)
from loadtest.drive.demo_model import demo_directory, prepare_model
from loadtest.report.tables import exit_status, write_json

VARIANTS: Mapping[str, Variant] = {
    "default": Variant(),
    "1 thread": Variant({"grpc_completion_queue_count": 1}),
    "2 threads": Variant({"grpc_completion_queue_count": 2}),
    "4 threads": Variant({"grpc_completion_queue_count": 4}),
    "1 thread, at most 1": Variant({"grpc_completion_queue_count": 1, "grpc_max_threads": 1}),
    "2 threads, at most 2": Variant({"grpc_completion_queue_count": 2, "grpc_max_threads": 2}),
    "2 threads, at most 32": Variant({"grpc_completion_queue_count": 2, "grpc_max_threads": 32}),
}


def _run(parsed: argparse.Namespace) -> int:
    console = Console()
    with demo_directory(parsed.models) as directory:
        model = prepare_model(directory, parsed.table_rows, console.print)
        measured = measure_variants(parsed, model, VARIANTS, console.print)
    report = variants_report(measured, parsed.rate)
    print_variants(report, console)
    write_json(parsed.json, report)
    return exit_status(report)


QUEUES = Command("the effect of the number of request threads", add_variant_options, _run)
