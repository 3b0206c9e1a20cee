"""Reads the reply of a server's FleetReport (`serving/rpc/fleet_service.py`). Pure.

The reply comes from another process, perhaps of another release, and decisions are made from it. So each
value is checked here, and no report can make a decision raise an error. The client refuses a reply of more
than REPORT_BYTES_MAX before it parses the reply. This module counts the parts of a reply before it reads
them, so that no reply can delay a decision either.
"""

from collections.abc import Mapping
from typing import Any

from fleet.rollout.figures import EDGES_NS, NO_REQUESTS, VersionFigures
from fleet.rollout.reports import ModelReport, ServerReport, VersionReport
from serving.base.errors import DataLoss, StatusCode
from serving.core.servable import HEALTHY, Health, ServableState

REPORT_BYTES_MAX = 4 * 2**20
"""The longest reply of a server. A thousand models with three versions each take 2 MB.

The worst reply of 4 MiB takes 0.2 s to parse.
"""

_NUMBER_MAX = 2**63 - 1
"""The largest number in a report. A larger number cannot be a count, and would overflow as a float."""

_MODEL_COUNT_MAX = 2_000
_NAME_LENGTH_MAX = 1_000
# The most versions of one model. A server that has found more reports the newest ones (`fleet_service.py`).
_VERSION_COUNT_MAX = 2_000
_GATE_COUNT_MAX = 100

TEXT_LENGTH_MAX = 4_000
"""The characters of a reason that are kept, because TensorFlow's errors may contain whole graphs."""


def server_report(document: Mapping[str, Any]) -> ServerReport:
    """Reads a report. Raises DataLoss for any other document."""
    try:
        return ServerReport(
            incarnation=_number(document["incarnation"]),
            is_draining=_flag(document["is_draining"]),
            free_bytes=_number(document["free_bytes"]),
            models={
                _name(name): _model(model)
                for name, model in _few("models", document["models"], _MODEL_COUNT_MAX).items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataLoss(f"not a report for a fleet: {error!r}") from error


def _model(document: Mapping[str, Any]) -> ModelReport:
    return ModelReport(
        granted=_number_or_none(document["granted"]),
        order=_number(document["order"]),
        default_version=_number_or_none(document["default_version"]),
        found=frozenset(_numbers(_few("found", document["found"], _VERSION_COUNT_MAX))),
        versions={
            _key(version): _version(row)
            for version, row in _few("versions", document["versions"], _VERSION_COUNT_MAX).items()
        },
        blocked={
            _key(version): _text(reason)
            for version, reason in _few("blocked", document["blocked"], _VERSION_COUNT_MAX).items()
        },
    )


def _version(row: Mapping[str, Any]) -> VersionReport:
    code = StatusCode(_number(row["error_code"]))
    figures = VersionFigures(
        _number(row.get("request_count", 0)),
        _number(row.get("failed_count", 0)),
        _numbers(_few("latency_counts", row["latency_counts"], len(EDGES_NS) + 1)),
    )
    # A server sends no buckets if no request has reached the version.
    if len(figures.latency_counts) not in (0, len(EDGES_NS) + 1):
        raise ValueError(f"{len(figures.latency_counts)} latency_counts for {len(EDGES_NS)} edges")
    return VersionReport(
        state=ServableState[row["state"]],
        health=HEALTHY if code is StatusCode.OK else Health(code, _text(row["error_message"])),
        figures=figures if figures.request_count else NO_REQUESTS,
        # Servers of earlier releases do not report `warned`.
        warned={
            _name(gate): _text(reason)
            for gate, reason in _few("warned", row.get("warned", {}), _GATE_COUNT_MAX).items()
        },
        warned_alone=_gates("warned_alone", row),
        excused=_gates("excused", row),
    )


def _gates(name: str, row: Mapping[str, Any]) -> frozenset[str]:
    """Reads a list of gates; empty if the server is of an earlier release, which does not report the list."""
    gates = row.get(name, [])
    if not isinstance(gates, list):
        raise TypeError(f"{_short(gates)} is not a list")
    return frozenset(_name(_text(gate)) for gate in _few(name, gates, _GATE_COUNT_MAX))


def _few(name: str, values: Any, count_max: int) -> Any:
    """Checks that a list or an object has at most `count_max` parts, and returns it."""
    if len(values) > count_max:
        raise ValueError(f"{len(values)} {name}; a report has at most {count_max}")
    return values


def _name(text: str) -> str:
    if len(text) > _NAME_LENGTH_MAX:
        raise ValueError(f"a name of {len(text)} characters; at most {_NAME_LENGTH_MAX}")
    return text


def _number(value: object) -> int:
    """Reads a number that is not negative. Refuses a bool, which Python counts as an int."""
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{_short(value)} is not a number from 0 to {_NUMBER_MAX}")
    return value


def _number_or_none(value: object) -> int | None:
    return None if value is None else _number(value)


def _numbers(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{_short(values)} is not a list")
    return tuple(map(_number, values))


def _key(text: str) -> int:
    """Reads the number that is the key of a JSON object."""
    return _number(int(text))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{_short(value)} is neither true nor false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_short(value)} is not a text")
    return value[:TEXT_LENGTH_MAX]


def _short(value: object) -> str:
    """The beginning of a value, for an error."""
    return f"{value!r:.100}"
