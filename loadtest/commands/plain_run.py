"""`run`: load on a running server, or on one that does nothing, to measure the generator."""

import argparse
from collections.abc import Sequence

from rich.console import Console

from loadtest.commands.options import Command, add_load_options, host_and_port, positive
from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.generator import Generator, null_server
from loadtest.measure.saturation import saturation_rate
from loadtest.plan.arrivals import ARRIVALS
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Outcome
from loadtest.plan.wrong_replies import WrongReply
from loadtest.report.report import run_report
from loadtest.report.tables import generator_line, latency_table, write_json, wrong_reply_lines
from serving.base.errors import InvalidConfig

# About the size of the CTR model's answer to 100 rows.
NULL_REPLY = bytes(1_300)
_WRONG_ANSWERS_HINT = (
    "expected are the answers of `millpond demo-model`; --table-rows must be equal to its --rows"
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_mutually_exclusive_group(required=True)
    server.add_argument("--target", type=host_and_port, metavar="HOST:PORT")
    server.add_argument(
        "--null",
        action="store_true",
        help="a server that does nothing, to measure the generator's own share",
    )
    parser.add_argument("--model", default=MODEL_NAME, metavar="NAME", help="a served CTR model")
    parser.add_argument("--duration", type=positive, required=True, metavar="S", help="seconds")
    add_load_options(parser, default_rate=None)


def _run(parsed: argparse.Namespace) -> int:
    load = load_of(parsed, parsed.model)
    if not parsed.null:
        rate_per_second = rate_of(parsed, load, parsed.target)
        outcome = _sent(parsed, load, rate_per_second, parsed.target)
        return _show(
            parsed,
            outcome,
            rate_per_second,
            load.wrong_count(outcome),
            load.wrong_replies(outcome),
        )
    if parsed.saturation is not None:
        raise InvalidConfig("--saturation: not supported for the null server; use --rate")
    with null_server(NULL_REPLY) as target:
        outcome = _sent(parsed, load, parsed.rate, target)
    return _show(parsed, outcome, parsed.rate, None)


def load_of(parsed: argparse.Namespace, model_name: str) -> CtrLoad:
    """Makes the requests for the options of `add_load_options`."""
    return CtrLoad(
        model_name,
        rows=parsed.rows,
        table_rows=parsed.table_rows,
        seed=parsed.seed,
        output_filter=tuple(parsed.output_filter or ()),
    )


def rate_of(parsed: argparse.Namespace, load: CtrLoad, target: str) -> float:
    """Reads the requests per second from `--rate`, or measures them for `--saturation`.

    Raises Unavailable.
    """
    if parsed.saturation is None:
        return float(parsed.rate)
    share: float = parsed.saturation
    return saturation_rate(target, load) * share


def _sent(
    parsed: argparse.Namespace, load: CtrLoad, rate_per_second: float, target: str
) -> Outcome:
    offsets_ns = ARRIVALS[parsed.arrivals](rate_per_second, parsed.duration, parsed.seed)
    if len(offsets_ns) == 0:
        raise InvalidConfig(
            f"--rate {rate_per_second:g} for --duration {parsed.duration:g} s gives no requests"
        )
    with Generator(load.plan(offsets_ns, parsed.seed), target) as generator:
        return generator.finish()


def _show(
    parsed: argparse.Namespace,
    outcome: Outcome,
    rate_per_second: float,
    wrong_count: int | None,
    wrong_replies: Sequence[WrongReply] = (),
) -> int:
    report = run_report(outcome, wrong_count, rate_per_second, wrong_replies)
    console = Console()
    rows = {"": report["latency"], "nothing left out": report["latency_all"]}
    console.print(latency_table(f"{rate_per_second:g} requests/s", rows))
    console.print(generator_line(report["generator"]))
    console.print(f"errors {report['errors']}, wrong answers {wrong_answers_text(wrong_count)}")
    for message in report["error_messages"]:
        console.print(f"  {message}", markup=False)
    for line in wrong_reply_lines(report):
        console.print(f"  {line}", markup=False, highlight=False)
    write_json(parsed.json, report)
    return 1 if report["errors"] or wrong_count else 0


def wrong_answers_text(count: int | None) -> str:
    """The count, with a hint at the cause. None means that answers were not checked."""
    if count is None:
        return "not checked"
    return f"{count} ({_WRONG_ANSWERS_HINT})" if count else "0"


RUN = Command("load on a running server, or on one that does nothing", _add_options, _run)
