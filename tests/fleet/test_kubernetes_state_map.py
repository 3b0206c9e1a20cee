import pytest

from fleet.kubernetes.cluster import Conflict
from fleet.kubernetes.documents import SUMMARY_KEY
from fleet.kubernetes.state_map import Deposed, StateMap
from fleet.rollout.state import FleetState, ModelState
from tests.fleet.worlds.coordinators import Link
from tests.kubernetes.fake_cluster import FakeCluster

STATE = FleetState(order=1, models={"ctr": ModelState(stable=7)}).as_json()
NEXT = FleetState(order=2).as_json()


def store_of(cluster: FakeCluster | Link, term: int) -> StateMap:
    return StateMap(cluster, "fleet", term, lambda: True)


def test_state_map_returns_what_was_written() -> None:
    cluster = FakeCluster()
    store = store_of(cluster, 1)
    assert store.read() is None
    store.write(STATE)
    store.write(NEXT)
    assert store_of(cluster, 2).read() == NEXT


def test_state_map_has_a_summary_for_people() -> None:
    cluster = FakeCluster()
    store = store_of(cluster, 1)
    store.read()
    store.write(STATE)
    stored = cluster.stored("configmaps", "fleet")
    assert stored is not None
    assert stored["data"][SUMMARY_KEY] == "ctr: stable version 7\n"


def test_deposed_coordinator_cannot_write() -> None:
    cluster = FakeCluster()
    old, new = store_of(cluster, 1), store_of(cluster, 2)
    old.read()
    old.write(STATE)
    new.read()
    new.write(STATE)
    with pytest.raises(Deposed, match="term 2"):
        old.write(NEXT)
    assert store_of(cluster, 3).read() == STATE


def test_late_read_of_an_old_term_is_refused() -> None:
    cluster = FakeCluster()
    new = store_of(cluster, 2)
    new.read()
    new.write(STATE)
    # It acquired term 1, was stopped for a minute, and reads only now.
    with pytest.raises(Deposed):
        store_of(cluster, 1).read()


def test_write_between_read_and_takeover_conflicts() -> None:
    cluster = FakeCluster()
    old, new = store_of(cluster, 1), store_of(cluster, 2)
    old.read()
    old.write(STATE)
    new.read()
    old.write(NEXT)
    with pytest.raises(Conflict):
        new.write(STATE)
    assert new.read() == NEXT


def test_lapsed_term_writes_nothing() -> None:
    cluster = FakeCluster()
    store = StateMap(cluster, "fleet", 1, lambda: False)
    store.read()
    with pytest.raises(Deposed, match="ended"):
        store.write(STATE)
    assert cluster.written == []


def test_write_without_an_answer_is_written_over() -> None:
    cluster = FakeCluster()
    link = Link(cluster, lambda kind: None)
    store = store_of(link, 1)
    store.read()
    store.write(STATE)
    link.loses_answers = True
    with pytest.raises(OSError, match="no answer"):
        store.write(NEXT)
    link.loses_answers = False
    store.write(STATE)
    assert store_of(cluster, 2).read() == STATE


def test_deleted_state_is_written_again() -> None:
    cluster = FakeCluster()
    store = store_of(cluster, 1)
    store.read()
    store.write(STATE)
    cluster.delete("configmaps", "fleet")
    store.write(NEXT)
    assert store_of(cluster, 2).read() == NEXT
