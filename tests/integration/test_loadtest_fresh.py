"""`fresh` with small tables: a trainer beside a server under load."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadtest.__main__ import main
from loadtest.measure import fresh_run

pytestmark = pytest.mark.usefixtures("warm_load_tests", "patient_load_tests")

OPTIONS = (
    *("--table-gb=0.02", "--changed-percent=2", "--rows-per-minute=40000", "--every=1"),
    *("--versions=3", "--rollbacks=2", "--rate=200", "--rows=20", "--compare=full"),
)


@dataclass(frozen=True)
class Ran:
    """One run of the command: its report and all that it left."""

    status: int
    report: dict[str, Any]
    picture: Path
    left: list[Path]

    def of(self, kind: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.report["kinds"][kind]
        return shown


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    directory = tmp_path_factory.mktemp("fresh")
    versions, picture, report = (directory / name for name in ("versions", "a.png", "a.json"))
    versions.mkdir()
    files = (f"--directory={versions}", f"--plot={picture}", f"--json={report}")
    with pytest.MonkeyPatch.context() as patch:
        # No figure that is asked for below depends on these.
        patch.setattr(fresh_run, "_SETTLE_SECONDS", 0.5)
        patch.setattr(fresh_run, "_STEADY_SECONDS_MIN", 0.5)
        status = main(["fresh", *OPTIONS, *files])
    return Ran(status, json.loads(report.read_text()), picture, list(versions.iterdir()))


def test_fresh_answers_all_with_the_right_rows(ran: Ran):
    assert (ran.status, ran.report["errors"], ran.report["wrong_answers"]) == (0, 0, 0)
    assert ran.report["first_answers_of_another_version"] == 0


@pytest.mark.parametrize("kind", ["delta", "full"])
def test_fresh_sees_each_version_after_its_rename(ran: Ran, kind: str):
    versions = [version for run in ran.of(kind)["versions"] for version in run]
    assert [version["version"] for version in versions] == [2, 3, 4]
    for version in versions:
        assert 0 < version["from_rename_seconds"] < version["from_export_seconds"]


def test_deltas_bring_the_changed_rows_alone(ran: Ran):
    table_bytes = ran.report["table_bytes"]
    assert ran.of("delta")["written_bytes"]["max"] < 0.05 * table_bytes
    assert ran.of("full")["written_bytes"]["median"] > table_bytes
    # The first delta takes the copy that was made ahead, or makes it in memory.
    assert ran.of("delta")["restored_in_full"] == []
    assert ran.of("delta")["read_bytes"]["max"] < 0.05 * table_bytes
    assert ran.of("full")["versions"][0][2]["restored_bytes"] > table_bytes


@pytest.mark.parametrize("kind", ["delta", "full"])
def test_fresh_has_each_load_and_the_memory_after_it(ran: Ran, kind: str):
    shown = ran.of(kind)
    assert shown["first_load"]["stages"]["restore"]["median_seconds"] > 0
    assert shown["resident_bytes"]["before"] > ran.report["table_bytes"]
    for version in shown["versions"][0]:
        assert version["restored_bytes"] + version["kept_bytes"] > ran.report["table_bytes"]
        assert 0 < version["stage_seconds"]["restore"] < version["load_seconds"]


def test_fresh_draws_and_leaves_no_versions(ran: Ran):
    assert ran.picture.read_bytes().startswith(b"\x89PNG")
    assert ran.left == []
