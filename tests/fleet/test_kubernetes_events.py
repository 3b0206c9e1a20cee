import inspect
import re

import pytest

from fleet.config.kubernetes_settings import KubernetesSettings
from fleet.kubernetes.events import QUEUE_LENGTH_MAX, Events
from fleet.kubernetes.pods import PodPlace
from fleet.rollout import changes as changes_module
from fleet.rollout.changes import Change, changes
from fleet.rollout.reports import Grant
from fleet.rollout.state import FleetRollout, FleetState, GateWarning, ModelState
from serving.core.blocked_versions import BlockedBy, BlockedVersion
from serving.core.servable import GateVerdict
from tests.kubernetes.fake_cluster import FakeCluster
from tests.unit.fakes.clocks import FakeClock

GRANT = Grant("web-1", "ctr", 8, 3)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


class NamedPods(PodPlace):
    """Knows each pod, with "u" as its identity."""

    def uid(self, name: str) -> str:
        return "u"


def events_of(cluster: FakeCluster) -> Events:
    clock = FakeClock()
    pods = NamedPods(cluster, KubernetesSettings(selector="app=web"), clock)
    return Events(cluster, state_name="fleet", instance="c1", pods=pods, clock=clock)


def posted(cluster: FakeCluster, events: Events) -> list[tuple[str, str, str]]:
    events.stop()
    while events.post_next():
        pass
    return [(e["regarding"]["kind"], e["type"], e["note"]) for e in cluster.events]


def test_changes_are_about_the_state(cluster: FakeCluster) -> None:
    events = events_of(cluster)
    events.regard({"metadata": {"uid": "m"}})
    values = {"version": 8, "reason": "it is slow"}
    events.notice(
        [
            Change(event="fleet_wave_began", model="ctr", values={"version": 8, "wave": 2}),
            Change(event="fleet_rolled_back", model="ctr", values=values, is_warning=True),
        ],
        [],
    )
    assert posted(cluster, events) == [
        ("ConfigMap", "Normal", "ctr: version 8 begins wave 2"),
        ("ConfigMap", "Warning", "ctr: version 8 is blocked in the fleet: it is slow"),
    ]
    assert cluster.events[0]["regarding"]["uid"] == "m"


def test_each_change_of_a_state_is_a_sentence(cluster: FakeCluster) -> None:
    """A change without one would end the decision that has it."""
    verdict = GateVerdict(gate="wave 1", mode="enforce", is_passed=False, reason="slow")
    rollout = FleetRollout(
        version=2,
        failed_servers=frozenset({"a"}),
        warned={"b": GateWarning("gate drift: NaN in 100 of 100 values")},
    )
    block = BlockedVersion(by=BlockedBy.CANARY, reason="slow", since_wall_ns=0)
    after = ModelState(stable=1, rollout=rollout, blocked={3: block}).with_verdict(verdict, 3)
    found = changes(FleetState(), FleetState(models={"ctr": after}))
    named = set(re.findall(r'event="(\w+)"', inspect.getsource(changes_module)))
    assert {change.event for change in found} == named
    events = events_of(cluster)
    events.notice(found, [])
    notes = [note for _, _, note in posted(cluster, events)]
    assert len(notes) == len(found)
    assert "ctr: version 2 has failed on a" in notes
    assert "ctr: version 2 on b: gate drift: NaN in 100 of 100 values" in notes


def test_verdict_and_stable_version_are_sentences(cluster: FakeCluster) -> None:
    events = events_of(cluster)
    verdict = {"gate": "wave 1", "is_passed": True, "reason": "fine"}
    events.notice(
        [
            Change(event="fleet_verdict", model="ctr", values=verdict),
            Change(event="fleet_stable_version", model="ctr", values={"version": 8, "before": 7}),
        ],
        [],
    )
    assert [note for _, _, note in posted(cluster, events)] == [
        "ctr: wave 1 passed: fine",
        "ctr: version 8 is stable; before: 7",
    ]


def test_repeated_grant_is_shown_once(cluster: FakeCluster) -> None:
    events = events_of(cluster)
    events.notice([], [GRANT])
    events.notice([], [GRANT])
    assert posted(cluster, events) == [("Pod", "Normal", "ctr: version 8 is granted")]
    assert cluster.events[0]["regarding"]["uid"] == "u"


def test_failed_event_does_not_stop_the_next(cluster: FakeCluster) -> None:
    events = events_of(cluster)
    events.notice([], [GRANT, Grant("web-2", "ctr", 8, 3)])
    cluster.allowed = []
    assert events.post_next()
    cluster.allowed = None
    assert len(posted(cluster, events)) == 1


def test_events_beyond_the_queue_are_dropped(cluster: FakeCluster) -> None:
    events = events_of(cluster)
    events.notice([], [Grant(f"web-{n}", "ctr", 8, 3) for n in range(QUEUE_LENGTH_MAX + 5)])
    for _ in range(QUEUE_LENGTH_MAX):
        events.post_next()
    assert len(cluster.events) == QUEUE_LENGTH_MAX


def test_stop_does_not_wait_for_a_full_queue(cluster: FakeCluster) -> None:
    events = events_of(cluster)
    events.notice([], [Grant(f"web-{n}", "ctr", 8, 3) for n in range(QUEUE_LENGTH_MAX)])
    events.stop()
    assert not events.post_next()
    assert cluster.events == []


def test_bug_of_an_event_does_not_stop_the_next(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that posts has no other one that would follow it."""
    events = events_of(cluster)
    events.notice([], [GRANT])

    def raises(event: object) -> None:
        raise RuntimeError("no token")

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "create_event", raises)
        assert events.post_next()
    events.notice([], [Grant("web-2", "ctr", 8, 3)])
    assert len(posted(cluster, events)) == 1
