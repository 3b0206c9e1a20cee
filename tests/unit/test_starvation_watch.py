import os
import threading

from structlog.testing import capture_logs

from serving.base.clock import SystemClock
from serving.loading.load_priority import LoadPriority
from serving.loading.starvation_watch import Scheduler, StarvationWatch
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.threads import FakeScheduler

SECOND_NS = 1_000_000_000


class CountingPriority(LoadPriority):
    def __init__(self) -> None:
        self.lowered: list[int] = []

    def lower(self, thread_id: int) -> None:
        self.lowered.append(thread_id)


class Watch:
    """A starvation watch of 2 s; a test makes it look."""

    def __init__(self) -> None:
        self.scheduler = FakeScheduler()
        self.priority = CountingPriority()
        self.patience = StarvationWatch(
            2, priority=self.priority, scheduler=self.scheduler, clock=FakeClock()
        )


def test_running_thread_is_left_alone() -> None:
    watch = Watch()
    with watch.patience.watched(threading.get_native_id()):
        watch.scheduler.waited = 2 * SECOND_NS - 1
        watch.patience.look()
    assert watch.scheduler.raised == []
    assert watch.priority.lowered == []


def test_starving_thread_is_raised_until_task_ends() -> None:
    watch = Watch()
    with capture_logs() as logs, watch.patience.watched(threading.get_native_id()):
        watch.scheduler.waited = 2 * SECOND_NS
        watch.patience.look()
        watch.patience.look()
        assert watch.priority.lowered == []
    assert watch.scheduler.raised == [threading.get_native_id()]
    assert watch.priority.lowered == [threading.get_native_id()]
    assert [(log["event"], log["waited_seconds"]) for log in logs] == [
        ("load_priority_raised", 2.0)
    ]


def test_waiting_time_counts_from_start_of_task() -> None:
    watch = Watch()
    watch.scheduler.waited = 100 * SECOND_NS
    with watch.patience.watched(threading.get_native_id()):
        watch.scheduler.waited = 101 * SECOND_NS
        watch.patience.look()
    assert watch.scheduler.raised == []


def test_watch_unable_to_raise_logs_remedy_once() -> None:
    watch = Watch()
    watch.scheduler.refusal = PermissionError("Operation not permitted")
    with capture_logs() as logs, watch.patience.watched(threading.get_native_id()):
        watch.scheduler.waited = 5 * SECOND_NS
        watch.patience.look()
        watch.patience.look()
    assert [log["event"] for log in logs] == ["load_starving"]
    assert "--load_priority=normal" in logs[0]["remedy"]
    assert watch.priority.lowered == []


def test_helper_that_waits_is_raised_with_its_task() -> None:
    watch, helpers = Watch(), [7]
    watch.scheduler.waited = 100 * SECOND_NS
    with watch.patience.watched(1, lambda: helpers):
        watch.scheduler.waited_by[7] = 102 * SECOND_NS
        watch.patience.look()
    assert watch.scheduler.raised == [1, 7]
    assert watch.priority.lowered == [1, 7]


def test_helper_started_during_task_is_raised_with_it() -> None:
    watch, helpers = Watch(), list[int]()
    with watch.patience.watched(1, lambda: helpers):
        helpers.append(7)
        watch.patience.look()
        watch.scheduler.waited_by[7] = 2 * SECOND_NS
        watch.patience.look()
    assert watch.scheduler.raised == [1, 7]
    assert watch.priority.lowered == [1, 7]


def test_helper_has_no_waits_of_other_tasks() -> None:
    watch, helpers = Watch(), list[int]()
    with watch.patience.watched(1, lambda: helpers):
        watch.scheduler.waited_by[7] = 100 * SECOND_NS
        helpers.append(7)
        watch.patience.look()
        watch.scheduler.waited_by[7] = 102 * SECOND_NS - 1
        watch.patience.look()
    assert watch.scheduler.raised == []


def test_end_of_one_task_leaves_shared_helper_raised() -> None:
    watch = Watch()
    with watch.patience.watched(1, lambda: [7]):
        with watch.patience.watched(2, lambda: [7]):
            watch.scheduler.waited = 2 * SECOND_NS
            watch.patience.look()
        assert watch.priority.lowered == [2, 7]
        watch.scheduler.raised.clear()
        watch.patience.look()
        assert watch.scheduler.raised == [7]
    assert watch.priority.lowered == [2, 7, 1, 7]


def test_helper_that_has_ended_keeps_no_task_low() -> None:
    watch = Watch()
    with watch.patience.watched(1, lambda: [7]):
        watch.scheduler.waited = 2 * SECOND_NS
        watch.patience.look()
        watch.scheduler.refusal = ProcessLookupError("No such process")
        with capture_logs() as logs:
            watch.patience.look()
    assert logs == []
    assert watch.priority.lowered == [1, 7]


def test_helper_that_ends_in_time_keeps_no_task_low() -> None:
    watch = Watch()
    watch.scheduler.ended.add(7)
    with watch.patience.watched(1, lambda: [7, 8]):
        watch.scheduler.waited = 2 * SECOND_NS
        watch.patience.look()
    assert watch.scheduler.raised == [1, 8]
    assert watch.priority.lowered == [1, 8]


def test_thread_with_the_id_of_an_ended_one_is_kept() -> None:
    watch = Watch()
    with watch.patience.watched(1, lambda: [7]):
        watch.scheduler.waited = 2 * SECOND_NS
        watch.patience.look()
        watch.scheduler.started_at[7] = 1_000
    assert watch.priority.lowered == [1]


def test_short_waits_of_many_helpers_are_no_starvation() -> None:
    watch = Watch()
    with watch.patience.watched(1, lambda: range(2, 66)):
        watch.scheduler.waited = SECOND_NS
        watch.patience.look()
    assert watch.scheduler.raised == []


def test_patience_watches_by_itself_once_it_is_started() -> None:
    scheduler, raised = FakeScheduler(), threading.Event()
    scheduler.raise_priority = lambda thread_id: raised.set()  # type: ignore[method-assign]
    patience = StarvationWatch(
        0, priority=CountingPriority(), scheduler=scheduler, clock=SystemClock()
    )
    patience.start()
    with patience.watched(threading.get_native_id()):
        assert raised.wait(timeout=30)
    patience.stop()
    assert "load-patience" not in [thread.name for thread in threading.enumerate()]


def test_watch_never_started_can_be_stopped() -> None:
    Watch().patience.stop()


def test_linux_scheduler_reports_waiting_time() -> None:
    assert Scheduler().waited_ns(threading.get_native_id()) >= 0
    assert Scheduler().waited_ns(0) == 0


def test_linux_scheduler_knows_when_a_thread_started() -> None:
    own = Scheduler().started(threading.get_native_id())
    assert own > 0
    assert Scheduler().started(threading.get_native_id()) == own
    assert Scheduler().started(0) == 0


def test_linux_scheduler_raises_an_idle_thread() -> None:
    policies = []

    def idle() -> None:
        thread_id = threading.get_native_id()
        os.sched_setscheduler(thread_id, os.SCHED_IDLE, os.sched_param(0))
        try:
            Scheduler().raise_priority(thread_id)
        except PermissionError:
            policies.append(os.SCHED_OTHER)  # this process lacks the right to raise it
            return
        policies.append(os.sched_getscheduler(thread_id))

    thread = threading.Thread(target=idle)
    thread.start()
    thread.join()
    assert policies == [os.SCHED_OTHER]
