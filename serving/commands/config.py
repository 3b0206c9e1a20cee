"""`millpond config`: prints what a config file would change on a running server, or applies it."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.base.errors import InvalidConfig
from serving.base.name_text import printable
from serving.client import Client
from serving.commands.connection import add_connection, connect
from serving.config.model_config_file import (
    decode_model_config,
    encode_model_config,
    read_model_config_file,
)
from serving.config.model_settings_file import read_model_settings_file
from serving.config.plan import ConfigPlan, plan_change
from serving.core.label_targets import KnownVersions, absent_targets
from serving.core.model_config import ModelConfig
from serving.core.version_selection import select_unblocked
from serving.rpc.config_service import RELOAD_TIMEOUT_SECONDS

# Longer than the server itself waits, so that the server can report which model was not loaded in time.
_APPLY_TIMEOUT_SECONDS = RELOAD_TIMEOUT_SECONDS + 10


def run(arguments: Sequence[str]) -> int:
    """Prints the changes, one on each line. The action `apply` also changes the server. Raises MillpondError."""
    parsed = make_parser().parse_args(arguments)
    try:
        return _plan(parsed) if parsed.action == "plan" else _apply(parsed)
    except InvalidConfig as error:
        # The status is 1 and not 2, because the content of FILE is wrong, and not the usage of the command.
        print(f"millpond config {parsed.action}: {error}", file=sys.stderr)
        return 1


def _plan(parsed: argparse.Namespace) -> int:
    with connect(parsed) as client:
        plan = _planned(client, parsed.file, parsed.settings)
        _print(plan, plan_warnings(plan, client.describe_models()))
    return 0


def _apply(parsed: argparse.Namespace) -> int:
    with connect(parsed) as client:
        plan = _planned(client, parsed.file, None)
        warnings = tuple(plan_warnings(plan, client.describe_models()))
        client.reload_config(
            encode_model_config(parsed.file), timeout_seconds=_APPLY_TIMEOUT_SECONDS
        )
    _print(plan, warnings)
    return 0


def _planned(client: Client, file: Path, settings_file: Path | None) -> ConfigPlan:
    read_model_config_file(file)
    # The file is also read as the server reads it. The server refuses a file without a list of models, because
    # such a file may be empty by mistake.
    models = decode_model_config(encode_model_config(file), str(file))
    present, settings = client.config()
    if settings_file is not None:
        settings = read_model_settings_file(settings_file, [model.name for model in models])
    wanted = [replace(model, settings=settings.of(model.name)) for model in models]
    return plan_change(present, wanted)


def plan_warnings(plan: ConfigPlan, described: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields a warning for each changed label whose version cannot come.

    `described` comes from `Client.describe_models`. A model that is added, or gets another base path, has no
    warnings about labels, because the server has not looked for its versions yet. The server reports such
    labels later, in its log and in its status.
    """
    for change in plan.changed:
        model = described.get(change.after.name)
        is_of_versions = change.is_of_labels or change.is_of_selection
        if change.is_of_base_path or not is_of_versions or model is None:
            continue
        for target in absent_targets(change.after.labels, _known_versions(change.after, model)):
            yield (
                f"! model {change.after.name}: label {target.label} waits for version "
                f"{target.version}: {target.reason}; {target.remedy}"
            )


def _known_versions(after: ModelConfig, model: Mapping[str, Any]) -> KnownVersions:
    found, blocked = model.get("found_versions", ()), model.get("blocked", ())
    notes = model.get("notes", ())
    copied = [note for note in notes if note["event"] in ("version_settling", "version_incomplete")]
    return KnownVersions(
        found=found,
        selected=select_unblocked(after.version_selection, found, blocked).versions,
        unfinished=[int(note["version"]) for note in copied],
        blocked=blocked,
        in_effect=model.get("labels", {}),
    )


def _print(plan: ConfigPlan, warnings: Iterable[str]) -> None:
    for line in (*(plan.lines() or ("no changes",)), *warnings):
        print(printable(line))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="millpond config",
        description="Compare FILE, a text ModelServerConfig, with what a server serves.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="plan|apply")
    plan = actions.add_parser(
        "plan", help="print what FILE would change, and change nothing", allow_abbrev=False
    )
    apply = actions.add_parser(
        "apply",
        help="apply FILE as a whole or not at all, and wait for new models",
        allow_abbrev=False,
    )
    plan.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="TOML file with the models' settings, to compare them as well",
    )
    for action in (plan, apply):
        action.add_argument("file", type=Path, metavar="FILE")
        add_connection(action)
    return parser
