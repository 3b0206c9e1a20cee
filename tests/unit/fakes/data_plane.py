"""The module `serving.data_plane._native`, without TensorFlow and without gRPC."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from serving.core.servable import ServableId
from serving.data_plane.loads import (
    AcceleratorMemory,
    AcceleratorState,
    BatchSettings,
    MemoryPlan,
    MissingKernel,
    SlabPoolStatistics,
    TableReport,
    TableStatistics,
)
from serving.data_plane.plane import RequestMemoryStatistics, RuntimeOptions
from serving.data_plane.requests import GrpcServerOptions
from serving.data_plane.servables import AcceleratedSignature, ArenaRemains
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.memory import REQUEST_MEMORY_STATISTICS, SLAB_POOL_STATISTICS
from tests.unit.fakes.request_log import FakeRecordQueue, FakeRequestLog
from tests.unit.fakes.requests import (
    FakeAdmission,
    FakeByteBudget,
    FakeRequestStatistics,
    FakeReservoir,
)
from tests.unit.fakes.servables import FakeServable, FakeServingMap, FakeSignatureBatching
from tests.unit.fakes.servers import FakeGrpcServer, FakeServerCertificates
from tests.unit.fakes.tracing import FakeSpanBuffer, FakeTracer


class FakePlane:
    """Like the module `serving.data_plane._native`. Directories with a file `saved_model.pb` are complete.

    `failures` raises the given error from the step of that name of every load.
    """

    # The names of the module's classes. "type: ignore" would hide mistakes; properties do not fit.
    StatusError: type[Exception] = StatusError

    def __init__(self) -> None:
        self.warm_up_bytes = 0
        self.runs_ended_count = 0
        self.serving_map = FakeServingMap()
        self.grpc = FakeGrpcServer()
        self.admin_grpc = FakeGrpcServer()
        self.admissions: list[FakeAdmission] = []
        self.budgets: list[FakeByteBudget] = []
        self.run_memory_bytes = 0
        self.all_runs_bytes = 0
        self.failures: dict[str, Exception] = {}
        self.steps: list[str] = []
        self.servables: list[FakeServable] = []
        self.after_step: Callable[[str], None] = lambda step: None
        self.initialized: RuntimeOptions | None = None
        self.allocator = "jemalloc"
        self.pools: list[FakeSlabPool] = []
        self.interleaved_nodes: list[int] = []
        self.can_interleave = True
        self.reservoirs: list[FakeReservoir] = []
        self.request_logs: list[FakeRequestLog] = []
        self.request_statistics = FakeRequestStatistics()
        self.may_write_variables = False
        # Set by tests: the signatures that loads with batching refuse, with the reason.
        self.refused_signatures: dict[str, str] = {}
        # Set by tests: called when a load verifies its batches.
        self.on_verification: Callable[[], None] = lambda: None
        self.parameter_bytes = 1_000
        self.table_reports: list[TableReport] = []
        self.missing_ops: list[str] = []
        self.missing_kernels: list[FakeMissingKernel] = []
        self.signature_names = ["serving_default"]
        self.variables_without_value: list[str] = []
        self.tables_without_value: list[str] = []
        self.op_libraries: list[str] = []
        self.accelerators: list[FakeAccelerator] = []
        # The results of `use_accelerator` and `compile_ahead` in each load, and the arguments of the latter.
        self.accelerated: list[AcceleratedSignature] = []
        # The programs of each load by their names, and those that the cache has.
        self.programs: dict[str, bytes] = {}
        self.cached_programs: set[bytes] = set()
        self.ahead: list[tuple[object | None, tuple[int, ...], str, str, bool]] = []
        self.background_threads: dict[str, str] = {}
        # All loads, in their order.
        self.loads: list[FakeSavedModelLoad] = []
        self.start_trace = FakeTracer().start

    def mark_request_memory_peak(self) -> None:
        """Does nothing: the fake takes no memory."""

    def request_memory_peak_rise_bytes(self) -> int:
        return self.warm_up_bytes

    def build_info(self) -> dict[str, str]:
        return {"allocator": self.allocator, "millpond": "0.1.0"}

    def request_memory_statistics(self) -> RequestMemoryStatistics:
        return REQUEST_MEMORY_STATISTICS

    def initialize(self, options: RuntimeOptions) -> None:
        self.initialized = options

    def open_crash_page(self, descriptor: int) -> None:
        """Does nothing: a fake does not crash."""

    def load_op_library(self, path: str) -> list[str]:
        if "broken" in path:
            raise StatusError(9, f"op library {path} cannot be loaded")
        self.op_libraries.append(path)
        return ["AnOp"]

    def enter_background_thread(self, priority: str) -> None:
        self.background_threads[threading.current_thread().name] = priority

    def interleave_slabs(self, nodes: Sequence[int]) -> bool:
        self.interleaved_nodes = list(nodes)
        return self.can_interleave

    def SlabPool(self, *, spare_slab_count: int, thread_priority: str) -> "FakeSlabPool":  # noqa: N802
        self.pools.append(FakeSlabPool(spare_slab_count, thread_priority))
        return self.pools[-1]

    def RequestReservoir(self, **bounds: float) -> "FakeReservoir":  # noqa: N802
        self.reservoirs.append(FakeReservoir(bounds))
        return self.reservoirs[-1]

    def RecordQueue(self, bytes_max: int) -> FakeRecordQueue:  # noqa: N802
        return FakeRecordQueue(bytes_max)

    def RequestLog(self, queue: FakeRecordQueue, log_id: int) -> FakeRequestLog:  # noqa: N802
        self.request_logs.append(FakeRequestLog(queue, log_id))
        return self.request_logs[-1]

    def RequestStatistics(self) -> FakeRequestStatistics:  # noqa: N802
        return self.request_statistics

    def SpanBuffer(self, *, capacity: int, per_second_max: int) -> FakeSpanBuffer:  # noqa: N802
        return FakeSpanBuffer(capacity=capacity, per_second_max=per_second_max)

    def check_saved_model(self, directory: str) -> list[str]:
        self.take_step("check_saved_model")
        if not Path(directory, "saved_model.pb").exists():
            raise StatusError(9, f"{directory}: saved_model.pb is missing")
        return ["assets/words.txt"] if Path(directory, "names_an_asset").exists() else []

    def open_accelerators(
        self, plugin: str, memory_fraction: float, memory_bytes_max: int
    ) -> list["FakeAccelerator"]:
        self.accelerators = [FakeAccelerator(plugin, memory_fraction, memory_bytes_max)]
        return self.accelerators

    def open_ahead_compiler(
        self, plugin: str, topology: str, memory_fraction: float, for_loads: bool = False
    ) -> "FakeAheadCompiler":
        del memory_fraction
        end = ", for loads" if for_loads else ""
        return FakeAheadCompiler(f"{plugin}, {topology}{end}")

    def BatchSlots(self, count: int) -> list[int]:  # noqa: N802
        return [count]  # a list, so that two are distinct

    def SavedModelLoad(  # noqa: N802 (as the module has it)
        self, name: str, version: int, directory: str, tags: Sequence[str]
    ) -> "FakeSavedModelLoad":
        del directory
        self.steps.append(f"load tags={','.join(tags)}")
        self.loads.append(FakeSavedModelLoad(self, ServableId(name, version)))
        return self.loads[-1]

    def ServingMap(self) -> FakeServingMap:  # noqa: N802
        return self.serving_map

    def Admission(self, total_limit: int) -> FakeAdmission:  # noqa: N802
        self.admissions.append(FakeAdmission(total_limit))
        return self.admissions[-1]

    def ByteBudget(self, limit_bytes: int) -> FakeByteBudget:  # noqa: N802
        self.budgets.append(FakeByteBudget(limit_bytes))
        return self.budgets[-1]

    def set_run_memory_bytes(self, bytes: int, all_runs_bytes: int) -> None:  # noqa: A002
        self.run_memory_bytes = bytes
        self.all_runs_bytes = all_runs_bytes

    def runs_ended_by_memory(self) -> int:
        return self.runs_ended_count

    def ServerCertificates(self, **certificates: object) -> FakeServerCertificates:  # noqa: N802
        return FakeServerCertificates(certificates)

    def GrpcServer(  # noqa: N802
        self, serving_map: object, options: GrpcServerOptions
    ) -> FakeGrpcServer:
        assert serving_map is self.serving_map
        assert options.request_statistics is self.request_statistics
        # The data port always has a TCP address.
        grpc = self.admin_grpc if options.addresses[0].startswith("unix:") else self.grpc
        grpc.options = options
        return grpc

    def take_step(self, step: str) -> None:
        self.steps.append(step)
        if step in self.failures:
            raise self.failures[step]
        self.after_step(step)


@dataclass(frozen=True)
class FakeAheadCompiler:
    """`_native.AheadCompiler`."""

    target: str
    compiled_count: int = 0

    def compile_into(self, program: bytes, cache_directory: str) -> None:
        """Writes the program into a file of its name."""
        Path(cache_directory, program.decode()).write_bytes(program)


@dataclass
class FakeAccelerator:
    """`_native.Accelerator`."""

    plugin: str = "plugin.so"
    memory_fraction: float = 1.0
    memory_bytes_max: int = 0
    name: str = "0"
    description: str = "fake plugin (API 0.1) fake 1, Fake"
    memory_figures: AcceleratorMemory | None = AcceleratorMemory(6_000, 9_000)

    state_figures: AcceleratorState = AcceleratorState(0, 0, 0, 0, is_failing=False)
    autotunes: bool = True
    target: str = "fake plugin, Fake"
    topology: str | None = "a fake"

    def end_autotuning(self) -> None:
        self.autotunes = False

    def memory(self) -> AcceleratorMemory | None:
        return self.memory_figures

    def state(self) -> AcceleratorState:
        return self.state_figures


@dataclass
class FakeSlabPool:
    """`_native.SlabPool`: counts the slabs that it has handed out."""

    spare_slab_count: int = 1
    thread_priority: str = "idle"
    used_bytes: int = 0
    resident_bytes: int = 0
    expected: dict[str, FakeServable] = field(default_factory=dict)
    serving_counts: dict[str, int] = field(default_factory=dict)
    missing_bytes: int = 0
    reservation_refusal: str = ""
    rooms: list[int] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    # The loads that have each table; none if it is on standby.
    table_holders: dict[str, list["FakeSavedModelLoad"]] = field(default_factory=dict)
    table_bytes: dict[str, int] = field(default_factory=dict)
    table_owners: dict[str, str] = field(default_factory=dict)
    is_stopped: bool = False
    pins_for: object | None = None

    def pin_for(self, accelerator: object) -> None:
        self.pins_for = accelerator

    def expect(self, owner: str, servable: FakeServable, serving_count: int) -> None:
        self.expected[owner] = servable
        self.serving_counts[owner] = serving_count

    def refill(self, room_bytes: int) -> bool:
        self.rooms.append(room_bytes)
        return self.missing_bytes <= room_bytes

    def forget(self, owner: str) -> None:
        self.forgotten.append(owner)

    def statistics(self) -> SlabPoolStatistics:
        return replace(SLAB_POOL_STATISTICS, reservation_refusal=self.reservation_refusal)

    def table_statistics(self) -> TableStatistics:
        standby = [name for name, holders in self.table_holders.items() if not holders]
        standby_bytes = sum(self.table_bytes[name] for name in standby)
        return TableStatistics(
            held_count=len(self.table_holders) - len(standby),
            held_bytes=sum(self.table_bytes.values()) - standby_bytes,
            standby_count=len(standby),
            standby_bytes=standby_bytes,
            dirty_count=0,
            copying_bytes=0,
        )

    def free_table_bytes(self, owner: str) -> int:
        return sum(
            self.table_bytes[name]
            for name, holders in self.table_holders.items()
            if not holders and self.table_owners[name] == owner
        )

    def hold_tables(self, holder: "FakeSavedModelLoad") -> None:
        for name in holder.tables:
            self.table_owners[name] = holder.owner
            self.table_holders.setdefault(name, []).append(holder)
        self.table_bytes.update(holder.tables)

    def release_tables(self, holder: "FakeSavedModelLoad") -> None:
        """Does what the end of a load or of its version does: its tables may be on standby then."""
        for holders in self.table_holders.values():
            if holder in holders:
                holders.remove(holder)

    def stop(self) -> None:
        self.is_stopped = True


@dataclass(frozen=True, kw_only=True)
class FakeMissingKernel(MissingKernel):
    """A call of Python code that each request to the default signature needs."""

    signature: str = "serving_default"
    op: str = "PyFunc"
    node: str = "call"
    function: str = ""
    is_certain: bool = True
    is_built: bool = True


class FakeSavedModelLoad:
    """Like `_native.SavedModelLoad`."""

    def __init__(self, plane: FakePlane, servable_id: ServableId) -> None:
        self._plane = plane
        self._id = servable_id
        self.owner = servable_id.name
        self.remains = ArenaRemains()
        self.is_discarded = False
        self.is_cancelled = False
        self.restored_bytes = 0
        self.kept_bytes = 0
        self.copied_bytes = 0
        self.log_bytes = 0
        self.table_pools: list[FakeSlabPool] = []
        # The tables beside the arena, in bytes. Loads share a table if they have one name for it.
        self.tables: dict[str, int] = {}
        self.bytes_per_second: list[int] = []
        self.restore_targets: list[float] = []
        self.accelerator_uses: list[
            tuple[object, tuple[int, ...], str, str, int, bool, bool, bool]
        ] = []
        self.compiled_program_count = 0
        self.batching: BatchSettings | None = None
        self.callables_made: list[bytes] = []
        self.request_statistics: FakeRequestStatistics | None = None
        self.request_log: FakeRequestLog | None = None
        self.replay_seconds_max = 0.0
        self.headroom_bytes = 0

    def read_graph(self) -> None:
        self._plane.take_step("read_graph")

    def check_input_shapes(self) -> None:
        self._plane.take_step("check_input_shapes")

    def missing_ops(self) -> list[str]:
        return self._plane.missing_ops

    def use_tables(self, pool: FakeSlabPool) -> None:
        self.table_pools.append(pool)

    def table_reports(self) -> list[TableReport]:
        reports = [TableReport(name, size, 0, 0, "") for name, size in self.tables.items()]
        return [*reports, *self._plane.table_reports]

    def plan_memory(self, headroom_bytes: int) -> MemoryPlan:
        self.headroom_bytes = headroom_bytes
        parameter_bytes = self._plane.parameter_bytes
        slab_bytes = parameter_bytes - sum(self.tables.values()) + headroom_bytes
        in_memory = self.table_pools[-1].table_holders if self.table_pools else {}
        shared_bytes = sum(size for name, size in self.tables.items() if name in in_memory)
        return MemoryPlan(parameter_bytes, slab_bytes, shared_bytes, self.log_bytes)

    def take_arena(self, pool: FakeSlabPool, slab_bytes: int) -> int:
        self._plane.take_step("take_arena")
        pool.used_bytes += slab_bytes
        pool.hold_tables(self)
        return pool.resident_bytes

    def create_session(self) -> None:
        self._plane.take_step("create_session")

    def restore(self) -> None:
        self._plane.take_step("restore")

    def run_init(self) -> None:
        self._plane.take_step("run_init")

    def missing_kernels(self) -> list["FakeMissingKernel"]:
        return self._plane.missing_kernels

    @property
    def signature_names(self) -> list[str]:
        return self._plane.signature_names

    def variables_without_value(self) -> list[str]:
        return self._plane.variables_without_value

    def tables_without_value(self) -> list[str]:
        return self._plane.tables_without_value

    @property
    def may_write_variables(self) -> bool:
        return self._plane.may_write_variables

    def analyze_rows(self) -> None:
        self._plane.take_step("analyze_rows")

    def compile_ahead(
        self,
        compiler: object | None,
        rows: Sequence[int],
        cache_directory: str,
        tables: str,
        only_if_worth: bool,
    ) -> list[AcceleratedSignature]:
        self._plane.take_step("compile_ahead")
        self._plane.ahead.append((compiler, tuple(rows), cache_directory, tables, only_if_worth))
        return self._plane.accelerated

    def draft_programs(
        self,
        accelerators: Sequence[object],
        rows: Sequence[int],
        cache_directory: str,
        tables: str,
        memory_bytes_max: int,
        is_low: bool,
        is_needed: bool,
        tunes_later: bool,
    ) -> None:
        self._plane.take_step("draft_programs")
        self.accelerator_uses.append(
            (
                tuple(accelerators),
                tuple(rows),
                cache_directory,
                tables,
                memory_bytes_max,
                is_low,
                is_needed,
                tunes_later,
            )
        )

    def list_programs(self) -> tuple[int, list[tuple[str, bytes]]]:
        return len(self._plane.programs), [
            (name, code)
            for name, code in self._plane.programs.items()
            if code not in self._plane.cached_programs
        ]

    def use_accelerator(self) -> list[AcceleratedSignature]:
        self._plane.take_step("use_accelerator")
        _, missing = self.list_programs()
        self.compiled_program_count = len(missing)
        return self._plane.accelerated

    def make_callables(self) -> None:
        self._plane.take_step("make_callables")

    def make_callable(self, request: bytes) -> None:
        self._plane.take_step("make_callable")
        self.callables_made.append(request)

    def cancel(self) -> None:
        self.is_cancelled = True

    def set_restore_bytes_per_second(self, bytes_per_second: int) -> None:
        self.bytes_per_second.append(bytes_per_second)

    def set_restore_target(self, seconds: float) -> None:
        self.restore_targets.append(seconds)

    def discard(self) -> ArenaRemains:
        assert not self.is_discarded
        self.is_discarded = True
        return self.remains

    def finish(
        self,
        reservoir: FakeReservoir | None = None,
        request_statistics: FakeRequestStatistics | None = None,
        batching: BatchSettings | None = None,
        replay_seconds_max: float = 0.0,
        request_log: FakeRequestLog | None = None,
    ) -> FakeServable:
        self._plane.take_step("finish")
        del reservoir
        self.request_log = request_log
        self.request_statistics = request_statistics
        self.replay_seconds_max = replay_seconds_max
        servable = FakeServable(self._id)
        servable.may_write_variables = self._plane.may_write_variables
        servable.accelerated = self._plane.accelerated
        if batching is not None:
            servable.batched = [FakeSignatureBatching()]
            servable.refused_signatures = self._plane.refused_signatures
            servable.on_verification = self._plane.on_verification
        self.batching = batching
        self._plane.servables.append(servable)
        return servable
