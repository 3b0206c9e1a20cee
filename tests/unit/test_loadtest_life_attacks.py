from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.commands.attacks import Attacked, table_of
from loadtest.drive.byte_attacks import BYTE_ATTACKS, GRPC, Flood
from loadtest.drive.control_group import ControlGroup
from loadtest.drive.raw_http2 import indexed_literal
from serving.base.clock import SystemClock
from serving.base.errors import Unavailable

MIB = 2**20


def machine(root: Path, own_groups: str) -> Path:
    """Returns a root whose process is in these groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own_groups)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    return root / "sys/fs/cgroup"


def test_group_of_version_1_is_below_its_own(tmp_path: Path) -> None:
    own = machine(tmp_path, "4:memory:/a/b\n0::/\n") / "memory/a/b"
    own.mkdir(parents=True)
    # Not by `with`: a kernel would make these files, and remove them with the group.
    group = ControlGroup("attacks", 7 * MIB, SystemClock(), tmp_path).__enter__()
    assert (own / "attacks/memory.limit_in_bytes").read_text() == str(7 * MIB)
    (own / "attacks/memory.max_usage_in_bytes").write_text("123\n")
    assert group.peak_bytes == 123
    assert group.command[-1] == str(own / "attacks/cgroup.procs")


def test_group_of_version_2_is_where_it_may_be(tmp_path: Path) -> None:
    mounts = machine(tmp_path, "0::/slice/own\n")
    (mounts / "slice/own").mkdir(parents=True)
    (mounts / "slice/own/cgroup.subtree_control").write_text("\n")
    (mounts / "slice/cgroup.subtree_control").write_text("cpu memory\n")
    ControlGroup("attacks", MIB, SystemClock(), tmp_path).__enter__()
    assert (mounts / "slice/attacks/memory.max").read_text() == str(MIB)


def test_machine_without_groups_is_refused(tmp_path: Path) -> None:
    machine(tmp_path, "0::/own\n")
    with pytest.raises(Unavailable, match="gives a limit on memory to subgroups; run this as root"):
        ControlGroup("attacks", MIB, SystemClock(), tmp_path).__enter__()


def test_group_that_may_not_be_made_is_refused(tmp_path: Path) -> None:
    own = machine(tmp_path, "4:memory:/own\n") / "memory/own"
    own.mkdir(parents=True)
    (own / "attacks").write_text("in the way")
    with pytest.raises(Unavailable, match=r"no control group .* File exists; run this as root"):
        ControlGroup("attacks", MIB, SystemClock(), tmp_path).__enter__()


def test_each_attack_begins_with_bytes() -> None:
    for attack in BYTE_ATTACKS:
        for protocol in attack.protocols:
            first = next(attack.opening("m", protocol))
            begin = b"PRI * HTTP/2.0" if protocol == GRPC else b"POST /v1/models/m:predict"
            assert first.startswith(begin) or attack.name in ("none", "files")


def test_long_literal_has_its_length() -> None:
    # RFC 7541, 5.1: 127 in the first byte, and the rest in groups of seven bits.
    assert indexed_literal("k", "v" * 3_900) == b"\x40\x01k\x7f\xbd\x1d" + b"v" * 3_900


def test_flood_of_a_server_that_is_gone_ends() -> None:
    attack = next(attack for attack in BYTE_ATTACKS if attack.name == "half-sent")
    flood = Flood(attack, "m", {"HTTP": ("127.0.0.1", 1)}, SystemClock())
    flood.run(0.1)
    assert flood.sent_bytes == 0


def test_table_says_what_was_lost() -> None:
    done = Attacked(
        attack="heads",
        sent_bytes=2_500_000,
        peak_bytes=300_000_000,
        left_bytes=None,
        request_count=70,
        losses={"REST 503": 2, "gRPC UNAVAILABLE": 1},
        probe_count=40,
        failed_probe_count=4,
        probe_ms_p99=1_234.56,
    )
    printed = StringIO()
    Console(width=100, file=printed).print(table_of([done], 10))
    row = printed.getvalue().splitlines()[3].replace("│", "").split()
    assert row == ["heads", "2.50", "300", "ended", "3", "of", "70", "4", "of", "40", "1,234.6"]
