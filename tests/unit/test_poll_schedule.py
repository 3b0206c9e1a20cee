import random

from serving.base.clock import NS_PER_SECOND
from serving.source.poll_schedule import Poll, PollLimits, PollSchedule

S = NS_PER_SECOND
LIMITS = PollLimits(
    running_count_max=2,
    stuck_after_ns=10 * S,
    first_retry_ns=10 * S,
    retry_ns_max=40 * S,
    stuck_count_max=3,
)


def schedule_of(*keys: str, limits: PollLimits = LIMITS) -> PollSchedule:
    """Sources due at once; each key is `DIRECTORY/NAME`."""
    schedule = PollSchedule(limits)
    for key in keys:
        schedule.add(key, key.partition("/")[0], 0)
    return schedule


def take(schedule: PollSchedule, now_ns: int) -> Poll:
    poll = schedule.take(now_ns)
    assert poll is not None
    return poll


def taken_keys(schedule: PollSchedule, now_ns: int) -> list[str]:
    keys = []
    while (poll := schedule.take(now_ns)) is not None:
        keys.append(poll.key)
    return keys


def test_schedule_takes_the_most_overdue_first():
    schedule = schedule_of()
    for key, due_ns in (("a", 3), ("b", 1), ("c", 2)):
        schedule.add(key, "d", due_ns)
    assert taken_keys(schedule, 5) == ["b", "c"]  # and no more than two at once


def test_schedule_source_is_due_again_after_its_delay():
    schedule = schedule_of("d/a")
    schedule.ended(take(schedule, 0), 5 * S, 2.0)
    assert schedule.take(6 * S) is None
    assert schedule.next_due_ns() == 7 * S
    assert take(schedule, 7 * S).key == "d/a"


def test_source_without_delay_waits_for_wake():
    schedule = schedule_of("d/a")
    schedule.ended(take(schedule, 0), S, None)
    assert schedule.next_due_ns() is None
    schedule.wake("d/a", "d", 9 * S)
    assert take(schedule, 9 * S).key == "d/a"


def test_source_woken_during_poll_is_polled_again():
    schedule = schedule_of("d/a")
    poll = take(schedule, 0)
    schedule.wake("d/a", "d", S)
    assert schedule.take(S) is None
    schedule.ended(poll, 2 * S, 60.0)
    assert take(schedule, 2 * S).key == "d/a"


def test_stuck_polls_yield_places_to_others():
    schedule = schedule_of("dead/a", "dead/b", "live/c")
    polls = [take(schedule, 0), take(schedule, 0)]
    assert schedule.take(S) is None
    assert schedule.next_due_ns() == 10 * S
    assert schedule.note_stuck(10 * S) == polls
    assert schedule.stuck_keys() == {"dead/a", "dead/b"}
    assert schedule.stuck_since_ns("dead/a") == 0
    assert taken_keys(schedule, 10 * S) == ["live/c"]
    assert schedule.note_stuck(11 * S) == []


def test_stuck_source_is_retried_ever_less_often():
    schedule = schedule_of("dead/a", limits=PollLimits(stuck_count_max=100))
    instants, now_ns = [], 0
    for _ in range(7):
        take(schedule, now_ns)
        now_ns += 10 * S
        assert schedule.note_stuck(now_ns)
        due_ns = schedule.next_due_ns()
        assert due_ns is not None
        instants.append((due_ns - now_ns) // S)
        now_ns = due_ns
    assert instants == [10, 20, 40, 80, 160, 300, 300]


def test_schedule_source_recovers_by_a_later_poll():
    schedule = schedule_of("d/a")
    stuck = take(schedule, 0)
    schedule.note_stuck(10 * S)
    later = take(schedule, 20 * S)
    schedule.ended(later, 21 * S, 1.0)
    assert schedule.stuck_keys() == frozenset()
    # The thread is still held, and counted.
    assert schedule.stuck_count == 1
    assert not schedule.is_idle("d/a")
    schedule.ended(stuck, 21 * S, 60.0)
    assert (schedule.stuck_count, schedule.next_due_ns()) == (0, 22 * S)


def test_source_recovers_by_stuck_poll():
    schedule = schedule_of("d/a")
    stuck = take(schedule, 0)
    schedule.note_stuck(10 * S)
    schedule.ended(stuck, 15 * S, 1.0)
    assert (schedule.stuck_keys(), schedule.next_due_ns()) == (frozenset(), 16 * S)


def test_woken_stuck_source_is_retried_at_once():
    schedule = schedule_of("dead/a")
    take(schedule, 0)
    schedule.note_stuck(10 * S)
    schedule.wake("dead/a", "live", 11 * S)
    assert take(schedule, 11 * S).key == "dead/a"


def test_schedule_at_the_limit_dead_directories_wait():
    schedule = schedule_of(*(f"dead/{n}" for n in range(9)), "live/z")
    now_ns = 0
    while schedule.stuck_count < 3:
        taken_keys(schedule, now_ns)
        now_ns += 10 * S
        schedule.note_stuck(now_ns)
    stuck = [poll for poll in list(schedule._polls) if poll.is_stuck]
    assert taken_keys(schedule, now_ns) == ["live/z"]
    assert taken_keys(schedule, now_ns + 1_000 * S) == []
    # A thread that returns makes place for the next poll there.
    for poll in stuck:
        schedule.ended(poll, now_ns, 60.0)
    assert taken_keys(schedule, now_ns)[0].startswith("dead/")


def test_schedule_removed_source_counts_no_more():
    schedule = schedule_of("d/a")
    poll = take(schedule, 0)
    schedule.remove("d/a")
    schedule.add("d/a", "d", 0)
    later = take(schedule, 1)
    schedule.ended(poll, 2, 5.0)
    schedule.ended(later, 3, None)
    assert schedule.next_due_ns() is None
    schedule.remove("d/a")
    schedule.wake("d/a", "d", 4)
    assert (schedule.take(5), schedule.is_idle("d/a")) == (None, True)


def test_schedule_random_runs_hold_the_limits():
    for seed in range(30):
        run_randomly(random.Random(seed))


def run_randomly(dice: random.Random) -> None:
    """Directory `dead` hangs, `live` does not: each live source is polled all the time."""
    keys = [f"{dice.choice(('dead', 'live'))}/{number}" for number in range(20)]
    schedule, now_ns = schedule_of(*keys), 0
    polled_at_ns = dict.fromkeys(keys, 0)
    running: list[Poll] = []
    while now_ns < 1_000 * S:
        while (poll := schedule.take(now_ns)) is not None:
            assert all(poll.key != other.key for other in running if not other.is_stuck)
            running.append(poll)
        assert len(running) - schedule.stuck_count <= LIMITS.running_count_max
        assert len(running) <= LIMITS.running_count_max + LIMITS.stuck_count_max + 2
        for poll in [poll for poll in running if poll.key.startswith("live")]:
            running.remove(poll)
            polled_at_ns[poll.key] = now_ns
            schedule.ended(poll, now_ns, 1.0)
        now_ns += round(dice.random() * 5 * S)
        schedule.note_stuck(now_ns)
    live = [key for key in keys if key.startswith("live")]
    assert all(now_ns - polled_at_ns[key] < 60 * S for key in live)
