"""Loans of cores: the server's threads leave them, and come back to their own."""

import os
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.numa_nodes import NumaNode, numa_nodes
from serving.loading.core_loan import CoreLender, SystemThreads, few_cores
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.cores import FakeThreads, one_node

ALL = frozenset(range(8))
LENT = frozenset({6, 7})
REST = ALL - LENT


class Lent:
    """A loan on fake threads, of which each look comes a second after the last one."""

    def __init__(self, threads: FakeThreads) -> None:
        self.threads = threads
        self.clock = FakeClock()
        self.lender = CoreLender(threads, self.clock, one_node)
        self.loan = self.lender.loan()

    def look(self, used_cores: float = 0.0) -> None:
        self.clock.advance(1)
        self.threads.seconds += used_cores
        self.loan.look()


@pytest.mark.parametrize(
    ("count", "few"), [(1, [0]), (2, [1]), (8, [6, 7]), (64, [60, 61, 62, 63])]
)
def test_a_process_has_few_cores(count: int, few: list[int]) -> None:
    assert few_cores(one_node(range(count))) == few


def test_nodes_give_cores_evenly() -> None:
    nodes = [NumaNode(0, (0, 1, 2, 3, 8, 9, 10, 11)), NumaNode(1, (4, 5, 6, 7, 12, 13, 14, 15))]
    assert few_cores(nodes) == [10, 11, 14, 15]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_no_node_gives_more_than_its_share(sizes: list[int]) -> None:
    cores = iter(range(sum(sizes)))
    nodes = [
        NumaNode(number, tuple(next(cores) for _ in range(size)))
        for number, size in enumerate(sizes)
    ]
    few = few_cores(nodes)
    assert len(few) == len(few_cores(one_node(range(sum(sizes)))))
    given_counts = Counter({node: len(set(few) & set(node.cores)) for node in nodes})
    for node, count in given_counts.items():
        assert not count or set(node.cores[-count:]) <= set(few), "the last ones"
        for other, other_count in given_counts.items():
            assert count / len(node.cores) <= (other_count + 1) / len(other.cores)


def test_a_loan_keeps_the_cores_it_began_with() -> None:
    lent = Lent(FakeThreads(ALL))
    assert lent.loan.cores == [6, 7]
    lent.threads.by_id[0] = frozenset({0, 1, 2, 3})  # as another loan may do
    assert lent.loan.cores == [6, 7]
    assert lent.lender.loan().cores == [3]


def test_threads_leave_the_cores_and_come_back() -> None:
    threads = FakeThreads(ALL, ALL, {6}, {1, 7})
    lent = Lent(threads)
    assert threads.by_id == {0: ALL, 1: ALL, 2: {6}, 3: {1, 7}}, "nothing is known yet"
    lent.look()
    assert threads.by_id == {0: REST, 1: REST, 2: REST, 3: {1}}
    lent.loan.close()
    assert threads.by_id == {0: ALL, 1: ALL, 2: {6}, 3: {1, 7}}


@pytest.mark.parametrize(
    ("used_cores", "is_lent"),
    [((4.1,), True), ((4.3,), False), ((0, 5.0), True), ((0, 5.2), False)],
)
def test_a_busy_server_keeps_its_cores(used_cores: tuple[float, ...], is_lent: bool) -> None:
    lent = Lent(FakeThreads(ALL))
    for used in used_cores:
        lent.look(used)
    assert (lent.threads.by_id[0] == REST) is is_lent
    lent.loan.close()
    assert lent.threads.by_id[0] == ALL


def test_cores_are_lent_again_when_the_server_rests() -> None:
    lent = Lent(FakeThreads(ALL))
    for used in (0, 6, 0):
        lent.look(used)
    assert lent.threads.by_id[0] == REST


def test_new_threads_leave_the_cores_and_come_back() -> None:
    threads = FakeThreads(ALL)
    lent = Lent(threads)
    lent.look()
    threads.by_id |= {1: threads.by_id[0], 2: ALL}
    lent.look()
    assert threads.by_id == {0: REST, 1: REST, 2: REST}
    threads.by_id[3] = REST
    lent.loan.close()
    assert threads.by_id == {0: ALL, 1: ALL, 2: ALL, 3: ALL}


def test_a_thread_of_an_unpinned_one_is_not_pinned() -> None:
    threads = FakeThreads(ALL, {6}, {7})
    lent = Lent(threads)
    lent.look()
    threads.by_id[3] = REST
    lent.loan.close()
    assert threads.by_id == {0: ALL, 1: {6}, 2: {7}, 3: ALL}


@pytest.mark.parametrize("is_end", [False, True])
def test_threads_that_begin_during_a_move_follow(is_end: bool) -> None:
    threads = FakeThreads(ALL, ALL)
    lent = Lent(threads)
    if is_end:
        lent.look()

    def begin() -> None:
        threads.by_id.setdefault(2, threads.by_id[0])

    threads.before_move = begin
    lent.loan.close() if is_end else lent.look()
    assert set(threads.by_id.values()) == {ALL if is_end else REST}


def test_a_system_that_lists_no_threads_refuses_a_loan() -> None:
    lent = Lent(FakeThreads(ALL))
    lent.threads.is_listed = False
    lent.look()
    lent.loan.close()
    assert lent.threads.by_id[0] == ALL
    lent.threads.is_listed = True
    lent.look()
    lent.threads.is_listed = False
    lent.loan.close()
    assert lent.threads.by_id[0] == ALL, "the thread is known"


def test_a_thread_that_was_pinned_meanwhile_stays() -> None:
    threads = FakeThreads(ALL, ALL)
    lent = Lent(threads)
    lent.look()
    threads.by_id[1] = frozenset({2})
    lent.loan.close()
    assert threads.by_id == {0: ALL, 1: {2}}


def test_a_thread_that_ends_disturbs_nothing() -> None:
    threads = FakeThreads(ALL, ALL)
    threads.gone = {0}
    lent = Lent(threads)
    lent.look()
    assert threads.by_id[1] == REST
    lent.loan.close()
    assert threads.by_id[1] == ALL


def test_the_only_core_is_not_lent() -> None:
    lent = Lent(FakeThreads({0}))
    lent.look()
    assert lent.threads.by_id == {0: {0}}


@given(
    st.booleans(),
    st.lists(st.sampled_from(["first", "second", "end first", "end second"]), max_size=12),
)
def test_loans_leave_one_another_their_cores(is_lent: bool, steps: list[str]) -> None:
    threads = FakeThreads(ALL, ALL, {7})
    lent = Lent(threads)
    if is_lent:  # then the second loan is of other cores
        lent.look()
    loans = {"first": lent.loan, "second": lent.lender.loan()}
    for step in steps:
        loan = loans[step.split()[-1]]
        if step.startswith("end"):
            loan.close()
        else:
            lent.clock.advance(1)
            loan.look()
        assert all(threads.by_id.values())
    for loan in loans.values():
        loan.close()
    assert threads.by_id == {0: ALL, 1: ALL, 2: {7}}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="no core is left beside a lent one")
def test_real_threads_move() -> None:
    cores = os.sched_getaffinity(0)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    clock = FakeClock()
    loan = CoreLender(SystemThreads(), clock).loan()
    try:
        clock.advance(1_000)
        loan.look()
        assert thread.native_id is not None
        assert os.sched_getaffinity(thread.native_id) == cores - set(few_cores(numa_nodes(cores)))
        loan.close()
        assert os.sched_getaffinity(thread.native_id) == cores
    finally:
        loan.close()
        stop.set()
        thread.join()
