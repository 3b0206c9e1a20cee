"""Every metric that Millpond exposes: name, kind, unit, labels and meaning.

The collector fills these families and no others. A test compares them with the table in
docs/observability.md, and `python -m serving.monitoring.metric_families` prints that table.

Values only. Unless its help says otherwise, a metric with the label `version` has a series from the
load of the version to 10 minutes after its end (ENDED_SECONDS_MAX).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "summary", "info", "unknown"]
"""The kinds of OpenMetrics. `unknown` is a counter of TensorFlow Serving: its name lacks `_total`."""

ENDED_SECONDS_MAX = 600.0
"""The time that the series of a version outlive it. It is long enough for the last scrape, and for
people to look at the swap. Without a limit each swap would add series for ever."""


WHOLE_COUNT_MAX = 50
"""The most versions that all have all of their series.

If a server has more, as one of a thousand models, only LATEST_COUNT_MAX versions have all. Of the others, the
stages and gates of the load are left out, the histogram of latencies begins with the first request, and
figures that are 0 are left out unless an alert or a rate needs the 0.
"""

LATEST_COUNT_MAX = 10
"""The number of versions, those whose state changed last, that have all of their series on any server.

Right after a swap, people look at the load, and the rate must count the first requests of the new version.
"""


@dataclass(frozen=True, kw_only=True)
class MetricFamily:
    """One metric as scrapers see it. `unit` is the unit of the values; "" if they count things."""

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()

    @property
    def base_name(self) -> str:
        """The name without the suffix of its kind, as OpenMetrics and prometheus_client use it."""
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        return self.name.removesuffix(suffix)


_METHOD_LABELS = ("model", "version", "method")
_VERSION_LABELS = ("model", "version")

# --- Requests ---------------------------------------------------------------------------------------

REQUESTS = MetricFamily(
    name="serving_requests_total",
    kind="counter",
    labels=(*_METHOD_LABELS, "code"),
    help="Requests that ended, by gRPC status code. The version is empty for requests that "
    "reached no version. The model is empty too for requests that name no configured model, "
    "or whose method has no model.",
)
REQUEST_LATENCY = MetricFamily(
    name="serving_request_latency_seconds",
    kind="histogram",
    unit="seconds",
    labels=(*_METHOD_LABELS, "code"),
    help="Time from when a request thread has read a gRPC request, or its HTTP body has arrived, "
    "to the bytes of its reply, failures and expired deadlines included. Edges a quarter apart, "
    "from 5 microseconds to 10 seconds.",
)
REQUEST_LATENCY_QUANTILES = MetricFamily(
    name="serving_request_latency_quantile_seconds",
    kind="summary",
    unit="seconds",
    labels=(*_METHOD_LABELS, "quantile"),
    help="Latency quantiles of the last 10 seconds, of all codes, within 0.8 %; quantile 1 is the "
    "slowest request. No series if no request ended in these 10 seconds.",
)
REQUEST_PHASE = MetricFamily(
    name="serving_request_phase_seconds",
    kind="summary",
    unit="seconds",
    labels=(*_METHOD_LABELS, "phase", "quantile"),
    help="Phases of a request's latency: queue, decode, batch (the time for the others of its batch), "
    "run and encode. Sum and count since the version was loaded, quantiles of the last 10 seconds.",
)
SERVABLE_HANDLES = MetricFamily(
    name="serving_servable_handles",
    kind="gauge",
    labels=_VERSION_LABELS,
    help="Requests that hold the version now, so that it is not unloaded. No series at 0 for a version "
    "at rest.",
)
IN_FLIGHT_REQUESTS = MetricFamily(
    name="serving_in_flight_requests",
    kind="gauge",
    help="Requests to models that have arrived and have no reply yet, over gRPC and HTTP, "
    "including requests that wait for a thread. --max_in_flight_requests limits them.",
)
REFUSED_REQUESTS = MetricFamily(
    name="serving_refused_requests_total",
    kind="counter",
    help="Requests refused with RESOURCE_EXHAUSTED because --max_in_flight_requests, or the limit "
    "of their model, was reached.",
)

GRPC_CONNECTIONS = MetricFamily(
    name="serving_grpc_connections",
    kind="gauge",
    help="Open gRPC connections of the data port.",
)

GRPC_LIMITS_REACHED = MetricFamily(
    name="serving_grpc_limits_reached_total",
    kind="counter",
    labels=("limit",),
    help="Limits of the data port that gRPC clients reached: connections refused, streams "
    "refused or connections closed, and requests refused because they would have waited too long "
    "(queue_delay).",
)

UNDER_WAY_BYTES = MetricFamily(
    name="serving_requests_under_way_bytes",
    kind="gauge",
    help="Memory that clients take, over gRPC and HTTP: connections and calls, bodies and messages, "
    "also while they arrive, their decompressed and decoded data, and replies until they are sent. "
    "The connection of the scrape is a part.",
)
UNDER_WAY_LIMIT = MetricFamily(
    name="serving_requests_under_way_limit_bytes",
    kind="gauge",
    help="Most memory that requests and replies under way may take together: "
    "--request_memory_bytes.",
)
REFUSED_FOR_MEMORY = MetricFamily(
    name="serving_requests_refused_for_memory_total",
    kind="counter",
    help="Requests and replies refused with RESOURCE_EXHAUSTED because --request_memory_bytes had "
    "too little left.",
)
RUNS_ENDED_BY_MEMORY = MetricFamily(
    name="serving_runs_ended_by_memory_total",
    kind="counter",
    help="Runs that ended with RESOURCE_EXHAUSTED because their kernels needed more than "
    "--run_memory_bytes, warm-up runs included, or because all runs took what they may together.",
)

# --- Batches ----------------------------------------------------------------------------------------

_SIGNATURE_LABELS = ("model", "version", "signature")

BATCHING_ON = MetricFamily(
    name="serving_batching_on",
    kind="gauge",
    labels=_SIGNATURE_LABELS,
    help="1 if the requests of the signature share runs, 0 if the server has refused that, with the "
    "warning batching_refused. No series without batching.",
)
BATCH_ROWS_LIMIT = MetricFamily(
    name="serving_batch_rows_limit",
    kind="gauge",
    labels=_SIGNATURE_LABELS,
    help="Rows up to which further requests join a batch now, by the measured costs of runs.",
)
BATCH_ROWS = MetricFamily(
    name="serving_batch_rows",
    kind="histogram",
    labels=_SIGNATURE_LABELS,
    help="Rows of each run without padding: of a batch, of a request that ran alone, or of a piece of "
    "a split request. The signature is empty for runs of several signatures at once.",
)
BATCH_REQUESTS = MetricFamily(
    name="serving_batch_requests",
    kind="histogram",
    labels=_SIGNATURE_LABELS,
    help="Requests of each run. A split request counts in its first piece only.",
)
BATCH_WAIT = MetricFamily(
    name="serving_batch_wait_seconds",
    kind="histogram",
    unit="seconds",
    labels=_SIGNATURE_LABELS,
    help="Time from a request's decoding to its run, in which its batch formed. The wait for a thread "
    "before that is the phase queue.",
)
BATCH_RUN = MetricFamily(
    name="serving_batch_run_seconds",
    kind="histogram",
    unit="seconds",
    labels=_SIGNATURE_LABELS,
    help="Time of each run, with the joining and the division of its rows.",
)
BATCH_PADDING_ROWS = MetricFamily(
    name="serving_batch_padding_rows_total",
    kind="counter",
    labels=_SIGNATURE_LABELS,
    help="Rows that were added to runs for an allowed batch size.",
)
BATCH_FAILED = MetricFamily(
    name="serving_batch_failed_total",
    kind="counter",
    labels=_SIGNATURE_LABELS,
    help="Batches that failed, so that their requests ran one by one.",
)
BATCH_SPLIT_REQUESTS = MetricFamily(
    name="serving_batch_split_requests_total",
    kind="counter",
    labels=_SIGNATURE_LABELS,
    help="Requests that ran in pieces because they had more rows than a run may have.",
)

# --- Versions ---------------------------------------------------------------------------------------

SERVABLE_STATE = MetricFamily(
    name="serving_servable_state",
    kind="gauge",
    labels=(*_VERSION_LABELS, "state"),
    help="1 for the state that the version is in. 0 for the others, unless the version is at rest.",
)
SERVABLE_HEALTH = MetricFamily(
    name="serving_servable_health",
    kind="gauge",
    labels=(*_VERSION_LABELS, "code"),
    help="1 with the gRPC status code of the error of the version's last load or unload; OK if it "
    "had no error. No series at OK for a version at rest.",
)
FAILED_LOADS = MetricFamily(
    name="serving_servable_failed_loads",
    kind="gauge",
    labels=_VERSION_LABELS,
    help="Number of failed loads of the version since it was found, retries included. No series at 0 "
    "for a version at rest.",
)
LOAD_STAGE = MetricFamily(
    name="serving_load_stage_seconds",
    kind="gauge",
    unit="seconds",
    labels=(*_VERSION_LABELS, "stage"),
    help="Duration of each stage of the version's last load.",
)
UNLOAD_STAGE = MetricFamily(
    name="serving_unload_stage_seconds",
    kind="gauge",
    unit="seconds",
    labels=(*_VERSION_LABELS, "stage"),
    help="Duration of each stage of the version's unload.",
)
GATE_PASSED = MetricFamily(
    name="serving_gate_passed",
    kind="gauge",
    labels=(*_VERSION_LABELS, "gate", "mode"),
    help="Verdict of a gate: 1 passed, 0 failed. In mode enforce, 0 means that the version is not "
    "served.",
)
SWAPS = MetricFamily(
    name="serving_swaps_total",
    kind="counter",
    labels=("model", "result"),
    help="Swaps, rollbacks, promotions and unloads of the model that ended, by result: "
    "published, load_failed, refused (by a gate), cancelled, rolled_back, promoted, unloaded.",
)
SWAP_SECONDS = MetricFamily(
    name="serving_swap_seconds",
    kind="gauge",
    unit="seconds",
    labels=("model",),
    help="Duration of the model's last swap that ended: from the start of the load until the "
    "version before it was unloaded and its slab was back.",
)
SWAP_LATENCY = MetricFamily(
    name="serving_swap_latency_seconds",
    kind="summary",
    unit="seconds",
    labels=("model", "part", "quantile"),
    help="Latency of the model's requests before (10 s), during and after (10 s) its last swap, "
    "failed requests included.",
)
SWAP_REQUESTS = MetricFamily(
    name="serving_swap_requests",
    kind="gauge",
    labels=("model", "part"),
    help="Number of requests behind serving_swap_latency_seconds. Below 1,000 requests a p999 is "
    "the slowest one. No series for a swap without any request.",
)
SWAP_READ = MetricFamily(
    name="serving_swap_read_bytes",
    kind="gauge",
    unit="bytes",
    labels=("model", "source"),
    help="Bytes of the variables of the model's last swap, by source: disk, or memory that an earlier "
    "version left. Only of models with tables that outlive a version.",
)
SWAP_IN_FULL = MetricFamily(
    name="serving_swap_delta_restored_in_full",
    kind="gauge",
    labels=("model",),
    help="1 if the version of the model's last swap is a delta that was read like a whole version while "
    "another one served; the log and the swap say why. Only of models with tables that outlive a version.",
)
MODEL_READY = MetricFamily(
    name="serving_model_ready",
    kind="gauge",
    labels=("model",),
    help="1 if a version of the model serves, else 0. Every configured model has a series, even "
    "if no version was ever found. 0 while the server drains.",
)
SOURCE_STUCK = MetricFamily(
    name="serving_source_stuck",
    kind="gauge",
    labels=("model",),
    help="1 while a scan of the model's base path hangs, so that new versions are not found. No series "
    "at 0 for a model at rest.",
)
VERSION_BLOCKED = MetricFamily(
    name="serving_version_blocked",
    kind="gauge",
    labels=("model", "version", "by"),
    help="1 while a version is blocked: by an operator, a canary, a crash of the server, a gate or a failure. "
    "Other versions have no series.",
)
ROUTING_SHARE = MetricFamily(
    name="serving_routing_share_ratio",
    kind="gauge",
    unit="ratio",
    labels=_VERSION_LABELS,
    help="Share of the requests that name neither version nor label, for the default version and "
    "a canary. Other versions have no series.",
)
RESERVOIR_REQUESTS = MetricFamily(
    name="serving_reservoir_requests",
    kind="gauge",
    labels=("model",),
    help="Recent live requests kept for the self-warm-up and the gates of the model's next version.",
)
RESERVOIR_BYTES = MetricFamily(
    name="serving_reservoir_bytes",
    kind="gauge",
    unit="bytes",
    labels=("model",),
    help="Bytes of the recent live requests that are kept.",
)

# --- The request log --------------------------------------------------------------------------------

REQUEST_LOG_SAMPLED = MetricFamily(
    name="serving_request_log_sampled_total",
    kind="counter",
    labels=("model",),
    help="Records that the sampling of the request log chose: written, dropped or pending ones.",
)
REQUEST_LOG_WRITTEN = MetricFamily(
    name="serving_request_log_written_total",
    kind="counter",
    labels=("model",),
    help="Records in complete files of the request log.",
)
REQUEST_LOG_DROPPED = MetricFamily(
    name="serving_request_log_dropped_total",
    kind="counter",
    labels=("model", "reason"),
    help="Records that are in no file: the queue was full or the record too large (queue_full), the "
    "disk did not take them (disk), or the log was turned off before (turned_off).",
)
REQUEST_LOG_PENDING = MetricFamily(
    name="serving_request_log_pending",
    kind="gauge",
    labels=("model",),
    help="Records in the queue and in the file that is not complete.",
)
REQUEST_LOG_BYTES = MetricFamily(
    name="serving_request_log_bytes_total",
    kind="counter",
    unit="bytes",
    labels=("model",),
    help="Bytes of the complete files of the request log, with those that were deleted since.",
)
REQUEST_LOG_FILES = MetricFamily(
    name="serving_request_log_files_total",
    kind="counter",
    labels=("model",),
    help="Complete files of the request log, with those that were deleted since.",
)
REQUEST_LOG_DELETED_FILES = MetricFamily(
    name="serving_request_log_deleted_files_total",
    kind="counter",
    labels=("model",),
    help="Files of the request log that were deleted to keep to disk_bytes_max.",
)
REQUEST_LOG_DELETED_BYTES = MetricFamily(
    name="serving_request_log_deleted_bytes_total",
    kind="counter",
    unit="bytes",
    labels=("model",),
    help="Bytes of these files.",
)
REQUEST_LOG_UPLOADED_FILES = MetricFamily(
    name="serving_request_log_uploaded_files_total",
    kind="counter",
    labels=("model",),
    help="Files of the request log that are in object storage.",
)
REQUEST_LOG_UPLOADED_BYTES = MetricFamily(
    name="serving_request_log_uploaded_bytes_total",
    kind="counter",
    unit="bytes",
    labels=("model",),
    help="Bytes of these files.",
)
REQUEST_LOG_UPLOAD_FAILURES = MetricFamily(
    name="serving_request_log_upload_failures_total",
    kind="counter",
    labels=("model",),
    help="Uploads of the request log that failed. The files wait, and are sent again.",
)
REQUEST_LOG_UNSENT_FILES = MetricFamily(
    name="serving_request_log_unsent_files",
    kind="gauge",
    labels=("model",),
    help="Complete files of the request log that wait for their upload.",
)
REQUEST_LOG_DELETED_UNSENT = MetricFamily(
    name="serving_request_log_deleted_unsent_files_total",
    kind="counter",
    labels=("model",),
    help="Files of the request log that were deleted to keep to disk_bytes_max before their upload: their "
    "records are lost.",
)
REQUEST_LOG_DISK_ERRORS = MetricFamily(
    name="serving_request_log_disk_errors_total",
    kind="counter",
    labels=("model",),
    help="Failures of the disk when a file of the request log was written, completed or deleted.",
)

# --- The accelerator --------------------------------------------------------------------------------

_DEVICE_LABELS = (*_VERSION_LABELS, "device")
_DEVICE_SIGNATURE_LABELS = (*_SIGNATURE_LABELS, "device")
_PROGRAM_LABELS = (*_DEVICE_SIGNATURE_LABELS, "rows")

ACCELERATOR_PARAMETERS = MetricFamily(
    name="serving_accelerator_parameter_bytes",
    kind="gauge",
    unit="bytes",
    labels=_DEVICE_LABELS,
    help="Parameters of an AVAILABLE version in the accelerator's memory now. 0 if all of the version runs "
    "on the CPU. No series without an accelerator.",
)
ACCELERATOR_UPLOAD = MetricFamily(
    name="serving_accelerator_upload_seconds",
    kind="summary",
    unit="seconds",
    labels=_DEVICE_LABELS,
    help="Uploads of the version's parameters: at its load, and each time that a run finds them away.",
)
ACCELERATOR_DROPS = MetricFamily(
    name="serving_accelerator_drops_total",
    kind="counter",
    labels=_DEVICE_LABELS,
    help="Times that the version's parameters gave way to another version's on the accelerator, because no "
    "run had used them for a second.",
)
ACCELERATOR_UPLOADED = MetricFamily(
    name="serving_accelerator_upload_bytes_total",
    kind="counter",
    unit="bytes",
    labels=(*_DEVICE_LABELS, "memory"),
    help="Bytes of these uploads, by the memory that they came from: pinned, or other, which is copied to "
    "pinned memory first and takes five times as long.",
)
ACCELERATOR_KEPT = MetricFamily(
    name="serving_accelerator_kept_bytes_total",
    kind="counter",
    unit="bytes",
    labels=_DEVICE_LABELS,
    help="Bytes that these uploads did not send, because tables of other versions on the accelerator have them.",
)
ACCELERATOR_FULL_UPLOADS = MetricFamily(
    name="serving_accelerator_delta_uploaded_in_full_total",
    kind="counter",
    labels=_DEVICE_LABELS,
    help="Uploads that sent a table of a delta as a whole, and not its changed rows alone; the log and the swap "
    "say why.",
)
ACCELERATOR_PINNED = MetricFamily(
    name="serving_accelerator_pinned_bytes",
    kind="gauge",
    unit="bytes",
    labels=(),
    help="Memory of this process that is pinned for uploads, so it is not swapped. It is part of the slabs. "
    "No series without an accelerator.",
)
ACCELERATOR_PINNED_LIMIT = MetricFamily(
    name="serving_accelerator_pinned_limit_bytes",
    kind="gauge",
    unit="bytes",
    labels=(),
    help="Most memory of this process that is pinned: half of the machine's.",
)
ACCELERATOR_RUNS = MetricFamily(
    name="serving_accelerator_runs_total",
    kind="counter",
    labels=_PROGRAM_LABELS,
    help="Runs of an AVAILABLE version on the accelerator, by the rows of the program. A run of fewer "
    "rows is filled up.",
)
ACCELERATOR_ROWS = MetricFamily(
    name="serving_accelerator_rows_total",
    kind="counter",
    labels=_PROGRAM_LABELS,
    help="Rows that these runs were asked for, without padding.",
)
ACCELERATOR_PADDING_ROWS = MetricFamily(
    name="serving_accelerator_padding_rows_total",
    kind="counter",
    labels=_DEVICE_SIGNATURE_LABELS,
    help="Rows that were computed only to fill up programs.",
)
ACCELERATOR_STAGE = MetricFamily(
    name="serving_accelerator_stage_seconds",
    kind="summary",
    unit="seconds",
    labels=(*_DEVICE_SIGNATURE_LABELS, "stage"),
    help="Stages of a run on the accelerator: wait (for its turn), transfer_in, run, transfer_out. Sum and "
    "count are of the first 8 runs of a version and of one run in 64 after that.",
)
ACCELERATOR_CPU_RUNS = MetricFamily(
    name="serving_accelerator_cpu_runs_total",
    kind="counter",
    labels=(*_DEVICE_SIGNATURE_LABELS, "reason"),
    help="Runs on the CPU of a signature that has programs for the accelerator: shape (not the shapes of "
    "the signature), memory (none left there), failed (the run that gave the signature up), lost (a later "
    "run), away (the parameters gave way to another version's, and come back), waited (other runs came first "
    "for 10 s), gave_way (the request has computed for so long that its thread gives way), refused (the part "
    "on the CPU failed the request, or an index was wrong), faster (the CPU is faster for so many rows).",
)
_SIZE_LABELS = (*_SIGNATURE_LABELS, "rows")
ACCELERATOR_MEDIAN = MetricFamily(
    name="serving_accelerator_median_seconds",
    kind="gauge",
    unit="seconds",
    labels=(*_SIZE_LABELS, "side"),
    help="Median time of the last runs of up to so many rows, by side: cpu, or accelerator (without the "
    "wait for its turn). No series before three runs, or if all runs are for the accelerator.",
)
ACCELERATOR_CHOSEN = MetricFamily(
    name="serving_accelerator_chosen",
    kind="gauge",
    labels=_SIZE_LABELS,
    help="1 if runs of up to so many rows go to the accelerator, and 0 if they go to the CPU, which is "
    "faster. No series if all runs are for the accelerator.",
)
ACCELERATOR_PROGRAMS = MetricFamily(
    name="serving_accelerator_programs_total",
    kind="counter",
    labels=("device", "source"),
    help="Programs of all loads since the start, by their source: compiled, cache "
    "(--accelerator_cache_directory), or shared with another version.",
)
ACCELERATOR_UNTUNED = MetricFamily(
    name="serving_accelerator_untuned_programs",
    kind="gauge",
    labels=_SIGNATURE_LABELS,
    help="Programs of a signature that were compiled for a GPU without autotuning, so they may be slow. No series "
    "for a signature that stays on the CPU.",
)
ACCELERATOR_AUTOTUNING = MetricFamily(
    name="serving_accelerator_autotuning",
    kind="gauge",
    labels=("model", "version", "state"),
    help="1 for the state of the autotuning beside requests: waiting, running, done or failed; 0 for the others. "
    "No series for a version whose programs all came autotuned.",
)
ACCELERATOR_USED = MetricFamily(
    name="serving_accelerator_memory_used_bytes",
    kind="gauge",
    unit="bytes",
    labels=("device",),
    help="Memory of the accelerator that this server uses, for parameters, programs and runs. No series "
    "if the plugin does not count it.",
)
ACCELERATOR_LIMIT = MetricFamily(
    name="serving_accelerator_memory_limit_bytes",
    kind="gauge",
    unit="bytes",
    labels=("device",),
    help="Most memory of the accelerator that this server may use: --accelerator_memory_fraction of it, "
    "or --accelerator_memory_bytes.",
)
ACCELERATOR_STAGING = MetricFamily(
    name="serving_accelerator_staging_bytes",
    kind="gauge",
    unit="bytes",
    labels=("device",),
    help="Memory of the server, and not of the accelerator, through which runs and uploads are copied; pinned if "
    "the plugin can. 256 MiB at most.",
)
GPU_UTILIZATION = MetricFamily(
    name="serving_gpu_utilization_ratio",
    kind="gauge",
    unit="ratio",
    labels=("device",),
    help="Share of the time in which the GPU ran a kernel of any process, over at most a second. No series "
    "without NVIDIA's driver, as with the next two.",
)
GPU_ENERGY = MetricFamily(
    name="serving_gpu_energy_joules_total",
    kind="counter",
    unit="joules",
    labels=("device",),
    help="Energy that the GPU has used since its driver was loaded.",
)
GPU_TEMPERATURE = MetricFamily(
    name="serving_gpu_temperature_celsius",
    kind="gauge",
    unit="celsius",
    labels=("device",),
    help="Temperature of the GPU.",
)

# --- Memory -----------------------------------------------------------------------------------------


def _arena(kind: str, meaning: str) -> MetricFamily:
    return MetricFamily(
        name=f"serving_arena_{kind}_bytes",
        kind="gauge",
        unit="bytes",
        labels=_VERSION_LABELS,
        help=f"Slab of an AVAILABLE version: {meaning} No series at 0 for a version at rest.",
    )


ARENA_ALLOCATED = _arena("allocated", "bytes of live blocks, parameters above all.")
ARENA_ACTIVE_UNUSED = _arena(
    "active_unused", "bytes in pages with live blocks, but in none of these blocks."
)
ARENA_RETAINED = _arena("retained", "bytes of freed pages that the arena keeps for later blocks.")
ARENA_SLAB = _arena(
    "slab", "its size: allocated, active_unused, retained, and what was never handed out."
)
ARENA_RESIDENT = _arena("resident", "bytes that have memory behind them.")


def _slabs(kind: str, meaning: str) -> MetricFamily:
    return MetricFamily(name=f"serving_slab_{kind}", kind="gauge", help=meaning)


def _slab_bytes(kind: str, meaning: str) -> MetricFamily:
    return MetricFamily(name=f"serving_slab_{kind}_bytes", kind="gauge", unit="bytes", help=meaning)


SLABS_IN_USE = _slabs("in_use", "Slabs with a loaded version or a table, also a table on standby.")
SLABS_SPARE = _slabs("spare", "Slabs with spare memory, which the next versions of any model use.")
SLABS_QUARANTINED = _slabs(
    "quarantined", "Slabs of versions that leaked memory, which are never used again."
)
SLAB_IN_USE_BYTES = _slab_bytes(
    "in_use", "Address space of slabs with a loaded version or a table, also a table on standby."
)
SLAB_SPARE_BYTES = _slab_bytes("spare", "Address space of slabs with spare memory.")
SLAB_SPARE_RESIDENT_BYTES = _slab_bytes(
    "spare_resident", "Spare memory for the next versions of any model, without the surplus."
)
SLAB_SURPLUS_BYTES = _slab_bytes(
    "surplus_resident",
    "Memory of slabs that no next version needs, which is on its way back to the system.",
)
SLAB_QUARANTINED_BYTES = _slab_bytes(
    "quarantined", "Address space of slabs that are never used again."
)

TABLE_HELD_BYTES = MetricFamily(
    name="serving_table_held_bytes",
    kind="gauge",
    unit="bytes",
    help="Tables that versions hold, each once, however many versions share it.",
)
TABLE_STANDBY_BYTES = MetricFamily(
    name="serving_table_standby_bytes",
    kind="gauge",
    unit="bytes",
    help="Tables that no version holds, kept for the next version of their model.",
)
TABLE_COPYING_BYTES = MetricFamily(
    name="serving_table_copying_bytes",
    kind="gauge",
    unit="bytes",
    help="The table of an AVAILABLE version that is being copied ahead for the next delta.",
)
TABLES_DIRTY = MetricFamily(
    name="serving_tables_dirty",
    kind="gauge",
    help="Tables on standby that the next version restores in full, because a load failed while it filled "
    "them, or more than a quarter of their rows changed.",
)

REQUEST_MEMORY_IN_USE = MetricFamily(
    name="serving_request_memory_in_use_bytes",
    kind="gauge",
    unit="bytes",
    help="Memory held by TensorFlow's allocator: tensors of requests, and parameters outside "
    "arenas.",
)
REQUEST_MEMORY_PEAK = MetricFamily(
    name="serving_request_memory_peak_bytes",
    kind="gauge",
    unit="bytes",
    help="Most memory that TensorFlow's allocator has held at once since the start.",
)
REQUEST_MEMORY_ALLOCATIONS = MetricFamily(
    name="serving_request_memory_allocations_total",
    kind="counter",
    help="Blocks that TensorFlow's allocator gave out.",
)

MEMORY_AVAILABLE = MetricFamily(
    name="serving_memory_available_bytes",
    kind="gauge",
    unit="bytes",
    help="Memory that the machine and the process's control groups have left for a load, "
    "including page cache that can be dropped. No series if the system does not report it.",
)
MODEL_MEMORY_LIMIT = MetricFamily(
    name="serving_model_memory_limit_bytes",
    kind="gauge",
    unit="bytes",
    help="Most memory for the parameters of all versions: --model_memory_limit_bytes. No series "
    "without that flag.",
)

# --- The process ------------------------------------------------------------------------------------

PAGE_FAULTS = MetricFamily(
    name="serving_process_page_faults_total",
    kind="counter",
    labels=("kind",),
    help="Page faults of the process: minor (no disk), major (read from disk).",
)
SUPERVISOR_RESTARTS = MetricFamily(
    name="serving_supervisor_restarts_total",
    kind="counter",
    help="Restarts of the server by its supervisor (--supervise) since that began. 0 without one.",
)
CONFIG_CHANGES = MetricFamily(
    name="serving_config_changes_total",
    kind="counter",
    help="Changes of the configuration that were applied since the start, from files and by calls.",
)
CONFIG_REFUSED = MetricFamily(
    name="serving_config_refused",
    kind="gauge",
    help="1 while the server goes on with an earlier configuration because a file of it is refused.",
)
SPANS_DROPPED = MetricFamily(
    name="serving_spans_dropped_total",
    kind="counter",
    labels=("reason",),
    help="Spans of traces that were lost: over_rate (more than 200 sampled requests in a second), "
    "full (spans came faster than they were exported), export (the collector did not accept "
    "them). With over_rate and full a request counts as one. No series if tracing is off.",
)
LOG_LINES_DROPPED = MetricFamily(
    name="serving_log_lines_dropped_total",
    kind="counter",
    help="Lines of the log that were lost because its reader did not keep up. TensorFlow's own "
    "lines are not counted.",
)
BUILD = MetricFamily(
    name="serving_build_info",
    kind="info",
    labels=("version", "tensorflow", "wire", "jemalloc", "allocator"),
    help="1, with the versions of Millpond and of the libraries that it uses; wire: nghttp2 and "
    "OpenSSL.",
)


def _process(name: str, kind: Kind, unit: str, meaning: str) -> MetricFamily:
    """Returns a family that prometheus_client's ProcessCollector fills."""
    return MetricFamily(name=f"process_{name}", kind=kind, unit=unit, help=meaning)


PROCESS_FAMILIES = (
    _process("virtual_memory_bytes", "gauge", "bytes", "Virtual memory size in bytes."),
    _process("resident_memory_bytes", "gauge", "bytes", "Resident memory size in bytes."),
    _process(
        *("start_time_seconds", "gauge", "seconds"),
        "Start time of the process since unix epoch in seconds.",
    ),
    _process(
        *("cpu_seconds_total", "counter", "seconds"),
        "Total user and system CPU time spent in seconds.",
    ),
    _process("open_fds", "gauge", "", "Number of open file descriptors."),
    _process("max_fds", "gauge", "", "Maximum number of open file descriptors."),
)
"""The families of prometheus_client, with the standard names that every exporter uses."""

# --- By TensorFlow Serving's names --------------------------------------------------------------------


def _tensorflow_serving(
    name: str, kind: Kind, unit: str, labels: str, meaning: str
) -> MetricFamily:
    return MetricFamily(
        name=f":tensorflow:serving:{name}",
        kind=kind,
        unit=unit,
        labels=tuple(labels.split()),
        help=f"As in TensorFlow Serving: {meaning}",
    )


TFS_REQUEST_COUNT = _tensorflow_serving(
    *("request_count", "unknown", "", "model_name status"),
    "predict, classify and regress requests by status; model_name is empty for models that "
    "are not configured, and while too many requests are in flight.",
)
TFS_REQUEST_LATENCY = _tensorflow_serving(
    *("request_latency", "histogram", "microseconds", "model_name API entrypoint"),
    "microseconds that successful requests took.",
)
TFS_RUNTIME_LATENCY = _tensorflow_serving(
    *("runtime_latency", "histogram", "microseconds", "model_name API runtime"),
    "microseconds in the session; here failed runs count as well.",
)
TFS_WARMUP_LATENCY = _tensorflow_serving(
    *("model_warmup_latency", "histogram", "microseconds", "model_path status"),
    "microseconds that the warm-up of a version took; here for each version, with a warm-up "
    "file or without, until 10 minutes after its end.",
)

TENSORFLOW_SERVING_FAMILIES = (
    TFS_REQUEST_COUNT,
    TFS_REQUEST_LATENCY,
    TFS_RUNTIME_LATENCY,
    TFS_WARMUP_LATENCY,
)

LEFT_OUT = {
    ":tensorflow:serving:request_example_counts": "examples are not counted: that would mean reading "
    "every request's tensors",
    ":tensorflow:serving:request_example_count_total": "the same",
    ":tensorflow:serving:request_log_count": "the serving_request_log_* counters say what became of each record",
    ":tensorflow:serving:model_warmup_records_read": "`python -m warmup inspect` counts the records of a file",
    ":tensorflow:serving:mlmd_map": "its value means nothing in TensorFlow Serving either",
    ":tensorflow:serving:batching_session:*": "serving_batch_* and serving_batching_on say more, by signature "
    "and version",
    ":tensorflow:core:*, :tensorflow:cc:saved_model:*": "TensorFlow's own counters; serving_load_stage_seconds "
    "has more detail on a load",
}
"""Metrics of TensorFlow Serving that are not exposed, and why."""

FAMILIES: tuple[MetricFamily, ...] = (
    *(REQUESTS, REQUEST_LATENCY, REQUEST_LATENCY_QUANTILES, REQUEST_PHASE, SERVABLE_HANDLES),
    *(IN_FLIGHT_REQUESTS, REFUSED_REQUESTS, GRPC_CONNECTIONS, GRPC_LIMITS_REACHED),
    *(UNDER_WAY_BYTES, UNDER_WAY_LIMIT, REFUSED_FOR_MEMORY, RUNS_ENDED_BY_MEMORY),
    *(BATCHING_ON, BATCH_ROWS_LIMIT, BATCH_ROWS, BATCH_REQUESTS, BATCH_WAIT, BATCH_RUN),
    *(BATCH_PADDING_ROWS, BATCH_FAILED, BATCH_SPLIT_REQUESTS),
    *(SERVABLE_STATE, SERVABLE_HEALTH, FAILED_LOADS, LOAD_STAGE, UNLOAD_STAGE, GATE_PASSED),
    *(SWAPS, SWAP_SECONDS, SWAP_LATENCY, SWAP_REQUESTS, SWAP_READ, SWAP_IN_FULL),
    *(MODEL_READY, SOURCE_STUCK),
    *(VERSION_BLOCKED, ROUTING_SHARE, RESERVOIR_REQUESTS, RESERVOIR_BYTES),
    *(REQUEST_LOG_SAMPLED, REQUEST_LOG_WRITTEN, REQUEST_LOG_DROPPED, REQUEST_LOG_PENDING),
    *(REQUEST_LOG_BYTES, REQUEST_LOG_FILES, REQUEST_LOG_DELETED_FILES, REQUEST_LOG_DELETED_BYTES),
    *(REQUEST_LOG_UPLOADED_FILES, REQUEST_LOG_UPLOADED_BYTES, REQUEST_LOG_UPLOAD_FAILURES),
    *(REQUEST_LOG_UNSENT_FILES, REQUEST_LOG_DELETED_UNSENT, REQUEST_LOG_DISK_ERRORS),
    *(
        ACCELERATOR_PARAMETERS,
        ACCELERATOR_UPLOAD,
        ACCELERATOR_UPLOADED,
        ACCELERATOR_KEPT,
        ACCELERATOR_FULL_UPLOADS,
        ACCELERATOR_DROPS,
        ACCELERATOR_RUNS,
        ACCELERATOR_ROWS,
        ACCELERATOR_PADDING_ROWS,
    ),
    *(ACCELERATOR_STAGE, ACCELERATOR_CPU_RUNS, ACCELERATOR_MEDIAN, ACCELERATOR_CHOSEN),
    ACCELERATOR_PROGRAMS,
    *(ACCELERATOR_UNTUNED, ACCELERATOR_AUTOTUNING),
    *(ACCELERATOR_USED, ACCELERATOR_LIMIT, ACCELERATOR_PINNED, ACCELERATOR_PINNED_LIMIT),
    ACCELERATOR_STAGING,
    *(GPU_UTILIZATION, GPU_ENERGY, GPU_TEMPERATURE),
    *(ARENA_ALLOCATED, ARENA_ACTIVE_UNUSED, ARENA_RETAINED),
    *(ARENA_SLAB, ARENA_RESIDENT),
    *(SLABS_IN_USE, SLABS_SPARE, SLABS_QUARANTINED, SLAB_IN_USE_BYTES, SLAB_SPARE_BYTES),
    *(SLAB_SPARE_RESIDENT_BYTES, SLAB_SURPLUS_BYTES, SLAB_QUARANTINED_BYTES),
    *(TABLE_HELD_BYTES, TABLE_STANDBY_BYTES, TABLE_COPYING_BYTES, TABLES_DIRTY),
    *(REQUEST_MEMORY_IN_USE, REQUEST_MEMORY_PEAK, REQUEST_MEMORY_ALLOCATIONS),
    *(MEMORY_AVAILABLE, MODEL_MEMORY_LIMIT),
    *(PAGE_FAULTS, SUPERVISOR_RESTARTS, CONFIG_CHANGES, CONFIG_REFUSED, SPANS_DROPPED),
    *(LOG_LINES_DROPPED, BUILD, *PROCESS_FAMILIES),
    *TENSORFLOW_SERVING_FAMILIES,
)


def markdown_table(families: Iterable[MetricFamily] = FAMILIES) -> str:
    """Returns families as a table for the documents."""
    return "\n".join(_rows(families)) + "\n"


def _rows(families: Iterable[MetricFamily]) -> Iterator[str]:
    yield "| metric | kind | unit | labels | meaning |"
    yield "|---|---|---|---|---|"
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}` | {family.kind} | {family.unit} | {labels} | {family.help} |"


def left_out_list() -> str:
    """LEFT_OUT as a list for docs/observability.md."""
    return "".join(f"- `{names}`: {reason}\n" for names, reason in LEFT_OUT.items())


if __name__ == "__main__":
    print(markdown_table())
    print(left_out_list(), end="")
