"""Random uploads, failures, removals and restarts: a version appears only whole, and in the end."""

import shutil
import tempfile
from hashlib import md5
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serving.base.clock import NS_PER_SECOND
from serving.storage.mirror_plan import RELIST_NS
from serving.storage.stored_objects import StoreError
from tests.unit.worlds.mirror import MirrorWorld

VERSIONS = st.integers(1, 4)


class MirrorSequences(RuleBasedStateMachine):
    """Every content that a version ever had whole in the store is known, by version."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.whole: dict[int, list[dict[str, bytes]]] = {}
        self.failures = 0

    @initialize(
        latest=st.integers(1, 2),
        keeps_last=st.booleans(),
        budget=st.sampled_from([0, 50, 10**6]),
        has_digests=st.booleans(),
    )
    def begin(self, latest: int, keeps_last: bool, budget: int, has_digests: bool) -> None:
        self.world = MirrorWorld(
            self.directory, latest=latest, keeps_last=keeps_last, budget_bytes=budget
        )
        self.world.store.read_bytes_max = 7
        self.world.store.before_read = self._before_read
        if has_digests:
            self.world.store.digest_of = lambda data: (f"md5:{md5(data).hexdigest()}", True)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.mirror.close()
        shutil.rmtree(self.directory)

    def _before_read(self, name: str, path: str) -> None:
        self.world.clock.advance(0.5)
        if self.failures > 0:
            self.failures -= 1
            raise StoreError("reset")

    @rule(version=VERSIONS, size=st.integers(0, 30))
    def upload(self, version: int, size: int) -> None:
        self.world.store.upload_version(version, size)
        self.whole.setdefault(version, []).append(self.world.stored(version))

    @rule(version=VERSIONS, other=VERSIONS)
    def upload_same_variables(self, version: int, other: int) -> None:
        """The variables of another version, as those of a delta's base."""
        variables = self.world.store.contents.get(str(other), {}).get("variables/variables.data")
        if variables is not None:
            self.upload(version, 0)
            self.whole[version].pop()
            self.world.store.upload(str(version), "variables/variables.data", variables[0])
            self.whole[version].append(self.world.stored(version))

    @rule(version=VERSIONS)
    def upload_half(self, version: int) -> None:
        # A version that is whole gets a new graph: then this content is whole too.
        self.world.store.upload(str(version), "saved_model.pb", b"half")
        if "variables/variables.data" in self.world.stored(version):
            self.whole.setdefault(version, []).append(self.world.stored(version))

    @rule(version=VERSIONS)
    def remove(self, version: int) -> None:
        self.world.store.remove(str(version))

    @rule(failures=st.integers(1, 5))
    def fail(self, failures: int) -> None:
        self.failures = failures

    @rule(is_down=st.booleans())
    def turn(self, is_down: bool) -> None:
        self.world.store.is_down = is_down

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(used=st.sets(VERSIONS))
    def use(self, used: set[int]) -> None:
        self.world.versions.used = used & self.world.local().keys()

    @rule(count=st.integers(1, 6))
    def look(self, count: int) -> None:
        for _ in range(count):
            self.world.look()
            self.appears_only_whole()

    @invariant()
    def appears_only_whole(self) -> None:
        if not hasattr(self, "world"):
            return
        for version, files in self.world.local().items():
            assert files in self.whole.get(version, []), (version, files)

    @rule()
    def settle(self) -> None:
        """Without further failures the newest whole versions appear, with what they are now."""
        world = self.world
        world.store.is_down, self.failures = False, 0
        world.versions.used = set()
        for _ in range(3):
            world.clock.advance(RELIST_NS / NS_PER_SECOND)
            world.look_until_idle()
        whole = [
            version
            for version in range(1, 5)
            if str(version) in world.store.contents
            and {*world.stored(version)} == {"saved_model.pb", "variables/variables.data"}
        ]
        local = world.local()
        for version in whole[-1:]:
            assert local.get(version) == world.stored(version)
        if whole or not world.settings.keeps_last:
            assert {str(version) for version in local} <= set(world.store.contents)


# Without shrinking, which takes minutes: each step writes files.
MirrorSequences.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestMirrorSequences = MirrorSequences.TestCase
