import pytest

from serving.base.errors import DataLoss, StatusCode
from serving.core.servable import HEALTHY
from serving.fleet.figures import NO_REQUESTS
from serving.fleet.report_document import server_report

VERSION = {"state": "END", "error_code": 9, "error_message": "no", "latency_counts": []}
MODEL = {
    "granted": None,
    "order": 0,
    "default_version": None,
    "found": [1],
    "blocked": {"3": "bad"},
    "versions": {"1": VERSION},
}
REPLY = {"incarnation": 5, "is_draining": True, "free_bytes": 7, "models": {"m": MODEL}}


def test_reply_becomes_a_report() -> None:
    report = server_report(REPLY)
    assert (report.incarnation, report.is_draining, report.free_bytes) == (5, True, 7)
    model = report.models["m"]
    assert model.found == {1}
    assert model.blocked == {3: "bad"}
    assert model.versions[1].health.code is StatusCode.FAILED_PRECONDITION
    assert model.versions[1].figures is NO_REQUESTS


def test_version_without_an_error_is_healthy() -> None:
    row = {**VERSION, "error_code": 0, "request_count": 2, "failed_count": 1}
    reply = {**REPLY, "models": {"m": {**MODEL, "versions": {"1": row}}}}
    version = server_report(reply).models["m"].versions[1]
    assert version.health is HEALTHY
    assert (version.figures.request_count, version.figures.failed_count) == (2, 1)


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {**REPLY, "models": []},
        {**REPLY, "models": {"m": {}}},
        {**REPLY, "models": {"m": {**MODEL, "versions": {"1": {**VERSION, "state": "NEW"}}}}},
        {**REPLY, "models": {"m": {**MODEL, "versions": {"1": {**VERSION, "error_code": 99}}}}},
    ],
)
def test_other_reply_is_refused(reply: dict[str, object]) -> None:
    with pytest.raises(DataLoss):
        server_report(reply)
