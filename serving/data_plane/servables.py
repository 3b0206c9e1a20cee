"""The seam's serving map and the servables that it publishes (see `plane`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serving.core.servable import Routing


class ServableStatistics(Protocol):
    """The requests that ran the model of one version since it was loaded. A value.

    Latencies are in nanoseconds, by the nearest rank, and within 0.8 % (log-linear histogram). They are 0
    without requests.
    """

    @property
    def request_count(self) -> int:
        """The number of requests that have ended, with the failed ones."""

    @property
    def failed_count(self) -> int:
        """The number of these requests that did not end with OK."""

    @property
    def latency_ns_p50(self) -> int: ...
    @property
    def latency_ns_p99(self) -> int: ...
    @property
    def latency_ns_p999(self) -> int: ...
    def latency_ns_at(self, quantile: float) -> int:
        """The latency that this share of the requests, 0 to 1, stay within."""

    def since(self, earlier: Any) -> "ServableStatistics":
        """The statistics of the requests since `earlier`, which must be of the same version."""


@dataclass(frozen=True)
class ArenaStatistics:
    """The bytes of a version's slab by use. The first four are disjoint and add up to the slab."""

    allocated_bytes: int
    active_unused_bytes: int
    retained_bytes: int
    unused_bytes: int
    slab_resident_bytes: int
    """The bytes of all four that are resident in memory."""


@dataclass(frozen=True)
class ArenaRemains:
    """The memory that was live in a version's arena after the version was freed: 0 bytes, or a leak."""

    live_bytes: int = 0
    live_blocks: Sequence[tuple[int, int]] = ()
    """The live blocks by size: (bytes of a block, number of blocks)."""

    overflow_block_count: int = 0
    """The number of live blocks that did not fit in the slab."""


@dataclass(frozen=True)
class BatchFigures:
    """The batches of one signature of one version since it was loaded.

    `run_count` counts all runs of requests: batches, requests that ran alone, and the pieces of
    requests that were split. `wait_ns` is the sum over the requests of the time from their own
    decoding to their run.

    `by_rows` and `by_requests` count the runs by size: class i has more than 2^(i-1) and at most
    2^i. A request that was split counts as a request of its first piece. `by_run` counts the runs
    by their time, and `by_wait` the requests by their wait, in the same classes of µs.
    """

    run_count: int = 0
    request_count: int = 0
    row_count: int = 0
    padding_row_count: int = 0
    failed_batch_count: int = 0
    """The batches that failed and whose requests were then run one by one."""

    split_request_count: int = 0
    """The requests that were run in pieces."""

    wait_ns: int = 0
    run_ns: int = 0
    by_rows: Sequence[int] = (0,) * 16
    by_requests: Sequence[int] = (0,) * 16
    by_wait: Sequence[int] = (0,) * 22
    by_run: Sequence[int] = (0,) * 22


ROW_VERDICTS = ("independent", "unknown", "mixes")
"""The verdicts of a signature's graph on the rows of a batch: each is computed alone, or the graph
does not show it, or some are computed from others.
"""


@dataclass(frozen=True)
class SignatureBatching:
    """If the requests of a signature are batched, and how that went."""

    signature: str
    is_on: bool
    refusal: str
    """The reason why it is not batched; "" if it is."""

    rows: str
    """The verdict of its graph on its rows, one of `ROW_VERDICTS`."""

    rows_reason: str
    """The output and the node that show it; "" if they are independent."""

    joined_rows_max: int
    """The rows up to which a batch is extended now."""

    joined_requests_max: int
    """The most requests that a batch's first one takes along."""

    figures: BatchFigures


RUN_STAGES = ("wait", "transfer_in", "run", "transfer_out")
"""The stages of a run on an accelerator, in their order."""

CPU_REASONS = (
    "shape",
    "memory",
    "failed",
    "lost",
    "away",
    "waited",
    "gave_way",
    "refused",
    "faster",
)
"""The reasons for a run on the CPU although the signature has programs for the accelerator: the request's
shapes are not the signature's; the accelerator is full; the run failed there, which gives the signature up; it
was given up before; the parameters are not there, and are asked for; other runs came first for 10 s; the
thread gives way to others; the part on the CPU failed the request, or an index was wrong; the CPU is faster for
so many rows.
"""


@dataclass(frozen=True)
class AcceleratorRuns:
    """The runs of one signature that has programs for an accelerator, there, since its load."""

    signature: str
    device: str
    """The name of the accelerator."""

    sizes: Sequence[int]
    """The rows of each program, ascending."""

    run_counts: Sequence[int]
    """The runs of each program."""

    row_counts: Sequence[int]
    """The rows that the runs of each program were asked for, without padding."""

    timed_run_count: int
    """The runs behind `stage_ns`: the first ones, and one of 64 after that."""

    stage_ns: Sequence[int]
    """The time of each of `RUN_STAGES`, of all timed runs together."""

    cpu_run_counts: Sequence[int]
    """The runs on the CPU by each of `CPU_REASONS`."""

    @property
    def padding_row_count(self) -> int:
        """The rows that were computed only to fill up the programs."""
        computed = sum(size * runs for size, runs in zip(self.sizes, self.run_counts, strict=True))
        return computed - sum(self.row_counts)


@dataclass(frozen=True)
class SizeTimes:
    """The median times of a signature's last runs of up to `rows` rows, and the side that takes them now.

    Times are in nanoseconds, without the wait for the accelerator's turn; 0: too few runs.
    """

    rows: int
    cpu_ns: int
    accelerator_ns: int
    is_on_accelerator: bool


@dataclass(frozen=True)
class AcceleratedSignature:
    """A signature of a version that has an accelerator, and whether it runs there."""

    name: str
    rows: Sequence[int]
    """The numbers of rows that it is compiled for. Empty: it runs on the CPU."""

    reason: str
    """Why it runs on the CPU, or with `rows`, why it does until there is memory; "" if it does not."""

    host_ops: Sequence[str]
    """The ops for whose sake a part of it runs on the CPU, before the accelerator. Empty: all of it runs there."""

    host_tables: Sequence[str]
    """The variables that stay in the server's memory although they could be on the accelerator."""

    untuned_rows: Sequence[int] = ()
    """The part of `rows` whose programs were compiled for a GPU without autotuning."""

    needs_exact_rows: bool = False
    """True if each of its programs runs requests of exactly its rows, because a row may depend on others."""

    sizes: Sequence[SizeTimes] = ()
    """The times of both sides for each of `rows`. Empty: all runs are for the accelerator."""


@dataclass(frozen=True)
class AcceleratorUploads:
    """The parameters of a version on one accelerator, since its load."""

    device: str = ""
    """The name of the accelerator."""

    resident_bytes: int = 0
    """The bytes that are there now; 0 if they gave way to another version's."""

    upload_count: int = 0
    upload_ns: int = 0
    """The time of all uploads together, with the wait for memory."""

    drop_count: int = 0
    """The times that they gave way."""

    uploaded_bytes: int = 0
    """The bytes of all uploads together."""

    unpinned_bytes: int = 0
    """The part of them that was copied once more on its way, because its memory was not pinned."""

    kept_bytes: int = 0
    """The bytes that all uploads together found on the accelerator, in tables of other versions."""

    full_count: int = 0
    """The uploads that sent a table of a delta as a whole, because its rows could not be sent alone."""

    full_reason: str = ""
    """The reason of the last one of them, with the table's name."""


class Servable(Protocol):
    """One loaded version. `SavedModelLoad.finish` makes it, and `destroy` frees it.

    Thread: any, at once, but the steps of a load (`keep_state`, `put_back_state`, `make_callable`, `verify_batching`,
    `seal_arena`) and `destroy` are each called by one thread, which answers no requests.

    Raises FAILED_PRECONDITION from any method that needs the model after `destroy`.
    """

    @property
    def handle_count(self) -> int:
        """The number of requests that hold this version now."""

    def answer(self, method: str, request: bytes) -> bytes:
        """Answers a serialized request with a serialized response, exactly as the gRPC method of that name does.

        `method` is "Predict", "Classify", "Regress" or "MultiInference". The name and version in
        the request's model_spec are ignored. Raises UNIMPLEMENTED for another method. Raises
        FAILED_PRECONDITION if the request runs for longer than `SavedModelLoad.finish` allows.
        """

    def replay(self, method: str, request: bytes) -> bytes:
        """Does the same as `answer`, but changes no variable, because no client has sent the request.

        Raises PERMISSION_DENIED if the request would change one; after `keep_state`, if it would change what
        cannot be put back.
        """

    def keep_state(self, bytes_max: int) -> None:
        """Keeps the values of variables before requests write to them, from now on, for `put_back_state`.

        The kept values have `bytes_max` together at most. So `replay` may write, as far as that can be put back.
        It is for the warm-up: call both before the version is published, while no other thread calls it.
        """

    @property
    def kept_state_bytes(self) -> int:
        """The bytes of the variables that were written since `keep_state`, and so take their memory twice."""

    def put_back_state(self) -> int:
        """Gives the variables that were written since `keep_state` their values back; returns their number.

        Leaves all as it is, and returns 0, if a request to `answer` has changed anything else.
        """

    def predict(self, request: bytes) -> bytes:
        """Answers a serialized PredictRequest as `answer` does with the method "Predict"."""

    def make_callable(self, request: bytes) -> None:
        """Makes the callable for the signature and the set of outputs of `request`, in up to 0.1 s.

        Does nothing if it is made already. Call it before the version is published, and then `predict`
        once, because the first run is slow, too. Raises as `predict` does for the signature and the
        output_filter, and RESOURCE_EXHAUSTED if there are too many sets of outputs. The inputs are ignored.
        """

    def signature_def_map(self) -> bytes:
        """The signatures of this version, as a serialized tensorflow.serving.SignatureDefMap."""

    def set_metadata_json(self, json: str) -> None:
        """Sets the answer to `GET /v1/models/NAME/metadata`. Call it before the version is published."""

    def verify_batching(self, predecessor: Any = None) -> int:
        """Decides which signatures are batched from now on: those whose rows give in a batch what they give alone.

        The graph decides if `SavedModelLoad.analyze_rows` has shown it: signatures whose rows are
        independent are batched, and those that mix them are not, unless the settings have
        `may_mix_rows`. Rows of any other signature are compared, and so is a share of its live batches.

        The rows are those of requests that `answer` and `predict` have answered until now, or made-up ones.
        They run in batches of 2, 4, 8 … up to 1,024 rows, or of all allowed sizes, as long as a run takes no
        more than half the settings' `run_seconds_max`. That warms up such batches too.

        Then runs the batches that `predecessor` has run most often, as this version would run them, for at most
        10 s, and returns their number. Call it once, after the warm-up and before the version is published.
        Does nothing without batching. Raises CANCELLED after `cancel_runs`.
        """

    def cancel_runs(self) -> None:
        """Ends each `answer`, `replay`, `predict` and `verify_batching` at its next kernel, with CANCELLED.

        That holds for those under way and for later ones.
        """

    def batching(self) -> Sequence[SignatureBatching]:
        """Lists the state of each signature, also after `destroy`; nothing without batching.

        An entry with the name "" has the runs of several signatures at once.
        """

    def statistics(self) -> ServableStatistics:
        """Counts the requests that have run the model, also after `destroy`."""

    def quiesce(self, timeout_seconds: float) -> bool:
        """Waits until no request holds this version. Returns False if the timeout passes first.

        Raises FAILED_PRECONDITION if the version is still in a serving map.
        """

    @property
    def may_write_variables(self) -> bool:
        """True if what a request writes to variables could change a later answer, or if that is uncertain.

        A model that assigns variables is watched in each run: the first request that assigns another value
        than the variable has makes this True.
        """

    def arena_statistics(self) -> ArenaStatistics | None:
        """Measures the arena; None if the parameters lie in the request memory, or are freed."""

    @property
    def arena_overflow_block_count(self) -> int:
        """The number of this version's blocks that did not fit in its slab."""

    @property
    def accelerator_bytes(self) -> int:
        """The bytes of the version's parameters for an accelerator, if they are there or not; 0 without one."""

    def accelerator_uploads(self) -> Sequence[AcceleratorUploads]:
        """Counts the uploads of the parameters to each of the version's accelerators."""

    def accelerator_runs(self) -> Sequence[AcceleratorRuns]:
        """Counts the runs of each signature that has programs for accelerators, on each of them."""

    def accelerator_signatures(self) -> Sequence[AcceleratedSignature]:
        """The signatures of a version that was loaded for an accelerator, and where each runs."""

    def measure_sides(self, seconds_max: float) -> None:
        """Measures the runs of each signature with the choice on the CPU and on the accelerator, for each size.

        It runs rows of a request of the warm-up, or zeros, for `seconds_max` a signature at most, the smallest
        size first. Sizes that it does not come to, and those that fail, stay without times. All sizes are on the
        accelerator after it. Call it after the warm-up and before the version is published. Raises CANCELLED
        after `cancel_runs`.
        """

    def choose_side(
        self, signature: str, rows: int, is_on_accelerator: bool, probe_one_of: int
    ) -> None:
        """Chooses the side of runs of up to `rows` rows, one of `SizeTimes.rows`.

        One run of `probe_one_of` goes to the other side, so that its times stay known; 0: none. Raises NOT_FOUND
        if the signature has no choice for that size.
        """

    def untuned_programs(self, cache_directory: str) -> Sequence[bytes]:
        """The programs that run without autotuning, and of which the cache has no autotuned ones.

        Each is a serialized `xla.HloModuleProto`. None unless `SavedModelLoad.use_accelerator` was told so.
        """

    def offer_tuned_programs(self, cache_directory: str) -> tuple[Sequence[int], str, str]:
        """Loads the autotuned programs that the cache has by now, for `try_tuned_programs`. About 5 ms for each.

        Returns the numbers of rows of the programs; why others that the cache has may be offered later: for lack of
        memory now, or because an accelerator fails now; and why others are damaged and never offered again. "" if there
        is none of these. This method and the next three are for one thread at a time, beside requests.
        """

    def try_tuned_programs(self, rows: int, method: str, request: bytes) -> bytes:
        """Does the same as `replay`, with the offered programs of `rows` rows on each accelerator; never on the CPU.

        An accelerator that has lost the signature is left out.

        Raises NOT_FOUND if none was offered for the request's signature, or if the request has not the rows that it
        needs; UNAVAILABLE if the parameters are not there now; and the errors of runs.
        """

    def use_tuned_programs(self, rows: int) -> int:
        """Gives offered programs of `rows` rows to requests, if a try has ended well; returns their number.

        Waits for the runs under way of the programs before, and frees these.
        """

    def withdraw_tuned_programs(self) -> None:
        """Frees the programs that are still offered."""

    def seal_arena(self) -> bool:
        """Makes the slab read-only, once the version is warm.

        Returns False, and changes nothing, if a request could write to the slab, or if the version has no arena.
        """

    def destroy(self) -> ArenaRemains:
        """Frees the session and the arena on the calling thread, and returns what was left in the arena.

        Raises FAILED_PRECONDITION if the version is published or a request holds it. A second call does
        nothing and returns the same value.
        """


@dataclass(frozen=True)
class RequestReservoirStatistics:
    """The requests that a reservoir holds, including those that are too old."""

    request_count: int
    request_bytes: int


class RequestReservoir(Protocol):
    """Recent requests that the versions of one model answered, for its next version to replay.

    It outlives the versions that were finished with it. Thread: any, at once. Requests never wait for it.
    """

    def requests(self) -> Sequence[bytes]:
        """Copies the PredictRequests, serialized: the newest of each pair of signature and set of outputs, then
        the second newest of each pair, and so on.
        """

    def joint_requests(self) -> Sequence[bytes]:
        """Copies the MultiInferenceRequests of several signatures, serialized: the newest of each set of
        signatures, and so on. There are at most 16, none of them larger than 1/64 of `bytes_max`.
        """

    def statistics(self) -> RequestReservoirStatistics:
        """Counts the requests that it holds."""


class ServingMap(Protocol):
    """The published versions and their routing, as requests see them. A request's own look-up is wait-free.

    Thread: the control thread alone publishes, retires and routes. Any thread may call `answering` and
    `versions`. Threads that call `set_notes` have at least the priority of request threads, which may wait for
    them after a look-up that has failed.
    """

    def publish(self, servable: Any, routing: Routing) -> None:
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
        """Replaces the whole routing of a name, in one snapshot. Raises as `publish` does for the routing.

        It is kept while no version is published; setting the default routing removes it.
        """

    def answering(self, name: str, label: str | None = None) -> int | None:
        """Looks up, as requests do, the version that answers a request with `label`, or without label and version.

        The canary is ignored. None: the request is refused.
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

    def versions(self, name: str) -> Sequence[int]:
        """The published versions of a name, ascending; none for an unknown name."""
