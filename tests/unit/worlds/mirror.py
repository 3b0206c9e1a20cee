"""A mirror between a store in memory and a local directory, which may be restarted at any time."""

import json
from collections.abc import Sequence
from pathlib import Path

from serving.base.errors import FailedPrecondition
from serving.source.notes import Note
from serving.storage.mirror import Mirror, MirrorSettings
from serving.storage.stored_objects import JOURNAL_NAME
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.object_stores import FakeStore, FakeVersions

PERIOD_SECONDS = 10.0


class MirrorWorld:
    """All versions of the store have a graph and variables; `check` refuses a copy without variables."""

    def __init__(
        self,
        directory: Path,
        *,
        latest: int = 1,
        budget_bytes: int = 1_000_000,
        keeps_last: bool = True,
    ) -> None:
        self.base = directory / "cache" / "m"
        self.store = FakeStore()
        self.versions = FakeVersions(lambda versions: versions[-latest:])
        self.clock = FakeClock()
        self.settings = MirrorSettings(
            period_seconds=PERIOD_SECONDS, budget_bytes=budget_bytes, keeps_last=keeps_last
        )
        self.missing_assets: Sequence[str] = ()
        self.mirror = self._new_mirror()

    def _new_mirror(self) -> Mirror:
        return Mirror(
            "m",
            "s3://b/m",
            self.base,
            store=self.store,
            settings=self.settings,
            versions=self.versions,
            check=self._check,
            clock=self.clock,
        )

    def restart(self) -> None:
        """Ends the process and starts another one on the same disk."""
        self.mirror.close()
        self.mirror = self._new_mirror()
        self.mirror.begin()

    def look(self) -> float:
        """Looks once, lets the time until the next look pass, and returns it."""
        seconds = self.mirror.look()
        self.clock.advance(max(seconds, 0.001))
        return seconds

    def look_until_idle(self) -> None:
        for _ in range(200):
            if self.look() >= PERIOD_SECONDS:
                return
        raise AssertionError(f"never idle: {self.versions.notes}")

    def local(self) -> dict[int, dict[str, bytes]]:
        """Returns the files of each version that a source would find."""
        if not self.base.exists():
            return {}
        return {
            int(entry.name): {
                str(file.relative_to(entry)): file.read_bytes()
                for file in sorted(entry.rglob("*"))
                if file.is_file() and file.name != JOURNAL_NAME
            }
            for entry in self.base.iterdir()
            if entry.name.isdecimal()
        }

    def events(self) -> set[str]:
        """Returns the names of the notes."""
        return {note.event for note in self.versions.notes if isinstance(note, Note)}

    def stored(self, version: int) -> dict[str, bytes]:
        """Returns the files of a version in the store."""
        return {path: data for path, (data, _) in self.store.contents[str(version)].items()}

    def _check(self, directory: str) -> Sequence[str]:
        names = {path for path, *_ in json.loads(Path(directory, JOURNAL_NAME).read_bytes())}
        if "variables/variables.data" not in names:
            raise FailedPrecondition("variables are missing")
        return self.missing_assets
