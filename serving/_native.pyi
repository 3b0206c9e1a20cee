"""The seam between the control plane (Python decides) and the data plane (C++ serves).

Everything that crosses is named here; `scripts/check_stub.py` checks this file against the built
module.
Every call that can take longer than a microsecond releases the GIL. Failures of the data plane
raise `StatusError(code, message)` with the number of the gRPC status code.
"""

from collections.abc import Mapping, Sequence
from typing import final

from serving.servable import Routing

class StatusError(Exception):
    """A status that is not OK: `args == (code, message)`, `code` a gRPC status code's number."""

def build_info() -> dict[str, str]:
    """Versions compiled in or linked: keys `millpond`, `tensorflow`, `grpc`, `jemalloc`, `allocator`.

    `allocator` is `jemalloc` where it is preloaded, else `glibc`; `jemalloc` is "" in that case.
    """

def initialize(
    *,
    intra_op_thread_count: int,
    inter_op_thread_count: int,
    is_stock: bool = False,
    has_load_pool: bool = False,
    checks_method_names: bool = False,
    serves_session_run: bool = False,
) -> None:
    """Registers request allocator, device factory and restore kernel and sets TensorFlow's pools (0: one
    thread a core).

    `is_stock`: registers nothing and runs versions as TensorFlow Serving does, to compare with; with
    `has_load_pool` their restore and init run on a pool of their own. `checks_method_names`: a signature
    answers only requests of its method_name. `serves_session_run`: clients may run any part of a graph by
    SessionRun, and no arena can be sealed. TensorFlow's pools start here,
    at the caller's priority. Call once, before anything else here that touches TensorFlow. A second
    call with other figures raises StatusError(FAILED_PRECONDITION).
    """

def start_trace(*, host_level: int, includes_dataset_ops: bool) -> TraceSession:
    """Records from now on. Raises StatusError, ALREADY_EXISTS if another session runs in this process."""

def load_op_library(path: str) -> list[str]:
    """Loads a shared library of ops and kernels, for the life of the process; the ops it brought.

    After `initialize`, before the first graph that has such an op. NOT_FOUND: no such file.
    FAILED_PRECONDITION: the dynamic linker refuses it, with its words.
    """

def enter_background_thread(priority: str) -> None:
    """Sets the calling thread's priority (`idle`, `nice` or `normal`) and has it take its ordinary memory
    from an arena that no request thread uses.
    """

def check_saved_model(directory: str) -> list[str]:
    """Returns the missing assets of a SavedModel that is complete but for them, as paths below
    `directory`. Raises StatusError if anything else is missing.

    Complete: `saved_model.pb` or `saved_model.pbtxt` parses; where a graph in it has variables,
    `variables/variables.index` is readable and every shard it names is as long as the index says.
    FAILED_PRECONDITION: incomplete (a copy may still be under way). DATA_LOSS: does not parse.
    """

@final
class RequestMemoryStatistics:
    """Bytes that TensorFlow's allocator holds: requests' tensors, and the versions' parameters."""

    @property
    def in_use_bytes(self) -> int: ...
    @property
    def in_use_bytes_peak(self) -> int: ...
    @property
    def allocation_count(self) -> int: ...

def request_memory_statistics() -> RequestMemoryStatistics: ...
def set_run_memory_bytes(bytes: int) -> None:  # noqa: A002 (the module's name for it)
    """Bounds what the kernels of one run may have allocated at a time, for runs from now on. Without
    jemalloc nothing is bounded.
    """

def set_replay_seconds(seconds: float) -> None:
    """Bounds each request that `answer` and `predict` run from now on; 0: no bound."""

def runs_ended_by_memory() -> int:
    """Counts the runs that this bound has ended since the process's start."""

def mark_request_memory_peak() -> None:
    """Begins a peak of its own, for `request_memory_peak_rise_bytes`."""

def request_memory_peak_rise_bytes() -> int:
    """How much more than at the last mark was in use at once since then, by whoever it was."""

@final
class SlabPoolStatistics:
    """Where the pool's slabs are; bytes are reserved ones unless they say resident."""

    @property
    def in_use_count(self) -> int: ...
    @property
    def in_use_bytes(self) -> int: ...
    @property
    def spare_count(self) -> int: ...
    @property
    def spare_bytes(self) -> int: ...
    @property
    def spare_resident_bytes(self) -> int: ...
    @property
    def surplus_resident_bytes(self) -> int:
        """On its way back to the system."""

    @property
    def quarantined_count(self) -> int:
        """Slabs of versions that leaked: never used again."""

    @property
    def quarantined_bytes(self) -> int: ...

@final
class SlabPool:
    """The slabs that versions' parameters lie on, and the thread that keeps spare ones for the next."""

    def __init__(self, *, spare_slab_count: int, thread_priority: str) -> None:
        """`thread_priority` is the keeper's: `idle`, `nice` or `normal`."""

    def expect(self, owner: str, servable: Servable, serving_count: int) -> None:
        """Keeps spares of the size of `servable`'s slab for the owner's next version, pre-faulted, beside
        the slabs of the `serving_count` versions that it serves at rest.
        """

    def has_spare(self, owner: str) -> bool:
        """Whether a slab waits for the owner's next version."""

    def forget(self, owner: str) -> None:
        """The owner's spares go back to the system, in steps."""

    def statistics(self) -> SlabPoolStatistics: ...
    def wait_until_idle(self, timeout_seconds: float) -> bool:
        """Until every spare is pre-faulted and every surplus returned; False at the timeout."""

    def stop(self) -> None:
        """Ends the keeper's thread."""

@final
class MemoryPlan:
    """What a version will take, from its graph and its variables.index."""

    @property
    def parameter_bytes(self) -> int: ...
    @property
    def slab_bytes(self) -> int: ...

@final
class ArenaRemains:
    """What was live in a version's arena once all of it was freed: 0 bytes, or a leak."""

    @property
    def live_bytes(self) -> int: ...
    @property
    def live_blocks(self) -> list[tuple[int, int]]:
        """By size: (bytes of a block, number of blocks)."""

    @property
    def overflow_block_count(self) -> int:
        """Blocks that did not fit the slab and are live too."""

@final
class ArenaStatistics:
    """Where the bytes of a version's slab are; the first four are disjoint and add up to it."""

    @property
    def allocated_bytes(self) -> int: ...
    @property
    def active_unused_bytes(self) -> int: ...
    @property
    def retained_bytes(self) -> int: ...
    @property
    def unused_bytes(self) -> int: ...
    @property
    def slab_resident_bytes(self) -> int:
        """Of all four: what has memory behind it."""

@final
class LatencyWindow:
    """How the requests of all published versions fare, in ns; 0 where there were none."""

    def __init__(self, serving_map: ServingMap) -> None: ...
    def p99_ns_since_start(self) -> int:
        """Over all that the versions which are published now have answered."""

    def p99_ns_of_last_second(self) -> int:
        """Since the oldest call within the last second."""

@final
class ServableStatistics:
    """What one version has served since it was loaded; latencies within 1 % (log-linear histogram)."""

    @property
    def request_count(self) -> int: ...
    @property
    def failed_count(self) -> int: ...
    @property
    def latency_ns_p50(self) -> int: ...
    @property
    def latency_ns_p99(self) -> int: ...
    @property
    def latency_ns_p999(self) -> int: ...
    @property
    def latency_ns_max(self) -> int: ...
    def since(self, earlier: ServableStatistics) -> ServableStatistics:
        """What came in between: `earlier` is of the same version. `latency_ns_max` within 1 % then."""

@final
class LatencyFigures:
    """How long some requests took. Quantiles by the nearest rank, within 0.8 % (above 1 µs); 0 where there
    were none. Look at `count` before you believe one.
    """

    @property
    def count(self) -> int: ...
    @property
    def sum_ns(self) -> int: ...
    @property
    def p50_ns(self) -> int: ...
    @property
    def p90_ns(self) -> int: ...
    @property
    def p99_ns(self) -> int: ...
    @property
    def p999_ns(self) -> int: ...
    @property
    def max_ns(self) -> int:
        """Exact since start; of a window within the error too where a larger one came before it."""

@final
class MethodStatistics:
    """The requests to one method of one version, at one moment. A value.

    `model` "" and `version` 0: requests that found no version, and methods that Python answers.
    """

    @property
    def model(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def method(self) -> str:
        """`Predict`, `GetModelMetadata`, `GetModelStatus` …"""

    @property
    def in_flight_count(self) -> int:
        """Requests that hold the version at the moment, of all its methods; 0 where there is none."""

    @property
    def ended_seconds(self) -> float | None:
        """How long its version has been gone; None while it is there. It is told of for 600 s."""

    @property
    def count_by_code(self) -> dict[int, int]:
        """By the number of the gRPC status code; only codes that occurred. Adds up to phase("total").count."""

    def latency(self, code: int) -> LatencyFigures:
        """Since the version was loaded, of the requests that ended with `code`."""

    def cumulative_counts(self, code: int, edges_ns: Sequence[int]) -> list[int]:
        """Of those, how many took at most each of the ascending edges (within the histogram's error)."""

    def phase(self, phase: str, window_seconds: int | None = None) -> LatencyFigures:
        """Of all codes: `queue`, `decode`, `run`, `encode` or `total`, since the version was loaded, or over
        the last 1 to 60 whole seconds. A failed request has the phases that it reached.

        `queue` and `total` begin when a request thread takes the call from gRPC. What a call waits before
        that, in its socket or in gRPC while all request threads are busy, only its client sees.
        GetModelMetadata and the methods that Python answers have queue, run and total.
        INVALID_ARGUMENT for another phase or window.
        """

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> list[int]:
        """Of one phase, since the version was loaded, how many took at most each of the ascending edges."""

@final
class HistoryPoint:
    """One second of a model's requests, of all its versions and codes; longer where the server was too busy to
    end it in time.
    """

    @property
    def at_ns(self) -> int:
        """The end of the second, of the monotonic clock."""

    @property
    def count(self) -> int:
        """Requests that ended in this second."""

    @property
    def failed_count(self) -> int:
        """Of those, the ones that did not end OK."""

    @property
    def latency(self) -> LatencyFigures:
        """Over the 10 seconds before `at_ns`."""

@final
class RequestStatistics:
    """All that is recorded of requests: of the versions that were finished with it, and of the servers made with
    it. Has a thread, which ends the seconds. Any thread may ask; nobody who answers requests waits for it.

    A request is recorded just before its answer is sent: who has the answer finds it counted. Health checks,
    unknown methods and messages above the size limit are answered by gRPC, and are not.
    """

    def __init__(self) -> None: ...
    def add_models(self, models: Sequence[str]) -> None:
        """From now on requests to these models that reach no version count as theirs, as version -1. Those
        that name any other model have model "" and version 0.
        """

    def methods(self) -> list[MethodStatistics]:
        """By version and method, of live versions and of those that ended in the last 600 s (at most 32 of
        these); also those that had no request yet.
        """

    def model_methods(self) -> list[MethodStatistics]:
        """By model and method (`version` 0), over all versions that ever were: these never go down."""

    def history(self, model: str | None, since_ns: int = 0) -> list[HistoryPoint]:
        """The seconds that ended after `since_ns`, at most the last 900, ascending. None: of all models, and
        of the requests that found none, but not of the methods that Python answers.
        """

    def between(self, model: str, from_ns: int, to_ns: int) -> LatencyFigures:
        """Of one model's requests that ended in between, at most 900 s ago, to the second; to the instant
        where `cut` was called at it.
        """

    def cut(self) -> int:
        """Ends the running second's part now, so that `between` can begin or end here; returns the instant."""

    def stop(self) -> None:
        """Ends the thread: no second ends any more. A second call does nothing."""

@final
class RequestReservoirStatistics:
    """What a reservoir holds, too old or not."""

    @property
    def request_count(self) -> int: ...
    @property
    def request_bytes(self) -> int: ...

@final
class RequestReservoir:
    """Recent requests that the versions of one model answered over gRPC, for its next version to replay.

    Outlives the versions that were finished with it.
    """

    def __init__(self, *, request_count_max: int, bytes_max: int, age_seconds_max: float) -> None:
        """`request_count_max` 0: takes none. No request above a quarter of `bytes_max` is taken."""

    def requests(self) -> list[bytes]:
        """Serialized PredictRequests: the newest of each pair of signature and set of outputs, then the
        second newest of each, and so on.
        """

    def joint_requests(self) -> list[bytes]:
        """Serialized MultiInferenceRequests of several signatures: the newest of each set of signatures,
        and so on. At most 16, none above 1/64 of `bytes_max`.
        """

    def statistics(self) -> RequestReservoirStatistics: ...

@final
class Servable:
    """One loaded version. Made by `SavedModelLoad.finish`, freed by `destroy`."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def handle_count(self) -> int:
        """Requests that hold this version at the moment."""

    def answer(self, method: str, request: bytes) -> bytes:
        """Answers a serialized request of "Predict", "Classify", "Regress" or "MultiInference", exactly as
        the gRPC method of that name does (its model_spec's name and version are not looked at), with a
        serialized response. UNIMPLEMENTED: another method. FAILED_PRECONDITION: it runs for longer than
        `set_replay_seconds` allows.
        """

    def predict(self, request: bytes) -> bytes:
        """Answers a serialized PredictRequest exactly as the gRPC method does (its model_spec's name
        and version are not looked at) and returns the serialized PredictResponse.
        """

    def prepare(self, request: bytes) -> None:
        """Makes what `predict` of such a request uses (its signature, its set of outputs) where that is
        not there yet, in up to 0.1 s. Before the version is published, and then `predict` it once:
        the first run is slow too. Raises as `predict` for signature and output_filter, and
        RESOURCE_EXHAUSTED where there are too many sets of outputs; the inputs are not looked at.
        """

    def signature_def_map(self) -> bytes:
        """A serialized tensorflow.serving.SignatureDefMap of this version."""

    def statistics(self) -> ServableStatistics: ...
    def quiesce(self, timeout_seconds: float) -> bool:
        """Waits until no request holds this version; False where the timeout came first.

        Raises StatusError(FAILED_PRECONDITION) while the version is still in a serving map.
        """

    @property
    def may_write_variables(self) -> bool:
        """Whether a request could change a variable; True on doubt."""

    def arena_statistics(self) -> ArenaStatistics | None:
        """None where its parameters lie in the request memory, or are freed."""

    @property
    def arena_overflow_block_count(self) -> int:
        """Blocks of this version that did not fit its slab."""

    def seal_arena(self) -> bool:
        """Makes the slab read-only, once the version is warm. False, and nothing changed, where something
        that a request runs may write to it, or there is no arena.
        """

    def destroy(self) -> ArenaRemains:
        """Frees session and arena on the calling thread, and says what was left in the arena.

        Raises StatusError(FAILED_PRECONDITION) while it is published or a request holds it. A second
        call does nothing and returns the same; any other call after it raises FAILED_PRECONDITION.
        """

@final
class SavedModelLoad:
    """One version being loaded, step by step, on the calling thread, so that each step can be timed.

    Each step is called once, in the order written here; out of order raises FAILED_PRECONDITION.
    Dropping the object before `finish` frees everything. `cancel`, `restored_bytes` and
    `set_restore_bytes_per_second` are for any thread, at any time.
    """

    def __init__(self, name: str, version: int, directory: str, tags: Sequence[str]) -> None: ...
    def read_graph(self) -> None:
        """Reads the meta graph with exactly these tags. NOT_FOUND where there is none, DATA_LOSS where
        it does not parse.
        """

    def check_input_shapes(self) -> None:
        """Makes the version refuse requests whose inputs have other shapes than their signatures name.
        Optional, after `read_graph`; without it the model's kernels decide.
        """

    def missing_ops(self) -> list[str]:
        """The ops of the graph that no library in this process has, sorted; after `read_graph`. With any
        of them `create_session` fails.
        """

    def plan_memory(self, headroom_bytes: int) -> MemoryPlan:
        """What the version will take, with `headroom_bytes` of the slab for what its init op allocates.
        DATA_LOSS where variables.index does not parse. Reads no variable.
        """

    def take_arena(self, pool: SlabPool, slab_bytes: int) -> int:
        """Gives the version an arena on a slab of at least so many bytes; returns how many of the slab are
        resident. RESOURCE_EXHAUSTED where there are no addresses, FAILED_PRECONDITION without jemalloc.
        Left out, its parameters come from the request memory.
        """

    def create_session(self) -> None: ...
    def restore(self) -> None:
        """Restores the variables. DATA_LOSS for a checksum that differs, OUT_OF_RANGE for a shard cut short."""

    def run_init(self) -> None:
        """Runs the model's init op (tables, assets)."""

    def make_callables(self) -> None:
        """Makes one callable for each signature, run inline by the request threads.

        Fails where serving_default, or every signature, cannot be run; of another one its requests
        say why.
        """

    def variables_without_value(self) -> list[str]:
        """Returns the names of variables that requests read and that hold no value, sorted. Between
        `run_init` and `make_callables`; later it is empty. On doubt a variable is left out.
        """

    @property
    def may_write_variables(self) -> bool:
        """Whether a request could change a variable; on doubt it is true. After `read_graph`."""

    def prepare(self, request: bytes) -> None:
        """As `Servable.prepare`, after `make_callables`: what it makes lies with the parameters."""

    def cancel(self) -> None:
        """The step under way ends CANCELLED, restore within a tensor."""

    @property
    def restored_bytes(self) -> int:
        """Tensor bytes that are restored and checked."""

    def set_restore_bytes_per_second(self, bytes_per_second: int) -> None:
        """How fast restore may read from now on; 0: as fast as it can."""

    def discard(self) -> ArenaRemains:
        """Frees everything, and says what was left in the arena. Nothing after `finish`."""

    def finish(
        self,
        reservoir: RequestReservoir | None = None,
        request_statistics: RequestStatistics | None = None,
    ) -> Servable:
        """The servable, which offers what it answers over gRPC to `reservoir`, and whose requests
        `request_statistics` tells of.
        """

@final
class ServingMap:
    """What requests see now. Reads are wait-free; these calls are for the control plane."""

    def __init__(self) -> None: ...
    def publish(self, servable: Servable, routing: Routing) -> None:
        """Publishes the version and replaces the routing of its name, in one snapshot.

        ALREADY_EXISTS if that version is published. As for all three, INVALID_ARGUMENT if the canary's
        weight is not from 0 to 1 or its header is no key of gRPC metadata (they are in lower case).
        If it raises, nothing has changed.
        """

    def retire(self, name: str, version: int, routing: Routing) -> None:
        """Retires the version and replaces the routing of its name, in one snapshot.

        No request sees the version any more once this returns; running ones still hold it
        (`Servable.quiesce`). NOT_FOUND if it is not published. If it raises, nothing has changed.
        """

    def set_routing(self, name: str, routing: Routing) -> None:
        """Replaces the routing of a name, all of it at once. Kept while no version is published; the
        default routing ends that.
        """

    def answering(self, name: str, label: str | None = None) -> int | None:
        """Looks up, as requests do, which version answers a request that gives `label` or nothing, a
        canary aside. None: such a request is refused.
        """

    def set_notes(
        self,
        name: str,
        *,
        reason: str,
        is_awaited: bool,
        version_reasons: Mapping[int, str],
        awaited_versions: Sequence[int],
    ) -> None:
        """Replaces what requests learn that find no version of a model (`serving.model_notes.ModelNotes`).

        Requests may wait for what is awaited. Empty notes forget the model's.
        """

    def versions(self, name: str) -> list[int]:
        """Published versions of a name, ascending; empty where there are none."""

@final
class RareCall:
    """A call of a method that Python answers. Answer it once, from any thread.

    Dropping it unanswered answers INTERNAL.
    """

    @property
    def method(self) -> str:
        """The full name, like `/tensorflow.serving.ModelService/GetModelStatus`."""

    @property
    def request(self) -> bytes: ...
    @property
    def remaining_seconds(self) -> float | None:
        """How long the client still waits, now: 0 once its deadline has passed; None without one."""

    @property
    def is_wanted(self) -> bool:
        """Whether an answer can still reach the client, which has neither cancelled nor an answer."""

    @property
    def trace_context(self) -> TraceContext | None:
        """Of which trace the call is a part, as its metadata says."""

    @property
    def peer(self) -> str:
        """The client's end of the connection as gRPC writes it, like `ipv4:127.0.0.1:50000`."""

    @property
    def client_names(self) -> list[str]:
        """The names in the client's verified certificate; none without one."""

    @property
    def is_forwarded(self) -> bool:
        """Whether a proxy has sent the call on, as its metadata shows."""

    def reply(self, response: bytes) -> None: ...
    def fail(self, code: int, message: str) -> None: ...

@final
class EventTotal:
    """How often an event of one name was recorded, and how long all of them took."""

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def total_ns(self) -> int: ...

@final
class Trace:
    """What a `TraceSession` recorded."""

    @property
    def event_count(self) -> int: ...
    @property
    def totals(self) -> list[EventTotal]:
        """The longest totals first."""

    @property
    def xspace(self) -> bytes:
        """A serialized `tensorflow.profiler.XSpace`; empty unless it was asked for."""

@final
class TraceSession:
    """A recording of what TensorFlow runs in this process, made by `start_trace`. Ends when it is dropped."""

    def collect(
        self, *, has_xspace: bool, total_count_max: int, warning: str, xspace_bytes_max: int
    ) -> Trace:
        """Ends the recording and returns it; `warning` becomes one of its warnings, "" is none.

        Raises StatusError: RESOURCE_EXHAUSTED if its XSpace is larger than `xspace_bytes_max`,
        FAILED_PRECONDITION if it has been collected or dropped.
        """

    def drop(self) -> None:
        """Ends the recording if it has not ended, and forgets it."""

@final
class TraceContext:
    """Of which trace a request is a part, as its client says in `traceparent` and `tracestate` (W3C)."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""

    @property
    def parent_id(self) -> str:
        """16 of them: the client's span."""

    @property
    def is_sampled(self) -> bool: ...
    @property
    def state(self) -> str:
        """As it came; may be empty."""

@final
class RequestSpan:
    """A request to PredictionService that has ended, for a trace that its client samples."""

    @property
    def context(self) -> TraceContext: ...
    @property
    def method(self) -> str:
        """Like `Predict`."""

    @property
    def model(self) -> str:
        """As asked for; empty where the request does not say."""

    @property
    def version(self) -> int | None:
        """The one that it reached."""

    @property
    def code(self) -> int: ...
    @property
    def message(self) -> str:
        """Of a request that failed."""

    @property
    def received_ns(self) -> int:
        """On the clock of `time.monotonic_ns`."""

    @property
    def phase_ns(self) -> dict[str, int]:
        """How long it was in `queue`, `decode`, `run` and `encode`, as far as it came: one after the other, and
        together the total.
        """

    @property
    def total_ns(self) -> int: ...
    @property
    def request_bytes(self) -> int: ...
    @property
    def response_bytes(self) -> int: ...

@final
class SpanBuffer:
    """Where a server puts the spans of its requests, which wait for nothing: what is too much is dropped."""

    def __init__(self, *, capacity: int, per_second_max: int) -> None:
        """INVALID_ARGUMENT where `capacity` is no power of two."""

    def take(self, count_max: int) -> list[RequestSpan]:
        """Takes the oldest out. Waits for nothing; one thread at a time."""

    @property
    def dropped_counts(self) -> dict[str, int]:
        """Spans that were dropped: `over_rate` for the limit of a second, `full` where nobody took them."""

@final
class ServerCertificates:
    """What a TLS server is known by, as PEM texts that somebody has looked at: gRPC refuses bad ones without a
    reason.
    """

    def __init__(self, *, key: str, chain: str, client_ca: str, is_client_required: bool) -> None:
        """`chain`: the server's certificate first. `is_client_required`: only clients with a certificate that
        `client_ca` has signed are served; else `client_ca` may be "".
        """

    def replace(self, *, key: str, chain: str, client_ca: str) -> None:
        """For handshakes from now on; the connections that are there stay. Any thread."""

@final
class ReflectionTable:
    """What a server tells of its services (`serving.reflection.Reflection`)."""

    def __init__(
        self,
        *,
        services: bytes,
        files: Mapping[str, bytes],
        symbols: Mapping[str, str],
        extensions: Mapping[str, Mapping[int, str]],
    ) -> None: ...

@final
class Admission:
    """How many requests are in flight, over any protocol: those that have arrived and are not answered."""

    def __init__(self, total_limit: int) -> None: ...
    def set_model_limits(self, limits: Mapping[str, int]) -> None:
        """Replaces the limits of all models, each at least 1; a model that is not in it has none."""

    @property
    def in_flight_count(self) -> int: ...
    @property
    def refused_count(self) -> int:
        """Since the start."""

@final
class ByteBudget:
    """The memory that requests and replies may take together while they are under way."""

    def __init__(self, limit_bytes: int) -> None: ...
    def take(self, bytes: int) -> bool:  # noqa: A002 (the module's name for it)
        """Takes so many bytes; False, and nothing is taken, if they are more than is left."""

    def return_bytes(self, bytes: int) -> None:  # noqa: A002
        """Gives bytes back that `take` gave."""

    @property
    def limit_bytes(self) -> int: ...
    @property
    def in_use_bytes(self) -> int: ...
    @property
    def refused_count(self) -> int:
        """Since the start."""

@final
class EndedRestRequest:
    """How a request over HTTP ended. A value."""

    @property
    def id(self) -> int: ...
    @property
    def code(self) -> int: ...
    @property
    def message(self) -> str:
        """Of one that failed."""

    def take_body(self) -> bytes:
        """Returns the body and frees the data plane's memory of it, once."""

    @property
    def content_type(self) -> str: ...
    @property
    def json_bytes(self) -> int | None:
        """How many bytes of the body are JSON, where binary data follow it."""

    @property
    def is_gzip(self) -> bool: ...
    @property
    def version(self) -> int | None:
        """The one that was reached, also by a request that failed there."""

@final
class RestWorkers:
    """Threads `rest-N` that answer requests over HTTP, so that the event loop waits for no model."""

    def __init__(
        self,
        serving_map: ServingMap,
        *,
        thread_count: int,
        nice: int,
        waiting_count_max: int,
        body_bytes_max: int,
        request_statistics: RequestStatistics,
        spans: SpanBuffer | None = None,
        admission: Admission | None = None,
        reply_bytes_max: int = 2147483647,
        budget: ByteBudget | None = None,
        first_version_wait_seconds: float = 0.0,
    ) -> None:
        """`nice`: of the threads. `waiting_count_max`: that wait for a thread; `body_bytes_max`: of one
        body once it is inflated. `admission` says which requests come in, with those of gRPC; None: all.
        """

    def start(self) -> None:
        """Starts the threads. Once. RESOURCE_EXHAUSTED without descriptors."""

    @property
    def ended_descriptor(self) -> int:
        """Readable while `take_ended` has something to tell. After `start`."""

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
        """Takes a request of a method like `RestPredict`; `headers` are ASGI's, names in lower case.

        Returns the id by which `take_ended` tells of its end, once. RESOURCE_EXHAUSTED at once where as
        many as may be are in flight or wait, UNAVAILABLE after `shutdown`, INVALID_ARGUMENT for a
        method that there is not.
        """

    def cancel(self, id: int) -> None:  # noqa: A002 (the module's name for it)
        """Its client is gone: the run ends before its next kernel. Nothing where it has ended."""

    def take_ended(self) -> list[EndedRestRequest]:
        """Those that have ended since the last call. Waits for nothing."""

    def get_model_metadata(self, model: str, version: int | None, label: str | None) -> bytes:
        """A serialized GetModelMetadataResponse. NOT_FOUND, and INVALID_ARGUMENT for an unknown label;
        UNAVAILABLE at once if the model's first version is being loaded.
        """

    def end_awaiting(self) -> None:
        """Answers the requests that wait for the first version of their model. None waits from now on."""

    def shutdown(self, drain_seconds: float) -> bool:
        """Takes nothing more, waits for what was taken, cancels the rest after `drain_seconds` and ends the
        threads.

        True where nothing was cut short. Where a kernel still runs two seconds after that, its thread
        goes on: end the process. A second call does nothing and returns the same.
        """

@final
class GrpcServer:
    """The gRPC server: Predict, GetModelMetadata and grpc.health.v1 in C++, `rare_methods` through `take_rare_call`."""

    def __init__(
        self,
        serving_map: ServingMap,
        *,
        addresses: Sequence[str],
        completion_queue_count: int,
        max_message_bytes: int,
        channel_arguments: Mapping[str, int | str],
        rare_methods: Sequence[str],
        request_statistics: RequestStatistics | None = None,
        spans: SpanBuffer | None = None,
        certificates: ServerCertificates | None = None,
        reflection: ReflectionTable | None = None,
        reply_compression: str = "request",
        has_tensor_content: bool = False,
        admission: Admission | None = None,
        max_thread_count: int = 0,
        reply_bytes_max: int = 2147483647,
        budget: ByteBudget | None = None,
        first_version_wait_seconds: float = 0.0,
        rare_message_bytes_max: Mapping[str, int] = {},
    ) -> None:
        """`addresses`: `HOST:PORT` (port 0 takes a free one) or `unix:PATH`. `completion_queue_count` 0: one a core.

        `request_statistics` tells of the rare methods and of the requests that find no version. `spans`
        takes the requests whose trace is sampled; None: nothing is traced. `certificates`: TLS at the TCP
        addresses. `reply_compression`: none, request (as the request is), deflate or gzip, where the client
        accepts it. `has_tensor_content`: Predict replies with tensor_content and not with typed fields.
        `admission` says which requests come in; None: as many as there are by default.
        `max_thread_count`: threads that run requests at a time; 0: four a core.
        `first_version_wait_seconds`: how long a request waits for the first version of its model.
        `rare_message_bytes_max`: how long a message of a rare method may be; 4 MiB for a method without an entry.
        """

    def start(self) -> None:
        """Listens. UNAVAILABLE where an address cannot be bound, naming it."""

    @property
    def port(self) -> int:
        """The TCP port bound; 0 where none of the addresses is TCP."""

    def take_rare_call(self, timeout_seconds: float) -> RareCall | None:
        """The next rare call, on any thread; None at the timeout, or at once after `shutdown`."""

    def set_health(self, service: str, is_serving: bool) -> None:
        """Sets the grpc.health.v1 status of a service name ("" is the whole server) and tells its watchers."""

    def remove_health(self, service: str) -> None:
        """Forgets a service name: Check answers NOT_FOUND, watchers SERVICE_UNKNOWN."""

    def pin_request_threads(self, is_pinned: bool) -> bool:
        """Each request thread on a core of its own, or again on any. False, and nothing changed, where there
        is not one for each core that the process may use, or before `start`.
        """

    def shutdown(self, drain_seconds: float) -> bool:
        """Takes no new call and lets those that have arrived finish, cancels what is left after
        `drain_seconds`, stops all threads.

        True where nothing was cut short. Where a kernel still runs two seconds after that, its
        threads go on: end the process. A second call does nothing and returns the same.
        """
