"""Every metric that Millpond exposes: name, kind, unit, labels and meaning.

The one source: the collector fills these families and no others, and a test holds the table of
docs/observability.md to it. `python -m serving.monitoring.metric_families` prints what stands there.

Values only. Unless its help says otherwise, a metric with the label `version` has a series from the
load of the version to 10 minutes after its end (ENDED_SECONDS_MAX).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "summary", "info", "unknown"]
"""As in OpenMetrics. `unknown`: a counter whose name is not ours to end in `_total`."""

ENDED_SECONDS_MAX = 600.0
"""How long the series of a version outlive it: its last scrape interval and whoever looks at the swap
have long passed, and they would grow with every swap."""


@dataclass(frozen=True, kw_only=True)
class MetricFamily:
    """One metric as scrapers see it. `unit` is that of the values, empty where they count things."""

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()

    @property
    def base_name(self) -> str:
        """The name as OpenMetrics and prometheus_client have it: without the kind's suffix."""
        suffix = {"counter": "_total", "info": "_info"}.get(self.kind, "")
        return self.name.removesuffix(suffix)


_METHOD_LABELS = ("model", "version", "method")
_VERSION_LABELS = ("model", "version")

# --- Requests ---------------------------------------------------------------------------------------

REQUESTS = MetricFamily(
    name="serving_requests_total",
    kind="counter",
    labels=(*_METHOD_LABELS, "code"),
    help="Requests that ended, by gRPC status code. Those that reached no version have an "
    "empty version; those that name no configured model, or whose method has none, an empty model too.",
)
REQUEST_LATENCY = MetricFamily(
    name="serving_request_latency_seconds",
    kind="histogram",
    unit="seconds",
    labels=(*_METHOD_LABELS, "code"),
    help="From when a request thread takes a request from gRPC, or its HTTP body is there, to its reply's "
    "bytes, failures and expired deadlines included. Edges a quarter apart, from 5 microseconds to 10 seconds.",
)
REQUEST_LATENCY_QUANTILES = MetricFamily(
    name="serving_request_latency_quantile_seconds",
    kind="summary",
    unit="seconds",
    labels=(*_METHOD_LABELS, "quantile"),
    help="Latency quantiles of the last 10 seconds, of all codes, within 0.8 %; quantile 1 is the slowest "
    "request. No series while there was no request.",
)
REQUEST_PHASE = MetricFamily(
    name="serving_request_phase_seconds",
    kind="summary",
    unit="seconds",
    labels=(*_METHOD_LABELS, "phase", "quantile"),
    help="What a request's latency is made of: phases queue, decode, run and encode. Sum and count since "
    "the version was loaded, quantiles of the last 10 seconds.",
)
REQUESTS_IN_FLIGHT = MetricFamily(
    name="serving_requests_in_flight",
    kind="gauge",
    labels=_VERSION_LABELS,
    help="Requests that hold the version at the moment.",
)
IN_FLIGHT_REQUESTS = MetricFamily(
    name="serving_in_flight_requests",
    kind="gauge",
    help="Requests to models that have arrived and are not answered, over gRPC and HTTP, those that wait "
    "for a thread too: what --max_in_flight_requests limits.",
)
REFUSED_REQUESTS = MetricFamily(
    name="serving_refused_requests_total",
    kind="counter",
    help="Requests that were refused with RESOURCE_EXHAUSTED because as many were in flight as "
    "--max_in_flight_requests or the model's limit allows.",
)

UNDER_WAY_BYTES = MetricFamily(
    name="serving_requests_under_way_bytes",
    kind="gauge",
    help="Memory of requests and replies under way, over gRPC and HTTP: bodies and messages, what they "
    "decompress and decode to, and replies until they are sent.",
)
UNDER_WAY_LIMIT = MetricFamily(
    name="serving_requests_under_way_limit_bytes",
    kind="gauge",
    help="What they may take together: --request_memory_bytes.",
)
REFUSED_FOR_MEMORY = MetricFamily(
    name="serving_requests_refused_for_memory_total",
    kind="counter",
    help="Times that a request or reply was refused with RESOURCE_EXHAUSTED because "
    "--request_memory_bytes had too little left.",
)
RUNS_ENDED_BY_MEMORY = MetricFamily(
    name="serving_runs_ended_by_memory_total",
    kind="counter",
    help="Runs that ended with RESOURCE_EXHAUSTED because their kernels wanted more than "
    "--run_memory_bytes, warm-up too.",
)

# --- Versions ---------------------------------------------------------------------------------------

SERVABLE_STATE = MetricFamily(
    name="serving_servable_state",
    kind="gauge",
    labels=(*_VERSION_LABELS, "state"),
    help="1 for the state that the version is in, 0 for the others.",
)
SERVABLE_HEALTH = MetricFamily(
    name="serving_servable_health",
    kind="gauge",
    labels=(*_VERSION_LABELS, "code"),
    help="1 with the gRPC status code of what the version's last load or unload met; OK where nothing.",
)
FAILED_LOADS = MetricFamily(
    name="serving_servable_failed_loads",
    kind="gauge",
    labels=_VERSION_LABELS,
    help="How often the version's load has failed since it was found, retries included.",
)
LOAD_STAGE = MetricFamily(
    name="serving_load_stage_seconds",
    kind="gauge",
    unit="seconds",
    labels=(*_VERSION_LABELS, "stage"),
    help="How long each stage of the version's last load took.",
)
UNLOAD_STAGE = MetricFamily(
    name="serving_unload_stage_seconds",
    kind="gauge",
    unit="seconds",
    labels=(*_VERSION_LABELS, "stage"),
    help="How long each stage of the version's unload took.",
)
GATE_PASSED = MetricFamily(
    name="serving_gate_passed",
    kind="gauge",
    labels=(*_VERSION_LABELS, "gate", "mode"),
    help="Verdict of a gate: 1 passed, 0 not. In mode enforce, 0 means that the version is not served.",
)
SWAPS = MetricFamily(
    name="serving_swaps_total",
    kind="counter",
    labels=("model", "result"),
    help="How changes of what answers a model's requests ended: published, load_failed, refused (by a "
    "gate), cancelled, rolled_back, promoted, unloaded.",
)
SWAP_SECONDS = MetricFamily(
    name="serving_swap_seconds",
    kind="gauge",
    unit="seconds",
    labels=("model",),
    help="Of the model's last swap that ended: from the begin of its load until the version before it was "
    "unloaded and its slab was back.",
)
SWAP_LATENCY = MetricFamily(
    name="serving_swap_latency_seconds",
    kind="summary",
    unit="seconds",
    labels=("model", "part", "quantile"),
    help="What the model's requests took before (10 s), during and after (10 s) its last swap, failed "
    "requests too.",
)
SWAP_REQUESTS = MetricFamily(
    name="serving_swap_requests",
    kind="gauge",
    labels=("model", "part"),
    help="How many requests serving_swap_latency_seconds is of: below 1,000 a p999 is the slowest one.",
)
MODEL_READY = MetricFamily(
    name="serving_model_ready",
    kind="gauge",
    labels=("model",),
    help="1 where a version of the model answers, 0 where none does: of every model that is configured, "
    "also where no version was ever found. 0 while the server drains.",
)
SOURCE_STUCK = MetricFamily(
    name="serving_source_stuck",
    kind="gauge",
    labels=("model",),
    help="1 while a look at the model's base path hangs, so that new versions are not found; of every model that is "
    "configured.",
)
ROUTING_SHARE = MetricFamily(
    name="serving_routing_share_ratio",
    kind="gauge",
    unit="ratio",
    labels=_VERSION_LABELS,
    help="Share of the requests that name neither version nor label: the default version's, and a "
    "canary's. Other versions have no series.",
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
    help="Bytes of the requests that are kept.",
)

# --- Memory -----------------------------------------------------------------------------------------


def _arena(kind: str, meaning: str) -> MetricFamily:
    return MetricFamily(
        name=f"serving_arena_{kind}_bytes",
        kind="gauge",
        unit="bytes",
        labels=_VERSION_LABELS,
        help=f"Of the slab of an AVAILABLE version: {meaning}",
    )


ARENA_ALLOCATED = _arena("allocated", "parameters and what else is live.")
ARENA_ACTIVE_UNUSED = _arena("active_unused", "rounding, in pages that hold live blocks.")
ARENA_RETAINED = _arena("retained", "freed, and kept by the arena.")
ARENA_UNUSED = _arena("unused", "never handed out.")
ARENA_SLAB = _arena("slab", "its size: the sum of allocated, active_unused, retained and unused.")
ARENA_RESIDENT = _arena("resident", "what has memory behind it.")


def _slabs(kind: str, meaning: str) -> MetricFamily:
    return MetricFamily(name=f"serving_slab_{kind}", kind="gauge", help=meaning)


def _slab_bytes(kind: str, meaning: str) -> MetricFamily:
    return MetricFamily(name=f"serving_slab_{kind}_bytes", kind="gauge", unit="bytes", help=meaning)


SLABS_IN_USE = _slabs("in_use", "Slabs that versions lie on.")
SLABS_SPARE = _slabs("spare", "Slabs that wait for the next versions.")
SLABS_QUARANTINED = _slabs("quarantined", "Slabs of versions that leaked: never used again.")
SLAB_IN_USE_BYTES = _slab_bytes("in_use", "Reserved by the slabs that versions lie on.")
SLAB_SPARE_BYTES = _slab_bytes("spare", "Reserved by the slabs that wait.")
SLAB_SPARE_RESIDENT_BYTES = _slab_bytes(
    "spare_resident", "Of the slabs that wait: has memory behind it."
)
SLAB_SURPLUS_BYTES = _slab_bytes("surplus_resident", "On its way back to the system.")
SLAB_QUARANTINED_BYTES = _slab_bytes("quarantined", "Reserved by slabs that are never used again.")

REQUEST_MEMORY_IN_USE = MetricFamily(
    name="serving_request_memory_in_use_bytes",
    kind="gauge",
    unit="bytes",
    help="Held by TensorFlow's allocator: tensors of requests, and parameters that lie in no arena.",
)
REQUEST_MEMORY_PEAK = MetricFamily(
    name="serving_request_memory_peak_bytes",
    kind="gauge",
    unit="bytes",
    help="The most that was held at once since the start.",
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
    help="What the machine and the process's control groups have left for it, page cache that can be "
    "dropped included: what a load must fit. No series where the system does not say.",
)
MODEL_MEMORY_LIMIT = MetricFamily(
    name="serving_model_memory_limit_bytes",
    kind="gauge",
    unit="bytes",
    help="--model_memory_limit_bytes: what the parameters of all versions may take. No series without.",
)

# --- The process ------------------------------------------------------------------------------------

PAGE_FAULTS = MetricFamily(
    name="serving_process_page_faults_total",
    kind="counter",
    labels=("kind",),
    help="Page faults of the process: minor (no disk), major (read from disk).",
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
    help="Spans of traces that were lost: over_rate (more than 200 sampled requests in a second), full (they came "
    "faster than they went), export (the collector did not take them). Of the first two a request counts as one. "
    "No series where nothing is traced.",
)
STUCK_POLLERS = MetricFamily(
    name="serving_stuck_poller_threads",
    kind="gauge",
    help="Threads that hang in a look at a base path; they end when its disk answers.",
)
LOG_LINES_DROPPED = MetricFamily(
    name="serving_log_lines_dropped_total",
    kind="counter",
    help="Lines of the log that were lost because its reader did not keep up. TensorFlow's own are not counted.",
)
BUILD = MetricFamily(
    name="serving_build_info",
    kind="info",
    labels=("version", "tensorflow", "grpc", "jemalloc", "allocator"),
    help="1, with the versions of Millpond and of what it is built with.",
)


def _process(name: str, kind: Kind, unit: str, meaning: str) -> MetricFamily:
    """As prometheus_client's ProcessCollector writes it."""
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
"""prometheus_client's own, of the standard names that every exporter has."""

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
    "predict, classify and regress requests by status; an empty model_name for models unknown here, and "
    "while too many requests are in flight.",
)
TFS_REQUEST_LATENCY = _tensorflow_serving(
    *("request_latency", "histogram", "microseconds", "model_name API entrypoint"),
    "microseconds that successful requests took.",
)
TFS_RUNTIME_LATENCY = _tensorflow_serving(
    *("runtime_latency", "histogram", "microseconds", "model_name API runtime"),
    "microseconds in the session; here also of runs that failed.",
)
TFS_WARMUP_LATENCY = _tensorflow_serving(
    *("model_warmup_latency", "histogram", "microseconds", "model_path status"),
    "microseconds that the warm-up of a version took; here of each version, with a warm-up file or without, "
    "until 10 minutes after its end.",
)

TENSORFLOW_SERVING_FAMILIES = (
    TFS_REQUEST_COUNT,
    TFS_REQUEST_LATENCY,
    TFS_RUNTIME_LATENCY,
    TFS_WARMUP_LATENCY,
)

LEFT_OUT = {
    ":tensorflow:serving:request_example_counts": "examples are not counted: that would be a look into "
    "every request's tensors",
    ":tensorflow:serving:request_example_count_total": "the same",
    ":tensorflow:serving:request_log_count": "there is no request log",
    ":tensorflow:serving:model_warmup_records_read": "the records replayed are in the log",
    ":tensorflow:serving:mlmd_map": "its value means nothing in TensorFlow Serving either",
    ":tensorflow:serving:batching_session:*": "there is no batching",
    ":tensorflow:core:*, :tensorflow:cc:saved_model:*": "TensorFlow's own counters; serving_load_stage_seconds "
    "says more of a load",
}
"""Metrics of TensorFlow Serving that are not exposed, and why."""

FAMILIES: tuple[MetricFamily, ...] = (
    *(REQUESTS, REQUEST_LATENCY, REQUEST_LATENCY_QUANTILES, REQUEST_PHASE, REQUESTS_IN_FLIGHT),
    *(IN_FLIGHT_REQUESTS, REFUSED_REQUESTS),
    *(UNDER_WAY_BYTES, UNDER_WAY_LIMIT, REFUSED_FOR_MEMORY, RUNS_ENDED_BY_MEMORY),
    *(SERVABLE_STATE, SERVABLE_HEALTH, FAILED_LOADS, LOAD_STAGE, UNLOAD_STAGE, GATE_PASSED),
    *(SWAPS, SWAP_SECONDS, SWAP_LATENCY, SWAP_REQUESTS, MODEL_READY, SOURCE_STUCK),
    *(ROUTING_SHARE, RESERVOIR_REQUESTS, RESERVOIR_BYTES),
    *(ARENA_ALLOCATED, ARENA_ACTIVE_UNUSED, ARENA_RETAINED, ARENA_UNUSED),
    *(ARENA_SLAB, ARENA_RESIDENT),
    *(SLABS_IN_USE, SLABS_SPARE, SLABS_QUARANTINED, SLAB_IN_USE_BYTES, SLAB_SPARE_BYTES),
    *(SLAB_SPARE_RESIDENT_BYTES, SLAB_SURPLUS_BYTES, SLAB_QUARANTINED_BYTES),
    *(REQUEST_MEMORY_IN_USE, REQUEST_MEMORY_PEAK, REQUEST_MEMORY_ALLOCATIONS),
    *(MEMORY_AVAILABLE, MODEL_MEMORY_LIMIT),
    *(PAGE_FAULTS, CONFIG_CHANGES, CONFIG_REFUSED, SPANS_DROPPED, STUCK_POLLERS),
    *(LOG_LINES_DROPPED, BUILD, *PROCESS_FAMILIES),
    *TENSORFLOW_SERVING_FAMILIES,
)


def markdown_table() -> str:
    """FAMILIES, for docs/observability.md."""
    return "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    yield "| metric | kind | unit | labels | meaning |"
    yield "|---|---|---|---|---|"
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}` | {family.kind} | {family.unit} | {labels} | {family.help} |"


def left_out_list() -> str:
    """LEFT_OUT, for docs/observability.md."""
    return "".join(f"- `{names}`: {reason}\n" for names, reason in LEFT_OUT.items())


if __name__ == "__main__":
    print(markdown_table())
    print(left_out_list(), end="")
