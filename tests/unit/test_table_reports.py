from structlog.testing import capture_logs

from serving.core.servable import ServableId
from serving.data_plane.loads import TableReport
from serving.loading.table_reports import report_tables, restored_in_full
from tests.unit.fakes.data_plane import FakePlane, FakeSavedModelLoad
from tests.unit.fakes.loads import FakeProgress

ID = ServableId("m", 7)


def table(
    variable: str = "t", *, read_bytes: int = 0, changed_row_count: int = 3, reason: str = ""
) -> TableReport:
    return TableReport(variable, 1_000, read_bytes, changed_row_count, reason)


def load_of(*reports: TableReport) -> FakeSavedModelLoad:
    plane = FakePlane()
    plane.table_reports = list(reports)
    load = FakeSavedModelLoad(plane, ID)
    load.restored_bytes, load.kept_bytes, load.copied_bytes = 112, 10_400, 5_200
    return load


def test_a_version_without_tables_reports_nothing() -> None:
    progress = FakeProgress()
    report_tables(ID, load_of(), progress, is_first=False)
    assert (progress.figures, progress.notes) == ({}, {})


def test_a_delta_reports_what_it_read_and_kept() -> None:
    progress = FakeProgress()
    report_tables(ID, load_of(table(), table()), progress, is_first=False)
    assert progress.figures == {
        "restored_bytes": 112,
        "kept_bytes": 10_400,
        "copied_bytes": 5_200,
        "changed_row_count": 6,
    }
    assert progress.notes == {}


def test_a_delta_that_is_restored_in_full_says_why() -> None:
    progress = FakeProgress()
    with capture_logs() as logs:
        load = load_of(table(read_bytes=1_000, reason="held"))
        report_tables(ID, load, progress, is_first=False)
    assert progress.notes == {"delta_restored_in_full": "t: held"}
    assert [(line["event"], line["reason"], line["log_level"]) for line in logs] == [
        ("delta_restored_in_full", "t: held", "warning")
    ]


def test_first_version_is_read_without_a_warning() -> None:
    progress = FakeProgress()
    with capture_logs() as logs:
        load = load_of(table(read_bytes=1_000, reason="no copy"))
        report_tables(ID, load, progress, is_first=True)
    assert progress.notes == {"delta_restored_in_full": "t: no copy"}
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("delta_restored_in_full", "info")
    ]


def test_a_base_that_is_read_is_no_delta() -> None:
    assert restored_in_full([table(read_bytes=1_000, changed_row_count=0, reason="no copy")]) == ""


def test_several_tables_that_were_read_are_counted() -> None:
    reports = [
        table("kept"),
        table("a", read_bytes=1_000, reason="held"),
        table("b", read_bytes=1_000, changed_row_count=0, reason="other"),
    ]
    assert restored_in_full(reports) == "a (and 1 more): held"
