"""The seam's loads of SavedModels, and the memory of their parameters (see `plane`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serving.data_plane.servables import AcceleratedSignature, ArenaRemains, Servable


@dataclass(frozen=True)
class MemoryPlan:
    """The memory that a version will take, from its graph and its variables.index."""

    parameter_bytes: int
    slab_bytes: int
    shared_bytes: int
    """The bytes of the parameters that other versions have in memory already, or have left there."""

    log_bytes: int
    """The most bytes that are kept, beside the parameters, of the rows that the init op replaces."""

    @property
    def own_bytes(self) -> int:
        """The bytes of the parameters that are not in memory yet."""
        return self.parameter_bytes - self.shared_bytes


@dataclass(frozen=True)
class SlabPoolStatistics:
    """The slabs of the pool by use. Bytes are reserved bytes unless their name contains `resident`."""

    in_use_count: int
    in_use_bytes: int
    spare_count: int
    spare_bytes: int
    spare_resident_bytes: int
    surplus_resident_bytes: int
    """Bytes that are being returned to the system."""

    quarantined_count: int
    """The slabs of versions that leaked, which are never used again."""

    quarantined_bytes: int
    reservation_refusal: str
    """The reason why the system refused the keeper's last reservation of a spare; "" if it did not."""


@dataclass(frozen=True)
class TableStatistics:
    """The large variables that versions hand on to later versions (`native/memory/table_store.h`)."""

    held_count: int
    held_bytes: int
    standby_count: int
    """The tables that no version holds, and that wait for the next version of their model."""

    standby_bytes: int
    dirty_count: int
    """The tables of these whose contents are unknown: a load ended while it wrote to them, or has replaced more
    than a quarter of their rows.
    """

    copying_bytes: int
    """The size of the table that is being copied ahead, which is in no other number."""


@dataclass(frozen=True)
class TableReport:
    """The use that a load made of one large variable that other versions may have too."""

    variable: str
    table_bytes: int
    read_bytes: int
    """The bytes that were read from the checkpoint; 0 if the table was in memory already."""

    changed_row_count: int
    """The rows that the init op replaced."""

    reason: str
    """The reason why it was read; "" if it was not."""


THREAD_PRIORITIES = ("normal", "nice", "idle")
"""The priorities that a thread of the data plane can have."""


class SlabPool(Protocol):
    """The slabs of versions' parameters, and the thread that keeps spare memory for the next versions.

    Thread: any, for all methods, but no thread that answers requests: each may wait for a lock whose holder
    runs at idle priority.
    """

    def expect(self, owner: str, servable: Any, serving_count: int) -> None:
        """Records that the owner's next version will need as much memory as `servable`.

        The owner serves `serving_count` versions at rest: further ones are on their way out. Call `refill`
        after it.
        """

    def refill(self, room_bytes: int) -> bool:
        """Lets the keeper fault in the spare memory that is missing, if that is at most `room_bytes`.

        If it is more, permits the part for smaller versions that fits, and returns False.
        """

    def forget(self, owner: str) -> None:
        """Forgets the owner's need. Memory that no other owner needs goes back, in steps."""

    def pin_for(self, accelerator: Any) -> None:
        """Pins spare memory, and what loads for an accelerator use, so that accelerators copy from it directly.

        Do it before the first load. It pins nothing if the accelerator's plugin cannot.
        """

    def statistics(self) -> SlabPoolStatistics:
        """Counts the slabs and their bytes by use."""

    def table_statistics(self) -> TableStatistics:
        """Counts the tables and their bytes by use. The slabs of the pool include theirs."""

    def free_table_bytes(self, owner: str) -> int:
        """The bytes in memory of the owner's tables without a holder: they are for its next version."""

    def stop(self) -> None:
        """Ends the keeper's thread, and waits for its step under way. A second call does nothing."""


@dataclass(frozen=True)
class MissingKernel:
    """A node for which the CPU has no kernel, and what runs it: a signature, or "" for the init op."""

    signature: str
    op: str
    node: str
    function: str
    """The function that holds the node; "" for the graph itself."""

    is_certain: bool
    """True if every request on the signature needs the node. False in doubt, as in a branch."""

    is_built: bool
    """True if every request needs the node's kernel, even if it takes another branch, unless
    TensorFlow leaves the branch out.
    """


@dataclass(frozen=True)
class AcceleratorMemory:
    """The memory of an accelerator, as this server's client counts it."""

    used_bytes: int
    limit_bytes: int
    """The most that this server may take there; 0 if the plugin does not say."""


@dataclass(frozen=True)
class AcceleratorState:
    """The state of an accelerator, for the choice of a model's device. Sizes are in bytes."""

    limit_bytes: int
    """The most that parameters and runs may take; 0: unlimited."""

    parameter_bytes: int
    idle_bytes: int
    """The part of the parameters that may be dropped for a version that needs room."""

    busy_ns: int
    """The time that runs took in all."""

    is_failing: bool
    """The last run or upload there failed for another reason than a lack of memory."""

    compiled_count: int = 0
    """The programs that were compiled for it."""

    loaded_count: int = 0
    """The programs that came from the cache."""

    shared_count: int = 0
    """The programs that another version had."""

    pinned_bytes: int = 0
    """The memory of this process that is pinned for uploads, to all accelerators of the plugin."""

    pinned_limit_bytes: int = 0
    """The most memory that may be pinned."""

    staging_bytes: int = 0
    """The server's memory through which runs and uploads are copied."""


class AheadCompiler(Protocol):
    """Compiles programs for a sort of accelerator, before a load needs them. Thread: any, at once."""

    @property
    def target(self) -> str:
        """The build of the plugin and the sort of accelerator, like "… NVIDIA H200"."""

    @property
    def compiled_count(self) -> int:
        """The programs that were compiled."""

    def compile_into(self, program: bytes, cache_directory: str) -> None:
        """Compiles a program of `Servable.untuned_programs` into the cache, unless it is there.

        Raises the plugin's error, and FAILED_PRECONDITION if the cache cannot be written.
        """


class Accelerator(Protocol):
    """One accelerator of those that a plugin finds. Thread: any, at once."""

    def state(self) -> AcceleratorState:
        """Counts the memory by its use, and the time of runs."""

    @property
    def autotunes(self) -> bool:
        """True if compilations there try out what is fastest: before `end_autotuning`, or if it is no GPU."""

    def end_autotuning(self) -> None:
        """Lets later compilations for a GPU try nothing out there, because runs of requests would wait for that."""

    @property
    def target(self) -> str:
        """The target of its programs: `AheadCompiler.target`."""

    @property
    def topology(self) -> str | None:
        """The description for `DataPlane.open_ahead_compiler` in another process, which then needs no GPU.

        It is "" for CPUs, of which any process may make an accelerator. None if only this process can compile.
        """

    def memory(self) -> AcceleratorMemory | None:
        """Counts the memory in use; None if the plugin does not count it, or has lost the device."""

    @property
    def name(self) -> str:
        """Its place among the accelerators, from "0" on."""

    @property
    def description(self) -> str:
        """The plugin, its version and the device, like "xla_cuda_plugin.so (API 0.115) …, NVIDIA H200"."""


class BatchSlots(Protocol):
    """Limits how many batches run at the same time, for all versions that share it. It has no methods."""


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """The limits under which the requests of one version share runs."""

    rows_max: int
    """The most rows of a batch."""

    run_seconds_max: float
    """A batch takes about this long at most; 0: any time."""

    splits: bool
    """A request of more rows is run in pieces."""

    allowed_rows: Sequence[int]
    """The rows that a batch may have, ascending: it is padded to the next of them. Empty: any."""

    pads_inputs: bool
    """Inputs that differ in their dimensions after the first are padded with zeros or empty strings."""

    waiting_requests_max: int
    """If this many requests of a signature wait for a thread, further ones are refused with
    UNAVAILABLE; 0: none is.
    """

    slots: BatchSlots | None
    """Limits the batches at a time, together with the other versions that have it. None: no limit."""

    relative_tolerance: float
    """Answers of a batch may differ from those of single runs by this share of their magnitude."""

    may_mix_rows: bool
    """A signature whose graph mixes rows is batched as long as no comparison shows it."""


class SavedModelLoad(Protocol):
    """One version being loaded, step by step, on the calling thread, so that each step can be timed.

    Call each step once, in the order of this class; each says so if it has another place. A step out of order
    raises FAILED_PRECONDITION. After a step that fails, only `discard` is left. Dropping the object before
    `finish` frees everything.

    Thread: one at a time takes the steps, and none that answers requests, because they take long. Any thread
    may use `cancel`, `restored_bytes`, `kept_bytes`, `copied_bytes`, `set_restore_bytes_per_second` and
    `set_restore_target` at any time.
    """

    def read_graph(self) -> None:
        """Reads the meta graph with exactly the tags of the load.

        Raises NOT_FOUND if there is none, and DATA_LOSS if it does not parse.
        """

    def check_input_shapes(self) -> None:
        """Makes the version refuse requests whose inputs have other shapes than their signatures name.

        Optional, after `read_graph`. Without it, the model's kernels decide.
        """

    def missing_ops(self) -> Sequence[str]:
        """Finds the ops of the graph that no library in this process has, and sorts them by name.

        Call it after `read_graph`. `create_session` fails if any op is missing.
        """

    def missing_kernels(self) -> Sequence[MissingKernel]:
        """Finds the nodes that signatures or the init op run and that have no kernel for the CPU.

        The certain ones of each signature come first. Call it between `read_graph` and `create_session`.
        """

    @property
    def signature_names(self) -> Sequence[str]:
        """The names of the signatures, sorted. Valid after `read_graph`."""

    @property
    def may_write_variables(self) -> bool:
        """True if a request could write to a variable, or if that is uncertain. Valid after `read_graph`."""

    def use_tables(self, pool: Any) -> None:
        """Lets the version share large variables with other versions of its model, or take theirs over.

        They then lie beside the slab that `plan_memory` plans, in memory that outlives the version. Optional,
        after `read_graph`. Raises DATA_LOSS if variables.index does not parse.
        """

    def plan_memory(self, headroom_bytes: int) -> MemoryPlan:
        """Computes the memory that the version will take, without reading a variable.

        The slab has `headroom_bytes` more than the parameters, for the allocations of the init op. Raises
        DATA_LOSS if variables.index does not parse.
        """

    def take_arena(self, pool: Any, slab_bytes: int) -> int:
        """Gives the version an arena on a slab of at least `slab_bytes`, and memory for its tables.

        Returns how many bytes of both are resident. Without this step the parameters come from the request
        memory. Raises RESOURCE_EXHAUSTED if no address range is free, and FAILED_PRECONDITION without jemalloc.
        """

    def compile_ahead(
        self,
        compiler: AheadCompiler | None,
        rows: Sequence[int],
        cache_directory: str,
        tables: str,
        only_if_worth: bool,
    ) -> Sequence[AcceleratedSignature]:
        """Says what becomes of each signature on an accelerator, and compiles its programs into a cache.

        Call it after `read_graph`, and before `create_session`. A server that loads the version with these
        `rows` and `tables` finds its programs there. Without a `compiler` nothing is compiled. Raises UNIMPLEMENTED if
        requests may write to variables, and FAILED_PRECONDITION if the cache cannot be written.
        """

    def create_session(self) -> None:
        """Makes TensorFlow's session of the graph. Raises TensorFlow's error if it refuses the graph."""

    def restore(self) -> None:
        """Restores the variables.

        Raises DATA_LOSS for a wrong checksum, and OUT_OF_RANGE for a shard that is cut short.
        """

    def run_init(self) -> None:
        """Runs the model's init op, which fills tables and reads assets. Raises the error of a kernel."""

    def variables_without_value(self) -> Sequence[str]:
        """Finds the variables that requests read and that hold no value, and sorts their names.

        A variable is left out if that is uncertain. Call it between `run_init` and `make_callables`; later
        the list is empty.
        """

    def tables_without_value(self) -> Sequence[str]:
        """Finds the tables that requests look keys up in and that nothing has filled, and sorts their names.

        A table is left out if that is uncertain. Call it between `run_init` and `make_callables`; later the
        list is empty.
        """

    def analyze_rows(self) -> None:
        """Finds out what the graph shows about the rows of each signature, for `Servable.verify_batching`.

        Optional: without it, nothing is shown. Call it between `run_init` and `make_callables`. It takes about
        10 µs for each node of the graph.
        """

    def draft_programs(
        self,
        accelerators: Sequence[Accelerator],
        rows: Sequence[int],
        cache_directory: str,
        tables: str,
        memory_bytes_max: int,
        is_low: bool,
        is_needed: bool,
        tunes_later: bool,
    ) -> None:
        """Translates the signatures that can run on `accelerators`, for `use_accelerator`.

        What XLA cannot compile of a signature stays on the CPU, and runs before the rest. There is one program
        for each of `rows`, and requests are filled up to the next one. Unless the accelerator `is_needed`, a
        signature stays on the CPU if the way there would take longer than its products of matrices. `tables` is
        the place of the tables of look-ups: "auto", "host" or "device" (`TablePlace`). Programs are kept in
        `cache_directory`, unless it is "". Optional: between `run_init` and `make_callables`.

        If it `tunes_later`, the programs that come without autotuning are kept for `Servable.untuned_programs`.

        Runs of models take turns there. With `is_low` they yield to the runs of all models that are not.

        All versions of the model may take `memory_bytes_max` on each; 0: all. A request goes to the
        accelerator with the shortest expected wait. Copies that no request has used
        for a second give way. If the variables still do not fit, the CPU answers until they do, or, if the
        accelerator `is_needed`, `use_accelerator` raises RESOURCE_EXHAUSTED.

        Raises UNIMPLEMENTED if requests may write variables.
        """

    def list_programs(self) -> tuple[int, Sequence[tuple[str, bytes]]]:
        """Counts the programs that were drafted, and finds those that the cache has not: their names and code.

        Call it between `draft_programs` and `use_accelerator`, which need not compile what is in the cache by then.
        """

    def use_accelerator(self) -> Sequence[AcceleratedSignature]:
        """Compiles the programs that were drafted, and copies the variables to each accelerator.

        It takes 0.2 to 1 s for each program that is not in the cache. Raises RESOURCE_EXHAUSTED if the accelerator is
        needed and full, and the plugin's errors.
        """

    @property
    def compiled_program_count(self) -> int:
        """The programs that `use_accelerator` did not find, and has compiled."""

    def make_callables(self) -> None:
        """Makes one callable for each signature, which request threads run inline.

        Raises the error of serving_default if it cannot be run, or of a signature if none can. If only
        another signature cannot be run, its requests get the error.
        """

    def make_callable(self, request: bytes) -> None:
        """Does the same as `Servable.make_callable`, after `make_callables`, with allocations beside the parameters."""

    def cancel(self) -> None:
        """Ends `restore` within a tensor, and `run_init` at its next kernel, with CANCELLED: now, or later on."""

    @property
    def restored_bytes(self) -> int:
        """The bytes of the tensors that have been read and checked so far."""

    @property
    def kept_bytes(self) -> int:
        """The bytes of the tensors that were in memory already, and were not read."""

    @property
    def copied_bytes(self) -> int:
        """The part of `kept_bytes` that was copied from a table that other versions hold."""

    def table_reports(self) -> Sequence[TableReport]:
        """Says what became of each table; empty without `use_tables`.

        The reports are complete after `run_init`. Before `restore`, `read_bytes` is 0 for each table that will
        lie beside the arena, and the size of each variable that will not.
        """

    def set_restore_bytes_per_second(self, bytes_per_second: int) -> None:
        """Sets how fast `restore` may read from now on; 0: unlimited."""

    def set_restore_target(self, seconds: float) -> None:
        """Sets how long `restore` may take while requests come; 0: it is not slowed down.

        It reads 250 MB/s, more if that would take longer, and at most 4 GB/s. If
        `set_restore_bytes_per_second` has set a speed, that holds instead.
        """

    def discard(self) -> ArenaRemains:
        """Frees everything, and returns what was left in the arena. Does nothing after `finish`."""

    def finish(
        self,
        reservoir: Any = None,
        request_statistics: Any = None,
        batching: BatchSettings | None = None,
        replay_seconds_max: float = 0.0,
        request_log: Any = None,
    ) -> Servable:
        """Makes the servable of the loaded version. It is the last step.

        The servable offers the requests that it answers to `reservoir` and `request_log`, and
        `request_statistics` reports them.
        With `batching` its requests may share runs, from `Servable.verify_batching` on. Each request of
        `Servable.answer`, `replay` and `predict` runs for `replay_seconds_max` at most; 0: any time.
        """
