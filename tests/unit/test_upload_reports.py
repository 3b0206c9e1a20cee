from structlog.testing import capture_logs

from serving.core.servable import ServableId
from serving.data_plane.servables import AcceleratorUploads
from serving.loading.upload_reports import report_uploads
from tests.unit.fakes.loads import FakeProgress

ID = ServableId("m", 7)


def uploads(reason: str = "") -> AcceleratorUploads:
    return AcceleratorUploads(
        upload_count=1,
        upload_ns=2_000_000,
        uploaded_bytes=12,
        kept_bytes=488,
        full_count=1 if reason else 0,
        full_reason=reason,
    )


def test_a_version_on_no_accelerator_reports_nothing() -> None:
    progress = FakeProgress()
    for figures in ([], [AcceleratorUploads()]):
        report_uploads(ID, figures, progress)
    assert (progress.figures, progress.notes) == ({}, {})


def test_uploads_to_all_accelerators_are_added() -> None:
    progress = FakeProgress()
    with capture_logs() as logs:
        report_uploads(ID, [uploads(), uploads()], progress)
    assert progress.figures == {
        "uploaded_bytes": 24,
        "accelerator_kept_bytes": 976,
        "upload_seconds": 0.004,
    }
    assert progress.notes == {}
    assert [line["event"] for line in logs] == ["uploaded"]


def test_a_delta_that_is_sent_in_full_says_why() -> None:
    progress = FakeProgress()
    with capture_logs() as logs:
        report_uploads(ID, [uploads(), uploads("t: no room")], progress)
    assert progress.notes == {"delta_uploaded_in_full": "t: no room"}
    assert (logs[-1]["event"], logs[-1]["reason"]) == ("delta_uploaded_in_full", "t: no room")
