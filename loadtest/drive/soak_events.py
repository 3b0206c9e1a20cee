"""The events of a soak: changes of a server's disk, config and settings, and operators' calls."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.soak_unfit import UnfitVersion
from loadtest.drive.version_series import VersionSeries
from serving.base.clock import Clock, pause
from serving.base.errors import FailedPrecondition

NEIGHBOUR_NAME = "neighbour"
_VERSIONS_ON_DISK_MAX = 4
# New versions count up from here; versions for selections of an older one count down.
FIRST_VERSION = 1_000


class Person(Protocol):
    """The operator calls of `serving.client.Client`. FailedPrecondition means: not possible now."""

    def rollback(self, name: str, *, is_cold_allowed: bool = False) -> object: ...
    def allow(self, name: str, version: int) -> object: ...
    def promote(self, name: str) -> object: ...
    def describe_models(self) -> Mapping[str, Any]: ...


@dataclass
class World:
    """A server, the versions on its disk, and their changes. `dice` draws the next event.

    `broken` versions are on the disk now; `forbidden` are all versions that ever were broken or
    unfit.
    """

    series: VersionSeries
    directory: Path
    client: Person
    clock: Clock
    dice: random.Random
    unfit_version: UnfitVersion
    # True if two versions of a model may not fit beside each other. A policy that unloads the old version
    # first would leave a model under load without a version in that case.
    is_memory_tight: bool
    next_version: int = FIRST_VERSION + 1
    next_lower_version: int = FIRST_VERSION - 1
    sound: set[int] = field(default_factory=lambda: {FIRST_VERSION})
    broken: set[int] = field(default_factory=set)
    forbidden: set[int] = field(default_factory=set)
    selection: str = ""
    label_version: int | None = None
    has_neighbour: bool = False
    # The base paths of models by name that no event changes.
    lasting: dict[str, Path] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    # The time (ns of the wall clock) and version of each call that allows a version again.
    allowed: list[tuple[int, int]] = field(default_factory=list)

    def take_version(self) -> int:
        """Takes the number of the next version, above all others and never used before."""
        self.next_version += 1
        return self.next_version - 1

    def take_lower_version(self) -> int:
        """Takes a version number below all others."""
        self.next_lower_version -= 1
        return self.next_lower_version + 1

    def pause(self, seconds: float) -> None:
        pause(self.clock, seconds)

    def write_config(self) -> None:
        """Writes the server's config file for the world's state."""
        label = ""
        if self.label_version is not None:
            label = f'version_labels {{ key: "stable" value: {self.label_version} }}'
        policy = f"model_version_policy {{ {self.selection} }}" if self.selection else ""
        base_paths = {MODEL_NAME: self.series.base_path, **self.lasting}
        if self.has_neighbour:
            base_paths[NEIGHBOUR_NAME] = self.series.base_path
        write_config(self.directory, base_paths, {MODEL_NAME: f"{policy} {label}"})


def write_config(
    directory: Path, base_paths: Mapping[str, Path], more: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Writes a config file by one rename. `more` has the rest of a model's config by its name."""
    configs = (
        f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" '
        f"{more.get(name, '')} }}"
        for name, path in base_paths.items()
    )
    _replace(directory / "models.config", f"model_config_list {{ {' '.join(configs)} }}")


def write_settings(directory: Path, text: str) -> None:
    """Writes a settings file whose gates refuse NaN. `text` has the tables of models."""
    gates = '[default.gates]\ngolden = "enforce"\ndrift = "enforce"\n'
    _replace(directory / "settings.toml", gates + text)


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


# --- Events ---------------------------------------------------------------------------------------


def drop(world: World) -> None:
    """Adds a new version by one rename; removes old ones, so that the disk does not fill."""
    version = world.take_version()
    world.series.drop(version)
    world.sound.add(version)
    while len(world.sound) > _VERSIONS_ON_DISK_MAX:
        _remove(world, min(world.sound))


def drop_slowly(world: World) -> None:
    """Adds a new version by a copy that stalls before its variables."""
    version = world.take_version()
    finish = world.series.begin_copy(version)
    world.pause(world.dice.uniform(0.5, 3))
    finish()
    world.sound.add(version)


def drop_broken(world: World) -> None:
    """Adds a new version whose variables are damaged, so that it must never serve."""
    version = world.take_version()
    world.forbidden.add(version)
    world.series.drop_damaged(version)
    world.broken.add(version)


def drop_unfit(world: World) -> None:
    """Adds a new version that loads but answers with NaN, so that a gate must refuse it."""
    version = world.take_version()
    world.forbidden.add(version)
    world.unfit_version.drop(version)
    world.broken.add(version)


def drop_lower(world: World) -> None:
    """Adds a version below all others and selects it, because a selection can also go down."""
    version = world.take_lower_version()
    world.series.drop(version)
    world.sound.add(version)
    _select(world, specific([version]))


def select_latest(world: World) -> None:
    """Selects the highest version, or the two highest."""
    _select(world, f"latest {{ num_versions: {world.dice.choice([1, 1, 2])} }}")


def select_all(world: World) -> None:
    """Selects every version on disk."""
    _select(world, "all {}")


def select_specific(world: World) -> None:
    """Selects one or two versions by number, sometimes a broken one."""
    versions = sorted(world.sound | world.broken)
    count = min(world.dice.choice([1, 2]), len(versions))
    _select(world, specific(world.dice.sample(versions, count)))


def specific(versions: Sequence[int]) -> str:
    """Writes the selection of these versions in the config's syntax."""
    return f"specific {{ {' '.join(f'versions: {version}' for version in versions)} }}"


def _select(world: World, selection: str) -> None:
    world.selection = selection
    world.write_config()


def remove_broken(world: World) -> None:
    """Removes the broken versions."""
    for version in sorted(world.broken):
        world.series.remove(version)
    world.broken.clear()


def remove(world: World) -> None:
    """Removes any version, possibly the one that serves; at least one version stays."""
    if len(world.sound) > 1:
        _remove(world, world.dice.choice(sorted(world.sound)))


def _remove(world: World, version: int) -> None:
    world.sound.discard(version)
    world.series.remove(version)


def vanish(world: World) -> None:
    """Renames the base path away for a while, as if the disk were missing."""
    away = world.series.base_path.with_suffix(".away")
    world.series.base_path.rename(away)
    world.pause(world.dice.uniform(0.1, 3))
    away.rename(world.series.base_path)


def overwrite(world: World) -> None:
    """Replaces a version's files."""
    world.series.rewrite_graph(world.dice.choice(sorted(world.sound)))


def roll_back(world: World) -> None:
    """Rolls back to the previous version, as an operator."""
    with suppress(FailedPrecondition):
        world.client.rollback(MODEL_NAME, is_cold_allowed=world.dice.random() < 0.5)


def allow(world: World) -> None:
    """Allows all blocked versions again, as an operator."""
    for version in world.client.describe_models()[MODEL_NAME].get("blocked", ()):
        world.allowed.append((world.clock.wall_ns(), version))
        with suppress(FailedPrecondition):
            world.client.allow(MODEL_NAME, version)


def promote(world: World) -> None:
    """Promotes the canary if there is one, as an operator."""
    with suppress(FailedPrecondition):
        world.client.promote(MODEL_NAME)


def move_label(world: World) -> None:
    """Moves a label to a version on disk, or removes it."""
    world.label_version = world.dice.choice([None, *sorted(world.sound)])
    world.write_config()


def toggle_neighbour(world: World) -> None:
    """Adds another model to the config, or removes it."""
    world.has_neighbour = not world.has_neighbour
    # Comes first, because settings of a model that is not configured are refused.
    write_settings(world.directory, "")
    world.write_config()


def change_settings(world: World) -> None:
    """Changes the policy, the time that the previous version stays, and the canary."""
    policy = (
        "availability" if world.is_memory_tight else world.dice.choice(["availability", "auto"])
    )
    text = (
        f'[models.{MODEL_NAME}]\naspired_version_policy = "{policy}"\n'
        f"keep_previous_seconds = {world.dice.choice([0, 5, 60])}\n"
        f"[models.{MODEL_NAME}.canary]\nweight = {world.dice.choice([0, 0, 0.2])}\n"
        f"request_count = {world.dice.choice([0, 200])}\n"
    )
    if world.has_neighbour:
        # This model gets no requests, so it may be without a version for a while.
        policy = world.dice.choice(["availability", "auto", "resource"])
        text += f'[models.{NEIGHBOUR_NAME}]\naspired_version_policy = "{policy}"\n'
    write_settings(world.directory, text)


EVENTS: Mapping[Callable[[World], None], int] = {
    drop: 30,
    drop_slowly: 8,
    drop_broken: 8,
    drop_unfit: 8,
    drop_lower: 4,
    remove_broken: 6,
    remove: 10,
    vanish: 4,
    overwrite: 4,
    select_latest: 8,
    select_all: 3,
    select_specific: 5,
    roll_back: 10,
    allow: 8,
    promote: 6,
    move_label: 6,
    toggle_neighbour: 6,
    change_settings: 8,
}
"""The events and their relative frequencies."""

OPENING = (drop, drop_unfit, toggle_neighbour, drop_broken, drop, drop_lower, select_latest)
"""The first events, so that a short soak has them too."""


def happens(world: World, event: Callable[[World], None]) -> None:
    """Runs one event, and gives the server some time to react."""
    event(world)
    world.done[event.__name__] += 1
    world.pause(world.dice.uniform(0.2, 2))


def come_to_rest(world: World) -> int:
    """Restores the first state with a new version, which has to serve; returns its number."""
    world.selection, world.label_version, world.has_neighbour = "", None, False
    write_settings(world.directory, "")
    world.write_config()
    allow(world)
    remove_broken(world)
    drop(world)
    return max(world.sound)
