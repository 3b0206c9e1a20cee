"""The swap dashboard: what did the last swap do to the tail, and why?"""

from __future__ import annotations

from dataclasses import replace

from grafana.model import ORANGE, RED, Dashboard, Panel, Row
from grafana.panels import (
    ANNOTATIONS,
    BUSY_CORES,
    EACH_MODEL,
    EACH_VERSION,
    IN_FLIGHT,
    MODELS,
    OF_MODELS,
    P999_SLO_SECONDS,
    PAGE_FAULTS,
    RECENT_TAIL,
    REQUESTS_BY_VERSION,
    STATE_TIMELINE,
    SWAP_P999_RATIO_MAX,
    SWAP_SECONDS_MAX,
    SWAPS,
    VARIABLES,
    VERSIONS,
    by_model,
    by_version,
    rate,
    servable_table,
    stat,
)


def _p999_by(labels: str, selector: str = MODELS) -> str:
    series = f'serving_swap_latency_seconds{{{selector},quantile="0.999"}}'
    return f"max by ({labels}) ({series})"


_DURING = _p999_by("model", f'{MODELS},part="during"')
_BEFORE = _p999_by("model", f'{MODELS},part="before"')
_LOAD_SECONDS = f"sum by (instance, model, version) (serving_load_stage_seconds{{{VERSIONS}}})"

LAST_SWAP = Row(
    title="The last swap of each model",
    panels=[
        Panel(
            title="p999 before, during and after",
            description="Of the 10 seconds before, of the swap from its load to its slab's return, and of the 10 "
            "seconds after.",
            queries={"{{model}} {{part}}": _p999_by("model, part")},
            unit="s",
            kind="bargauge",
            width=10,
            height=6,
            thresholds=[(P999_SLO_SECONDS, RED)],
            is_instant=True,
        ),
        stat(
            "How much worse was p999?",
            "p999 during the swap over p999 before it.",
            f"{_DURING} / {_BEFORE}",
            legend=EACH_MODEL,
            unit="none",
            thresholds=[(1.2, ORANGE), (SWAP_P999_RATIO_MAX, RED)],
            width=5,
            height=6,
        ),
        stat(
            "Of how many requests?",
            "That these latencies are of: below 1,000 a p999 is the slowest request.",
            f"sum by (model, part) (serving_swap_requests{{{MODELS}}})",
            legend="{{model}} {{part}}",
            width=5,
            height=6,
        ),
        stat(
            "How long did it take?",
            "From the begin of the load until the version before was unloaded and its slab back.",
            by_model("serving_swap_seconds", aggregation="max"),
            legend=EACH_MODEL,
            unit="s",
            thresholds=[(SWAP_SECONDS_MAX, RED)],
            height=6,
        ),
    ],
)
EFFECT = Row(
    title="What did it do to requests?",
    panels=[
        RECENT_TAIL,
        REQUESTS_BY_VERSION,
        Panel(
            title="Did requests fail?",
            description="Requests a second that did not end with OK, by code. Empty where there were none.",
            queries={
                "{{model}} {{code}}": rate(
                    "serving_requests_total", f'{OF_MODELS},code!="OK"', "model, code"
                )
            },
            unit="reqps",
        ),
        IN_FLIGHT,
    ],
)
STAGES = Row(
    title="What was it made of?",
    panels=[
        servable_table(
            "Load stages",
            "How long each stage of each version's last load took.",
            metric="serving_load_stage_seconds",
            column_label="stage",
            unit="s",
            width=16,
        ),
        servable_table(
            "Unload stages",
            "quiesce waits for the last request, destroy frees session and arena. Empty until a "
            "version was unloaded.",
            metric="serving_unload_stage_seconds",
            column_label="stage",
            unit="s",
            width=8,
        ),
        Panel(
            title="How long did each load take?",
            description="All stages of a version's last load together; of several servers the slowest.",
            queries={EACH_VERSION: f"max by (model, version) ({_LOAD_SECONDS})"},
            unit="s",
            width=8,
        ),
        replace(PAGE_FAULTS, width=8),
        BUSY_CORES,
    ],
)
RESULTS = Row(
    title="How did it end?",
    panels=[
        STATE_TIMELINE,
        SWAPS,
        servable_table(
            "Gate verdicts",
            "What each version's gates said. Where a gate in mode enforce is not passed the version is "
            "not served.",
            metric="serving_gate_passed",
            column_label="gate",
            unit="none",
            width=8,
            mappings={1: ("passed", "green"), 0: ("not passed", "red")},
        ),
        Panel(
            title="How often has a load failed?",
            description="Since the version was found, retries included.",
            queries={EACH_VERSION: by_version("serving_servable_failed_loads", aggregation="max")},
            unit="short",
            width=8,
            thresholds=[(1, ORANGE)],
        ),
        Panel(
            title="What is there to warm up with?",
            description="Recent live requests that are kept for the next version's self-warm-up and gates.",
            queries={EACH_MODEL: by_model("serving_reservoir_requests")},
            unit="short",
            width=8,
        ),
    ],
)

SWAP = Dashboard(
    uid="millpond-swap",
    title="Millpond: swaps",
    description="What did the last swap do to the tail, and why?",
    rows=[LAST_SWAP, EFFECT, STAGES, RESULTS],
    variables=VARIABLES,
    annotations=ANNOTATIONS,
    time_from="now-15m",
)
