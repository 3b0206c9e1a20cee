from typing import Any

import pytest

from loadtest.plan.presets import PRESETS, preset
from serving.base.errors import InvalidConfig
from serving.config.flags import FLAGS
from serving.config.lab_settings import LAB_VARIABLE, lab_settings

# Other tools use these names.
CONTRACT = {"stock", "warmup-off", "load-threads", "jemalloc", "arena-fresh", "millpond"}


def test_presets_of_the_contract_are_there():
    assert set(PRESETS) >= CONTRACT


def test_millpond_is_its_defaults():
    assert preset("millpond").flags == {}


def settings_of(name: str) -> set[tuple[str, object]]:
    """Returns the flags of a preset, and each of its settings in the environment."""
    flags: dict[str, Any] = dict(preset(name).flags)
    environment = flags.pop("environment", {})
    return {*flags.items(), *(("lab", item) for item in environment.get(LAB_VARIABLE, "").split())}


@pytest.mark.parametrize("name", ["warmup-off", "load-threads", "jemalloc"])
def test_changed_stock_preset_differs_in_one_setting(name: str):
    stock, changed = settings_of("stock"), settings_of(name)
    assert len(changed - stock) == 1
    assert {key for key, _ in stock} <= {key for key, _ in changed}


@pytest.mark.parametrize("name", PRESETS)
def test_settings_of_a_preset_are_those_of_the_server(name: str):
    flags = preset(name).flags
    assert flags.keys() <= {*FLAGS, "environment"}
    lab_settings(flags.get("environment", {}))  # type: ignore[arg-type]


def test_presets_are_all_different():
    assert len({repr(sorted(one.flags.items())) for one in PRESETS.values()}) == len(PRESETS)


def test_unknown_preset_lists_known_names():
    with pytest.raises(InvalidConfig, match=r"'fast'.*stock.*millpond"):
        preset("fast")
