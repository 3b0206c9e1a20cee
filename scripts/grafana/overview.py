"""The overview: do requests get answers in time, and from which versions?"""

from __future__ import annotations

from grafana.model import ORANGE, RED, Dashboard, Panel, Row
from grafana.panels import (
    ANNOTATIONS,
    BUSY_CORES,
    EACH_MODEL,
    EACH_SERVER,
    EACH_VERSION,
    FAILED_RATIO_MAX,
    IN_FLIGHT,
    INTERVAL,
    MODELS,
    OF_MODELS,
    P999_SLO_SECONDS,
    RECENT_TAIL,
    REQUESTS_BY_VERSION,
    RUNS,
    SERVERS,
    STATE_TIMELINE,
    SWAPS,
    VARIABLES,
    VERSIONS,
    by_version,
    each_server,
    quantile,
    rate,
    stat,
    total,
)

FAILED_BY_SERVER = (
    "UNKNOWN|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|UNIMPLEMENTED|INTERNAL|UNAVAILABLE|DATA_LOSS"
)
"""The same as in model:serving_requests_failed:ratio5m of recording_rules.yml (a test compares
them)."""

_REQUESTS = f"sum(rate(serving_requests_total{{{MODELS}}}{INTERVAL}))"
_BY_SERVER = f'{MODELS},code=~"{FAILED_BY_SERVER}"'
_FAILED = f"sum(rate(serving_requests_total{{{_BY_SERVER}}}{INTERVAL}))"
_OF_MODEL = rate("serving_requests_total", OF_MODELS, "model")
_OK_OF_MODEL = rate("serving_requests_total", f'{OF_MODELS},code="OK"', "model")
_BUILD_LABELS = "instance, version, tensorflow, grpc, jemalloc, allocator"

NOW = Row(
    title="Now",
    panels=[
        stat(
            "Servers",
            "That answer Prometheus's scrapes.",
            f"count(serving_build_info{{{SERVERS}}})",
        ),
        stat(
            "Models without a version",
            "Configured, and no version answers.",
            f"count(serving_model_ready{{{MODELS}}} == 0) or vector(0)",
            thresholds=[(1, RED)],
        ),
        stat("Requests a second", "Of all methods and codes.", _REQUESTS, unit="reqps"),
        stat(
            "Worst p999",
            "Of the models chosen; Predict. Red from the SLO on.",
            f"max({quantile(0.999)})",
            unit="s",
            thresholds=[(P999_SLO_SECONDS, RED)],
        ),
        stat(
            "Failed by the server",
            "Share of all requests, without the clients' own faults.",
            f"({_FAILED} or vector(0)) / {_REQUESTS}",
            unit="percentunit",
            thresholds=[(FAILED_RATIO_MAX / 10, ORANGE), (FAILED_RATIO_MAX, RED)],
        ),
        stat(
            "In flight",
            "Requests that hold a version.",
            total("serving_requests_in_flight", VERSIONS),
        ),
    ],
)
LATENCY = Row(
    title="Latency",
    panels=[
        Panel(
            title="p50, p99 and p999 of each model",
            description="Predict, over all chosen servers and versions, failures and expired deadlines "
            "included; within one bucket, a quarter. The red line is the SLO.",
            queries={
                "{{model}} p999": quantile(0.999),
                "{{model}} p99": quantile(0.99),
                "{{model}} p50": quantile(0.5),
            },
            unit="s",
            thresholds=[(P999_SLO_SECONDS, RED)],
        ),
        RECENT_TAIL,
        Panel(
            title="What is p99 made of?",
            description="p99 of each phase of a request in the last 10 seconds: queue before a thread takes it "
            "up, decode, run in TensorFlow, encode. They do not add up to the p99 of the whole.",
            queries={
                "{{model}} {{phase}}": "max by (model, phase) "
                f'(serving_request_phase_seconds{{{RUNS},quantile="0.99"}})'
            },
            unit="s",
        ),
        Panel(
            title="How are latencies spread?",
            description="How many requests fell into each bucket: a second band above the first is a second "
            "kind of request.",
            queries={
                "{{le}}": "sum by (le) "
                f"(increase(serving_request_latency_seconds_bucket{{{RUNS}}}{INTERVAL}))"
            },
            unit="short",
            kind="heatmap",
        ),
    ],
)
REQUESTS = Row(
    title="Requests",
    panels=[
        Panel(
            title="Requests by code",
            description="Of all methods, by gRPC status code; those that found no model are among them.",
            queries={"{{code}}": rate("serving_requests_total", MODELS, "code")},
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Which share fails?",
            description="All codes but OK, the clients' own faults too. The red line is the SLO for the server's.",
            queries={EACH_MODEL: f"1 - {_OK_OF_MODEL} / {_OF_MODEL}"},
            unit="percentunit",
            thresholds=[(FAILED_RATIO_MAX, RED)],
        ),
        IN_FLIGHT,
        REQUESTS_BY_VERSION,
    ],
)
VERSIONS_AND_SWAPS = Row(
    title="Versions",
    panels=[
        STATE_TIMELINE,
        SWAPS,
        Panel(
            title="What did loads and unloads meet?",
            description="Versions by the gRPC code of their health: anything but OK is a load or an unload that "
            "failed.",
            queries={
                f"{EACH_VERSION} {{{{code}}}}": "sum by (model, version, code) "
                f"(serving_servable_health{{{VERSIONS}}})"
            },
            unit="short",
            kind="table",
            width=8,
            is_instant=True,
        ),
        Panel(
            title="Who gets the requests that name no version?",
            description="The default version's share, and a canary's.",
            queries={EACH_VERSION: by_version("serving_routing_share_ratio", aggregation="avg")},
            unit="percentunit",
            width=8,
            is_stacked=True,
        ),
        Panel(
            title="What runs where?",
            description="Millpond and what it is built with.",
            queries={EACH_SERVER: f"sum by ({_BUILD_LABELS}) (serving_build_info{{{SERVERS}}})"},
            unit="short",
            kind="table",
            width=8,
            is_instant=True,
        ),
    ],
)
PROCESS = Row(
    title="The process",
    panels=[
        BUSY_CORES,
        Panel(
            title="How long has it been running?",
            description="Where it falls to zero the process began anew.",
            queries={EACH_SERVER: f"time() - process_start_time_seconds{{{SERVERS}}}"},
            unit="s",
            width=8,
        ),
        Panel(
            title="Is its configuration as wanted?",
            description="1 while a configuration file is refused and the one before serves on; and how many "
            "changes were applied.",
            queries={
                "{{instance}} refused": each_server("serving_config_refused"),
                "{{instance}} applied": each_server("serving_config_changes_total"),
            },
            unit="short",
            width=8,
        ),
    ],
)

OVERVIEW = Dashboard(
    uid="millpond-overview",
    title="Millpond: overview",
    description="Do requests get right answers in time, and from which versions?",
    rows=[NOW, LATENCY, REQUESTS, VERSIONS_AND_SWAPS, PROCESS],
    variables=VARIABLES,
    annotations=ANNOTATIONS,
)
