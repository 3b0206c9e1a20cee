import pytest

from fleet.rollout.reports import ModelReport, VersionReport
from serving.base.errors import StatusCode
from serving.core.servable import AVAILABLE, END, LOADING, Health


@pytest.mark.parametrize(
    ("code", "has_failed", "is_refused"),
    [
        (StatusCode.OK, False, False),
        (StatusCode.CANCELLED, False, False),
        (StatusCode.RESOURCE_EXHAUSTED, True, False),
        (StatusCode.FAILED_PRECONDITION, True, True),
        (StatusCode.DATA_LOSS, True, True),
    ],
)
def test_ended_version_by_its_error(code: StatusCode, has_failed: bool, is_refused: bool) -> None:
    row = VersionReport(state=END, health=Health(code, ""))
    assert (row.has_failed, row.is_refused) == (has_failed, is_refused)


def test_version_that_loads_again_has_not_failed() -> None:
    row = VersionReport(state=LOADING, health=Health(StatusCode.DATA_LOSS, "a retry"))
    assert not row.has_failed


def test_server_swaps_while_another_version_serves() -> None:
    loading = {2: VersionReport(state=LOADING)}
    assert ModelReport(default_version=1, versions=loading).is_swapping
    assert not ModelReport(default_version=None, versions=loading).is_swapping


def test_model_report_serves_only_available_versions() -> None:
    report = ModelReport(
        versions={1: VersionReport(state=AVAILABLE), 2: VersionReport(state=LOADING)}
    )
    assert [report.serves(version) for version in (1, 2, 3)] == [True, False, False]
