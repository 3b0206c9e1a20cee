"""The parts of `gpu` that need no server."""

import argparse
import io
import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from loadtest.commands.gpu import server_flag
from loadtest.commands.gpu_parts import Part, measured, models_of, part_names
from loadtest.drive.accelerated_pair import (
    ACCELERATOR,
    CPU,
    KeptServers,
    Machine,
    ServedModel,
    halves_of_cores,
    model_flags,
)
from loadtest.drive.dense_model import width_of
from loadtest.measure import part_time
from loadtest.measure.accelerator_dense import NOT_AUTOTUNED
from loadtest.measure.accelerator_parts import (
    DIFFERENCE_MAX,
    largest_difference,
    most_in_flight,
)
from loadtest.measure.accelerator_swaps import check_plan_lasts, outcome_of_answers
from loadtest.measure.part_time import OutOfTime, PartTime
from loadtest.plan.loops import ClosedLoop
from loadtest.plan.plan import Reply
from loadtest.report.gpu_report import fault_count, gpu_table
from serving.base.clock import SystemClock, pause
from serving.base.errors import Unavailable
from tests.unit.fakes.clocks import FakeClock


def text_of(parts: dict[str, Any]) -> str:
    """The printed table."""
    console = Console(file=io.StringIO(), width=200)
    console.print(gpu_table(parts))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def run_parts(parts: dict[str, Part], **changes: Any) -> tuple[dict[str, Any], str]:
    """The figures of all parts, and what was printed."""
    console, clock = Console(file=io.StringIO(), width=200), SystemClock()
    given: dict[str, Any] = {
        "time": PartTime(clock),
        "kept": KeptServers(),
        "part_seconds": math.inf,
        "all_seconds": math.inf,
        "after_each": lambda shown: None,
    }
    found = measured(parts, list(parts), clock, console, **{**given, **changes})
    return dict(found), console.file.getvalue()  # type: ignore[attr-defined]


def wait_long(shown: dict[str, Any]) -> None:
    """A part that has one figure and waits for another."""
    shown["errors"] = 0
    pause(SystemClock(), 60)


def test_gpu_part_that_fails_lets_others_run():
    def fail(shown: dict[str, Any]) -> None:
        raise Unavailable("no GPU")

    found, _ = run_parts({"first": fail, "second": lambda shown: shown.update(errors=0)})
    assert found["first"]["failed"] == "no GPU"
    assert fault_count(found["first"]) == 1
    assert "failed" not in found["second"]
    assert fault_count(found["second"]) == 0
    assert "no GPU" in text_of({"alone": found["first"]})


def test_gpu_part_without_time_leaves_its_figures():
    found, printed = run_parts(
        {"first": wait_long, "second": lambda shown: shown.update(errors=0)}, part_seconds=0.1
    )
    assert found["first"]["errors"] == 0
    assert "stopped after" in found["first"]["failed"]
    assert fault_count(found["first"]) == 1
    assert "failed" not in found["second"]
    assert "stopped after" in printed
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_gpu_parts_after_the_limit_of_all_are_said():
    found, printed = run_parts({"first": wait_long, "second": wait_long}, all_seconds=0.1)
    assert "skipped" in found["second"]["failed"]
    assert fault_count(found["second"]) == 1
    assert "second: 0.0 s, skipped" in printed


def test_gpu_report_is_there_after_each_part():
    seen = []

    def see(shown: Any) -> None:
        seen.append(json.loads(json.dumps(shown)))

    run_parts(
        {"first": lambda shown: shown.update(a=1), "second": lambda shown: shown.update(b=2)},
        after_each=see,
    )
    assert [list(each) for each in seen] == [["first"], ["first", "second"]]
    assert seen[0]["first"]["a"] == 1


def test_gpu_part_knows_the_time_that_is_left():
    clock = FakeClock()
    time = PartTime(clock)
    assert time.left_seconds() == math.inf
    with time.bounded(30):
        clock.advance(10)
        assert time.left_seconds() == 20
    assert time.left_seconds() == math.inf


def test_gpu_time_ends_what_catches_the_first_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(part_time, "_REPEAT_SECONDS", 0.05)

    def wait_again(shown: dict[str, Any]) -> None:
        try:
            pause(SystemClock(), 60)
        except OutOfTime:
            shown["caught"] = True
            pause(SystemClock(), 60)

    found, _ = run_parts({"first": wait_again}, part_seconds=0.05)
    assert found["first"]["caught"]
    assert "stopped after" in found["first"]["failed"]


@pytest.mark.parametrize(
    ("rows", "channels", "in_flight"), [(1, 64, 256), (512, 64, 256), (2_048, 16, 16)]
)
def test_gpu_large_requests_have_fewer_in_flight(rows: int, channels: int, in_flight: int):
    assert most_in_flight(rows) == ClosedLoop(rows, channels, in_flight)


def test_gpu_server_flags_are_passed_on():
    assert server_flag("--accelerator_autotuning=never") == ("accelerator_autotuning", "never")
    assert server_flag("--a=b=c") == ("a", "b=c")
    for wrong in ("accelerator_autotuning=never", "--a", "--=b"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not --NAME=VALUE"):
            server_flag(wrong)


@pytest.mark.parametrize(
    "part",
    [
        {"errors": 1},
        {"wrong_answers": 1},
        {"late_count": 1},
        {"skipped": ["150 of 200 swaps"]},
        {"difference_to_cpu_max": 2 * DIFFERENCE_MAX},
        {"difference_to_cpu_max": float("nan")},
        {"models": {"mlp": {"difference_max": 2 * DIFFERENCE_MAX}}},
    ],
)
def test_gpu_faults_are_counted(part: dict[str, Any]):
    assert fault_count(part) == 1


def test_gpu_equal_answers_are_no_fault():
    assert fault_count({"difference_to_cpu_max": DIFFERENCE_MAX / 2, "errors": 0}) == 0


def test_gpu_table_shows_both_and_their_ratio():
    rates = {CPU: 100, ACCELERATOR: 250}
    shown = {
        name: {"requests_per_second": rate, "rows_per_second": 8 * rate, "in_flight": 512}
        for name, rate in rates.items()
    }
    text = text_of({"rates": {"rows": {"8": shown}}})
    assert "2.50 times, 512 in flight" in text
    assert "2,000" in text


def test_gpu_table_shows_replicas_beside_one_device():
    rates = {"one_device": 1_000, "all_devices": 1_900}
    part = {
        name: {"32": {"requests_per_second": rate, "runs_by_device": {"0": 1, "1": 2}}}
        for name, rate in rates.items()
    }
    table = gpu_table({"replicas": part})
    assert [list(column.cells) for column in table.columns] == [
        ["32 rows, 2 devices, requests/s"],
        [""],
        ["1,900"],
        ["1.90 times one device's 1,000"],
    ]


def test_gpu_table_shows_models_that_come_and_go():
    part: dict[str, Any] = {"model_count": 40, "found_share": 0.951, "fitting_share": 0.94}
    part |= {"uploads": 7, "upload_ms": 4.5, "back_ms_p50": 31.5, "errors": 0, "wrong_answers": 0}
    text = text_of({"zipf": part})
    assert "40 models" in text
    assert "95.1%" in text
    assert "94.0% to the most popular" in text
    assert "31.5" in text
    assert "31.5" not in text_of({"zipf": {**part, "back_ms_p50": None}})


def test_gpu_dense_shows_what_autotuning_gives():
    def rates(**by_in_flight: float) -> dict[str, Any]:
        each = {n[1:]: {"requests_per_second": rate} for n, rate in by_in_flight.items()}
        return {"rates": each, "compile_seconds": 2.5}

    model = {
        CPU: rates(_1=2, _8=15),
        ACCELERATOR: rates(_1=900, _32=3_620),
        NOT_AUTOTUNED: rates(_1=300, _32=720),
        "difference_max": 3e-7,
    }
    text = text_of({"dense": {"request_rows": 32, "models": {"mlp": model}}})
    assert "450.00 times, not autotuned 300 " in text
    assert "241.33 times, not autotuned 720, CPU: 8 in flight" in text
    assert "3.0e-07" in text
    one = {ACCELERATOR: rates(_32=3_620), "difference_max": 0.0}
    text = text_of({"dense": {"request_rows": 32, "models": {"mlp": one}}})
    assert "3,620" in text
    assert "times" not in text


def test_gpu_plan_that_ends_before_swaps_fails():
    clock = FakeClock()
    started_ns = clock.now_ns()
    clock.advance(9)
    check_plan_lasts(started_ns, 10, clock)
    clock.advance(1)
    with pytest.raises(Unavailable, match="ended before the swaps"):
        check_plan_lasts(started_ns, 10, clock)


@pytest.mark.parametrize(
    ("parts", "models"),
    [
        (["alone", "many"], {"ctr"}),
        (["replicas"], {"ctr"}),
        (["neighbours"], {"ctr", "mlp"}),
        (["dense"], {"mlp", "transformer"}),
        (["zipf"], {"zipf"}),
        (["delta"], {"ctr", "delta"}),
        ([], {"ctr", "mlp", "transformer", "zipf", "delta"}),
    ],
)
def test_gpu_parts_export_only_their_models(parts: list[str], models: set[str]):
    assert models_of(parts) == models


def test_gpu_answers_of_other_shapes_are_refused():
    with pytest.raises(Unavailable, match=r"\(2,\)"):
        largest_difference(np.zeros(2), np.zeros((2, 1)))
    assert largest_difference(np.array([1.0, 2.0]), np.array([1.5, 2.0])) == 0.5


@pytest.mark.parametrize(
    ("cores", "servers", "clients"),
    [((0, 1), (), (0, 1)), ((0, 1, 2, 3, 4), (0, 1), (2, 3, 4))],
)
def test_gpu_cores_are_halved(
    cores: tuple[int, ...], servers: tuple[int, ...], clients: tuple[int, ...]
):
    assert halves_of_cores(cores) == (servers, clients)


def test_gpu_server_flags_are_the_accelerators(tmp_path: Any):
    machine = Machine(
        accelerator="cuda", rows="1,8", cache_directory=tmp_path, library_path="/lib", cores=(0, 1)
    )
    assert "accelerator" not in machine.server_flags(CPU)
    assert "environment" not in machine.server_flags(CPU)
    flags = machine.server_flags(ACCELERATOR)
    assert (flags["accelerator"], flags["accelerator_rows"]) == ("cuda", "1,8")
    assert flags["environment"] == {"LD_LIBRARY_PATH": "/lib"}
    more = {"accelerator_autotuning": "never", "num_load_threads": "4"}
    given = replace(machine, more_flags=more)
    assert given.server_flags(ACCELERATOR).items() >= more.items()
    assert given.server_flags(CPU)["num_load_threads"] == "4"
    assert "accelerator_autotuning" not in given.server_flags(CPU)
    plain = replace(machine, autotunes=False).server_flags(ACCELERATOR)
    assert plain["accelerator_autotuning"] == "never"
    assert plain["accelerator_cache_directory"] != flags["accelerator_cache_directory"]
    assert list(flags["command"])[:3] == ["taskset", "-c", "0,1"]  # type: ignore[call-overload]


@pytest.mark.parametrize(("name", "platform"), [(CPU, "tensorflow"), (ACCELERATOR, "pjrt")])
def test_gpu_models_run_where_their_server_says(tmp_path: Path, name: str, platform: str):
    machine = Machine(accelerator="cuda", rows="1,8", cache_directory=tmp_path)
    models = {"ctr": ServedModel(tmp_path, {"accelerator_tables": "device"})}
    flags = model_flags(machine, name, models, tmp_path)
    settings = Path(str(flags["model_settings_file"])).read_text()
    assert "[models.ctr]" in settings
    assert f'platform = "{platform}"' in settings
    assert "max_in_flight_requests = 512" in settings
    more = model_flags(
        replace(machine, in_flight_max=1_024), name, models | {"b": models["ctr"]}, tmp_path
    )
    assert more["max_in_flight_requests"] == 2_048
    assert Path(str(more["model_settings_file"])).read_text().count("= 1024") == 2
    assert 'accelerator_tables = "device"' in settings


@pytest.mark.parametrize(("kind", "squares"), [("mlp", 6), ("transformer", 96)])
def test_gpu_dense_width_has_the_parameters(kind: str, squares: int):
    width = width_of(kind, 100_000_000)
    assert width % 64 == 0
    assert squares * width**2 == pytest.approx(100e6, rel=0.1)


def test_gpu_wrong_replies_are_printed():
    inner = {"wrong_replies": [{"line": "wrong reply at 3 s [ctr]"}]}
    part = {"accelerator": inner, "wrong_replies": [{"line": "first"}]}
    _, printed = run_parts({"swap": lambda shown: shown.update(part)})
    assert printed.splitlines()[1:] == ["  first", "  wrong reply at 3 s [ctr]"]


def test_gpu_answers_of_rollbacks_have_their_times():
    answers = [(5, 9, Reply(0, 0, b"a")), (20, 27, Reply(0, 0, b"b"))]
    outcome = outcome_of_answers(3, answers)
    assert (outcome.completed_ns - outcome.issued_ns).tolist() == [4, 7]
    assert [outcome.replies[i].data for i in outcome.reply_of] == [b"a", b"b"]
    assert outcome.wrong(lambda reply: reply.data == b"a").tolist() == [False, True]
    assert len(outcome_of_answers(3, []).codes) == 0


def test_gpu_part_names_are_checked():
    assert part_names("none") == []
    assert part_names("alone,many,delta") == ["alone", "many", "delta"]
    with pytest.raises(argparse.ArgumentTypeError, match="'fast' is none of equality"):
        part_names("fast")
