import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import DataLoss
from serving.base.fingerprint import Fingerprint
from serving.core.blocked_versions import (
    CRASH_WAIT_SECONDS_MAX,
    BlockedBy,
    BlockedVersion,
    BlockedVersions,
    Refusal,
    as_kept_rows,
    as_rows,
    from_rows,
)

BLOCKED_VERSIONS = st.dictionaries(
    st.integers(0, 2**63 - 1),
    st.builds(
        BlockedVersion,
        by=st.sampled_from(BlockedBy),
        reason=st.text(),
        since_wall_ns=st.integers(0, 2**63 - 1),
    ),
    max_size=4,
)


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_wait_is_never_longer_than_the_longest(not_before_ns: int, now_ns: int) -> None:
    wait_ns = BlockedVersion(by=BlockedBy.CRASH, not_before_wall_ns=not_before_ns).wait_ns(now_ns)
    assert 0 <= wait_ns <= CRASH_WAIT_SECONDS_MAX * NS_PER_SECOND
    assert wait_ns in (0, not_before_ns - now_ns)


@given(BLOCKED_VERSIONS)
def test_rows_are_json_and_restore_blocks(blocked_versions: BlockedVersions):
    assert from_rows(json.loads(json.dumps(as_rows(blocked_versions)))) == blocked_versions


REFUSED = BlockedVersion(
    by=BlockedBy.GATE,
    reason="NaN",
    since_wall_ns=5,
    refusal=Refusal(
        Fingerprint((("", 0, 1, 2), ("v", 3, 4, -5))), {"finite": {"finite": "enforce"}}
    ),
)
REFUSED_ROW = {
    "version": 7,
    "by": "gate",
    "reason": "NaN",
    "since_wall_ns": 5,
    "files": [["", 0, 1, 2], ["v", 3, 4, -5]],
    "gates": {"finite": {"finite": "enforce"}},
}


def test_kept_row_of_a_gate_says_what_it_refused():
    assert as_kept_rows({7: REFUSED}) == [REFUSED_ROW]
    assert from_rows([REFUSED_ROW]) == {7: REFUSED}
    assert "files" not in as_rows({7: REFUSED})[0]


@pytest.mark.parametrize(
    "damage", [{"files": [["", 0, 1]]}, {"files": [["", 0, 1, "2"]]}, {"files": 7}, {"gates": []}]
)
def test_damaged_row_of_a_gate_is_an_error(damage: dict[str, Any]):
    with pytest.raises(DataLoss):
        from_rows([REFUSED_ROW | damage])


def test_rows_are_by_version():
    block = BlockedVersion(by=BlockedBy.OPERATOR, reason="bad", since_wall_ns=5)
    assert as_rows({9: block, 7: block}) == [
        {"version": 7, "by": "operator", "reason": "bad", "since_wall_ns": 5},
        {"version": 9, "by": "operator", "reason": "bad", "since_wall_ns": 5},
    ]


GOOD = {"version": 7, "by": "operator", "reason": "bad", "since_wall_ns": 5}


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        "[]",
        [7],
        [{}],
        [{**GOOD, "by": "nobody"}],
        [{**GOOD, "version": "7"}],
        [{**GOOD, "version": True}],
        [{**GOOD, "version": -1}],
        [{**GOOD, "since_wall_ns": 0.5}],
        [{**GOOD, "reason": None}],
    ],
)
def test_rows_of_something_else_are_refused(rows: Any):
    assert from_rows([GOOD])
    with pytest.raises(DataLoss):
        from_rows(rows)


@pytest.mark.parametrize(
    ("by", "needs_operator"),
    [
        (BlockedBy.OPERATOR, True),
        (BlockedBy.CANARY, True),
        (BlockedBy.CRASH, True),
        (BlockedBy.FAILURE, False),
    ],
)
def test_need_of_allow_depends_on_origin_of_block(by: BlockedBy, needs_operator: bool):
    assert BlockedVersion(by=by).needs_operator == needs_operator
