"""The memory dashboard: whose is it, does it come back, and does the next version fit?"""

from __future__ import annotations

from grafana.model import ORANGE, RED, Dashboard, Panel, Row
from grafana.panels import (
    ANNOTATIONS,
    EACH_MODEL,
    EACH_SERVER,
    EACH_VERSION,
    MODELS,
    PAGE_FAULTS,
    SERVERS,
    VARIABLES,
    VERSIONS,
    by_model,
    by_version,
    each_server,
    rate,
    stat,
    total,
)

MEMORY_LEFT_RATIO_MIN = 0.1
"""The same as in recording_rules.yml (a test compares them)."""

_AVAILABLE = total("serving_memory_available_bytes")
_RESIDENT = total("process_resident_memory_bytes")
_ALIVE = f'serving_servable_state{{{SERVERS},state=~"LOADING|AVAILABLE|UNLOADING"}}'

NOW = Row(
    title="Now",
    panels=[
        stat("Process", "Resident memory.", _RESIDENT, unit="bytes"),
        stat(
            "Share in use",
            "Of what the process has and what the machine and its control groups leave it, what it has.",
            f"{_RESIDENT} / ({_AVAILABLE} + {_RESIDENT})",
            unit="percentunit",
            thresholds=[(0.8, ORANGE), (1 - MEMORY_LEFT_RATIO_MIN, RED)],
        ),
        stat(
            "Parameters",
            "Live bytes in the arenas of AVAILABLE versions.",
            total("serving_arena_allocated_bytes", VERSIONS),
            unit="bytes",
        ),
        stat(
            "Spare slabs",
            "Resident, for the next versions: their loads fault no page in.",
            total("serving_slab_spare_resident_bytes"),
            unit="bytes",
        ),
        stat(
            "Requests",
            "Held by TensorFlow's allocator.",
            total("serving_request_memory_in_use_bytes"),
            unit="bytes",
        ),
        stat(
            "Leaked slabs",
            "Put aside for good because something still held memory in them.",
            total("serving_slab_quarantined"),
            thresholds=[(1, RED)],
        ),
    ],
)
PROCESS = Row(
    title="The process",
    panels=[
        Panel(
            title="What the memory is",
            description="Its parts, stacked. The process has more: code, Python, graphs, threads.",
            queries={
                "versions": total("serving_arena_resident_bytes", VERSIONS),
                "spare slabs": total("serving_slab_spare_resident_bytes"),
                "on its way back": total("serving_slab_surplus_resident_bytes"),
                "leaked (reserved)": total("serving_slab_quarantined_bytes"),
                "requests": total("serving_request_memory_in_use_bytes"),
                "kept requests": total("serving_reservoir_bytes", MODELS),
            },
            unit="bytes",
            is_stacked=True,
        ),
        Panel(
            title="How large is the process?",
            description="Resident memory. After a swap it should be where it was before.",
            queries={EACH_SERVER: each_server("process_resident_memory_bytes")},
            unit="bytes",
        ),
        Panel(
            title="Memory left",
            description="What a load must fit: what the machine and the control groups leave the process, and "
            "--model_memory_limit_bytes where it is set.",
            queries={
                "{{instance}} left": each_server("serving_memory_available_bytes"),
                "{{instance}} limit of parameters": each_server("serving_model_memory_limit_bytes"),
            },
            unit="bytes",
        ),
        PAGE_FAULTS,
    ],
)
ARENAS = Row(
    title="Arenas of versions",
    panels=[
        Panel(
            title="What are the slabs' bytes?",
            description="Of AVAILABLE versions, stacked: together they are the slabs' sizes.",
            queries={
                "parameters": total("serving_arena_allocated_bytes", VERSIONS),
                "rounding": total("serving_arena_active_unused_bytes", VERSIONS),
                "freed and kept": total("serving_arena_retained_bytes", VERSIONS),
                "never handed out": total("serving_arena_unused_bytes", VERSIONS),
            },
            unit="bytes",
            is_stacked=True,
        ),
        Panel(
            title="How large is each version?",
            description="Its parameters, what of its slab has memory behind it, and the slab itself.",
            queries={
                f"{EACH_VERSION} {kind}": by_version(
                    f"serving_arena_{kind}_bytes", aggregation="max"
                )
                for kind in ("allocated", "resident", "slab")
            },
            unit="bytes",
        ),
    ],
)
SLABS = Row(
    title="Slabs",
    panels=[
        Panel(
            title="Slabs and the versions on them",
            description="Slabs in use that stay above the versions that load, serve or unload are of one that ended "
            "and gave nothing back.",
            queries={
                "in use": total("serving_slab_in_use"),
                "spare": total("serving_slab_spare"),
                "versions alive": f"sum({_ALIVE})",
            },
            unit="short",
            width=8,
        ),
        Panel(
            title="How much do slabs reserve?",
            description="Address space; only what is touched takes memory.",
            queries={
                "in use": total("serving_slab_in_use_bytes"),
                "spare": total("serving_slab_spare_bytes"),
                "leaked": total("serving_slab_quarantined_bytes"),
            },
            unit="bytes",
            width=8,
            is_stacked=True,
        ),
        Panel(
            title="Leaks",
            description="Slabs put aside because something of an ended version still lived in them.",
            queries={EACH_SERVER: each_server("serving_slab_quarantined")},
            unit="short",
            width=8,
            thresholds=[(1, RED)],
        ),
    ],
)
REQUESTS = Row(
    title="Requests' memory",
    panels=[
        Panel(
            title="How much do requests hold?",
            description="TensorFlow's allocator: requests' tensors, and parameters that lie in no arena.",
            queries={
                "{{instance}} now": each_server("serving_request_memory_in_use_bytes"),
                "{{instance}} at most": each_server("serving_request_memory_peak_bytes"),
            },
            unit="bytes",
            width=8,
        ),
        Panel(
            title="How many blocks a second?",
            description="That TensorFlow's allocator gives out.",
            queries={
                EACH_SERVER: rate("serving_request_memory_allocations_total", SERVERS, "instance")
            },
            unit="ops",
            width=8,
        ),
        Panel(
            title="How much do kept requests take?",
            description="Of live requests that wait for the next version's self-warm-up.",
            queries={EACH_MODEL: by_model("serving_reservoir_bytes")},
            unit="bytes",
            width=8,
        ),
    ],
)

MEMORY = Dashboard(
    uid="millpond-memory",
    title="Millpond: memory",
    description="Whose is the memory, does it come back, and does the next version fit?",
    rows=[NOW, PROCESS, ARENAS, SLABS, REQUESTS],
    variables=VARIABLES,
    annotations=ANNOTATIONS,
)
