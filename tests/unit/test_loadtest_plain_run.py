import argparse

import pytest

from loadtest.commands import plain_run
from loadtest.commands.plain_run import rate_of, wrong_answers_text
from loadtest.plan.ctr_load import CtrLoad


def test_wrong_answers_suggest_causes():
    assert wrong_answers_text(3).startswith("3 (")
    assert "--table-rows must be equal" in wrong_answers_text(3)
    assert [wrong_answers_text(0), wrong_answers_text(None)] == ["0", "not checked"]


def test_rate_is_given_or_share_of_capacity(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(plain_run, "saturation_rate", lambda target, load: 1_000.0)
    load = CtrLoad("ctr", rows=1, table_rows=5, seed=1)
    given = argparse.Namespace(rate=300, saturation=None)
    share = argparse.Namespace(rate=None, saturation=0.6)
    assert [rate_of(parsed, load, "h:1") for parsed in (given, share)] == [300, 600]
