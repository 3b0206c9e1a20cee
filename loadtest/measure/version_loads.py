"""The loads of versions with tables: what each read, found and copied, and how long its stages took. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtest.measure.server_pages import read_bytes_of


@dataclass(frozen=True, kw_only=True)
class VersionLoad:
    """One load, by its swap's record. `restored_in_full` is the reason, or ""."""

    load_seconds: float
    stage_seconds: Mapping[str, float]
    restored_bytes: int
    kept_bytes: int
    copied_bytes: int
    restored_in_full: str


def load_of(swap: Mapping[str, Any]) -> VersionLoad:
    """The load of a version that was published."""
    stages = {item["name"]: item["seconds"] for item in swap["stages"] if item["task"] == "load"}
    return VersionLoad(
        load_seconds=swap["published_at"] - swap["load_started_at"],
        stage_seconds=stages,
        restored_bytes=read_bytes_of(swap),
        kept_bytes=swap["kept_bytes"] or 0,
        copied_bytes=swap["figures"].get("copied_bytes", 0),
        restored_in_full=swap["delta_restored_in_full"],
    )
