"""docs/rollout.md has every key of the model settings file, its default and its words."""

import json
import re
from dataclasses import fields
from enum import Enum
from pathlib import Path

import pytest

from serving.config.model_settings_file import parse_model_settings
from serving.core.model_settings import (
    BatchingChoice,
    BatchingSettings,
    CanarySettings,
    GateMode,
    GateSettings,
    ModelSettings,
    PolicyName,
    RequestLogSettings,
)

PAGE = (Path(__file__).parents[2] / "docs" / "rollout.md").read_text()
KINDS = {
    "Of a model": ModelSettings,
    "Keys of batching": BatchingSettings,
    "Keys of canary": CanarySettings,
    "Keys of request_log": RequestLogSettings,
    "Keys of gates": GateSettings,
}
TABLES = {
    "Of a model": "",
    "Keys of batching": ".batching",
    "Keys of canary": ".canary",
    "Keys of request_log": ".request_log",
    "Keys of gates": ".gates",
}
ROW = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| \S.* \|$", re.MULTILINE)


def section(title: str) -> str:
    _, _, rest = PAGE.partition(f"\n### {title}\n")
    return rest.partition("\n### ")[0]


def spelled(value: object) -> str:
    """Returns a value in TOML."""
    if isinstance(value, Enum):
        return spelled(value.value)
    if isinstance(value, (bool, str, tuple)):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    return f"{value:g}"


@pytest.mark.parametrize("title", KINDS)
def test_settings_page_has_every_key_with_default(title: str):
    values = KINDS[title]()
    expected = {
        item.name: spelled(getattr(values, item.name))
        for item in fields(values)
        if item.name not in ("batching", "canary", "gates", "request_log")
    }
    assert dict(ROW.findall(section(title))) == expected


@pytest.mark.parametrize("title", KINDS)
def test_settings_page_defaults_change_nothing(title: str):
    lines = [f"{key} = {value}" for key, value in ROW.findall(section(title))]
    # Ratios and seconds are floats; whole numbers stand for them.
    text = "\n".join([f"[default{TABLES[title]}]", *lines])
    assert parse_model_settings(text, "page", []).default == ModelSettings()


@pytest.mark.parametrize("words", [GateMode, PolicyName, BatchingChoice])
def test_model_settings_page_has_every_word(words: type[Enum]):
    assert [word.value for word in words if f"`{spelled(word)}`" not in PAGE] == []


def test_model_settings_page_example_is_one():
    (example,) = re.findall(r"```toml\n(\[default\].*?)```", PAGE, re.DOTALL)
    settings = parse_model_settings(example, "page", ["ctr"])
    assert settings.of("ctr").canary.weight == 0.05
    assert settings.of("other").keep_previous_seconds == 300
