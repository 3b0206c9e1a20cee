"""The file of --model_settings_file: TOML, from tables to ModelSettings.

    [default]
    keep_previous_seconds = 300
    [models.ctr]
    aspired_version_policy = "auto"
    [models.ctr.gates]
    signature = "enforce"

A model's table overrides the default table key by key. The keys of the tables are the field names of
`model_settings.py`.
"""

import json
import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from serving.base.bounded_files import CONFIG_BYTES_MAX, read_bounded_text
from serving.base.errors import InvalidConfig
from serving.base.name_text import listed
from serving.core.model_settings import (
    BATCH_LATENCY_MS_MAX,
    BatchingSettings,
    CanarySettings,
    GateSettings,
    ModelSettings,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
}

# The settings that are tables of their own.
_TABLES = (BatchingSettings, CanarySettings, GateSettings)

Values = TypeVar("Values", bound=ModelSettings | BatchingSettings | CanarySettings | GateSettings)


@dataclass(frozen=True)
class SettingsByModel:
    """The settings of the models that have their own, and the default of all other models."""

    default: ModelSettings = field(default_factory=ModelSettings)
    by_name: Mapping[str, ModelSettings] = field(default_factory=dict)

    def of(self, name: str) -> ModelSettings:
        """Returns the settings of one model."""
        return self.by_name.get(name, self.default)


def read_model_settings_file(path: Path, model_names: Collection[str]) -> SettingsByModel:
    """Reads the settings of the configured models, `model_names`.

    Raises InvalidConfig, with file, key, value and remedy, if the file cannot be read or is not valid
    TOML. It also raises for an unknown key, a value of another type or out of range, a table for a
    model that is not configured, and a canary table without a weight.
    """
    try:
        text = read_bounded_text(path, CONFIG_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}") from error
    return parse_model_settings(text, str(path), model_names)


def parse_model_settings(text: str, where: str, model_names: Collection[str]) -> SettingsByModel:
    """Parses a text from `where`; otherwise like `read_model_settings_file`."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{where}: not valid TOML: {error}") from error
    _check_keys(tables, ("default", "models"), where)
    models = _table(tables.get("models", {}), f"{where}: models")
    _check_named_only(tables.get("default", {}), f"{where}: default")
    for name in models:
        if name not in model_names:
            raise InvalidConfig(
                f"{where}: models.{name}: no model {name!r} is configured; "
                f"configured: {listed(sorted(model_names))}"
            )
    default = overridden(ModelSettings(), tables.get("default", {}), f"{where}: default")
    by_name = {
        name: overridden(default, table, f"{where}: models.{name}")
        for name, table in models.items()
    }
    settings = SettingsByModel(default, by_name)
    for switch in _SWITCHES:
        _check_switch(switch, tables, settings, where)
    return settings


@dataclass(frozen=True)
class _Switch:
    """The key of a table without which its other keys have no effect."""

    table: str
    key: str
    is_on: Callable[[ModelSettings], bool]
    without: str
    remedy: str
    # Keys that have an effect all the same.
    free_keys: Collection[str] = ()


_SWITCHES = (
    _Switch(
        "canary",
        "weight",
        is_on=lambda settings: settings.canary.weight > 0,
        without="without a weight: no version begins as a canary",
        remedy="set a weight above 0, like 0.05, or weight = 0 to turn it off",
    ),
    _Switch(
        "batching",
        "enabled",
        is_on=lambda settings: settings.batching.is_on,
        without="without enabled: the flags decide how requests are batched",
        remedy="set enabled = true, or enabled = false to turn it off",
        free_keys=("batch_relative_tolerance", "may_mix_rows"),
    ),
)


def _check_switch(
    switch: _Switch, tables: Mapping[str, Any], settings: SettingsByModel, where: str
) -> None:
    """Raises InvalidConfig if a table has keys that have no effect, because the switch is left out.

    A switch that is turned off is accepted. The default table may leave it to the models' tables.
    """
    is_used = any(map(switch.is_on, (settings.default, *settings.by_name.values())))
    _check_table(switch, tables.get("default", {}), f"{where}: default", is_on=is_used)
    for name, table in tables.get("models", {}).items():
        is_on = switch.is_on(settings.of(name))
        _check_table(switch, table, f"{where}: models.{name}", is_on=is_on)


def _check_named_only(table: object, where: str) -> None:
    """Raises InvalidConfig if `may_mix_rows` is set for all models: it vouches for one."""
    batching = table.get("batching", {}) if isinstance(table, Mapping) else {}
    if isinstance(batching, Mapping) and batching.get("may_mix_rows") is True:
        raise InvalidConfig(
            f"{where}.batching: may_mix_rows is for the models that you know; "
            "give it in [models.NAME.batching]"
        )


def _check_table(switch: _Switch, table: Mapping[str, Any], where: str, *, is_on: bool) -> None:
    keys = set(table.get(switch.table, {})) - set(switch.free_keys)
    if keys and not is_on and switch.key not in keys:
        raise InvalidConfig(
            f"{where}.{switch.table}: {', '.join(sorted(keys))} {switch.without}; {switch.remedy}"
        )


def overridden(base: Values, table: object, where: str) -> Values:
    """Returns the dataclass value `base` with the values of `table`.

    Raises InvalidConfig, whose message begins with `where`.
    """
    keys = _table(table, where)
    _check_keys(keys, [item.name for item in fields(base)], where)
    changes: dict[str, Any] = {
        key: _value(getattr(base, key), value, f"{where}.{key}", key) for key, value in keys.items()
    }
    try:
        return replace(base, **changes)
    except InvalidConfig as error:
        raise InvalidConfig(f"{where}: {error.message}") from error


def as_table(settings: ModelSettings) -> dict[str, Any]:
    """Returns the settings as a table of JSON types, from which `overridden` makes the same settings."""
    return asdict(settings, dict_factory=_plain)


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: _plain_value(value) for key, value in items}


def _plain_value(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        _, _, path = where.rpartition(": ")
        raise InvalidConfig(f"{where}: {value!r} is not a table; write [{path}]")
    return value


def _check_keys(table: Mapping[str, object], known: Collection[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise InvalidConfig(f"{where}: {key!r} is unknown; known: {', '.join(known)}")


def _value(before: object, value: object, where: str, key: str) -> object:
    """Returns `value` converted to the type of `before`."""
    if isinstance(before, _TABLES):
        return overridden(before, value, where)
    if isinstance(before, Enum):
        return _choice(type(before), value, where)
    if isinstance(before, bool):
        return _boolean(value, where)
    if isinstance(before, tuple):
        return _whole_numbers(value, where)
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
