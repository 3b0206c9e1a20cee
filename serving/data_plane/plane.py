"""The seam between the control plane (Python decides) and the data plane (C++ serves).

Everything that crosses the seam is declared in this package, and only here. `DataPlane` is the built
module. Its methods in capitals make the objects whose classes stand in the modules beside this one:
a Protocol has behaviour, and a frozen dataclass is a value that crosses field by field.
`scripts/check_seam.py` compares the declarations with the built module, and mypy compares them with
the callers and with the fakes of the tests. An argument has the type `Any` if each data plane takes
only objects of its own there.

Calls that read files, load, run, wait or destroy release the GIL. Shorter ones keep it, although some take
many microseconds: `SavedModelLoad.finish`, and the reads of a version's figures, such as
`Servable.statistics` and `MethodStatistics.phase`.

Failures of the data plane raise `StatusError(code, message)` with the number of the gRPC status code:
"raises NOT_FOUND" stands for that. A value of a wrong type raises TypeError. Sizes are in bytes, and times
in the unit of their name.

Each class says which threads may call it. A Protocol that is a value may be read by any thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from serving.data_plane import loads, request_log, request_statistics, requests, servables, traces


@dataclass(frozen=True)
class RequestMemoryStatistics:
    """Bytes that TensorFlow's allocator holds: requests' tensors, and parameters outside of arenas."""

    in_use_bytes: int
    in_use_bytes_peak: int
    allocation_count: int


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """The configuration of TensorFlow in this process."""

    intra_op_thread_count: int
    """The threads of the pool for large kernels; 0: one for each core."""

    inter_op_thread_count: int
    """The threads of the pool for what does not run inline; 0: one for each core."""

    is_stock: bool = False
    """Nothing is registered, and versions run as TensorFlow Serving runs them, for comparisons."""

    has_load_pool: bool = False
    """Restore and init have a pool of their own. For `is_stock`."""

    checks_method_names: bool = False
    """A signature answers only requests of its method_name."""

    serves_session_run: bool = False
    """Clients may run any part of a graph by SessionRun. Arenas cannot be sealed then."""

    keeps_graphs: bool = False
    """Sessions keep their graphs, with the constants. A signature that runs on an accelerator in part needs it."""


class DataPlane(Protocol):
    """The module `serving.data_plane._native`; tests replace it.

    Thread: any, at once, but `initialize` and `open_crash_page` precede all other calls. A method in capitals
    makes an object, whose class says who may call it.
    """

    @property
    def StatusError(self) -> type[Exception]:
        """A status that is not OK: `args == (code, message)`, with the number of a gRPC status code."""

    def SlabPool(self, *, spare_slab_count: int, thread_priority: str) -> loads.SlabPool:
        """Starts the keeper's thread at `thread_priority`, one of `loads.THREAD_PRIORITIES`. The spare
        memory is enough for the next versions of any `spare_slab_count` owners at once.
        """

    def RequestStatistics(self) -> request_statistics.RequestStatistics:
        """Makes the statistics, and starts their thread, which `stop` ends."""

    def RequestReservoir(
        self, *, request_count_max: int, bytes_max: int, age_seconds_max: float
    ) -> servables.RequestReservoir:
        """Makes a reservoir. With `request_count_max` 0 it takes no requests. It never takes a
        request larger than a quarter of `bytes_max`.
        """

    def RecordQueue(self, bytes_max: int) -> request_log.RecordQueue:
        """Makes a queue of `bytes_max`, rounded up to a power of two. It takes no record that is larger
        than a quarter of that.
        """

    def RequestLog(self, queue: Any, log_id: int) -> request_log.RequestLog:
        """Makes a log that samples nothing yet. `log_id` tells its records from those of other logs."""

    def open_accelerators(
        self, plugin: str, memory_fraction: float, memory_bytes_max: int
    ) -> Sequence[loads.Accelerator]:
        """Opens the PJRT plugin at this path, and all devices that it finds, through one client: 0.9 s.

        The client takes at most `memory_fraction` of each GPU's memory, from 0 to 1. Parameters and runs take at
        most `memory_bytes_max` of each device; 0: as much as the client. Raises NOT_FOUND without
        such a library or device, FAILED_PRECONDITION for one that is no plugin or too old, and the plugin's
        error, for example for a driver that is too old.
        """

    def open_ahead_compiler(
        self, plugin: str, topology: str, memory_fraction: float, for_loads: bool = False
    ) -> loads.AheadCompiler:
        """Opens the PJRT plugin at this path to compile for the device that `topology` describes.

        The description is text of the plugin's own form. Without it, the first device of this machine is opened,
        and trials may take `memory_fraction` of its memory, if it is a GPU. What it compiles `for_loads` from a
        topology is what loads compile on a server that is ready, and only they take it.
        Raises as `open_accelerators` does, and UNIMPLEMENTED if the plugin needs the device itself.
        """

    def BatchSlots(self, count: int) -> loads.BatchSlots:
        """Makes a limit of `count` batches at a time."""

    def SavedModelLoad(
        self, name: str, version: int, directory: str, tags: Sequence[str]
    ) -> loads.SavedModelLoad:
        """Makes the load of the SavedModel in `directory`, of its meta graph with exactly these tags.

        Nothing is read yet.
        """

    def ServingMap(self) -> servables.ServingMap:
        """Makes an empty map. It must outlive the servers that are made with it."""

    def SpanBuffer(self, *, capacity: int, per_second_max: int) -> requests.SpanBuffer:
        """Makes a buffer. Raises INVALID_ARGUMENT if `capacity` is not a power of two."""

    def ServerCertificates(
        self, *, key: str, chain: str, client_ca: str, is_client_required: bool
    ) -> requests.ServerCertificates:
        """Makes the certificates. `chain` has the server's certificate first.

        With `is_client_required`, only clients with a certificate that `client_ca` has signed are
        served. Without it, `client_ca` may be "".
        """

    def Admission(self, total_limit: int) -> requests.Admission:
        """Makes the limits: `total_limit` requests in flight, and none of a single model yet."""

    def ByteBudget(self, limit_bytes: int) -> requests.ByteBudget:
        """Makes a budget of `limit_bytes`."""

    def GrpcServer(
        self, serving_map: servables.ServingMap, options: requests.GrpcServerOptions
    ) -> requests.GrpcServer:
        """Makes the server. Nothing listens yet."""

    def build_info(self) -> Mapping[str, str]:
        """The versions that are compiled in or linked.

        The keys are `millpond`, `tensorflow`, `wire`, `jemalloc` and `allocator`. `wire` has nghttp2 and
        OpenSSL. `allocator` is `jemalloc` if it is preloaded, else `glibc`. In the latter case
        `jemalloc` is "".
        """

    def initialize(self, options: RuntimeOptions) -> None:
        """Registers the request allocator, device factory and restore kernel, and starts TensorFlow's
        pools, at the caller's priority.

        Call it once, before any other function that uses TensorFlow. A second call with other options
        raises FAILED_PRECONDITION.
        """

    def start_trace(self, *, host_level: int, includes_dataset_ops: bool) -> traces.TraceSession:
        """Starts a recording. Raises ALREADY_EXISTS if another one runs in this process.

        With `host_level` 1 it has steps, with 2 also costly ops, and with 3 every op and TensorFlow's own work.
        """

    def open_crash_page(self, descriptor: int) -> None:
        """Marks from now on, in the page of a supervisor, which versions the threads run or load.

        Also handles the signals of a crash, which it raises again. Call it before the first load. Raises
        FAILED_PRECONDITION if the file is not a crash page of this release.
        """

    def load_op_library(self, path: str) -> Sequence[str]:
        """Loads a shared library of ops and kernels for the life of the process; returns its ops.

        Call it after `initialize`, and before the first graph with these ops. Raises NOT_FOUND if the
        file does not exist. Raises FAILED_PRECONDITION, with the message of the dynamic linker, if it
        refuses the file.
        """

    def enter_background_thread(self, priority: str) -> None:
        """Sets the calling thread's priority, one of `loads.THREAD_PRIORITIES`.

        From then on the thread takes its ordinary memory from an arena that request threads do not use. Raises
        PERMISSION_DENIED if the system refuses the priority.
        """

    def interleave_slabs(self, nodes: Sequence[int]) -> bool:
        """Takes the memory of later slabs from these NUMA nodes in turns. Before the first `SlabPool`.

        False, and nothing changes, if the kernel refuses it, as in a container without CAP_SYS_NICE.
        """

    def check_saved_model(self, directory: str) -> Sequence[str]:
        """Checks that a SavedModel is complete. Returns the missing assets, as paths below `directory`.

        A SavedModel is complete if `saved_model.pb` or `saved_model.pbtxt` parses, and if the
        checkpoint of a graph with variables is complete. That is: `variables/variables.index` is
        readable, and each shard that it names is as long as the index requires. Missing assets do not make it
        incomplete. Raises FAILED_PRECONDITION if it is incomplete, for instance during a copy, and DATA_LOSS if
        it does not parse.
        """

    def request_memory_statistics(self) -> RequestMemoryStatistics:
        """Counts the bytes that TensorFlow's allocator holds, over all threads."""

    def set_run_memory_bytes(
        self,
        bytes: int,
        all_runs_bytes: int,
    ) -> None:
        """Bounds the memory of kernels, for runs from now on.

        The kernels of one run may hold `bytes` at a time, and those of all runs of clients together
        `all_runs_bytes`. It has no effect without jemalloc.
        """

    def runs_ended_by_memory(self) -> int:
        """The number of runs that `set_run_memory_bytes` has ended since the process's start."""

    def mark_request_memory_peak(self) -> None:
        """Starts a new peak, for `request_memory_peak_rise_bytes`. The process has one, for all threads."""

    def request_memory_peak_rise_bytes(self) -> int:
        """The largest rise of the bytes in use since the last mark, by all threads together."""


def native_module() -> DataPlane:
    """Loads the native data plane, and returns it. Raises ImportError if it is not built."""
    # Imported here because it maps TensorFlow (0.4 s), and tests use a data plane of their own.
    from serving.data_plane import _native

    return cast(DataPlane, _native)
