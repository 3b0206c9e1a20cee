"""ModelSettings as tables of JSON or TOML types, whose keys are the field names of `model_settings.py`."""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, replace
from enum import Enum
from typing import Any, TypeVar

from serving.base.errors import InvalidConfig
from serving.core.model_settings import (
    BATCH_LATENCY_MS_MAX,
    BatchingSettings,
    CanarySettings,
    GateSettings,
    ModelSettings,
    RequestLogSettings,
)

# The largest valid values of some numbers. The smallest is always 0.
_MAXIMA = {
    "keep_previous_seconds": 1_000_000_000.0,
    "max_batch_latency_ms": float(BATCH_LATENCY_MS_MAX),
    "batch_relative_tolerance": 1.0,
    "convergence_ratio_min": 1.0,
    "convergence_seconds": 3_600.0,
    "shadow_seconds": 86_400.0,
    "drift_share_max": 1.0,
    "failed_share_max": 1.0,
    "file_bytes_max": 2**40,
    "file_seconds_max": 86_400.0,
    "disk_bytes_max": 2**50,
    "accelerator_memory_bytes": 2**50,
}

# The settings that are tables of their own.
_TABLES = (BatchingSettings, CanarySettings, GateSettings, RequestLogSettings)

# The settings that are lists of texts. Other lists are of whole numbers.
_TEXT_LISTS = frozenset({"inputs", "outputs"})

Values = TypeVar(
    "Values",
    bound=ModelSettings | BatchingSettings | CanarySettings | GateSettings | RequestLogSettings,
)


def overridden(base: Values, table: object, where: str) -> Values:
    """The dataclass value `base` with the values of `table`.

    Raises InvalidConfig, whose message begins with `where`.
    """
    keys = as_mapping(table, where)
    check_keys(keys, [item.name for item in fields(base)], where)
    changes: dict[str, Any] = {
        key: _value(getattr(base, key), value, f"{where}.{key}", key) for key, value in keys.items()
    }
    try:
        return replace(base, **changes)
    except InvalidConfig as error:
        raise InvalidConfig(f"{where}: {error.message}") from error


def as_table(settings: ModelSettings) -> dict[str, Any]:
    """The settings as a table of JSON types, from which `overridden` makes the same settings."""
    return asdict(settings, dict_factory=_plain)


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: _plain_value(value) for key, value in items}


def _plain_value(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def as_mapping(value: object, where: str) -> Mapping[str, object]:
    """The value if it is a table. Raises InvalidConfig."""
    if not isinstance(value, Mapping):
        _, _, path = where.rpartition(": ")
        raise InvalidConfig(f"{where}: {value!r} is not a table; write [{path}]")
    return value


def check_keys(table: Mapping[str, object], known: Collection[str], where: str) -> None:
    """Raises InvalidConfig if a key is not among the known ones."""
    for key in table:
        if key not in known:
            raise InvalidConfig(f"{where}: {key!r} is unknown; known: {', '.join(known)}")


def _value(before: object, value: object, where: str, key: str) -> object:
    """Converts `value` to the type of `before`."""
    if isinstance(before, _TABLES):
        return overridden(before, value, where)
    if isinstance(before, Enum):
        return _choice(type(before), value, where)
    if isinstance(before, bool):
        return _boolean(value, where)
    if isinstance(before, tuple):
        return (_texts if key in _TEXT_LISTS else _whole_numbers)(value, where)
    if isinstance(before, str):
        if not isinstance(value, str):
            raise InvalidConfig(f'{where}: {value!r} is not text; write "..."')
        return value
    return _number(before, value, where, key)


def _choice(kind: type[Enum], value: object, where: str) -> Enum:
    for member in kind:
        # The types are compared because True == 1 in Python.
        if type(member.value) is type(value) and member.value == value:
            return member
    known = ", ".join(json.dumps(member.value) for member in kind)
    raise InvalidConfig(f"{where}: {value!r} is not known; give one of {known}")


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidConfig(f"{where}: {value!r} is not known; give true or false")
    return value


def _whole_numbers(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise InvalidConfig(f"{where}: {value!r} is not a list of whole numbers; write [1, 2]")
    return tuple(value)


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or any(type(item) is not str for item in value):
        raise InvalidConfig(f'{where}: {value!r} is not a list of texts; write ["a", "b"]')
    return tuple(value)


def _number(before: object, value: object, where: str, key: str) -> float:
    is_whole = isinstance(before, int)
    # The types are compared because a bool is an int in Python, and must be refused.
    if type(value) is not int and (is_whole or type(value) is not float):
        raise InvalidConfig(f"{where}: {value!r} is not a {'whole ' if is_whole else ''}number")
    maximum = _MAXIMA.get(key, 2.0**31 - 1 if is_whole else math.inf)
    if not 0 <= value <= maximum or math.isinf(value):
        limit = f"from 0 to {maximum:.15g}" if math.isfinite(maximum) else "0 or more"
        raise InvalidConfig(f"{where}: {value!r} is out of range; give {limit}")
    return value if is_whole else float(value)
