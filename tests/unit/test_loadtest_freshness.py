import numpy as np
import pytest

from loadtest.drive.trainer import Export
from loadtest.measure.freshness import (
    ages,
    first_answers,
    rows_per_minute,
    seconds_figures,
    windows,
)
from loadtest.measure.timeline import Span, SwapSpans
from serving.base.errors import Unavailable
from tests.unit.loadtest_outcomes import MS, outcome_of

# Answered at 10, 110, 210 … ms.
OUTCOME = outcome_of([(ms, ms, ms + 10) for ms in range(0, 3_000, 100)])


def export_of(version: int, started_ms: float, renamed_ms: float, changed: int = 600) -> Export:
    return Export(version, changed, 1_000, round(started_ms * MS), round(renamed_ms * MS))


def versions_from(*first_ms: float) -> np.ndarray:
    """Version 2 answers what is due from the first of `first_ms`, and 3 from the second."""
    due = OUTCOME.scheduled_ns / MS
    return 1 + sum(((due >= at).astype(np.int64) for at in first_ms), np.zeros(len(due), np.int64))


def test_first_answer_counts_from_export_and_rename():
    (answer,) = first_answers([export_of(2, 150, 250)], OUTCOME, versions_from(400))
    assert answer.from_export_seconds == pytest.approx(0.26)
    assert answer.from_rename_seconds == pytest.approx(0.16)


def test_answer_of_a_later_version_has_the_rows_too():
    exports = [export_of(2, 0, 50), export_of(3, 100, 150)]
    versions = versions_from(400, 400)
    assert 2 not in versions
    assert [answer.from_export_seconds for answer in first_answers(exports, OUTCOME, versions)] == [
        pytest.approx(0.41),
        pytest.approx(0.31),
    ]


def test_wrong_and_failed_answers_are_no_first_answers():
    versions = versions_from(400)
    versions[4:6] = (-1, 0)
    (answer,) = first_answers([export_of(2, 0, 0)], OUTCOME, versions)
    assert answer.from_rename_seconds == pytest.approx(0.61)


def test_export_that_no_answer_has_is_an_error():
    with pytest.raises(Unavailable, match="version 3"):
        first_answers([export_of(3, 0, 0)], OUTCOME, versions_from(400))


def test_p99_needs_a_hundred_versions():
    few = seconds_figures([0.5, 0.25, 1.0])
    assert few == {"count": 3, "p50_seconds": 0.5, "p99_seconds": None, "max_seconds": 1.0}
    many = seconds_figures([number / 100 for number in range(100, 0, -1)])
    assert (many["p50_seconds"], many["p99_seconds"], many["max_seconds"]) == (0.5, 0.99, 1.0)


def test_rows_a_minute_are_of_the_time_between_exports():
    exports = [export_of(2, 0, 1), export_of(3, 10_000, 10_001), export_of(4, 30_000, 30_001)]
    assert rows_per_minute([exports]) == 1_200 * 2
    assert rows_per_minute([exports, exports[:2]]) == 1_800 * 1.5
    assert rows_per_minute([exports[:1]]) is None


def test_steady_is_outside_of_exports_and_swaps():
    swap = SwapSpans(2, Span(1_000 * MS, 1_100 * MS), Span(1_100 * MS, 1_200 * MS))
    masks = windows(OUTCOME, [export_of(2, 480, 995)], [swap], steady_from_ns=200 * MS)
    due_ms = {name: (OUTCOME.scheduled_ns[mask] // MS).tolist() for name, mask in masks.items()}
    assert due_ms == {
        "steady": [200, 300, 400, *range(2_300, 3_000, 100)],
        "export": [500, 600, 700, 800, 900],
        "swap": list(range(1_000, 2_300, 100)),
        "all": list(range(200, 3_000, 100)),
    }


def test_age_falls_with_each_first_answer():
    exports = [export_of(2, 100, 200), export_of(3, 1_100, 1_200)]
    answers = first_answers(exports, OUTCOME, versions_from(400, 1_500))
    at, age = ages(exports, OUTCOME, answers)
    assert at.tolist() == pytest.approx([0.41, 1.51, 1.51, 2.9])
    assert age.tolist() == pytest.approx([0.31, 1.41, 0.41, 1.8])
