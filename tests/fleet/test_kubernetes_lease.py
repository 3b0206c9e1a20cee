import threading

import pytest

from fleet.kubernetes.cluster import ApiFailed, Object
from fleet.kubernetes.documents import LeaseRecord, lease_record
from fleet.kubernetes.engine import _RenewedLease
from fleet.kubernetes.lease import (
    MARGIN_SECONDS,
    UNHELD,
    LeaseHolder,
    Observed,
    may_take,
)
from serving.base.clock import SystemClock
from tests.fleet.worlds.coordinators import LEASE_SECONDS, NAME, CoordinatorWorld, Process


def holder_of(world: CoordinatorWorld) -> tuple[Process, LeaseHolder]:
    process = world.add()
    return process, process.holder


def leading(world: CoordinatorWorld) -> tuple[Process, LeaseHolder]:
    process, holder = holder_of(world)
    holder.turn()
    assert holder.term() is not None
    return process, holder


def record_of(world: CoordinatorWorld) -> tuple[str, int]:
    lease = world.cluster.stored("leases", NAME)
    assert lease is not None
    record = lease_record(lease)
    return record.holder, record.term


@pytest.mark.parametrize(
    ("holder", "age", "state_term", "expected"),
    [
        ("b", 14, 1, False),
        ("b", 15, 1, True),
        ("", 0, 1, True),
        # Somebody has put an old Lease back.
        ("", 14, 2, False),
        ("", 15, 2, True),
    ],
)
def test_lease_is_taken_when_free_or_expired(
    holder: str, age: int, state_term: int, expected: bool
) -> None:
    world = CoordinatorWorld()
    leading(world)
    lease = world.cluster.stored("leases", NAME)
    assert lease is not None
    lease["spec"]["holderIdentity"] = holder
    observed = Observed(lease_record(lease), 0)
    assert may_take(observed, state_term, LEASE_SECONDS, age * 10**9) is expected


def test_lease_without_a_duration_is_waited_for() -> None:
    record = LeaseRecord(holder="b", term=1, duration_seconds=0, version="1")
    assert not may_take(Observed(record, 0), 1, LEASE_SECONDS, 14 * 10**9)
    assert may_take(Observed(record, 0), 1, LEASE_SECONDS, 15 * 10**9)


def test_first_coordinator_leads_term_one() -> None:
    world = CoordinatorWorld()
    _, holder = leading(world)
    assert record_of(world) == ("c1", 1)
    term = holder.term()
    assert term is not None
    assert (term.number, term.is_valid()) == (1, True)


def test_holder_stops_before_another_may_take() -> None:
    world = CoordinatorWorld()
    process, holder = leading(world)
    term = holder.term()
    assert term is not None
    process.link.is_cut = True
    other, waiting = holder_of(world)
    waiting.turn()
    world.clock.advance(LEASE_SECONDS - MARGIN_SECONDS - 0.001)
    assert term.is_valid()
    world.clock.advance(0.001)
    assert not term.is_valid()
    waiting.turn()
    assert waiting.term() is None
    world.clock.advance(MARGIN_SECONDS)
    waiting.turn()
    assert record_of(world) == ("c2", 2)
    assert other.leader() == ""


def test_renewal_counts_from_its_beginning() -> None:
    world = CoordinatorWorld()
    process, holder = leading(world)
    term = holder.term()
    assert term is not None
    # The answer of the renewal takes 4 s.
    process.stalls["lease"] = 4
    holder.turn()
    world.clock.advance(LEASE_SECONDS - MARGIN_SECONDS - 4.001)
    assert term.is_valid()
    world.clock.advance(0.001)
    assert not term.is_valid()


def test_answer_that_comes_too_late_renews_nothing() -> None:
    world = CoordinatorWorld()
    process, holder = leading(world)
    term = holder.term()
    assert term is not None
    process.stalls["lease"] = LEASE_SECONDS
    holder.turn()
    assert not term.is_valid()
    assert holder.term() is None


def test_lapsed_holder_leads_again_in_a_new_term() -> None:
    world = CoordinatorWorld()
    _, holder = leading(world)
    world.clock.advance(LEASE_SECONDS)
    holder.turn()
    term = holder.term()
    assert term is not None
    assert term.number == 2


def test_renewal_without_an_answer_keeps_the_term() -> None:
    world = CoordinatorWorld()
    process, holder = leading(world)
    process.link.loses_answers = True
    holder.turn()
    process.link.loses_answers = False
    world.clock.advance(3)
    holder.turn()
    assert record_of(world) == ("c1", 1)
    world.clock.advance(LEASE_SECONDS - MARGIN_SECONDS - 1)
    assert holder.term() is not None


def test_held_write_of_before_is_refused() -> None:
    world = CoordinatorWorld()
    process, holder = leading(world)
    process.link.is_holding = True
    holder.turn()
    _, waiting = holder_of(world)
    waiting.turn()
    world.clock.advance(LEASE_SECONDS)
    waiting.turn()
    with pytest.raises(OSError, match="modified"):
        process.link.held.pop()()
    assert record_of(world) == ("c2", 2)


def test_released_lease_is_taken_at_once() -> None:
    world = CoordinatorWorld()
    _, holder = leading(world)
    term = holder.term()
    holder.release()
    assert term is not None
    assert not term.is_valid()
    assert record_of(world) == ("", 1)
    _, waiting = holder_of(world)
    waiting.turn()
    assert record_of(world) == ("c2", 2)
    holder.turn()
    assert record_of(world) == ("c2", 2)


def test_standby_knows_the_address_of_the_leader() -> None:
    world = CoordinatorWorld()
    process, holder = holder_of(world)
    holder.address = "10.0.0.1:8700"
    holder.turn()
    standby, waiting = holder_of(world)
    waiting.turn()
    assert (process.leader(), standby.leader()) == ("", "10.0.0.1:8700")


def test_deleted_lease_goes_on_with_a_higher_term() -> None:
    world = CoordinatorWorld()
    process, holder = leading(world)
    process.work()
    world.cluster.delete("leases", NAME)
    holder.turn()
    assert holder.term() is None
    # Another one might still lead.
    world.clock.advance(LEASE_SECONDS - 1)
    holder.turn()
    assert holder.term() is None
    world.clock.advance(1)
    holder.turn()
    assert record_of(world) == ("c1", 2)


def test_lease_made_anew_has_no_holder() -> None:
    world = CoordinatorWorld()
    leading(world)
    world.cluster.delete("leases", NAME)
    _, waiting = holder_of(world)
    waiting.turn()
    assert waiting.term() is None
    assert record_of(world) == (UNHELD, 1)


def test_copy_of_a_released_lease_is_not_taken_at_once() -> None:
    world = CoordinatorWorld()
    _, first = leading(world)
    first.release()
    copy = world.cluster.stored("leases", NAME)
    assert copy is not None
    _, second = leading(world)
    term = second.term()
    for key in ("resourceVersion", "uid"):
        del copy["metadata"][key]
    world.cluster.delete("leases", NAME)
    world.cluster.create_lease(copy)
    assert record_of(world) == ("", 1)
    _, third = holder_of(world)
    third.turn()
    assert term is not None
    assert (third.term(), term.is_valid()) == (None, True)
    world.clock.advance(LEASE_SECONDS)
    third.turn()
    assert (record_of(world), term.is_valid()) == (("c3", 3), False)


def test_late_creation_gives_no_term() -> None:
    """Two coordinators begin at once, and the one's creation of the Lease comes after the other's deletion."""
    world = CoordinatorWorld()
    late, late_holder = holder_of(world)
    late.link.is_holding = True
    late_holder.turn()
    _, holder = leading(world)
    term = holder.term()
    world.cluster.delete("leases", NAME)
    late.link.held.pop()()
    assert record_of(world) == ("c1", 1)
    late_holder.turn()
    assert late_holder.term() is None
    assert term is not None
    assert term.is_valid()
    world.clock.advance(LEASE_SECONDS)
    late_holder.turn()
    assert not term.is_valid()
    assert record_of(world) == ("c1", 2)


def test_claim_without_an_answer_begins_no_term(monkeypatch: pytest.MonkeyPatch) -> None:
    world = CoordinatorWorld()
    leading(world)
    process, holder = holder_of(world)
    holder.turn()
    world.clock.advance(LEASE_SECONDS)

    def claim_unanswered(config_map: Object) -> Object:
        world.cluster.replace_config_map(config_map)
        raise ApiFailed("no answer")

    monkeypatch.setattr(process.link, "replace_config_map", claim_unanswered)
    holder.turn()
    assert record_of(world) == ("c2", 2)
    assert holder.term() is None
    monkeypatch.undo()
    world.clock.advance(LEASE_SECONDS)
    holder.turn()
    term = holder.term()
    assert term is not None
    assert term.number == 3


def test_lease_made_and_deleted_unseen_is_waited_for() -> None:
    world = CoordinatorWorld()
    process, _ = leading(world)
    process.work()
    other, waiting = holder_of(world)
    world.cluster.delete("leases", NAME)
    waiting.turn()
    other.link.is_cut = True
    # The first one leads once more meanwhile, and its Lease is deleted again.
    world.run(LEASE_SECONDS + 5)
    assert record_of(world) == ("c1", 2)
    world.cluster.delete("leases", NAME)
    other.link.is_cut = False
    waiting.turn()
    assert waiting.term() is None


def test_lease_is_not_given_up_during_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn might take the Lease again, after another coordinator has begun to lead."""
    world = CoordinatorWorld()
    _, holder = leading(world)
    begun, may_end = threading.Event(), threading.Event()

    def hanging_turn() -> None:
        begun.set()
        may_end.wait(60)

    monkeypatch.setattr(holder, "turn", hanging_turn)
    for is_over, expected in ((False, "c1"), (True, "")):
        lease = _RenewedLease(holder, "10.0.0.1", "", SystemClock(), turn_seconds=0.01)
        lease.start(8700)
        assert begun.wait(60)
        if is_over:
            lease._turn_seconds = 60
            may_end.set()
        lease.stop()
        assert record_of(world)[0] == expected
