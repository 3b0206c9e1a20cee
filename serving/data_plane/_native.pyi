"""The seam between the control plane (Python decides) and the data plane (C++ serves).

All functions and classes that cross the seam are declared here. `scripts/check_stub.py` checks this
file against the built module. Each call that can take longer than a microsecond releases the GIL.
Failures of the data plane raise `StatusError(code, message)` with the number of the gRPC status
code.
"""

from collections.abc import Mapping, Sequence
from typing import final

from serving.core.servable import Routing

class StatusError(Exception):
    """A status that is not OK: `args == (code, message)`, with the number of a gRPC status code."""

def build_info() -> dict[str, str]:
    """Returns the versions that are compiled in or linked.

    The keys are `millpond`, `tensorflow`, `wire`, `jemalloc` and `allocator`. `wire` has nghttp2 and
    OpenSSL. `allocator` is `jemalloc` if it is preloaded, else `glibc`. In the latter case
    `jemalloc` is "".
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
    """Registers the request allocator, device factory and restore kernel, and starts TensorFlow's
    pools.

    A pool of 0 threads gets one thread for each core. The pools start here, at the caller's
    priority. `is_stock` registers nothing and runs versions as TensorFlow Serving does, for
    comparisons. With it, `has_load_pool` runs their restore and init on a separate pool.
    `checks_method_names`: a signature answers only requests of its method_name.
    `serves_session_run`: clients may run any part of a graph by SessionRun, and arenas cannot be
    sealed.

    Call it once, before any other function that uses TensorFlow. A second call with other arguments
    raises StatusError(FAILED_PRECONDITION).
    """

def start_trace(*, host_level: int, includes_dataset_ops: bool) -> TraceSession:
    """Starts a recording. Raises StatusError(ALREADY_EXISTS) if another session runs in this
    process.
    """

def open_crash_page(descriptor: int) -> None:
    """Marks from now on, in the page of a supervisor, which versions the threads run or load.

    Also handles the signals of a crash, which it raises again. Call it before the first load. Raises
    FAILED_PRECONDITION if the file is not a crash page of this release.
    """

def load_op_library(path: str) -> list[str]:
    """Loads a shared library of ops and kernels for the life of the process; returns its ops.

    Call it after `initialize`, and before the first graph with these ops. Raises NOT_FOUND if the
    file does not exist. Raises FAILED_PRECONDITION, with the message of the dynamic linker, if it
    refuses the file.
    """

def enter_background_thread(priority: str) -> None:
    """Sets the calling thread's priority to `idle`, `nice` or `normal`. From then on the thread
    takes its ordinary memory from an arena that request threads do not use.
    """

def check_saved_model(directory: str) -> list[str]:
    """Returns the missing assets of a SavedModel, as paths below `directory`. Raises StatusError if
    anything else is missing.

    A SavedModel is complete if `saved_model.pb` or `saved_model.pbtxt` parses, and if the
    checkpoint of a graph with variables is complete. That is: `variables/variables.index` is
    readable, and each shard that it names is as long as the index requires. Raises
    FAILED_PRECONDITION if it is incomplete, for instance during a copy, and DATA_LOSS if it does
    not parse.
    """

@final
class RequestMemoryStatistics:
    """Bytes that TensorFlow's allocator holds: requests' tensors, and parameters outside of arenas."""

    @property
    def in_use_bytes(self) -> int: ...
    @property
    def in_use_bytes_peak(self) -> int: ...
    @property
    def allocation_count(self) -> int: ...

def request_memory_statistics() -> RequestMemoryStatistics: ...
def set_run_memory_bytes(
    bytes: int,  # noqa: A002 (the module's name for it)
    all_runs_bytes: int,
) -> None:
    """Bounds the bytes that the kernels of one run may hold at a time, and those of all runs of
    clients together, for runs from now on. It has no effect without jemalloc.
    """

def set_replay_seconds(seconds: float) -> None:
    """Bounds each request that `answer` and `predict` run from now on; 0: no bound."""

def runs_ended_by_memory() -> int:
    """Returns the number of runs that `set_run_memory_bytes` has ended since the process's start."""

def mark_request_memory_peak() -> None:
    """Starts a new peak, for `request_memory_peak_rise_bytes`."""

def request_memory_peak_rise_bytes() -> int:
    """Returns the largest rise of the bytes in use since the last mark, by all threads together."""

@final
class SlabPoolStatistics:
    """The slabs of the pool by use. Bytes are reserved bytes unless their name contains `resident`."""

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
        """Bytes that are being returned to the system."""

    @property
    def quarantined_count(self) -> int:
        """The slabs of versions that leaked, which are never used again."""

    @property
    def quarantined_bytes(self) -> int: ...

@final
class SlabPool:
    """The slabs of versions' parameters, and the thread that keeps spare memory for the next
    versions.
    """

    def __init__(self, *, spare_slab_count: int, thread_priority: str) -> None:
        """Starts the keeper's thread at `thread_priority`: `idle`, `nice` or `normal`. The spare
        memory is enough for the next versions of any `spare_slab_count` owners at once.
        """

    def expect(self, owner: str, servable: Servable, serving_count: int) -> None:
        """Records that the owner's next version will need as much memory as `servable`. The owner
        serves `serving_count` versions at rest: further ones are on their way out. Call `refill`
        after it.
        """

    def refill(self, room_bytes: int) -> bool:
        """Lets the keeper fault in the spare memory that is missing, if it is at most `room_bytes`.
        If not, permits the part for smaller versions that fits, and returns False.
        """

    def forget(self, owner: str) -> None:
        """Forgets the owner's need. Memory that no other owner needs goes back, in steps."""

    def statistics(self) -> SlabPoolStatistics: ...
    def wait_until_idle(self, timeout_seconds: float) -> bool:
        """Waits until all permitted spare memory is pre-faulted and all surplus is returned. Returns
        False at the timeout.
        """

    def stop(self) -> None:
        """Ends the keeper's thread."""

@final
class MemoryPlan:
    """The memory that a version will take, from its graph and its variables.index."""

    @property
    def parameter_bytes(self) -> int: ...
    @property
    def slab_bytes(self) -> int: ...

@final
class ArenaRemains:
    """The memory that was live in a version's arena after the version was freed: 0 bytes, or a
    leak.
    """

    @property
    def live_bytes(self) -> int: ...
    @property
    def live_blocks(self) -> list[tuple[int, int]]:
        """The live blocks by size: (bytes of a block, number of blocks)."""

    @property
    def overflow_block_count(self) -> int:
        """The number of live blocks that did not fit in the slab."""

@final
class ArenaStatistics:
    """The bytes of a version's slab by use. The first four are disjoint and add up to the slab."""

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
        """The bytes of all four that are resident in memory."""

@final
class ServableStatistics:
    """The requests that ran the model of one version since it was loaded. Latencies are within
    0.8 % (log-linear histogram).
    """

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
    def latency_ns_at(self, quantile: float) -> int:
        """Returns the latency that this share of the requests, 0 to 1, stay within (nearest rank)."""

    def since(self, earlier: ServableStatistics) -> ServableStatistics:
        """Returns the statistics of the requests since `earlier`, which must be of the same version.
        Its `latency_ns_max` may be off by 0.8 %.
        """

@final
class LatencyFigures:
    """The latencies of a set of requests; 0 if the set is empty.

    Quantiles are by the nearest rank, within 0.8 % (above 1 µs). Check `count` before you rely on a
    quantile.
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
        """The largest latency. It is exact since the start. In a window it is within the
        histogram's error if a larger latency came before the window.
        """

@final
class MethodStatistics:
    """The requests to one method of one version, at one moment. A value.

    `model` "" and `version` 0 stand for requests that found no version, and for methods that Python
    answers.
    """

    @property
    def model(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def method(self) -> str:
        """The method's name: `Predict`, `GetModelMetadata`, `GetModelStatus` …"""

    @property
    def in_flight_count(self) -> int:
        """The requests of all methods that hold the version now; 0 without a version."""

    @property
    def row_count(self) -> int:
        """The rows of input of the requests that ended with OK since the version was loaded. A
        request whose inputs have no rows counts as one.
        """

    @property
    def ended_seconds(self) -> float | None:
        """The seconds since the version ended, or None if it is still loaded. An ended version is
        reported for 600 s.
        """

    @property
    def count_by_code(self) -> dict[int, int]:
        """The number of requests by gRPC status code, for the codes that occurred. The numbers add
        up to phase("total").count.
        """

    def latency(self, code: int) -> LatencyFigures:
        """Returns the latencies since the version was loaded of the requests that ended with
        `code`.
        """

    def cumulative_counts(self, code: int, edges_ns: Sequence[int]) -> list[int]:
        """Returns, for each of the ascending edges, how many of the requests of `latency` took at
        most that long (within the histogram's error).
        """

    def phase(self, phase: str, window_seconds: int | None = None) -> LatencyFigures:
        """Returns the times that requests of all codes spent in a phase.

        The phase is `queue`, `decode`, `run`, `encode` or `total`. The times are since the version
        was loaded, or over the last 1 to 60 whole seconds if `window_seconds` is given. A failed
        request has the phases that it reached.

        `queue` and `total` begin when a request thread has read the call's message. While all
        request threads are in runs, a message waits in its socket before that. Only its client
        sees this wait. GetModelMetadata and the methods that Python answers have queue, run and
        total.
        Raises INVALID_ARGUMENT for another phase or window.
        """

    def phase_cumulative_counts(self, phase: str, edges_ns: Sequence[int]) -> list[int]:
        """Returns, for each of the ascending edges, how many requests spent at most that long in
        the phase since the version was loaded.
        """

@final
class HistoryPoint:
    """One second of a model's requests, of all its versions and codes. It is longer than a second
    if the server was too busy to end it in time.
    """

    @property
    def at_ns(self) -> int:
        """The end of the second, of the monotonic clock."""

    @property
    def count(self) -> int:
        """The number of requests that ended in this second."""

    @property
    def failed_count(self) -> int:
        """The number of these requests that did not end with OK."""

    @property
    def latency(self) -> LatencyFigures:
        """The latencies of the 10 seconds before `at_ns`."""

@final
class RequestStatistics:
    """The recorded requests of the versions that were finished with this object, and of the servers
    made with it.

    It has a thread, which ends the seconds. Any thread may call it, and request threads never wait
    for it. A request is recorded just before its answer is sent, so a client that has the answer
    finds it counted. Health checks and unknown methods are not counted.
    """

    def __init__(self) -> None: ...
    def add_models(self, models: Sequence[str]) -> None:
        """Counts requests to these models that reach no version under the model's name and version
        -1, from now on. Such requests to other models have model "" and version 0.
        """

    def methods(self) -> list[MethodStatistics]:
        """Returns the statistics by version and method. It covers live versions, also without
        requests, and versions that ended in the last 600 s (at most 32 of them).
        """

    def model_methods(self) -> list[MethodStatistics]:
        """Returns the statistics by model and method (`version` 0), over all versions since the
        start. The counts never decrease.
        """

    def history(self, model: str | None, since_ns: int = 0) -> list[HistoryPoint]:
        """Returns the seconds that ended after `since_ns`, at most the last 900, ascending. With
        `model` None they cover all models and the requests that found no model, without the methods
        that Python answers.
        """

    def between(self, model: str, from_ns: int, to_ns: int) -> LatencyFigures:
        """Returns the latencies of one model's requests that ended between the two instants, at
        most 900 s ago. The bounds are accurate to the second, or exact if `cut` was called at them.
        """

    def cut(self) -> int:
        """Ends the current second early, so that `between` can begin or end here; returns the
        instant.
        """

    def stop(self) -> None:
        """Ends the thread, so that no further second ends. A second call does nothing."""

@final
class RequestReservoirStatistics:
    """The requests that a reservoir holds, including those that are too old."""

    @property
    def request_count(self) -> int: ...
    @property
    def request_bytes(self) -> int: ...

@final
class RequestReservoir:
    """Recent requests that the versions of one model answered, for its next version to replay.

    It outlives the versions that were finished with it.
    """

    def __init__(self, *, request_count_max: int, bytes_max: int, age_seconds_max: float) -> None:
        """Makes a reservoir. With `request_count_max` 0 it takes no requests. It never takes a
        request larger than a quarter of `bytes_max`.
        """

    def requests(self) -> list[bytes]:
        """Returns serialized PredictRequests: the newest of each pair of signature and set of
        outputs, then the second newest of each pair, and so on.
        """

    def joint_requests(self) -> list[bytes]:
        """Returns serialized MultiInferenceRequests of several signatures: the newest of each set
        of signatures, and so on. At most 16, none of them larger than 1/64 of `bytes_max`.
        """

    def statistics(self) -> RequestReservoirStatistics: ...

@final
class BatchSlots:
    """Limits how many batches run at the same time, for all versions that share it."""

    def __init__(self, count: int) -> None: ...

@final
class BatchSettings:
    """The limits under which the requests of one version share runs."""

    def __init__(
        self,
        rows_max: int,
        run_seconds_max: float,
        splits: bool,
        allowed_rows: Sequence[int],
        pads_inputs: bool,
        waiting_requests_max: int,
        slots: BatchSlots | None,
        relative_tolerance: float,
        may_mix_rows: bool,
    ) -> None:
        """Makes the settings.

        A batch has at most `rows_max` rows, and takes about `run_seconds_max` at most (0: any). If
        `splits`, a larger request is run in pieces. `allowed_rows` are the rows that a batch may
        have, ascending: it is padded to the next of them; empty: any. If `pads_inputs`, inputs that
        differ in their dimensions after the first are padded with zeros or empty strings. If
        `waiting_requests_max` requests of a signature wait for a thread (0: any number), further
        ones are refused with UNAVAILABLE. Answers of a batch may differ from those of single runs by
        `relative_tolerance` of their magnitude. If `may_mix_rows`, a signature whose graph mixes
        rows is batched as long as no comparison shows it.
        """

@final
class BatchFigures:
    """The batches of one signature of one version since it was loaded.

    `run_count` counts all runs of requests: batches, requests that ran alone, and the pieces of
    requests that were split. `wait_ns` is the sum over the requests of the time from their own
    decoding to their run.

    `by_rows` and `by_requests` count the runs by size: class i has more than 2^(i-1) and at most
    2^i. A request that was split counts as a request of its first piece. `by_run` counts the runs
    by their time, and `by_wait` the requests by their wait, in the same classes of µs.
    """

    @property
    def run_count(self) -> int: ...
    @property
    def request_count(self) -> int: ...
    @property
    def row_count(self) -> int: ...
    @property
    def padding_row_count(self) -> int: ...
    @property
    def failed_batch_count(self) -> int:
        """The batches that failed and whose requests were then run one by one."""

    @property
    def split_request_count(self) -> int:
        """The requests that were run in pieces."""

    @property
    def wait_ns(self) -> int: ...
    @property
    def run_ns(self) -> int: ...
    @property
    def by_rows(self) -> list[int]: ...
    @property
    def by_requests(self) -> list[int]: ...
    @property
    def by_wait(self) -> list[int]: ...
    @property
    def by_run(self) -> list[int]: ...

@final
class SignatureBatching:
    """If the requests of a signature are batched, and how that went."""

    @property
    def signature(self) -> str: ...
    @property
    def is_on(self) -> bool: ...
    @property
    def refusal(self) -> str:
        """The reason why it is not batched; "" if it is."""

    @property
    def rows(self) -> str:
        """The verdict of its graph on its rows: "independent", "unknown" or "mixes"."""

    @property
    def rows_reason(self) -> str:
        """The output and the node that show it; "" if they are independent."""

    @property
    def joined_rows_max(self) -> int:
        """The rows up to which a batch is extended now."""

    @property
    def joined_requests_max(self) -> int:
        """The most requests that a batch's first one takes along."""

    @property
    def figures(self) -> BatchFigures: ...

@final
class Servable:
    """One loaded version. `SavedModelLoad.finish` makes it, and `destroy` frees it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def handle_count(self) -> int:
        """The number of requests that hold this version now."""

    def answer(self, method: str, request: bytes) -> bytes:
        """Answers a serialized request exactly as the gRPC method of that name does; returns a
        serialized response.

        `method` is "Predict", "Classify", "Regress" or "MultiInference". The name and version in
        the request's model_spec are ignored. Raises UNIMPLEMENTED for another method. Raises
        FAILED_PRECONDITION if the request runs for longer than `set_replay_seconds` allows.
        """

    def replay(self, method: str, request: bytes) -> bytes:
        """Does the same as `answer`, but changes no variable: the request is repeated, and no client
        sends it. Raises PERMISSION_DENIED if the request would change one.
        """

    def predict(self, request: bytes) -> bytes:
        """Answers a serialized PredictRequest exactly as the gRPC method does; returns a serialized
        PredictResponse. The name and version in the request's model_spec are ignored.
        """

    def prepare(self, request: bytes) -> None:
        """Prepares `predict` of requests with the signature and the set of outputs of `request`, in
        up to 0.1 s. Does nothing if they are prepared already.

        Call it before the version is published, and then `predict` once, because the first run is
        slow, too. Raises as `predict` does for the signature and the output_filter, and
        RESOURCE_EXHAUSTED if there are too many sets of outputs. The inputs are ignored.
        """

    def signature_def_map(self) -> bytes:
        """Returns a serialized tensorflow.serving.SignatureDefMap of this version."""

    def prove_batching(self, predecessor: Servable | None = None) -> int:
        """Batches the signatures whose rows give in a batch what they give alone, from now on.

        The graph decides if `SavedModelLoad.analyze_rows` has shown it: signatures whose rows are
        independent are batched, and those that mix them are not, unless the settings have
        `may_mix_rows`. All others are compared, and so is a share of their live batches.

        Compares some rows of the requests that `answer` and `predict` have answered until now, or
        made-up rows. Runs batches of 2, 4, 8 … up to 1,024 rows, or of all allowed sizes, as long
        as their runs take no more than half the settings' `run_seconds_max`. It also warms up such
        batches. Then runs the batches that `predecessor` has run most often, as this version would
        run them, for at most 10 s, and returns their number. Call it once, after the warm-up and
        before the version is published. Does nothing without batching.

        Raises StatusError(CANCELLED) after `cancel_runs`.
        """

    def cancel_runs(self) -> None:
        """Makes each `answer`, `predict` and `prove_batching` that is running or begins later end at
        its next kernel, with CANCELLED.
        """

    def batching(self) -> list[SignatureBatching]:
        """Returns the state of each signature, also after `destroy`; [] without batching. An entry
        with the name "" has the runs of several signatures at once.
        """

    def statistics(self) -> ServableStatistics: ...
    def quiesce(self, timeout_seconds: float) -> bool:
        """Waits until no request holds this version. Returns False if the timeout passes first.

        Raises StatusError(FAILED_PRECONDITION) if the version is still in a serving map.
        """

    @property
    def may_write_variables(self) -> bool:
        """True if what a request writes to variables could change a later answer, or if that is
        uncertain. A model that assigns variables is asked in each run: the first request that
        assigns another value than the variable has makes this True.
        """

    def arena_statistics(self) -> ArenaStatistics | None:
        """Returns None if the parameters lie in the request memory, or are freed."""

    @property
    def arena_overflow_block_count(self) -> int:
        """The number of this version's blocks that did not fit in its slab."""

    def seal_arena(self) -> bool:
        """Makes the slab read-only, once the version is warm. Returns False, and changes nothing,
        if a request could write to the slab, or if the version has no arena.
        """

    def destroy(self) -> ArenaRemains:
        """Frees the session and the arena on the calling thread; returns what was left in the
        arena.

        Raises StatusError(FAILED_PRECONDITION) if the version is published or a request holds it. A
        second call does nothing and returns the same value. Any other call after it raises
        FAILED_PRECONDITION.
        """

@final
class MissingKernel:
    """A node for which the CPU has no kernel, and what runs it: a signature, or "" for the init op."""

    @property
    def signature(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def function(self) -> str:
        """The function that holds the node; "" for the graph itself."""

    @property
    def is_certain(self) -> bool:
        """True if every request on the signature needs the node. False in doubt, as in a branch."""

    @property
    def is_built(self) -> bool:
        """True if every request needs the node's kernel, even if it takes another branch, unless
        TensorFlow leaves the branch out.
        """

@final
class SavedModelLoad:
    """One version being loaded, step by step, on the calling thread, so that each step can be
    timed.

    Call each step once, in the order of this class. A step out of order raises FAILED_PRECONDITION.
    Dropping the object before `finish` frees everything. Any thread may use `cancel`,
    `restored_bytes`, `set_restore_bytes_per_second` and `set_restore_target` at any time.
    """

    def __init__(self, name: str, version: int, directory: str, tags: Sequence[str]) -> None: ...
    def read_graph(self) -> None:
        """Reads the meta graph with exactly these tags. Raises NOT_FOUND if it does not exist, and
        DATA_LOSS if it does not parse.
        """

    def check_input_shapes(self) -> None:
        """Makes the version refuse requests whose inputs have other shapes than their signatures
        name. Optional, after `read_graph`. Without it, the model's kernels decide.
        """

    def missing_ops(self) -> list[str]:
        """Returns the ops of the graph that no library in this process has, sorted. Call it after
        `read_graph`. `create_session` fails if any op is missing.
        """

    def missing_kernels(self) -> list[MissingKernel]:
        """Returns the nodes that signatures or the init op run and that have no kernel for the CPU,
        the certain ones of each signature first. Call it between `read_graph` and `create_session`.
        """

    @property
    def signature_names(self) -> list[str]: ...
    def plan_memory(self, headroom_bytes: int) -> MemoryPlan:
        """Returns the memory that the version will take. The slab has `headroom_bytes` more, for
        the allocations of its init op. Raises DATA_LOSS if variables.index does not parse. Reads no
        variable.
        """

    def take_arena(self, pool: SlabPool, slab_bytes: int) -> int:
        """Gives the version an arena on a slab of at least `slab_bytes`; returns how many bytes of
        the slab are resident. Without this step the parameters come from the request memory.

        Raises RESOURCE_EXHAUSTED if no address range is free, and FAILED_PRECONDITION without
        jemalloc.
        """

    def create_session(self) -> None: ...
    def restore(self) -> None:
        """Restores the variables. Raises DATA_LOSS for a wrong checksum, and OUT_OF_RANGE for a
        shard that is cut short.
        """

    def run_init(self) -> None:
        """Runs the model's init op (tables, assets)."""

    def analyze_rows(self) -> None:
        """Finds out what the graph shows about the rows of each signature, for
        `Servable.prove_batching`. Between `run_init` and `make_callables`; may be left out, and then
        nothing is shown. Takes about 10 µs for each node of the graph.
        """

    def make_callables(self) -> None:
        """Makes one callable for each signature, which request threads run inline.

        Fails if serving_default, or each signature, cannot be run. If another signature cannot be
        run, its requests get the error.
        """

    def tables_without_value(self) -> list[str]:
        """Returns the names of tables that requests look keys up in and that nothing has filled,
        sorted. Call it between `run_init` and `make_callables`; later the list is empty. A table is
        left out if that is uncertain.
        """

    def variables_without_value(self) -> list[str]:
        """Returns the names of variables that requests read and that hold no value, sorted. Call it
        between `run_init` and `make_callables`; later the list is empty. A variable is left out if
        that is uncertain.
        """

    @property
    def may_write_variables(self) -> bool:
        """True if a request could write to a variable, or if that is uncertain. Valid after
        `read_graph`.
        """

    def prepare(self, request: bytes) -> None:
        """Does the same as `Servable.prepare`, after `make_callables`. Its allocations lie with the
        parameters.
        """

    def cancel(self) -> None:
        """Ends the current step with CANCELLED; restore ends within a tensor."""

    @property
    def restored_bytes(self) -> int:
        """The bytes of tensors that are restored and checked."""

    def set_restore_bytes_per_second(self, bytes_per_second: int) -> None:
        """Sets how fast restore may read from now on; 0: unlimited."""

    def set_restore_target(self, seconds: float) -> None:
        """Sets how long restore may take while requests come: it reads 250 MB/s, more if that would
        take longer, and at most 4 GB/s. 0: unlimited. A fixed speed holds instead if it is set.
        """

    def discard(self) -> ArenaRemains:
        """Frees everything; returns what was left in the arena. Does nothing after `finish`."""

    def finish(
        self,
        reservoir: RequestReservoir | None = None,
        request_statistics: RequestStatistics | None = None,
        batching: BatchSettings | None = None,
    ) -> Servable:
        """Returns the servable. It offers the requests that it answers to `reservoir`, and
        `request_statistics` reports its requests. With `batching` its requests may share runs, from
        `Servable.prove_batching` on.
        """

@final
class ServingMap:
    """The published versions and their routing, as requests see them. Reads are wait-free; these
    calls are for the control plane.
    """

    def __init__(self) -> None: ...
    def publish(self, servable: Servable, routing: Routing) -> None:
        """Publishes the version and replaces the routing of its name, in one snapshot.

        Raises ALREADY_EXISTS if that version is published. Like `retire` and `set_routing`, raises
        INVALID_ARGUMENT if the canary's weight is not from 0 to 1, or if its header is not a key of
        gRPC metadata. Such keys are in lower case. If it raises, nothing has changed.
        """

    def retire(self, name: str, version: int, routing: Routing) -> None:
        """Retires the version and replaces the routing of its name, in one snapshot.

        Once this returns, requests no longer find the version; running requests still hold it
        (`Servable.quiesce`). Raises NOT_FOUND if it is not published. If it raises, nothing has
        changed.
        """

    def set_routing(self, name: str, routing: Routing) -> None:
        """Replaces the whole routing of a name at once. It is kept while no version is published;
        setting the default routing removes it.
        """

    def answering(self, name: str, label: str | None = None) -> int | None:
        """Looks up, as requests do, the version that answers a request with `label`, or without
        label and version. The canary is ignored. Returns None if the request is refused.
        """

    def set_notes(
        self,
        name: str,
        *,
        reason: str,
        is_awaited: bool,
        is_refused: bool,
        version_reasons: Mapping[int, str],
        awaited_versions: Sequence[int],
    ) -> None:
        """Replaces the reasons that requests get if they find no version of a model
        (`serving.manager.model_notes.ModelNotes`).

        Requests may wait for awaited versions. Requests to a refused model get UNAVAILABLE at once.
        Empty notes remove the model's notes.
        """

    def versions(self, name: str) -> list[int]:
        """Returns the published versions of a name, ascending; empty if the name has no versions."""

@final
class RareCall:
    """A call of a method that Python answers. Answer it once, from any thread.

    If it is dropped unanswered, the client gets INTERNAL.
    """

    @property
    def method(self) -> str:
        """The full name, like `/tensorflow.serving.ModelService/GetModelStatus`."""

    @property
    def request(self) -> bytes: ...
    @property
    def remaining_seconds(self) -> float | None:
        """The seconds that the client still waits: 0 once its deadline has passed, None without a
        deadline.
        """

    @property
    def is_wanted(self) -> bool:
        """True if an answer can still reach the client, because it has neither cancelled nor been
        answered.
        """

    @property
    def trace_context(self) -> TraceContext | None:
        """The trace that the call is a part of, from its metadata."""

    @property
    def peer(self) -> str:
        """The client's end of the connection in gRPC's notation, like `ipv4:127.0.0.1:50000`."""

    @property
    def client_names(self) -> list[str]:
        """The names in the client's verified certificate; empty without a certificate."""

    @property
    def is_forwarded(self) -> bool:
        """True if a proxy has forwarded the call, as its metadata shows."""

    def reply(self, response: bytes) -> None: ...
    def fail(self, code: int, message: str) -> None: ...

@final
class EventTotal:
    """The number of recorded events of one name, and their total time."""

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def total_ns(self) -> int: ...

@final
class Trace:
    """The recording of a `TraceSession`."""

    @property
    def event_count(self) -> int: ...
    @property
    def totals(self) -> list[EventTotal]:
        """The totals, the longest first."""

    @property
    def xspace(self) -> bytes:
        """A serialized `tensorflow.profiler.XSpace`; empty unless it was requested."""

@final
class TraceSession:
    """A recording of what TensorFlow runs in this process. `start_trace` makes it; it ends when it
    is dropped.
    """

    def collect(
        self, *, has_xspace: bool, total_count_max: int, warning: str, xspace_bytes_max: int
    ) -> Trace:
        """Ends the recording and returns it. A `warning` other than "" is added to its warnings.

        Raises StatusError: RESOURCE_EXHAUSTED if its XSpace is larger than `xspace_bytes_max`,
        FAILED_PRECONDITION if it has been collected or dropped.
        """

    def drop(self) -> None:
        """Ends the recording if it has not ended, and discards it."""

@final
class TraceContext:
    """The trace that a request is a part of, from its client's `traceparent` and `tracestate`
    (W3C).
    """

    @property
    def trace_id(self) -> str:
        """The trace's id: 32 hexadecimal digits."""

    @property
    def parent_id(self) -> str:
        """The id of the client's span: 16 hexadecimal digits."""

    @property
    def is_sampled(self) -> bool: ...
    @property
    def state(self) -> str:
        """The client's `tracestate`, unchanged; may be empty."""

@final
class RequestSpan:
    """A request that has ended, for a trace that its client samples."""

    @property
    def context(self) -> TraceContext: ...
    @property
    def method(self) -> str:
        """The method's name, like `Predict`."""

    @property
    def model(self) -> str:
        """The requested model; empty if the request names no model."""

    @property
    def version(self) -> int | None:
        """The version that the request reached."""

    @property
    def code(self) -> int: ...
    @property
    def message(self) -> str:
        """The error message of a failed request."""

    @property
    def received_ns(self) -> int:
        """The time of arrival, on the clock of `time.monotonic_ns`."""

    @property
    def phase_ns(self) -> dict[str, int]:
        """The time spent in `queue`, `decode`, `batch`, `run` and `encode`, for the phases that the
        request reached. The phases follow one another and add up to the total. Only
        `batch_after_run_ns` of the phase `batch` come after `run`.
        """

    @property
    def batch_after_run_ns(self) -> int: ...
    @property
    def total_ns(self) -> int: ...
    @property
    def request_bytes(self) -> int: ...
    @property
    def response_bytes(self) -> int: ...

@final
class SpanBuffer:
    """A buffer into which a server puts the spans of its requests. Requests never wait for it:
    spans that do not fit are dropped.
    """

    def __init__(self, *, capacity: int, per_second_max: int) -> None:
        """Makes a buffer. Raises INVALID_ARGUMENT if `capacity` is not a power of two."""

    def take(self, count_max: int) -> list[RequestSpan]:
        """Removes and returns the oldest spans, without waiting. For one thread at a time."""

    @property
    def dropped_counts(self) -> dict[str, int]:
        """The number of dropped spans: `over_rate` for the limit of a second, `full` if they were
        not taken in time.
        """

@final
class ServerCertificates:
    """The key and certificates of a TLS server, as PEM texts. Check them before. `replace` ignores
    bad texts, and with bad texts the server does not start.
    """

    def __init__(self, *, key: str, chain: str, client_ca: str, is_client_required: bool) -> None:
        """Makes the certificates. `chain` has the server's certificate first.

        With `is_client_required`, only clients with a certificate that `client_ca` has signed are
        served. Without it, `client_ca` may be "".
        """

    def replace(self, *, key: str, chain: str, client_ca: str) -> None:
        """Replaces the certificates for handshakes from now on. Existing connections stay. Any
        thread.
        """

@final
class ReflectionTable:
    """The description of a server's services for its clients (`serving.rpc.reflection.Reflection`)."""

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
    """The limits of requests in flight, over all protocols. A request is in flight from its arrival
    until it is answered.
    """

    def __init__(self, total_limit: int) -> None: ...
    def set_model_limits(self, limits: Mapping[str, int]) -> None:
        """Replaces the limits of all models, each at least 1. A model without an entry has no limit
        of its own.
        """

    @property
    def in_flight_count(self) -> int: ...
    @property
    def refused_count(self) -> int:
        """The number of requests refused since the start."""

@final
class ByteShare:
    """The bytes that one holder has taken of a budget. They go back when the share is destroyed."""

    def resize(self, bytes: int) -> bool:  # noqa: A002 (the module's name for it)
        """Changes the share to `bytes`. Returns False, and changes nothing, if the budget has too few
        left. A share can always shrink.
        """

    @property
    def bytes(self) -> int: ...

@final
class ByteBudget:
    """The memory that clients may take together."""

    def __init__(self, limit_bytes: int) -> None: ...
    def message_share(self) -> ByteShare:
        """Returns an empty share for messages, what they decode to, and replies."""

    def call_share(self) -> ByteShare:
        """Returns an empty share for calls and short questions: it may exceed the limit a little."""

    def connection_share(self) -> ByteShare:
        """Returns an empty share for probes and connections: it may exceed the limit further."""

    @property
    def limit_bytes(self) -> int: ...
    @property
    def in_use_bytes(self) -> int: ...
    @property
    def refused_count(self) -> int:
        """The number of refused calls of `ByteShare.resize` since the start."""

@final
class EndedRestRequest:
    """The end of a request over HTTP. A value."""

    @property
    def id(self) -> int: ...
    @property
    def code(self) -> int: ...
    @property
    def message(self) -> str:
        """The error message of a failed request."""

    def take_body(self) -> bytes:
        """Returns the body and frees the data plane's memory of it. Call it once."""

    @property
    def content_type(self) -> str: ...
    @property
    def json_bytes(self) -> int | None:
        """The number of bytes of the body that are JSON, if binary data follow the JSON."""

    @property
    def is_gzip(self) -> bool: ...
    @property
    def version(self) -> int | None:
        """The version that was reached, also by a request that failed there."""

@final
class WaitingRequests:
    """The requests of `RestWorkers` that wait for a thread."""

@final
class RestWorkers:
    """Threads `rest-N` that answer requests over HTTP, so that the event loop never waits for a
    model.
    """

    def __init__(
        self,
        serving_map: ServingMap,
        *,
        thread_count: int,
        spare_count: int,
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
        """Makes the workers.

        One model takes `thread_count` of the threads at most. `spare_count` further ones are left
        to other models. `nice` is the nice value of the threads. `waiting_count_max` limits the requests that wait
        for a thread, `body_bytes_max` the inflated bytes of one body, and `reply_bytes_max` the
        bytes of one reply. `request_statistics` records the requests that reach no version. `spans`
        takes the requests whose trace is sampled; with None, requests are not traced.

        `admission` limits the requests in flight, together with those of gRPC; with None all
        requests are admitted. `budget` counts and limits the bytes of requests and replies in
        flight, together with those of gRPC; with None they are not counted.
        `first_version_wait_seconds` is how long a request waits for the first version of its model.
        """

    def start(self) -> None:
        """Starts the threads. Call it once. Raises RESOURCE_EXHAUSTED if no descriptor is left."""

    @property
    def waiting_requests(self) -> WaitingRequests:
        """The requests that wait for a worker, for `GrpcServer.share_batches_with`."""

    @property
    def ended_descriptor(self) -> int:
        """A descriptor that is readable while `take_ended` has requests to return. Valid after
        `start`.
        """

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
        """Takes a request of a method like `RestPredict`. `headers` are ASGI's, with names in lower
        case.

        Returns the id with which `take_ended` returns the ended request, once. Raises
        RESOURCE_EXHAUSTED at once if the limit of requests in flight or waiting is reached. Raises
        UNAVAILABLE after `shutdown`, and INVALID_ARGUMENT for an unknown method.
        """

    def cancel(self, id: int) -> None:  # noqa: A002 (the module's name for it)
        """Cancels a request whose client is gone. Its run ends before its next kernel. Does nothing
        if the request has ended.
        """

    def take_ended(self) -> list[EndedRestRequest]:
        """Returns the requests that have ended since the last call, without waiting."""

    def get_model_metadata(self, model: str, version: int | None, label: str | None) -> bytes:
        """Returns a serialized GetModelMetadataResponse. Raises NOT_FOUND, and INVALID_ARGUMENT for
        an unknown label. Raises UNAVAILABLE at once if the model's first version is being loaded.
        """

    def end_awaiting(self) -> None:
        """Answers the requests that wait for the first version of their model. From now on,
        requests do not wait for it.
        """

    def shutdown(self, drain_seconds: float) -> bool:
        """Refuses new requests, waits up to `drain_seconds` for the taken requests, cancels the
        rest, and ends the threads.

        Returns True if no request was cut short. If a kernel still runs two seconds after the
        cancellation, its thread goes on: end the process. A second call does nothing and returns
        the same value.
        """

@final
class GrpcServer:
    """The gRPC server. `take_rare_call` returns the calls of `rare_methods`; C++ answers all other
    methods.
    """

    def __init__(
        self,
        serving_map: ServingMap,
        *,
        addresses: Sequence[str],
        thread_count: int,
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
        connections_per_address_max: int = 0,
        request_seconds_max: float = 0.0,
    ) -> None:
        """Makes the server.

        `addresses` are `HOST:PORT` (port 0 takes a free port) or `unix:PATH`.
        `thread_count` is the number of request threads while no run lasts long; 0 is one
        for each core. `request_statistics` reports the rare methods and the requests that find no
        version. `spans` takes the requests whose trace is sampled; with None, requests are not
        traced. `certificates` sets up TLS at the TCP addresses. `rare_methods` are full names of
        methods. `channel_arguments` have the names of gRPC's; docs/migrating.md lists those with
        an effect. `reflection` describes the services to clients; with None the server has no
        reflection.

        `reply_compression` is none, request (as the request is), deflate or gzip. It applies if the
        client accepts it. With `has_tensor_content`, Predict replies with tensor_content instead of
        typed fields. `admission` limits the requests in flight; with None the default limit
        applies. `max_thread_count` is the number of threads that run requests at a time; 0: four
        for each core. `first_version_wait_seconds` is how long a request waits for the first
        version of its model.

        `max_message_bytes` limits the message of one request, and `reply_bytes_max` the bytes of
        one reply. `rare_message_bytes_max` limits the messages of rare methods; 4 MiB for a method
        without an entry. `budget` counts and limits the bytes of requests and replies in flight,
        together with those over HTTP; with None they are not counted.

        `connections_per_address_max` limits the connections of one IP address; 0: no limit.
        `request_seconds_max` is the deadline of a request to a model that comes without one; 0:
        none.
        """

    def start(self) -> None:
        """Starts to listen. Raises UNAVAILABLE if an address cannot be bound, naming it."""

    @property
    def port(self) -> int:
        """The bound TCP port, or 0 if no address is TCP."""

    @property
    def connection_count(self) -> int:
        """The number of open connections."""

    @property
    def limit_counts(self) -> dict[str, int]:
        """The number of times that clients reached each limit, by name, like "header_bytes"."""

    def take_rare_call(self, timeout_seconds: float) -> RareCall | None:
        """Returns the next rare call, on any thread. Returns None at the timeout, or at once after
        `shutdown`.
        """

    def set_health(self, service: str, is_serving: bool) -> None:
        """Sets the grpc.health.v1 status of a service name and notifies its watchers. "" is the
        whole server.
        """

    def remove_health(self, service: str) -> None:
        """Removes a service name. Check then answers NOT_FOUND, and watchers get SERVICE_UNKNOWN."""

    def share_batches_with(self, others: WaitingRequests) -> None:
        """Lets batches also take some requests over HTTP. Call it before `start`."""

    def pin_request_threads(self, is_pinned: bool) -> bool:
        """Pins each request thread to a core of its own, or unpins all of them. Returns False, and
        changes nothing, before `start`, or if the process may use another number of cores than
        there are request threads.
        """

    def shutdown(self, drain_seconds: float) -> bool:
        """Refuses new calls, waits up to `drain_seconds` for the calls that have arrived, cancels
        the rest, and ends all threads.

        Returns True if no call was cut short. If a kernel still runs 0.9 seconds after the
        cancellation, its thread goes on: end the process. A second call does nothing and returns the
        same value.
        """
