import struct
from pathlib import Path

import numpy as np
import pytest

from loadtest.plan.plan import NOT_KEPT, Plan, Reply, read_outcome, write_plan
from serving.base.errors import DataLoss

PLAN = Plan(
    offsets_ns=np.array([0, 10, 20], np.int64),
    payload_of=np.array([0, 1, 0], np.int32),
    payloads=[b"one", b"two!"],
    channel_count=3,
    deadline_ns=4,
    realtime_priority=5,
    kept_reply_bytes_max=6,
    in_flight_max=7,
)


def outcome_bytes(magic: bytes = b"MPOUTC01") -> bytes:
    """Two of the plan's three requests, as native/load_generator/outcome.cc writes them."""
    header = struct.pack("=8s5q", magic, 2, 2, 1_000, 77, 1)
    arrays = struct.pack("=2q2q2i2i", 1_001, 1_012, 1_005, 1_020, 0, 14, 0, NOT_KEPT)
    replies = struct.pack("=iiq", 0, 0, 3) + b"yes" + struct.pack("=iiq", 1, 14, 0)
    return header + arrays + replies


def test_write_plan_lays_out_all_parts(tmp_path: Path):
    write_plan(PLAN, tmp_path / "plan")
    assert (tmp_path / "plan").read_bytes() == (
        struct.pack("=8s7q", b"MPPLAN02", 3, 2, 3, 4, 5, 6, 7)
        + struct.pack("=3q3i2q", 0, 10, 20, 0, 1, 0, 3, 4)
        + b"onetwo!"
    )


def test_read_outcome_equals_written_outcome(tmp_path: Path):
    (tmp_path / "outcome").write_bytes(outcome_bytes())
    outcome = read_outcome(tmp_path / "outcome", PLAN)
    assert outcome.scheduled_ns.tolist() == [1_000, 1_010]
    assert outcome.issued_ns.tolist() == [1_001, 1_012]
    assert outcome.completed_ns.tolist() == [1_005, 1_020]
    assert outcome.codes.tolist() == [0, 14]
    assert outcome.reply_of.tolist() == [0, NOT_KEPT]
    assert outcome.replies == (Reply(0, 0, b"yes"), Reply(1, 14, b""))
    assert (outcome.started_ns, outcome.cpu_ns, outcome.is_realtime) == (1_000, 77, True)


def test_read_truncated_outcome_is_data_loss(tmp_path: Path):
    whole = outcome_bytes()
    for size in range(len(whole)):
        (tmp_path / "outcome").write_bytes(whole[:size])
        with pytest.raises(DataLoss, match="cut short"):
            read_outcome(tmp_path / "outcome", PLAN)


def test_read_outcome_of_other_format_suggests_build(tmp_path: Path):
    (tmp_path / "outcome").write_bytes(outcome_bytes(magic=b"MPOUTC00"))
    with pytest.raises(DataLoss, match="rebuild issue_loop"):
        read_outcome(tmp_path / "outcome", PLAN)
