from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.drive.demo_model import DemoModel
from loadtest.measure import saturation
from loadtest.measure.saturation import at_share_of_saturation, rate_of, saturation_rate
from loadtest.plan.ctr_load import CtrLoad
from loadtest.plan.plan import Reply
from serving.base.errors import Unavailable
from tests.unit.fakes.clocks import FakeClock
from tests.unit.loadtest_outcomes import SETUP, outcome_of


def test_saturation_rate_comes_from_run_not_probe(
    monkeypatch: pytest.MonkeyPatch,
):
    request_counts: list[int] = []

    def closed_loop_rate(target: str, of: CtrLoad, request_count: int) -> float:
        assert (target, of) == ("here:1", load)
        request_counts.append(request_count)
        return 4_000 + len(request_counts)

    load = CtrLoad("ctr", rows=1, table_rows=10, seed=1)
    monkeypatch.setattr(saturation, "closed_loop_rate", closed_loop_rate)
    assert saturation_rate("here:1", load) == 4_002
    assert request_counts == [2_000, 12_003]


def test_rate_spans_first_issue_to_last_answer():
    # All due at 0, as in closed loop; issued at 1 and 2 ms, the first answered last.
    assert rate_of(outcome_of([(0, 1, 5), (0, 2, 3)])) == 500


def test_rate_of_a_run_with_failures_is_refused():
    outcome = outcome_of([(0, 1, 5), (0, 2, 3)], codes=[0, 14])
    replies = (Reply(0, 14, b"no server"),)
    with pytest.raises(
        Unavailable, match="1 of 2 requests failed at saturation: 1 x 14: no server"
    ):
        rate_of(replace(outcome, replies=replies))


def test_setup_without_share_starts_no_server():
    nowhere = DemoModel(Path("/absent"), Path("/absent"))
    assert at_share_of_saturation(SETUP, None, nowhere, FakeClock(), print) is SETUP
