"""Reads the swaps from a server's log: the stage times of each load and unload."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.base.errors import Unavailable

# The log events of the manager, with the title of each.
_TITLES = {"version_available": "load", "version_unloaded": "unload"}
_SUFFIX = "_seconds"


@dataclass(frozen=True)
class Swap:
    """One load or unload of one version, with the seconds of each stage in the log's order."""

    title: str
    version: int
    stage_seconds: Mapping[str, float]


def swaps_in(events: Iterable[Mapping[str, Any]]) -> list[Swap]:
    """Reads the loads and unloads that ended, in order, from the events of a JSON log."""
    return [
        Swap(_TITLES[event["event"]], event["version"], _stage_seconds(event))
        for event in events
        if event["event"] in _TITLES
    ]


def is_unloaded(event: Mapping[str, Any], version: int) -> bool:
    """True if the event reports that `version` is unloaded."""
    return (event["event"], event.get("version")) == ("version_unloaded", version)


def check_all_succeeded(events: Iterable[Mapping[str, Any]], request_count: int) -> None:
    """Raises Unavailable unless one version was unloaded and had answered all requests with
    success.

    The logged `request_count` does not include warm-up requests, which do not arrive by RPC.
    """
    unloads = [event for event in events if event["event"] == "version_unloaded"]
    counts = [(event["request_count"], event["failed_count"]) for event in unloads]
    if counts != [(request_count, 0)]:
        raise Unavailable(
            f"{request_count} requests were sent, but the server's log has (answered, failed) "
            f"{counts} for the unloaded versions"
        )


def _stage_seconds(event: Mapping[str, Any]) -> dict[str, float]:
    stages = {key.removesuffix(_SUFFIX): key for key in event if key.endswith(_SUFFIX)}
    # `load_seconds` is the sum of a load's stages.
    return {"total" if stage == "load" else stage: event[key] for stage, key in stages.items()}
