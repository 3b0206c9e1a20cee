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

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.base.bounded_files import CONFIG_BYTES_MAX, read_bounded_text
from serving.base.errors import InvalidConfig
from serving.base.name_text import listed
from serving.core.model_config import SettingsByModel
from serving.core.model_settings import ModelSettings
from serving.core.settings_table import as_mapping, check_keys, overridden

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


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
    check_keys(tables, ("default", "models"), where)
    models = as_mapping(tables.get("models", {}), f"{where}: models")
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
