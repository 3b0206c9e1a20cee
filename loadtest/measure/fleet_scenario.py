"""A day of a simulated fleet: versions of each kind come, while servers and coordinators fail."""

from collections.abc import Mapping
from typing import Any

from fleet.rollout.wave_settings import WaveSettings
from loadtest.measure.fleet_simulation import MODEL, FleetSimulation, Kind
from serving.base.clock import Clock

SETTLED_SECONDS_MAX = 6_000
"""A fleet without faults that is not at rest after this time makes no progress."""

VERSIONS = (
    Kind.GOOD,
    Kind.REFUSED,
    Kind.SLOW,
    Kind.FAILING,
    Kind.CRASHING,
    Kind.FRAGILE,
    Kind.HANGING,
    Kind.GOOD,
)
_FAULTY_SECONDS = 150


def scenario_settings(server_count: int) -> WaveSettings:
    """Makes waves of one server, a tenth and the rest. A twentieth of the fleet loads at once."""
    return WaveSettings(
        load_count_max=max(1, server_count // 20),
        judged_seconds=30,
        lost_seconds=15,
        load_seconds_max=120,
    )


def run_fleet_scenario(server_count: int, seed: int, clock: Clock) -> Mapping[str, Any]:
    """Simulates one day, and returns its figures.

    Raises BrokenPromise if a promise of the fleet did not hold.

    Each version comes amid faults: a twentieth of the servers is cut off, a hundredth restarts,
    messages are lost, late and reordered, and the coordinator dies once at a random step and once
    between a write and its grants. Then the faults end, and the fleet must come to rest.
    """
    began_ns = clock.now_ns()
    fleet = FleetSimulation(
        server_count,
        scenario_settings(server_count),
        seed=seed,
        poll_seconds=2 if server_count < 5_000 else 5,
    )
    fleet.decision_clock = clock
    fleet.drop(1, Kind.GOOD)
    seconds = {"first version": fleet.run_until_settled(SETTLED_SECONDS_MAX)}
    for version, kind in enumerate(VERSIONS, start=2):
        fleet.drop(version, kind)
        _disturb(fleet)
        fleet.heal()
        settled = fleet.run_until_settled(SETTLED_SECONDS_MAX)
        seconds[f"{version} {kind.value}"] = _FAULTY_SECONDS + settled
    tally, times = fleet.tally, sorted(fleet.tally.decision_seconds)
    blocked = {
        f"{version} {fleet.kinds[version].value}": {
            "wave": wave + 1,
            "servers": len(tally.touched.get(version, ())),
        }
        for version, wave in sorted(tally.blocked_in_wave.items())
    }
    return {
        "servers": server_count,
        "seed": seed,
        "simulated_seconds": tally.steps,
        "wall_seconds": round((clock.now_ns() - began_ns) / 1e9, 1),
        "decision_ms_p50": round(1e3 * times[len(times) // 2], 2),
        "decision_ms_p99": round(1e3 * times[len(times) * 99 // 100], 2),
        "decision_ms_max": round(1e3 * times[-1], 2),
        "state_bytes_max": fleet.store.length_max,
        "state_writes": fleet.store.write_count,
        "grants": tally.grant_count,
        "coordinators": tally.coordinator_count,
        "swapping_max": tally.swapping_max,
        "swapping_limit": fleet.settings.load_count_max,
        "rollbacks_of_good_versions": sum(
            fleet.kinds[version].is_good for version in tally.blocked_in_wave
        ),
        "seconds_until_rest": seconds,
        "blocked": blocked,
        "stable": fleet.state.models[MODEL].stable,
    }


def _disturb(fleet: FleetSimulation) -> None:
    names = [*fleet.servers]
    draw = fleet.random
    fleet.message_loss, fleet.message_seconds_max = 0.1, 10
    for second in range(_FAULTY_SECONDS):
        if second % 40 == 5:
            fleet.cut(draw.sample(names, max(1, len(names) // 20)))
        if second % 40 == 30:
            fleet.heal()
            fleet.message_loss, fleet.message_seconds_max = 0.1, 10
        if second % 50 == 20:
            for name in draw.sample(names, max(1, len(names) // 100)):
                fleet.restart(name, draw.randint(1, 10))
        if second == 70:
            fleet.kill_coordinator(draw.randint(1, 20))
        if second == 110:
            fleet.dies_after_sends = draw.randint(0, 3)
        fleet.step()
