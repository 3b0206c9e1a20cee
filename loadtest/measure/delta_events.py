"""The events of a soak of deltas, besides that one delta follows the other."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from loadtest.drive.delta_series import MODEL_NAME, DeltaSeries
from loadtest.measure.delta_servers import DeltaServers
from serving.base.errors import FailedPrecondition
from serving.client import Client


@dataclass
class World:
    """The trainer and the servers of a soak, and the events that have happened."""

    series: DeltaSeries
    servers: DeltaServers
    settings_file: Path
    changed_ratio: float
    keeps_previous: bool = False
    done: Counter[str] = field(default_factory=Counter)

    def bring(self, publish: Callable[[], int]) -> None:
        """Trains, writes a version, and waits until it answers, as it should."""
        self.series.train(self.changed_ratio)
        self.servers.wait_for(publish())


def write_settings(path: Path, keep_previous_seconds: int) -> None:
    """Writes the server's settings file by one rename."""
    partial = path.with_suffix(".partial")
    partial.write_text(f"[models.{MODEL_NAME}]\nkeep_previous_seconds = {keep_previous_seconds}\n")
    partial.rename(path)


class DoesNotHappen(Exception):
    """There is nothing to do for an event, like no version to roll back to."""


def roll_back(world: World) -> None:
    """Rolls back to the version before, as an operator. It serves until the next delta.

    Raises DoesNotHappen if no version is there to roll back to.
    """
    with Client(world.servers.admin_target) as client:
        try:
            rolled_back = client.rollback(MODEL_NAME, is_cold_allowed=True).rolled_back
        except FailedPrecondition as error:
            raise DoesNotHappen from error
        client.wait_for_rollback(MODEL_NAME, rolled_back)


def roll_back_and_allow(world: World) -> None:
    """Rolls back, and allows the version again, so that it is loaded a second time.

    Raises DoesNotHappen if no version is there to roll back to.
    """
    roll_back(world)
    with Client(world.servers.admin_target) as client:
        client.allow(MODEL_NAME, world.series.newest)
    world.servers.wait_for_answer_of(world.series.newest)


def break_delta(world: World) -> None:
    """Adds a delta with a wrong bit, whose load fails before it writes to a table."""
    _add_bad(world, world.series.publish_broken)


def spoil_delta(world: World) -> None:
    """Adds a delta that answers NaN. A gate refuses it, after its load has written to a table."""
    _add_bad(world, world.series.publish_unfit)


def _add_bad(world: World, publish: Callable[[], int]) -> None:
    world.series.train(world.changed_ratio)
    version = publish()
    world.servers.wait_for_failure(version)
    world.series.remove(version)


def replace_shard(world: World) -> None:
    """Replaces the base's file of tables by another one with the same bytes."""
    world.series.replace_shard()


def bring_two(world: World) -> None:
    """Adds a delta, and the next one before the first can serve."""
    world.series.train(world.changed_ratio)
    world.series.publish_delta()
    world.bring(world.series.publish_delta)


def keep_previous(world: World) -> None:
    """Keeps the version before in memory from now on, or does so no more."""
    world.keeps_previous = not world.keeps_previous
    write_settings(world.settings_file, 600 if world.keeps_previous else 0)


def restart(world: World) -> None:
    """Starts another server, moves the requests to it, and stops the server before."""
    world.servers.take_over(world.series.newest)


Event = Callable[[World], None]

EVENTS: Sequence[Event] = (
    roll_back,
    break_delta,
    spoil_delta,
    replace_shard,
    bring_two,
    keep_previous,
    roll_back_and_allow,
)
"""The events that a soak draws from. A restart has its places in the schedule."""


def schedule(
    delta_count: int, event_each: int, restart_count: int, seed: int
) -> Mapping[int, Event]:
    """The event after the delta of each number, from 1 on. Pure.

    There is one after every `event_each` deltas. Of every len(EVENTS) events in a row none occurs twice. Restarts
    take the places of the events that are nearest.
    """
    dice, deck, events = random.Random(seed), list[Event](), {}
    for number in range(event_each, delta_count + 1, event_each):
        if not deck:
            deck = dice.sample(EVENTS, len(EVENTS))
        events[number] = deck.pop()
    for index in range(restart_count):
        events[delta_count * (index + 1) // (restart_count + 1)] = restart
    return MappingProxyType(events)


def happens(world: World, event: Event) -> None:
    """Runs one event, and counts it, or counts that it could not happen."""
    try:
        event(world)
    except DoesNotHappen:
        world.done[f"no {event.__name__}"] += 1
    else:
        world.done[event.__name__] += 1
