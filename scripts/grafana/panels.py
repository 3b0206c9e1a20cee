"""The shared parts of the dashboards: variables' label matchers, expressions, panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from grafana.model import RED, Annotation, Panel, Variable

P999_SLO_SECONDS = 0.05
FAILED_RATIO_MAX = 0.01
SWAP_P999_RATIO_MAX = 1.5
SWAP_SECONDS_MAX = 300
"""The lines that panels draw: as in deploy/prometheus/recording_rules.yml (a test compares
them)."""

# The label matchers of the variables: servers, their models, and the models' versions.
SERVERS = 'instance=~"$instance"'
MODELS = f'{SERVERS},model=~"$model"'
VERSIONS = f'{MODELS},version=~"$version"'
# Requests that found no model have none in their labels; a tail is a model's.
OF_MODELS = f'{VERSIONS},model!=""'
# Whatever runs a model, over gRPC and HTTP.
RUNS = f'{OF_MODELS},method!="GetModelMetadata"'

INTERVAL = "[$__rate_interval]"

EACH_VERSION = "{{model}}/{{version}}"
EACH_SERVER = "{{instance}}"
EACH_MODEL = "{{model}}"

NO_MAPPINGS: Mapping[int, tuple[str, str]] = MappingProxyType({})

# Numbers for a state timeline, in the order of a version's life.
STATES = {
    1: ("START", "text"),
    2: ("LOADING", "blue"),
    3: ("AVAILABLE", "green"),
    4: ("UNLOADING", "orange"),
    5: ("END", "dark-gray"),
}


# --- Expressions ----------------------------------------------------------------------------------


def rate(metric: str, selector: str, by: str) -> str:
    """How often a second, summed up for each value of the labels `by`."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}{INTERVAL}))"


def quantile(value: float) -> str:
    """A quantile of a model's latency over all its servers, versions and codes chosen."""
    buckets = rate("serving_request_latency_seconds_bucket", RUNS, "model, le")
    return f"histogram_quantile({value}, {buckets})"


def recent_quantile(value: str) -> str:
    """A quantile of the last ten seconds for each version; of several servers the worst."""
    selector = f'{RUNS},quantile="{value}"'
    return by_version("serving_request_latency_quantile_seconds", selector, aggregation="max")


def by_version(metric: str, selector: str = VERSIONS, *, aggregation: str = "sum") -> str:
    """Returns the sum of each version over the servers."""
    return f"{aggregation} by (model, version) ({metric}{{{selector}}})"


def total(metric: str, selector: str = SERVERS) -> str:
    """Returns the sum over all chosen series."""
    return f"sum({metric}{{{selector}}})"


def each_server(metric: str) -> str:
    """Returns each server's value, for metrics that a server has once."""
    return f"{metric}{{{SERVERS}}}"


def by_model(metric: str, *, aggregation: str = "sum") -> str:
    """Returns the value of each model over the servers."""
    return f"{aggregation} by (model) ({metric}{{{MODELS}}})"


def by_servable(metric: str, label: str) -> str:
    """Returns the largest value over the servers, by version and `label`.

    The version is in one label, `servable`.
    """
    largest = f"max by (model, version, {label}) ({metric}{{{VERSIONS}}})"
    return f'label_join({largest}, "servable", "/", "model", "version")'


# --- Kinds of panels ------------------------------------------------------------------------------


def stat(
    title: str,
    description: str,
    expr: str,
    *,
    legend: str = "",
    unit: str = "short",
    thresholds: Sequence[tuple[float, str]] = (),
    width: int = 4,
    height: int = 4,
) -> Panel:
    """One number, large. Without a legend it has its title's."""
    return Panel(
        title=title,
        description=description,
        queries={legend or title: expr},
        unit=unit,
        kind="stat",
        width=width,
        height=height,
        thresholds=thresholds,
    )


def servable_table(
    title: str,
    description: str,
    *,
    metric: str,
    column_label: str,
    unit: str,
    width: int,
    mappings: Mapping[int, tuple[str, str]] = NO_MAPPINGS,
) -> Panel:
    """A line for each version, a column for each value of `column_label`, as of now."""
    return Panel(
        title=title,
        description=description,
        queries={f"{{{{servable}}}} {{{{{column_label}}}}}": by_servable(metric, column_label)},
        unit=unit,
        kind="table",
        width=width,
        mappings=mappings,
        is_instant=True,
        pivot=("servable", column_label),
    )


# --- Panels ---------------------------------------------------------------------------------------

STATE_TIMELINE = Panel(
    title="Which state is each version in?",
    description="From START to END. A version that ended is shown for ten minutes.",
    queries={
        f"{EACH_VERSION} on {EACH_SERVER}": "sum by (instance, model, version) ("
        + " or ".join(
            f'serving_servable_state{{{VERSIONS},state="{state}"}} * {number}'
            for number, (state, _) in STATES.items()
        )
        + ")"
    },
    unit="none",
    kind="state-timeline",
    mappings=STATES,
)
SWAPS = Panel(
    title="How did swaps end?",
    description="Changes of what answers a model's requests, in the minute up to each moment.",
    queries={
        "{{model}} {{result}}": "sum by (model, result) "
        f"(increase(serving_swaps_total{{{MODELS}}}[1m])) > 0"
    },
    unit="short",
)
PAGE_FAULTS = Panel(
    title="How many page faults a second?",
    description="Minor faults are first touches of memory, what costs a swap most: a spare slab saves them. "
    "Major ones read from disk.",
    queries={"{{kind}}": rate("serving_process_page_faults_total", SERVERS, "kind")},
    unit="cps",
)
BUSY_CORES = Panel(
    title="How many cores are busy?",
    description="Processor time a second: requests, and restore and warm-up of a load beside them.",
    queries={EACH_SERVER: rate("process_cpu_seconds_total", SERVERS, "instance")},
    unit="short",
    width=8,
)
RECENT_TAIL = Panel(
    title="p999 and p99 of each version",
    description="Predict, the 10 seconds before each moment, of all codes; of several servers the worst. No "
    "line while a version has no requests. The red line is the SLO.",
    queries={
        f"{EACH_VERSION} p999": recent_quantile("0.999"),
        f"{EACH_VERSION} p99": recent_quantile("0.99"),
    },
    unit="s",
    thresholds=[(P999_SLO_SECONDS, RED)],
)
REQUESTS_BY_VERSION = Panel(
    title="Which version answers?",
    description="Requests a second by version: a swap is where one takes over from another.",
    queries={EACH_VERSION: rate("serving_requests_total", OF_MODELS, "model, version")},
    unit="reqps",
    is_stacked=True,
)
IN_FLIGHT = Panel(
    title="How many requests are in flight?",
    description="Those that hold a version at the moment. One that stays after a swap is what quiesce waits for.",
    queries={EACH_VERSION: by_version("serving_requests_in_flight")},
    unit="short",
)

# --- Around the panels ----------------------------------------------------------------------------

VARIABLES = (
    Variable(name="instance", label="Server", series="serving_build_info"),
    Variable(name="model", label="Model", series=f"serving_servable_state{{{SERVERS}}}"),
    Variable(name="version", label="Version", series=f"serving_servable_state{{{MODELS}}}"),
)
_AVAILABLE = f'serving_servable_state{{{VERSIONS},state="AVAILABLE"}}'
_NOT_PUBLISHED = 'result=~"load_failed|refused|rolled_back"'
ANNOTATIONS = (
    Annotation(
        name="Published",
        expr=f"{_AVAILABLE} == 1 unless {_AVAILABLE} offset 1m == 1",
        title=f"{EACH_VERSION} answers on {EACH_SERVER}",
        color="blue",
    ),
    Annotation(
        name="Failed",
        expr=f"increase(serving_swaps_total{{{MODELS},{_NOT_PUBLISHED}}}[1m]) > 0",
        title=f"{EACH_MODEL}: {{{{result}}}} on {EACH_SERVER}",
        color="red",
    ),
)
