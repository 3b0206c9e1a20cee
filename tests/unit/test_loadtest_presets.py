import pytest

from loadtest.plan.presets import PRESETS, preset
from serving.base.errors import InvalidConfig
from serving.config.flags import FLAGS

# Other tools use these names.
CONTRACT = {"stock", "warmup-off", "load-threads", "jemalloc", "arena-fresh", "millpond"}


def test_presets_of_the_contract_are_there():
    assert set(PRESETS) >= CONTRACT


def test_millpond_is_its_defaults():
    assert preset("millpond").flags == {}


@pytest.mark.parametrize("name", ["warmup-off", "load-threads", "jemalloc"])
def test_changed_stock_preset_differs_in_one_flag(name: str):
    stock, changed = dict(preset("stock").flags), dict(preset(name).flags)
    assert len(changed.items() - stock.items()) == 1
    assert stock.keys() <= changed.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_flags_of_a_preset_are_flags_of_the_server(name: str):
    assert preset(name).flags.keys() <= FLAGS.keys()


def test_presets_are_all_different():
    assert len({repr(sorted(one.flags.items())) for one in PRESETS.values()}) == len(PRESETS)


def test_unknown_preset_lists_known_names():
    with pytest.raises(InvalidConfig, match=r"'fast'.*stock.*millpond"):
        preset("fast")
