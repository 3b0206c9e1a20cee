"""`life versions`: how long a rollback takes, how soon a dropped version serves, and how a slow request on
another model changes these times, as clients measure them.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.commands.options import Command, add_json_option, positive, positive_integer
from loadtest.drive.demo_model import MODEL_NAME, DemoModel, demo_directory, prepare_model
from loadtest.drive.version_series import VersionSeries
from loadtest.measure.life_slow_request import SlowRequestSetup, measure_slow_request
from loadtest.measure.rollbacks import measure_rollbacks
from loadtest.measure.timeline import LogClock
from loadtest.plan.ctr_load import CtrLoad
from loadtest.report.tables import number, write_json
from serving.base.clock import NS_PER_SECOND, Clock, SystemClock, pause
from serving.base.protos import predict_pb2
from serving.server.model_server import ModelServer
from serving.server.server_log import LogEvent

_TABLE_ROWS = 20_000
_TIMEOUT_SECONDS = 60
# Not a divisor of the poll period, so that drops and polls are not in phase.
_PAUSE_SECONDS = 0.37
_POLL_SECONDS = 1.0


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rollbacks", type=positive_integer, default=100, help="default 100")
    parser.add_argument("--drops", type=positive_integer, default=20, help="default 20")
    parser.add_argument(
        "--rounds",
        type=positive_integer,
        default=10,
        help="swaps without and with a slow request on another model, default 10 of each",
    )
    parser.add_argument(
        "--slow-seconds",
        type=positive,
        default=30,
        metavar="S",
        help="seconds of the slow request, default 30",
    )
    parser.add_argument(
        "--rate", type=positive, default=300, metavar="R", help="requests per second meanwhile"
    )
    add_json_option(parser)


def _run(parsed: argparse.Namespace) -> int:
    console, clock = Console(), SystemClock()
    with demo_directory(None) as directory:
        exports = prepare_model(directory, _TABLE_ROWS, console.print)
        rollbacks = _rollbacks(exports, parsed.rollbacks, clock)
        drops_ms = measure_drops(exports, parsed.drops, clock)
        setup = SlowRequestSetup(
            rounds=parsed.rounds,
            slow_seconds=parsed.slow_seconds,
            rate_per_second=parsed.rate,
            table_rows=_TABLE_ROWS,
        )
        slow_request = measure_slow_request(exports, setup, clock, console.print)
    figures = {
        "rollback_seen_ms": _figures(rollbacks["seen_ms"]),
        "rollback_reply_ms": _figures(rollbacks["reply_ms"]),
        "rollback_to_answer_ms": _figures(rollbacks["answer_ms"]),
        "drop_to_available_less_load_ms": _figures(drops_ms),
        "poll_seconds": _POLL_SECONDS,
        "first_answers_of_another_version": int(sum(rollbacks["is_late"])),
    }
    figures["slow_request_on_another_model"] = slow_request
    console.print(_table(figures))
    console.print(_slow_request_table(slow_request, parsed.slow_seconds))
    console.print(
        f"first request after a rollback's reply answered by another version: "
        f"{figures['first_answers_of_another_version']} of {parsed.rollbacks}"
    )
    console.print(
        f"requests beside the slow ones: {slow_request['failed_count']} failed, "
        f"{slow_request['wrong_count']} wrong"
    )
    write_json(parsed.json, figures)
    faults = (
        *(figures["first_answers_of_another_version"],),
        *(slow_request["failed_count"], slow_request["wrong_count"]),
    )
    return 1 if any(faults) else 0


def _rollbacks(exports: DemoModel, count: int, clock: Clock) -> Mapping[str, Sequence[float]]:
    load = CtrLoad(MODEL_NAME, rows=1, table_rows=_TABLE_ROWS, seed=1)
    request = predict_pb2.PredictRequest.FromString(load.payloads[0])
    with ExitStack() as stack:
        server, _series = _serving(stack, exports, "keep_previous_seconds = 3600", versions=(1, 2))
        return measure_rollbacks(server.admin_target, request, count, clock, old=1, new=2)


def measure_drops(exports: DemoModel, count: int, clock: Clock) -> Sequence[float]:
    """Measures for each version dropped by one rename: ms until it is AVAILABLE, without its
    load.
    """
    log_clock = LogClock(clock.wall_ns() - clock.now_ns())
    found = []
    with ExitStack() as stack:
        server, series = _serving(stack, exports, "", versions=(1,))
        for version in range(2, count + 2):
            pause(clock, _PAUSE_SECONDS)
            dropped_ns = clock.now_ns()
            series.drop(version)
            event = server.wait_for_event(partial(_is_available, version), _TIMEOUT_SECONDS)
            took_ns = log_clock.instant_ns(event) - dropped_ns
            found.append((took_ns - event["load_seconds"] * NS_PER_SECOND) / 1e6)
    return found


def _serving(
    stack: ExitStack, exports: DemoModel, settings: str, versions: Sequence[int]
) -> tuple[ModelServer, VersionSeries]:
    series = stack.enter_context(VersionSeries(exports, MODEL_NAME, "records", ()))
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millpond-life-")))
    settings_file = directory / "settings.toml"
    settings_file.write_text(f"[models.{MODEL_NAME}]\n{settings}\n")
    server = stack.enter_context(
        ModelServer(
            model_name=MODEL_NAME,
            base_path=series.base_path,
            model_settings_file=settings_file,
            file_system_poll_wait_seconds=_POLL_SECONDS,
        )
    )
    for version in versions:
        series.drop(version)
        server.wait_until_available(MODEL_NAME, version, _TIMEOUT_SECONDS)
    return server, series


def _is_available(version: int, event: LogEvent) -> bool:
    return (event["event"], event.get("version")) == ("version_available", version)


def _figures(values_ms: Sequence[float]) -> dict[str, float]:
    return {
        "count": len(values_ms),
        "p50_ms": round(statistics.median(values_ms), 3),
        "max_ms": round(max(values_ms), 3),
    }


def _table(figures: Mapping[str, Any]) -> Table:
    table = Table("", "times", "p50 ms", "max ms", title="life of versions")
    for name, shown in figures.items():
        if name.endswith("_ms"):
            title = name.removesuffix("_ms").replace("_", " ")
            table.add_row(title, *(f"{value:g}" for value in shown.values()))
    return table


def _slow_request_table(shown: Mapping[str, Any], slow_seconds: float) -> Table:
    title = f"a swap without and with a request of {slow_seconds:g} s on another model"
    table = Table("", "without ms", "with ms", "ratio", title=title)
    for key, over in shown["ratio"].items():
        name = key.replace("_ms", "").replace("_", " ")
        figures = (number(part[key]) for part in (shown["alone"], shown["beside"]))
        table.add_row(name, *figures, number(over))
    return table


VERSIONS = Command("how long a rollback takes, and how soon a drop serves", _add_options, _run)
