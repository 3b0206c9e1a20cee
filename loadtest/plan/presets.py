"""The server configurations of the comparison: the steps from stock TensorFlow to Millpond's
defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from serving.base.errors import InvalidConfig
from serving.config.lab_settings import LAB_VARIABLE


@dataclass(frozen=True)
class Preset:
    """A row of the table: flags of `millpond serve` and its environment, in the form that ModelServer
    takes.
    """

    flags: Mapping[str, object]
    summary: str


# TensorFlow's own devices, restore and pools, as in TensorFlow Serving.
_STOCK: Mapping[str, object] = MappingProxyType(
    {
        "environment": {LAB_VARIABLE: "tensorflow_runtime=stock"},
        "allocator": "glibc",
        "self_warmup_requests": 0,
        "load_priority": "normal",
    }
)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "warmup-off": Preset(
            {**_STOCK, "enable_model_warmup": False}, "stock without replaying its warm-up file"
        ),
        "stock": Preset(
            _STOCK,
            "this server with TensorFlow's own device, allocator, restore and pools",
        ),
        "load-threads": Preset(
            {
                **_STOCK,
                "environment": {LAB_VARIABLE: "tensorflow_runtime=stock tensorflow_load_pool=true"},
            },
            "stock, with restore and init on a separate inter-op pool",
        ),
        "jemalloc": Preset({**_STOCK, "allocator": "jemalloc"}, "stock, with jemalloc preloaded"),
        "no-arena": Preset(
            {"arena": False}, "Millpond without arenas: parameters in malloc's heap"
        ),
        "arena-fresh": Preset(
            {"arena_spare_slabs": 0}, "Millpond, but each version's slab is fresh memory"
        ),
        "normal-priority": Preset(
            {"load_priority": "normal"}, "Millpond, but loads compete with requests for the cores"
        ),
        "no-self-warmup": Preset(
            {"self_warmup_requests": 0}, "Millpond, but only the warm-up file is replayed"
        ),
        "not-pinned": Preset(
            {"pin_request_threads": "never"},
            "Millpond, but the kernel chooses the request threads' cores during a load",
        ),
        "not-watched": Preset(
            {"environment": {LAB_VARIABLE: "load_patience_seconds=0"}},
            "Millpond, whose loads wait for a free core for ever",
        ),
        "not-paced": Preset(
            {"load_seconds_target": 0}, "Millpond, whose restores read as fast as they can"
        ),
        "batching": Preset({"enable_batching": True}, "Millpond, whose requests share runs"),
        "millpond": Preset({}, "this server with its defaults"),
    }
)
"""The presets by the names that `--preset` takes, in the order of `swap --preset all`."""


def preset(name: str) -> Preset:
    """Finds the preset `name`. Raises InvalidConfig, with all names, if there is no such preset."""
    if name not in PRESETS:
        raise InvalidConfig(f"unknown preset '{name}'; known: {', '.join(PRESETS)}")
    return PRESETS[name]
