"""Fakes: small working replacements for time, threads, the disk's loaders and the data plane."""

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import Cancelled, MillpondError
from serving.base.executor import Task
from serving.core.cancellation import Cancellation
from serving.core.servable import GateVerdict, LoadStage, Routing, ServableId
from serving.data_plane.request_statistics import (
    HistoryPoint,
    LatencyFigures,
    MethodStatistics,
)
from serving.data_plane.requests import RareCall, RequestSpan
from serving.loading.loader import LoadProgress


class FakeClock:
    """Stands still until it is advanced; waiting for a time advances it by that time."""

    # An ordinary day, so that file times before and after it can be made.
    START_WALL_NS = 1_700_000_000 * NS_PER_SECOND

    def __init__(self) -> None:
        self.ns = 1_000 * NS_PER_SECOND
        self.waits: list[float] = []

    def now_ns(self) -> int:
        return self.ns

    def wall_ns(self) -> int:
        return self.START_WALL_NS + self.ns

    def advance(self, seconds: float) -> None:
        self.ns += round(seconds * NS_PER_SECOND)

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        del condition
        if timeout_seconds is None:
            raise AssertionError("waits without a limit, but no other thread can end the wait")
        self.waits.append(timeout_seconds)
        self.advance(timeout_seconds)
        return False


class SetClock:
    """Begins at 0 and stands still until a test sets it; waiting for it fails."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def wall_ns(self) -> int:
        return self.ns

    def wait(self, condition: threading.Condition, timeout_seconds: float | None) -> bool:
        raise AssertionError("warm-up waits for nothing")


class FakeScheduler:
    """Tests set `waited`; `refusal` is raised at each attempt to raise a priority."""

    def __init__(self) -> None:
        self.waited = 0
        self.raised: list[int] = []
        self.refusal: OSError | None = None

    def waited_ns(self, thread_id: int) -> int:
        return self.waited

    def raise_priority(self, thread_id: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.raised.append(thread_id)


class ManualExecutor:
    """Runs tasks when a test calls for it, on the caller's thread."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.is_started = False
        self.is_stopped = False

    def start(self) -> None:
        self.is_started = True

    def submit(self, task: Task, owner: str = "") -> None:
        del owner
        self.tasks.append(task)

    def stop(self, timeout_seconds: float) -> bool:
        del timeout_seconds
        self.is_stopped = True
        return True

    def run_one(self) -> None:
        if self.tasks:
            self.tasks.popleft()()

    def run_all(self) -> None:
        while self.tasks:
            self.run_one()


@dataclass(frozen=True)
class FakeStatistics:
    """Figures that a test can find again in a log line."""

    request_count: int = 7
    failed_count: int = 2
    latency_ns_p50: int = 1_000_000
    latency_ns_p99: int = 2_000_000
    latency_ns_p999: int = 3_000_000

    def since(self, earlier: "FakeStatistics") -> "FakeStatistics":
        return replace(
            self,
            request_count=self.request_count - earlier.request_count,
            failed_count=self.failed_count - earlier.failed_count,
        )


@dataclass(frozen=True)
class FakeArenaStatistics:
    """Each figure is a different power of ten."""

    allocated_bytes: int = 1_000
    active_unused_bytes: int = 100
    retained_bytes: int = 10
    unused_bytes: int = 1
    slab_resident_bytes: int = 1_100


@dataclass(frozen=True)
class FakeSlabPoolStatistics:
    """Each figure its own."""

    in_use_count: int = 2
    in_use_bytes: int = 2_000
    spare_count: int = 1
    spare_bytes: int = 1_001
    spare_resident_bytes: int = 900
    surplus_resident_bytes: int = 77
    quarantined_count: int = 3
    quarantined_bytes: int = 3_003


@dataclass(frozen=True)
class FakeRequestMemory:
    """Each figure its own."""

    in_use_bytes: int = 5_000
    in_use_bytes_peak: int = 6_000
    allocation_count: int = 7_000


@dataclass(frozen=True)
class FakeReservoirStatistics:
    """The content of a `FakeReservoir`."""

    request_count: int = 2
    request_bytes: int = 64


@dataclass(frozen=True)
class FakeRemains:
    """The remains of an arena at its end; `live_blocks` has (bytes of a block, count)."""

    live_bytes: int = 0
    live_blocks: Sequence[tuple[int, int]] = ()
    overflow_block_count: int = 0


class FakeServable:
    """A loaded version. Tests set `handle_count`; it quiesces when that is 0."""

    def __init__(self, servable_id: ServableId) -> None:
        self.id = servable_id
        self.handle_count = 0
        self.is_published = False
        self.is_destroyed = False
        self.predict_error: Exception | None = None
        # Set by tests: its answers, and a serialized SignatureDefMap.
        self.respond: Callable[[bytes], bytes] = lambda request: b"answer"
        self.signatures = b""
        self.predicted: list[bytes] = []
        self.prepared: list[bytes] = []
        self.answered_jointly: list[bytes] = []
        self.remains = FakeRemains()
        self.arena_overflow_block_count = 0
        # Set by tests.
        self.arena: FakeArenaStatistics | None = None
        self.may_write_variables = False
        self.is_sealed = False
        self.figures = FakeStatistics()

    def prepare(self, request: bytes) -> None:
        assert not self.is_destroyed
        self.prepared.append(request)

    def seal_arena(self) -> bool:
        assert not self.is_destroyed
        self.is_sealed = not self.may_write_variables
        return self.is_sealed

    def answer(self, method: str, request: bytes) -> bytes:
        if method == "MultiInference":
            self.answered_jointly.append(request)
            return self.respond(request)
        assert method == "Predict"
        return self.predict(request)

    def predict(self, request: bytes) -> bytes:
        assert not self.is_destroyed
        self.predicted.append(request)
        if self.predict_error is not None:
            raise self.predict_error
        return self.respond(request)

    def signature_def_map(self) -> bytes:
        assert not self.is_destroyed
        return self.signatures

    def statistics(self) -> FakeStatistics:
        assert not self.is_destroyed
        return self.figures

    def arena_statistics(self) -> FakeArenaStatistics | None:
        if self.is_destroyed:
            raise StatusError(9, f"{self.id} is destroyed")
        return self.arena

    def quiesce(self, timeout_seconds: float) -> bool:
        del timeout_seconds
        assert not self.is_published, f"{self.id} is quiesced while it is published"
        return self.handle_count == 0

    def destroy(self) -> FakeRemains:
        assert not self.is_published, f"{self.id} is destroyed while it is published"
        assert self.handle_count == 0, f"{self.id} is destroyed while requests hold it"
        assert not self.is_destroyed, f"{self.id} is destroyed twice"
        self.is_destroyed = True
        return self.remains


class FakeServingMap:
    """Published servables by id, and every publish and retire in order."""

    def __init__(self) -> None:
        self.published: dict[ServableId, FakeServable] = {}
        self.routings: dict[str, Routing] = {}
        self.notes: dict[str, dict[str, object]] = {}
        self.log: list[str] = []

    def publish(self, servable: FakeServable, routing: Routing) -> None:
        assert servable.id not in self.published
        assert not servable.is_destroyed
        servable.is_published = True
        self.published[servable.id] = servable
        self._route(servable.id.name, routing)
        self.log.append(f"publish {servable.id}")

    def retire(self, name: str, version: int, routing: Routing) -> None:
        self.published.pop(ServableId(name, version)).is_published = False
        self._route(name, routing)
        self.log.append(f"retire {name}/{version}")

    def set_routing(self, name: str, routing: Routing) -> None:
        self._route(name, routing)
        self.log.append(f"route {name}")

    def _route(self, name: str, routing: Routing) -> None:
        self.routings[name] = replace(routing, labels=dict(routing.labels))
        versions = self.versions(name)
        named = {routing.default_version, routing.canary_version, *routing.labels.values()}
        assert named - {None} <= set(versions), f"{routing} with {versions}"

    def set_notes(self, name: str, **notes: object) -> None:
        self.notes[name] = notes

    def versions(self, name: str) -> list[int]:
        return sorted(key.version for key in self.published if key.name == name)


@dataclass
class FakeLoaders:
    """Makes loaders that succeed, or fail with the next of the id's `failures`, one a load."""

    failures: dict[ServableId, list[Exception]] = field(default_factory=dict)
    servables: list[FakeServable] = field(default_factory=list)
    loads: list[ServableId] = field(default_factory=list)
    # The figures that each load reports.
    figures: Mapping[str, float] = field(default_factory=dict)
    # The gate verdicts of the next load of a version.
    verdicts: dict[ServableId, list[GateVerdict]] = field(default_factory=dict)
    # Called in the middle of each load, such as to cancel it.
    during: Callable[[], None] = lambda: None

    def make(self, servable_id: ServableId, directory: str) -> "FakeLoader":
        del directory
        return FakeLoader(servable_id, self)


class FakeLoader:
    """A loader with two stages that makes a servable."""

    def __init__(self, servable_id: ServableId, loaders: FakeLoaders) -> None:
        self._id = servable_id
        self._loaders = loaders

    def load(self, progress: LoadProgress) -> FakeServable:
        for stage in (LoadStage.RESTORE, LoadStage.WARM_UP):
            if progress.cancellation.is_cancelled:
                raise Cancelled(f"{self._id}: stopped before {stage.value}")
            progress.stage_began(stage)
            progress.stage_ended(stage, 0.5)
        self._loaders.loads.append(self._id)
        progress.measured(self._loaders.figures)
        for verdict in self._loaders.verdicts.pop(self._id, []):
            progress.gate_ended(verdict)
        self._loaders.during()
        failures = self._loaders.failures.get(self._id, [])
        if failures:
            raise failures.pop(0)
        servable = FakeServable(self._id)
        self._loaders.servables.append(servable)
        return servable


class StatusError(Exception):
    """Like `_native.StatusError`: its args are a code and a message."""


@dataclass(frozen=True)
class FakeTraceContext:
    """`_native.TraceContext`."""

    trace_id: str = "4bf92f3577b34da6a3ce929d0e0e4736"
    parent_id: str = "00f067aa0ba902b7"
    is_sampled: bool = True
    state: str = ""


class FakeSpanBuffer:
    """`_native.SpanBuffer`: returns the spans that a test has added."""

    def __init__(self, *, capacity: int = 0, per_second_max: int = 0) -> None:
        self.limits = (capacity, per_second_max)
        self.requests: deque[RequestSpan] = deque()
        self.dropped_counts: dict[str, int] = {"full": 0, "over_rate": 0}

    def take(self, count_max: int) -> list[RequestSpan]:
        return [self.requests.popleft() for _ in range(min(count_max, len(self.requests)))]


class FakeRareCall:
    """A call and its answer."""

    def __init__(
        self,
        method: str,
        request: bytes = b"",
        remaining_seconds: float | None = None,
        trace_context: "FakeTraceContext | None" = None,
    ) -> None:
        self.method = method
        self.request = request
        self.remaining_seconds = remaining_seconds
        self.trace_context = trace_context
        self.peer = "ipv4:127.0.0.1:50000"
        self.client_names: tuple[str, ...] = ()
        self.is_forwarded = False
        self.is_wanted = True
        self.answers: list[bytes | tuple[int, str]] = []
        self.is_answered = threading.Event()

    def reply(self, response: bytes) -> None:
        self.answers.append(response)
        self.is_answered.set()

    def fail(self, code: int, message: str) -> None:
        self.answers.append((code, message))
        self.is_answered.set()


@dataclass(frozen=True)
class FakeEventTotal:
    name: str
    count: int
    total_ns: int


@dataclass(frozen=True)
class FakeTrace:
    event_count: int
    xspace: bytes
    totals: Sequence[FakeEventTotal]


class FakeTracer:
    """Starts sessions that always record the same; `log` has the calls to them."""

    xspace = b"planes"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.event_count = 7
        self.collect_error: Exception | None = None
        self.on_start: Callable[[], None] = lambda: None

    def start(self, *, host_level: int, includes_dataset_ops: bool) -> "FakeTraceSession":
        self.log.append(f"start {host_level} {includes_dataset_ops}")
        self.on_start()
        return FakeTraceSession(self)


class FakeTraceSession:
    """See `FakeTracer`."""

    def __init__(self, tracer: FakeTracer) -> None:
        self._tracer = tracer

    def collect(
        self, *, has_xspace: bool, total_count_max: int, warning: str, xspace_bytes_max: int
    ) -> FakeTrace:
        self._tracer.log.append(f"collect {warning!r} {xspace_bytes_max}")
        if self._tracer.collect_error is not None:
            raise self._tracer.collect_error
        totals = [FakeEventTotal("MatMul", 4, 2_000_000)][:total_count_max]
        xspace = self._tracer.xspace if has_xspace else b""
        return FakeTrace(self._tracer.event_count, xspace, totals)

    def drop(self) -> None:
        self._tracer.log.append("drop")


class FakeGrpcServer:
    """Records its calls without listening. `start` raises `start_error`."""

    def __init__(self, start_error: Exception | None = None) -> None:
        self.port = 0
        self.health: dict[str, bool] = {}
        self.log: list[str] = []
        self.pins: list[bool] = []
        self.options: dict[str, object] = {}
        self.finishes_in_time = True
        self._start_error = start_error
        self._listeners: list[socket.socket] = []
        self._calls: deque[RareCall] = deque()
        self._changed = threading.Condition()
        self._is_shut_down = False

    def start(self) -> None:
        if self._start_error is not None:
            raise self._start_error
        self.port = 12345
        self.log.append("start")
        for address in self._unix_addresses():
            self._listeners.append(socket.socket(socket.AF_UNIX))
            self._listeners[-1].bind(address.removeprefix("unix:"))
            self._listeners[-1].listen()

    def _unix_addresses(self) -> list[str]:
        addresses = cast(list[str], self.options.get("addresses", []))
        return addresses if all(item.startswith("unix:") for item in addresses) else []

    def call(self, call: RareCall) -> None:
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def take_rare_call(self, timeout_seconds: float) -> RareCall | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._is_shut_down, timeout_seconds)
            return self._calls.popleft() if self._calls else None

    def set_health(self, service: str, is_serving: bool) -> None:
        self.health[service] = is_serving

    def remove_health(self, service: str) -> None:
        del self.health[service]

    def pin_request_threads(self, is_pinned: bool) -> bool:
        self.pins.append(is_pinned)
        return True

    def shutdown(self, drain_seconds: float) -> bool:
        self.log.append(f"shutdown {drain_seconds:g}")
        for listener in self._listeners:
            listener.close()
        with self._changed:
            self._is_shut_down = True
            self._changed.notify_all()
        return self.finishes_in_time


@dataclass
class FakeServerCertificates:
    """Records the first certificates, and each `replace` after them."""

    first: Mapping[str, object]
    replaced: list[Mapping[str, str]] = field(default_factory=list)

    def replace(self, **certificates: str) -> None:
        self.replaced.append(certificates)


@dataclass(frozen=True)
class FakeEndedRequest:
    """As `_native.EndedRestRequest`."""

    id: int
    code: int = 0
    message: str = ""
    body: bytes = b"{}"
    content_type: str = "application/json"
    json_bytes: int | None = None
    is_gzip: bool = False
    version: int | None = 1

    def take_body(self) -> bytes:
        return self.body


class FakeRestWorkers:
    """Answers only when a test calls `ends` for a request. `refusal` refuses all requests."""

    def __init__(self) -> None:
        self.options: dict[str, object] = {}
        self.submitted: dict[int, tuple[object, ...]] = {}
        self.cancelled: list[int] = []
        self.metadata: dict[str, bytes] = {}
        self.refusal: Exception | None = None
        self.log: list[str] = []
        self.is_awaiting_ended = False
        self._ended: list[FakeEndedRequest] = []
        self._descriptor = -1

    @property
    def ended_descriptor(self) -> int:
        return self._descriptor

    def start(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.log.append("start")

    def submit(
        self,
        method: str,
        model: str,
        version: int | None,
        label: str | None,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        timeout_seconds: float,
    ) -> int:
        if self.refusal is not None:
            raise self.refusal
        number = len(self.submitted) + 1
        self.submitted[number] = (method, model, version, label, headers, body, timeout_seconds)
        return number

    def ends(self, ended: FakeEndedRequest) -> None:
        self._ended.append(ended)
        os.eventfd_write(self._descriptor, 1)

    def cancel(self, id: int) -> None:  # noqa: A002
        self.cancelled.append(id)

    def take_ended(self) -> list[FakeEndedRequest]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        taken, self._ended = self._ended, []
        return taken

    def get_model_metadata(self, model: str, version: int | None, label: str | None) -> bytes:
        del version, label
        if model not in self.metadata:
            raise StatusError(5, f"Servable not found for request: Latest({model})")
        return self.metadata[model]

    def end_awaiting(self) -> None:
        self.is_awaiting_ended = True

    def shutdown(self, drain_seconds: float) -> bool:
        self.log.append(f"shutdown {drain_seconds:g}")
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        return True


@dataclass(frozen=True)
class FakeLatency:
    """`LatencyFigures` that a test sets; by default without requests."""

    count: int = 0
    p50_ns: int = 0
    p99_ns: int = 0
    p999_ns: int = 0
    p90_ns: int = 0
    max_ns: int = 0
    sum_ns: int = 0


class FakeSampledStatistics:
    """`_native.RequestStatistics` of a server without requests."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.models: list[str] = []

    def add_models(self, models: Sequence[str]) -> None:
        self.models.extend(models)

    def methods(self) -> list[MethodStatistics]:
        return []

    def model_methods(self) -> list[MethodStatistics]:
        return []

    def history(self, model: str | None, since_ns: int = 0) -> list[HistoryPoint]:
        del model, since_ns
        return []

    def between(self, model: str, from_ns: int, to_ns: int) -> LatencyFigures:
        del model, from_ns, to_ns
        return FakeLatency()

    def cut(self) -> int:
        return 0

    def stop(self) -> None:
        self.is_stopped = True


class FakeAdmission:
    """Like `_native.Admission`, with a fixed count in flight."""

    def __init__(
        self, total_limit: int, *, in_flight_count: int = 0, refused_count: int = 0
    ) -> None:
        self.total_limit = total_limit
        self.model_limits: dict[str, int] = {}
        self.in_flight_count = in_flight_count
        self.refused_count = refused_count

    def set_model_limits(self, limits: Mapping[str, int]) -> None:
        self.model_limits = dict(limits)


@dataclass
class FakeByteBudget:
    """`_native.ByteBudget`: counts, and refuses beyond its limit."""

    limit_bytes: int
    in_use_bytes: int = 0
    refused_count: int = 0

    def take(self, bytes: int) -> bool:  # noqa: A002
        if bytes > self.limit_bytes - self.in_use_bytes:
            self.refused_count += 1
            return False
        self.in_use_bytes += bytes
        return True

    def return_bytes(self, bytes: int) -> None:  # noqa: A002
        self.in_use_bytes -= bytes


class FakePlane:
    """Like the module `serving.data_plane._native`. Directories with a file `saved_model.pb` are complete.

    `failures` raises the given error from the step of that name of every load.
    """

    # The names of the module's classes. "type: ignore" would hide mistakes; properties do not fit.
    StatusError: type[Exception] = StatusError

    def __init__(self) -> None:
        self.warm_up_bytes = 0
        self.serving_map = FakeServingMap()
        self.grpc = FakeGrpcServer()
        self.admin_grpc = FakeGrpcServer()
        self.rest = FakeRestWorkers()
        self.admissions: list[FakeAdmission] = []
        self.budgets: list[FakeByteBudget] = []
        self.run_memory_bytes = 0
        self.failures: dict[str, Exception] = {}
        self.steps: list[str] = []
        self.servables: list[FakeServable] = []
        self.after_step: Callable[[str], None] = lambda step: None
        self.initialized: dict[str, object] = {}
        self.allocator = "jemalloc"
        self.pools: list[FakeSlabPool] = []
        self.reservoirs: list[FakeReservoir] = []
        self.request_statistics = FakeSampledStatistics()
        self.may_write_variables = False
        self.parameter_bytes = 1_000
        self.missing_ops: list[str] = []
        self.variables_without_value: list[str] = []
        self.op_libraries: list[str] = []
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

    def request_memory_statistics(self) -> FakeRequestMemory:
        return FakeRequestMemory()

    def initialize(self, **options: object) -> None:
        self.initialized = options

    def load_op_library(self, path: str) -> list[str]:
        if "broken" in path:
            raise StatusError(9, f"op library {path} cannot be loaded")
        self.op_libraries.append(path)
        return ["AnOp"]

    def enter_background_thread(self, priority: str) -> None:
        self.background_threads[threading.current_thread().name] = priority

    def SlabPool(self, *, spare_slab_count: int, thread_priority: str) -> "FakeSlabPool":  # noqa: N802
        self.pools.append(FakeSlabPool(spare_slab_count, thread_priority))
        return self.pools[-1]

    def RequestReservoir(self, **bounds: float) -> "FakeReservoir":  # noqa: N802
        self.reservoirs.append(FakeReservoir(bounds))
        return self.reservoirs[-1]

    def RequestStatistics(self) -> "FakeSampledStatistics":  # noqa: N802
        return self.request_statistics

    def SpanBuffer(self, *, capacity: int, per_second_max: int) -> FakeSpanBuffer:  # noqa: N802
        return FakeSpanBuffer(capacity=capacity, per_second_max=per_second_max)

    def check_saved_model(self, directory: str) -> list[str]:
        self.take_step("check_saved_model")
        if not Path(directory, "saved_model.pb").exists():
            raise StatusError(9, f"{directory}: saved_model.pb is missing")
        return ["assets/words.txt"] if Path(directory, "names_an_asset").exists() else []

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

    def set_run_memory_bytes(self, bytes: int) -> None:  # noqa: A002
        self.run_memory_bytes = bytes

    def set_replay_seconds(self, seconds: float) -> None:
        self.replay_seconds = seconds

    def runs_ended_by_memory(self) -> int:
        return 0

    def ServerCertificates(self, **certificates: object) -> FakeServerCertificates:  # noqa: N802
        return FakeServerCertificates(certificates)

    def ReflectionTable(self, **tables: object) -> object:  # noqa: N802
        return tables

    def GrpcServer(  # noqa: N802
        self,
        serving_map: FakeServingMap,
        *,
        addresses: Sequence[str],
        completion_queue_count: int,
        max_message_bytes: int,
        channel_arguments: Mapping[str, int | str],
        rare_methods: Sequence[str],
        request_statistics: "FakeSampledStatistics",
        spans: FakeSpanBuffer | None,
        admission: FakeAdmission,
        max_thread_count: int,
        reply_bytes_max: int,
        budget: FakeByteBudget,
        **transport: object,
    ) -> FakeGrpcServer:
        del serving_map
        assert request_statistics is self.request_statistics
        # The data port always has a TCP address.
        grpc = self.admin_grpc if addresses[0].startswith("unix:") else self.grpc
        grpc.options = {
            "addresses": list(addresses),
            "completion_queue_count": completion_queue_count,
            "max_message_bytes": max_message_bytes,
            "channel_arguments": dict(channel_arguments),
            "rare_methods": list(rare_methods),
            "spans": spans,
            "admission": admission,
            "max_thread_count": max_thread_count,
            "reply_bytes_max": reply_bytes_max,
            "budget": budget,
            **transport,
        }
        return grpc

    def RestWorkers(  # noqa: N802
        self, serving_map: FakeServingMap, **options: object
    ) -> FakeRestWorkers:
        del serving_map
        self.rest.options = options
        return self.rest

    def take_step(self, step: str) -> None:
        self.steps.append(step)
        if step in self.failures:
            raise self.failures[step]
        self.after_step(step)


@dataclass(frozen=True)
class FakeMemoryPlan:
    """`_native.MemoryPlan`."""

    parameter_bytes: int
    slab_bytes: int


@dataclass
class FakeSlabPool:
    """`_native.SlabPool`: counts the slabs that it gave."""

    spare_slab_count: int = 1
    thread_priority: str = "idle"
    used_bytes: int = 0
    resident_bytes: int = 0
    expected: dict[str, FakeServable] = field(default_factory=dict)
    serving_counts: dict[str, int] = field(default_factory=dict)
    spares: set[str] = field(default_factory=set)
    forgotten: list[str] = field(default_factory=list)
    is_stopped: bool = False

    def expect(self, owner: str, servable: FakeServable, serving_count: int) -> None:
        self.expected[owner] = servable
        self.serving_counts[owner] = serving_count

    def has_spare(self, owner: str) -> bool:
        return owner in self.spares

    def forget(self, owner: str) -> None:
        self.forgotten.append(owner)

    def statistics(self) -> FakeSlabPoolStatistics:
        return FakeSlabPoolStatistics()

    def stop(self) -> None:
        self.is_stopped = True


@dataclass
class FakeReservoir:
    """`_native.RequestReservoir`; tests fill `kept`."""

    bounds: Mapping[str, float] = field(default_factory=dict)
    kept: list[bytes] = field(default_factory=list)

    kept_jointly: list[bytes] = field(default_factory=list)

    def requests(self) -> list[bytes]:
        return self.kept

    def joint_requests(self) -> list[bytes]:
        return self.kept_jointly

    def statistics(self) -> FakeReservoirStatistics:
        return FakeReservoirStatistics(len(self.kept), sum(map(len, self.kept)))


class FakeSavedModelLoad:
    """Like `_native.SavedModelLoad`."""

    def __init__(self, plane: FakePlane, servable_id: ServableId) -> None:
        self._plane = plane
        self._id = servable_id
        self.remains = FakeRemains()
        self.is_discarded = False
        self.is_cancelled = False
        self.restored_bytes = 0
        self.bytes_per_second: list[int] = []
        self.prepared: list[bytes] = []
        self.request_statistics: FakeSampledStatistics | None = None
        self.headroom_bytes = 0

    def read_graph(self) -> None:
        self._plane.take_step("read_graph")

    def check_input_shapes(self) -> None:
        self._plane.take_step("check_input_shapes")

    def missing_ops(self) -> list[str]:
        return self._plane.missing_ops

    def plan_memory(self, headroom_bytes: int) -> FakeMemoryPlan:
        self.headroom_bytes = headroom_bytes
        parameter_bytes = self._plane.parameter_bytes
        return FakeMemoryPlan(parameter_bytes, parameter_bytes + headroom_bytes)

    def take_arena(self, pool: FakeSlabPool, slab_bytes: int) -> int:
        self._plane.take_step("take_arena")
        pool.used_bytes += slab_bytes
        return pool.resident_bytes

    def create_session(self) -> None:
        self._plane.take_step("create_session")

    def restore(self) -> None:
        self._plane.take_step("restore")

    def run_init(self) -> None:
        self._plane.take_step("run_init")

    def variables_without_value(self) -> list[str]:
        return self._plane.variables_without_value

    @property
    def may_write_variables(self) -> bool:
        return self._plane.may_write_variables

    def make_callables(self) -> None:
        self._plane.take_step("make_callables")

    def prepare(self, request: bytes) -> None:
        self._plane.take_step("prepare")
        self.prepared.append(request)

    def cancel(self) -> None:
        self.is_cancelled = True

    def set_restore_bytes_per_second(self, bytes_per_second: int) -> None:
        self.bytes_per_second.append(bytes_per_second)

    def discard(self) -> FakeRemains:
        assert not self.is_discarded
        self.is_discarded = True
        return self.remains

    def finish(
        self,
        reservoir: FakeReservoir | None,
        request_statistics: "FakeSampledStatistics | None" = None,
    ) -> FakeServable:
        self._plane.take_step("finish")
        del reservoir
        self.request_statistics = request_statistics
        servable = FakeServable(self._id)
        servable.may_write_variables = self._plane.may_write_variables
        self._plane.servables.append(servable)
        return servable


class FakeProgress:
    """Records a load's reports as lines; `cancel_after` cancels the load after that stage."""

    def __init__(self, cancel_after: LoadStage | None = None) -> None:
        self.lines: list[str] = []
        self.verdicts: list[GateVerdict] = []
        self.figures: dict[str, float] = {}
        self.cancellation = Cancellation()
        self._cancel_after = cancel_after

    def stage_began(self, stage: LoadStage) -> None:
        self.lines.append(f"{stage.value} began")

    def gate_ended(self, verdict: GateVerdict) -> None:
        self.verdicts.append(verdict)

    def measured(self, figures: Mapping[str, float]) -> None:
        self.figures.update(figures)

    def stage_ended(self, stage: LoadStage, seconds: float) -> None:
        self.lines.append(f"{stage.value} {seconds:g}")
        if stage is self._cancel_after:
            self.cancellation.cancel()


def transient(message: str = "disk is away") -> MillpondError:
    """Returns an error that a retry may resolve."""
    from serving.base.errors import Unavailable

    return Unavailable(message)


def permanent(message: str = "bad checksum") -> MillpondError:
    """Returns an error that the same files will raise again."""
    from serving.base.errors import DataLoss

    return DataLoss(message)
