import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from loadtest.__main__ import main
from loadtest.commands.demo import Report, print_report
from loadtest.drive.checked_sender import checked_answer
from loadtest.drive.demo_model import DemoModel, prepare_model
from loadtest.drive.traffic import Answer, Outcome
from loadtest.measure.swaps import Swap
from loadtest.measure.timeline import Span
from serving.base.clock import NS_PER_SECOND
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import to_tensor_proto

EXPECTED = {1: np.array([[0.25], [0.5]]), 2: np.array([[0.75], [0.5]])}
RIGHT, WRONG, FAILED = Answer(1, True), Answer(1, False), None


def response_of(version: int, ctr: object, versions: list[int]) -> predict_pb2.PredictResponse:
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    response.outputs["ctr"].CopyFrom(to_tensor_proto(np.array(ctr, np.float32)))
    response.outputs["version"].CopyFrom(to_tensor_proto(np.array(versions, np.int64)))
    return response


def outcomes(*answers: Answer | None) -> list[Outcome]:
    return [Outcome(0, 1_000_000, answer, "" if answer else "refused") for answer in answers]


@pytest.mark.parametrize(
    ("response", "is_right"),
    [
        (response_of(1, [[0.25], [0.5]], [1, 1]), True),
        (response_of(2, [[0.75], [0.5]], [2, 2]), True),
        (response_of(2, [[0.25], [0.5]], [2, 2]), False),
        (response_of(1, [[0.25], [0.5]], [1, 2]), False),
        (response_of(1, [[0.2501], [0.5]], [1, 1]), False),
        (response_of(1, [[0.25]], [1]), False),
        (response_of(1, [[float("nan")], [0.5]], [1, 1]), False),
        (response_of(3, [[0.25], [0.5]], [3, 3]), False),
    ],
    ids=[
        *("right", "right_of_2", "answer_of_1_named_2", "mixed_versions", "slightly_off"),
        *("row_missing", "nan", "unknown_version"),
    ],
)
def test_checked_answer_fits_only_named_version(
    response: predict_pb2.PredictResponse, is_right: bool
):
    answer = checked_answer(response, EXPECTED)
    assert answer == Answer(response.model_spec.version.value, is_right)


@pytest.mark.parametrize(
    ("answers", "is_clean"),
    [([RIGHT], True), ([RIGHT, FAILED], False), ([RIGHT, WRONG], False), ([], False)],
    ids=["right", "failed", "wrong", "nothing_sent"],
)
def test_report_is_clean_only_if_all_are_right(answers: list[Answer | None], is_clean: bool):
    assert Report(outcomes(*answers), []).is_clean == is_clean


def test_print_report_shows_counts_stages_and_errors():
    text = io.StringIO()
    report = Report(
        outcomes(*[RIGHT] * 20, WRONG, FAILED), [Swap("load", 2, {"restore": 0.5, "load": 1.5})]
    )
    print_report(report, Console(file=text, width=100))
    assert [
        wanted
        for wanted in ("22", "p50 ms", "1.00", "4978 requests missing", "load 2", "1500.0")
        if wanted not in text.getvalue()
    ] == []
    assert "failed: refused" in text.getvalue()


BEGIN_NS = 5 * NS_PER_SECOND
"""The first request's time. Requests of the first second do not count."""


def requests_at(after_ns: int, latency_ns: int, count: int) -> list[Outcome]:
    """Returns requests due so long after the first second."""
    scheduled_ns = BEGIN_NS + NS_PER_SECOND + after_ns
    return [Outcome(scheduled_ns, scheduled_ns + latency_ns, RIGHT)] * count


START = [Outcome(BEGIN_NS, BEGIN_NS + 9_000_000, RIGHT)] * 500
SWAP = Span(BEGIN_NS + NS_PER_SECOND + 100, BEGIN_NS + NS_PER_SECOND + 200)
STEADY = [*START, *requests_at(300, 2_000_000, 500)]


@pytest.mark.parametrize(
    ("sent", "verdict"),
    [
        (
            [*STEADY, *requests_at(150, 3_000_000, 500)],
            "p99 in swaps over steady: 1.5; lost 0, wrong 0: passed",
        ),
        (
            [*STEADY, *outcomes(FAILED, WRONG)],
            "p99 in swaps over steady: too few requests; lost 1, wrong 1: failed",
        ),
    ],
    ids=["passed", "failed"],
)
def test_report_ends_with_a_verdict(sent: list[Outcome], verdict: str):
    text = io.StringIO()
    print_report(Report(sent, [], [SWAP]), Console(file=text, width=100))
    assert text.getvalue().splitlines()[-1] == verdict


@pytest.mark.parametrize(
    ("after_ns", "latency_ns", "is_in_swap"),
    [(50, 49, False), (50, 50, True), (120, 10, True), (200, 10, True), (201, 10, False)],
)
def test_request_in_flight_in_a_swap_counts(after_ns: int, latency_ns: int, is_in_swap: bool):
    report = Report([*START, *requests_at(after_ns, latency_ns, 1)], [], [SWAP])
    assert report.latencies_in_swaps_ns(is_in_swap=is_in_swap) == [latency_ns]
    assert report.latencies_in_swaps_ns(is_in_swap=not is_in_swap) == []


def exported(path: Path) -> None:
    path.mkdir(parents=True)


def test_demo_model_moves_versions_by_rename(tmp_path: Path):
    model = DemoModel.below(tmp_path, 10)
    exported(model.base_path / "1")
    exported(model.staged / "2")
    model.drop(2)
    assert sorted(path.name for path in model.base_path.iterdir()) == ["1", "2"]
    model.remove(2)
    assert [path.name for path in model.base_path.iterdir()] == ["1"]
    assert [path.name for path in model.staged.iterdir()] == ["2"]


def test_prepare_model_recovers_interrupted_demo(tmp_path: Path):
    model = DemoModel.below(tmp_path, 10)
    for version in (1, 2):
        exported(model.base_path / str(version))
    printed: list[str] = []
    assert prepare_model(tmp_path, 10, printed.append) == model
    assert [path.name for path in model.base_path.iterdir()] == ["1"]
    assert (model.staged / "2").exists()
    assert printed == ["version 1 was exported before", "version 2 was exported before"]


def test_demo_models_of_different_sizes_are_apart(tmp_path: Path):
    assert DemoModel.below(tmp_path, 10).base_path != DemoModel.below(tmp_path, 11).base_path


def test_demo_unwritable_directory_exits_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").touch()
    assert main(["demo", f"--directory={tmp_path / 'file'}"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("loadtest demo: ")
    assert str(tmp_path / "file") in err


@pytest.mark.parametrize("argument", ["--rate=0", "--rate=fast", "--rows=0", "--request_rows=-1"])
def test_demo_malformed_number_is_wrong_usage(argument: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["demo", argument])
    assert "number" in capsys.readouterr().err
