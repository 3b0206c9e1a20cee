"""The disk of one model, and a judge of each state change of its versions."""

from collections.abc import Callable
from functools import partial

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import DoesNotFitBeside, StatusCode
from serving.base.executor import Task
from serving.core.model_settings import ModelSettings, PolicyName
from serving.core.servable import (
    AVAILABLE,
    END,
    LOADING,
    START,
    UNLOADING,
    AspiredVersion,
    ServableState,
    ServableStatus,
)
from serving.core.version_selection import Latest, Specific, VersionSelection, select_unblocked
from tests.unit.fakes.servables import FakeServable
from tests.unit.worlds.manager import World


class DiskAndPolicy:
    """A model's disk, its selection and its memory, in place of the server's other parts.

    Aspires versions like a `FileSystemSource`: the selected of the found and unblocked ones. An
    empty disk or a missing version removes nothing; only an empty selection does.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.found_at_ns: dict[int, int] = {}
        self.selection: VersionSelection = Latest(1)
        self.settings = ModelSettings()
        self.capacity = 9
        # Versions that did not fit beside the others, since they were aspired.
        self.refused: set[int] = set()
        # The refused versions since the last change of the memory.
        self.blocked_by_memory: set[int] = set()
        # Called for each load with its version, and True if memory was refused.
        self.memory_asked: Callable[[int, bool], None] = lambda version, is_refused: None
        self._aspired: tuple[AspiredVersion, ...] = ()
        world.loading.during = self._take_memory

    @property
    def blocked(self) -> frozenset[int]:
        """The versions that the source leaves out as blocked."""
        return self.world.blocked_versions.get("m", frozenset())

    def found(self, version: int) -> AspiredVersion:
        return AspiredVersion(
            version=version, directory=f"/m/{version}", found_at_ns=self.found_at_ns[version]
        )

    def aspire(self) -> None:
        """Acts like a poll, or like a change of selection or blocked versions: only a change is
        sent.
        """
        # Equals `selectable_versions` of a source: without versions that the selection never takes.
        self.world.on_disk = {
            version for version in self.found_at_ns if self.selection.select([version]).versions
        }
        selected = select_unblocked(self.selection, self.found_at_ns, self.blocked).versions
        aspired = tuple(self.found(version) for version in selected)
        is_kept = not aspired and self.selection != Specific(frozenset())
        if aspired == self._aspired or is_kept:
            return
        self._aspired = aspired
        self.refused.intersection_update(selected)
        self.blocked_by_memory.intersection_update(selected)
        self.world.manager.set_aspired("m", aspired)

    def resident(self) -> list[FakeServable]:
        return [item for item in self.world.loading.servables if not item.is_destroyed]

    def _take_memory(self) -> None:
        version = self.world.loading.loads[-1].version
        is_refused = len(self.resident()) >= self.capacity
        self.memory_asked(version, is_refused)
        if is_refused:
            self.refused.add(version)
            self.blocked_by_memory.add(version)
            raise DoesNotFitBeside(f"m/{version} beside {[item.id for item in self.resident()]}")


class Judge:
    """Checks every move as it is made. `faults` has the moves that no policy allows.

    A listener that raises is only logged, so its findings are kept here for an invariant.
    """

    def __init__(self, disk: DiskAndPolicy, jitter_seconds: float) -> None:
        self.faults: list[str] = []
        self._disk = disk
        self._world = disk.world
        self.jitter_seconds = jitter_seconds
        self._states: dict[int, ServableState] = {}
        self._started_at_ns: dict[int, int] = {}
        # Versions whose last load was refused memory while no version could leave for them.
        self.blocked: set[int] = set()
        # Versions that failed with their present files.
        self.failed: set[int] = set()
        # The version that answered at the end of the last turn, and the time at which each one
        # ceased to answer.
        self.answered: int | None = None
        self.ceased_at_ns: dict[int, int] = {}
        self._world.monitor.add_listener(self._moved)
        self._submit = self._world.loaders.submit
        self._world.loaders.submit = self._submitted  # type: ignore[method-assign]
        disk.memory_asked = self._memory_asked

    @property
    def aspired(self) -> set[int]:
        """The aspired versions without the blocked ones, as the manager has them now."""
        return set(self._world.streams.of("m").aspired)

    def named(self) -> set[int]:
        """Returns the versions that stay for a label or for a canary."""
        seen = self._world.streams.routing("m")
        pair = (seen.canary_version, seen.default_version) if seen.canary_version else ()
        return {version for version in (*seen.labels.values(), *pair) if version is not None}

    def in_state(self, *states: ServableState) -> set[int]:
        return {version for version, state in self._states.items() if state in states}

    def surplus(self, *states: ServableState) -> set[int]:
        """Returns versions in one of `states` that are neither aspired nor named."""
        return self.in_state(*states) - self.aspired - self.named()

    def room(self) -> set[int]:
        """Returns the versions that may leave for another; none while a label or a canary keeps an
        old one.
        """
        return set() if self.named() - self.aspired else self.surplus(AVAILABLE)

    def kept_count_max(self) -> int:
        """Returns how many versions may stay for a rollback alone."""
        settings = self._disk.settings
        is_resource = settings.aspired_version_policy is PolicyName.RESOURCE
        return 1 if settings.keep_previous_seconds > 0 and not is_resource else 0

    def turn_ended(self) -> None:
        """Records the version that answers now, as the manager has seen it."""
        answering = self._world.streams.answering("m")
        if self.answered not in (None, answering):
            self.ceased_at_ns[self.answered] = self._world.clock.now_ns()
        self.answered = answering

    def is_delayed(self) -> bool:
        """Returns True if the coming swap may have to wait, to keep a fleet out of step."""
        coming = self.in_state(START, LOADING) & self.aspired
        return bool(coming) and not any(map(self._is_due, coming))

    def _is_due(self, version: int) -> bool:
        # `World` draws half of it.
        return self._waited_ns(version) >= self.jitter_seconds / 2 * NS_PER_SECOND

    def _waited_ns(self, version: int) -> int:
        return self._world.clock.now_ns() - self._started_at_ns[version]

    def _memory_asked(self, version: int, is_refused: bool) -> None:
        self.blocked.discard(version)
        if is_refused and not self.room():
            self.blocked.add(version)

    def _submitted(self, task: Task, owner: str = "") -> None:
        """Checks a load that is handed to the loaders: the first one of a life, or a retry."""
        assert isinstance(task, partial)
        version = task.args[0].version
        is_resource = self._disk.settings.aspired_version_policy is PolicyName.RESOURCE
        if is_resource and (surplus := self.surplus(AVAILABLE, UNLOADING)):
            self._fault(f"memory for {version} is asked for beside {surplus}")
        self._submit(task, owner)

    def _moved(self, status: ServableStatus) -> None:
        version, before = status.id.version, self._states.get(status.id.version)
        self._states[version] = status.state
        if status.state is START:
            self._started_at_ns[version] = self._world.clock.now_ns()
        elif status.state is UNLOADING:
            self._judge_unload(version)
        elif (before, status.state) == (START, LOADING):
            self._judge_load(version)
        elif status.state is END and status.health.code not in (
            StatusCode.OK,
            StatusCode.CANCELLED,
        ):
            self.failed.add(version)

    def _fault(self, what: str) -> None:
        policy = self._disk.settings.aspired_version_policy.value
        self.faults.append(
            f"{what} (policy {policy}, aspired {self.aspired}, {dict(self._states)})"
        )

    def _judge_unload(self, version: int) -> None:
        """The last version that serves leaves only for one that will serve, by a policy that allows
        it.
        """
        if version in self.aspired:
            self._fault(f"{version} is unloaded though it is aspired")
        if self._is_way_back(version) and not self._is_kept_long_enough(version):
            self._fault(f"{version} is unloaded before its time though a rollback leads to it")
        if self.in_state(AVAILABLE) or not self.aspired:
            return
        policy = self._disk.settings.aspired_version_policy
        if policy is PolicyName.AVAILABILITY:
            self._fault(f"{version} is unloaded and nothing else serves")
        if policy is PolicyName.AUTO and not self._disk.refused & self.aspired:
            self._fault(f"{version} is unloaded for one that was never refused")
        if self.is_delayed():
            self._fault(f"{version} is unloaded in step with others")
        if not self.in_state(START, LOADING) & self.aspired:
            self._fault(f"{version} is unloaded for nothing that could serve")

    def _is_way_back(self, version: int) -> bool:
        """Returns True if a rollback of the answering version leads to `version`, which answered
        before.
        """
        answering = self._world.streams.answering("m")
        if answering is None or version > answering or version in self._disk.blocked:
            return False
        between = {item for item in self.in_state(AVAILABLE) if version < item < answering}
        is_withdrawn = answering not in self.aspired and bool(
            {item for item in self.in_state(AVAILABLE) & self.aspired if item < answering}
        )
        has_answered = version == self.answered or version in self.ceased_at_ns
        return has_answered and not between - self._disk.blocked and not is_withdrawn

    def _is_kept_long_enough(self, version: int) -> bool:
        """Returns True if its time is over, or if nothing keeps it or a load needs its memory."""
        is_needed = bool(self._disk.refused & self.aspired)
        if not self.kept_count_max() or not self.aspired or is_needed:
            return True
        now_ns = self._world.clock.now_ns()
        ceased_at_ns = now_ns if version == self.answered else self.ceased_at_ns[version]
        kept_seconds = (now_ns - ceased_at_ns) / NS_PER_SECOND
        return kept_seconds >= self._disk.settings.keep_previous_seconds

    def _judge_load(self, version: int) -> None:
        """A load begins only if the policy has memory for it beside the present versions."""
        is_covered = bool(self.in_state(AVAILABLE) & self.aspired)
        count_max = self.kept_count_max() + (0 if is_covered else 1)
        if len(surplus := self.surplus(AVAILABLE)) > count_max:
            self._fault(f"{version} is loaded beside more than {count_max} covers: {surplus}")
        if version in self._disk.blocked and not self.aspired <= self._disk.blocked:
            self._fault(f"{version} is loaded though it was rolled back")
        self._judge_jitter(version)

    def _judge_jitter(self, version: int) -> None:
        if self.in_state(AVAILABLE) and not self._is_due(version):
            waited_ns = self._waited_ns(version)
            self._fault(
                f"{version} is loaded {waited_ns} ns after it was found, in step with others"
            )
