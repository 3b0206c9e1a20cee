from pathlib import Path

import numpy as np
import pytest

from loadtest.report.plot import binned, check_can_plot, plot_runs
from serving.base.errors import FailedPrecondition
from tests.unit.loadtest_outcomes import slow_in_swap_outcome, swap_run


def test_binned_groups_latencies_by_due_time():
    middles, parts = binned(np.array([0.0, 0.4, 0.5, 2.1]), np.array([1, 2, 3, 4]), 0.5)
    assert middles.tolist() == [0.25, 0.75, 2.25]
    assert [part.tolist() for part in parts] == [[1, 2], [3], [4]]


def test_plot_has_a_row_a_preset(tmp_path: Path):
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    run = swap_run(slow_in_swap_outcome())
    plot_runs(one, {"stock": run})
    plot_runs(two, {"stock": run, "millpond": run})
    assert _height(two) > _height(one) > 0


def test_plot_is_drawn_only_on_request():
    check_can_plot(None)
    plot_runs(None, {})


def test_plot_into_missing_directory_fails_before_run(tmp_path: Path):
    with pytest.raises(FailedPrecondition, match="--plot"):
        check_can_plot(tmp_path / "absent" / "plot.png")


def _height(picture: Path) -> int:
    """The size in the header of the PNG."""
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[20:24], "big")


def test_ages_have_a_row_of_their_own(tmp_path: Path):
    plain, aged = tmp_path / "plain.png", tmp_path / "aged.png"
    runs = {"delta": swap_run(slow_in_swap_outcome())}
    line = (np.array([8.0, 9.0]), np.array([1.0, 0.5]))
    plot_runs(plain, runs)
    plot_runs(aged, runs, {"delta": line, "full": line})
    assert _height(aged) > _height(plain)
