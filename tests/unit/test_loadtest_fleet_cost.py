"""The cost of a coordinator: the rows of a run, and the members that answer it."""

import json
from collections.abc import Iterator

import pytest

from fleet.rollout.figures import EDGES_NS
from fleet.rollout.report_document import server_report
from loadtest.__main__ import main
from loadtest.commands import fleet
from loadtest.drive.fleet_members import MODEL, FleetMembers
from loadtest.measure.fleet_cost import FleetCost
from serving.client import Client


@pytest.fixture
def members() -> Iterator[FleetMembers]:
    with FleetMembers(2) as made:
        yield made


def test_cost_is_shared_among_servers() -> None:
    cost = FleetCost(
        seconds=20, processor_seconds=1, report_count=200, grant_count=20, failed_count=1
    )
    row = cost.as_row("rest", 10)
    assert row["processor_ms_per_report"] == 5
    assert row["core_share"] == 0.05
    assert (row["messages_per_server"], row["messages_per_server_per_second"]) == (22, 1.1)
    assert (row["grants_per_server"], row["failed_calls"]) == (2, 1)


def test_member_reports_what_it_was_granted(members: FleetMembers) -> None:
    members.drop_version(2)
    with Client(members.targets[0]) as client:
        before = server_report(client.fleet_report(EDGES_NS)).models[MODEL]
        assert (before.granted, before.found) == (None, frozenset({1, 2}))
        assert client.grant(MODEL, 2, 7) == 2
        assert client.grant(MODEL, 1, 6) == 2
        report = server_report(client.fleet_report(EDGES_NS)).models[MODEL]
    assert (report.granted, report.order, report.default_version) == (2, 7, 2)
    assert report.versions[2].figures.request_count > 0


def test_failed_call_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"phase": "rest", "failed_calls": 1}
    monkeypatch.setattr(fleet, "run_fleet_cost", lambda *_: [json.loads(json.dumps(row))])
    assert main(["fleet", "--cost", "--servers", "1"]) == 1
