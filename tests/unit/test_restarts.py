"""Decisions on the end of a server: exits, restarts, back-offs and blocks."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.blocked_versions import BlockedBy, BlockedVersion, BlockedVersions
from serving.supervisor.crash_page import MarkedVersion
from serving.supervisor.restarts import CRASH_SIGNALS, Death, Exit, Restart, RestartLimits, Restarts
from tests.unit.fakes.clocks import FakeClock

CTR_7 = MarkedVersion("ctr", 7)
LIMITS = RestartLimits()


def crash(*suspects: MarkedVersion, number: int = signal.SIGSEGV) -> Death:
    return Death(signal=number, suspects=suspects)


def restart(restarts: Restarts, death: Death) -> Restart:
    decision = restarts.decide(death, {})
    assert isinstance(decision, Restart)
    return decision


@pytest.mark.parametrize("status", [0, 2])
def test_clean_exit_and_wrong_usage_end(status: int):
    assert Restarts(FakeClock()).decide(Death(status=status), {}) == Exit(status)


def test_failed_start_ends():
    death = Death(status=1, has_begun_loads=False)
    assert Restarts(FakeClock()).decide(death, {}) == Exit(1)


def test_failure_after_start_restarts():
    assert restart(Restarts(FakeClock()), Death(status=1)) == Restart()


def test_crash_after_stop_signal_ends():
    death = Death(signal=signal.SIGSEGV, is_stop_requested=True)
    assert Restarts(FakeClock()).decide(death, {}) == Exit(128 + signal.SIGSEGV)


def test_crash_blocks_its_version():
    clock = FakeClock()
    decision = restart(Restarts(clock), crash(CTR_7))
    assert decision.delay_seconds == 0
    block = decision.blocks[CTR_7]
    assert block.by is BlockedBy.CRASH
    assert block.needs_operator
    assert block.reason == "the server died while it ran this version: it died by SIGSEGV"
    assert block.not_before_wall_ns - clock.wall_ns() == 1_000_000_000


def test_crash_in_load_names_the_load():
    loading = MarkedVersion("ctr", 8, is_loading=True)
    block = restart(Restarts(FakeClock()), crash(loading)).blocks[loading]
    assert "while it loaded this version" in block.reason


def test_kill_blames_no_version():
    decision = restart(Restarts(FakeClock()), crash(CTR_7, number=signal.SIGKILL))
    assert decision == Restart()


def test_back_off_of_version_doubles_up_to_bound():
    clock = FakeClock()
    restarts = Restarts(clock)
    waits = []
    for _ in range(12):
        block = restart(restarts, crash(CTR_7)).blocks[CTR_7]
        waits.append((block.not_before_wall_ns - clock.wall_ns()) / 1e9)
        clock.advance(waits[-1])
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == LIMITS.version_seconds_max


def test_version_that_lives_long_starts_over():
    clock = FakeClock()
    restarts = Restarts(clock)
    restart(restarts, crash(CTR_7))
    clock.advance(LIMITS.loop_seconds)
    block = restart(restarts, crash(CTR_7)).blocks[CTR_7]
    assert block.not_before_wall_ns - clock.wall_ns() == 1_000_000_000


def test_block_by_operator_stays_operators():
    before = BlockedVersion(by=BlockedBy.OPERATOR, reason="bad answers", since_wall_ns=5)
    decision = Restarts(FakeClock()).decide(crash(CTR_7), {"ctr": {7: before}})
    assert isinstance(decision, Restart)
    block = decision.blocks[CTR_7]
    assert (block.by, block.reason, block.since_wall_ns) == (before.by, "bad answers", 5)
    assert block.not_before_wall_ns > 0


def test_loop_without_version_backs_off():
    restarts = Restarts(FakeClock())
    delays = [restart(restarts, crash()).delay_seconds for _ in range(12)]
    assert delays[:6] == [0, 0, 1, 2, 4, 8]
    assert delays[-1] == LIMITS.delay_seconds_max


def test_loop_ends_after_quiet_time():
    clock = FakeClock()
    restarts = Restarts(clock)
    for _ in range(5):
        restart(restarts, crash())
    clock.advance(LIMITS.loop_seconds + LIMITS.delay_seconds_max + 1)
    assert restart(restarts, crash()).delay_seconds == 0


VERSIONS = [MarkedVersion(name, version) for name in ("a", "b") for version in (1, 2)]
SIGNALS = [*sorted(CRASH_SIGNALS), signal.SIGKILL, signal.SIGTERM, 64]
DEATHS = st.one_of(
    st.builds(
        Death,
        signal=st.sampled_from(SIGNALS),
        suspects=st.lists(st.sampled_from(VERSIONS), unique=True, max_size=3).map(tuple),
        has_begun_loads=st.booleans(),
    ),
    st.builds(Death, status=st.sampled_from([0, 1, 2, 3, 139]), has_begun_loads=st.booleans()),
)
STEPS = st.lists(st.tuples(DEATHS, st.sampled_from([0.0, 0.5, 30.0, 1_000.0])), max_size=80)


@given(STEPS)
def test_any_sequence_restarts_within_bounds(steps: list[tuple[Death, float]]):
    clock = FakeClock()
    restarts = Restarts(clock)
    blocked: dict[str, BlockedVersions] = {}
    for death, seconds in steps:
        decision = restarts.decide(death, blocked)
        if isinstance(decision, Exit):
            assert not death.signal
            assert death.status in (0, 2) or not death.has_begun_loads
            continue
        assert 0 <= decision.delay_seconds <= LIMITS.delay_seconds_max
        assert set(decision.blocks) <= set(death.suspects)
        assert not decision.blocks or death.signal in CRASH_SIGNALS
        for marked, block in decision.blocks.items():
            wait_ns = block.not_before_wall_ns - clock.wall_ns()
            assert 0 < wait_ns <= LIMITS.version_seconds_max * 1_000_000_000
            before = blocked.get(marked.name, {})
            blocked[marked.name] = {**before, marked.version: block}
        clock.advance(seconds)
