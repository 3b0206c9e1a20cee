"""docs/migrating.md states the treatment of every flag of TensorFlow Serving."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from serving.base.errors import InvalidConfig
from serving.config.flags import FLAGS, Flag, RefusedFlag, parse_flags
from serving.config.tensorflow_serving_flags import TENSORFLOW_SERVING_FLAGS
from serving.http.app import BODY_BYTES_MAX
from serving.rest.asgi import MODEL_VERSION_HEADER
from tests.unit.tensorflow_serving_flags import NAMES_IN_HELP

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
ROW = re.compile(r"\| `(?P<name>\w+)` \| (?P<default>[^|]*) \| (?P<verdict>[^|]+) \|")


class Row(NamedTuple):
    name: str
    default: str
    verdict: str


ROWS = [
    Row(*(cell.strip() for cell in found.groups()))
    for found in map(ROW.fullmatch, PAGE.read_text().splitlines())
    if found is not None
]


def spelled(value: Any) -> str:
    """Returns a flag's value as the table has it."""
    if value == "":
        return "empty"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value:g}`"


def verdict_of(flag: RefusedFlag) -> str:
    """Returns the text that the table must have."""
    instead = " and ".join(f"`{name}`" for name in flag.replaced_by)
    taken = ", ".join(spelled(value) for value in flag.harmless)
    return (
        (f"replaced by {instead}" if instead else "refused")
        + f": {flag.reason}"
        + (f"; {taken} is taken" if taken else "")
    )


def test_migrating_page_lists_48_flags_in_help_order():
    assert [row.name for row in ROWS] == [flag.name for flag in TENSORFLOW_SERVING_FLAGS]
    assert sorted(row.name for row in ROWS) == sorted(NAMES_IN_HELP)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_migrating_page_states_treatment_of_flag(row: Row):
    flag = FLAGS[row.name]
    if isinstance(flag, RefusedFlag):
        assert row.verdict == verdict_of(flag)
    else:
        assert re.match(r"taken($|[,;:] \S)", row.verdict)


def default_here(row: Row) -> str:
    """Returns the default that the row promises for Millpond, as the table spells it."""
    own = re.match(r"taken, default (`[^`]+`)", row.verdict)
    if own is not None:
        assert own[1] != row.default
    return own[1] if own is not None else row.default


def default_of(flag: Flag) -> str:
    """Returns the default of the parser, as the table spells it."""
    value = flag.default[0] if isinstance(flag.default, tuple) else flag.default
    if flag.name == "model_name":
        value = value or "default"  # server_config's name for an unnamed model
    return "" if value in ("", {}) else spelled(value) if isinstance(value, float) else f"`{value}`"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_migrating_page_and_parser_have_same_default(row: Row):
    flag = FLAGS[row.name]
    if isinstance(flag, RefusedFlag):
        assert (row.default or "empty") in map(spelled, flag.harmless)
    elif row.default.endswith(" a core"):
        # The value is only known at the start: 0 stands for it.
        assert default_of(flag) == "`0`"
        assert "0: " in flag.help
        assert flag.help.endswith("per core")
    else:
        assert default_of(flag).lower() == default_here(row)


def test_migrating_page_agrees_with_rest_limits():
    page = PAGE.read_text()
    assert f"above {BODY_BYTES_MAX // 2**20} MiB (`--max_request_bytes`) is refused" in page
    assert f"`{MODEL_VERSION_HEADER}`" in page


@pytest.mark.parametrize("flag", re.findall(r"--(\w+)(?![\w-])", PAGE.read_text()))
def test_migrating_page_names_existing_flags(flag: str):
    assert flag in {*FLAGS, "help"}


# The flags for which TensorFlow Serving's default enables a feature that Millpond lacks.
DEFAULTS_REFUSED = {
    "enable_grpc_healthcheck_service": "cannot be switched off",
    "model_base_path": "must not be empty",
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_spelled_out_tensorflow_serving_default_starts(row: Row):
    default = "4" if row.default.endswith("a core") else row.default.strip("`")
    arguments = [f"--{row.name}={default}"]
    if row.name in DEFAULTS_REFUSED:
        with pytest.raises(InvalidConfig, match=DEFAULTS_REFUSED[row.name]):
            parse_flags(arguments)
    else:
        parse_flags(arguments)
