from collections.abc import Mapping
from typing import Any

import pytest

from serving.commands.config import plan_warnings
from serving.config.plan import plan_change
from serving.core.label_targets import (
    NOT_FOUND,
    NOT_SELECTED,
    REMEDIES,
    ROLLED_BACK,
    AbsentTarget,
    KnownVersions,
    absent_targets,
)
from serving.core.model_config import ModelConfig
from serving.core.version_selection import All, Latest, Specific, VersionSelection

# Version 5 is selected, 6 is being copied, 3 was rolled back, and label `kept` leads to 1.
KNOWN = KnownVersions(
    found=[1, 2, 3, 5], selected=[5], unfinished=[6], blocked=[3], in_effect={"kept": 1}
)


@pytest.mark.parametrize(
    ("label", "version", "reason"),
    [
        ("stable", 5, None),
        ("stable", 6, None),
        ("kept", 1, None),
        ("stable", 1, NOT_SELECTED),
        ("kept", 2, NOT_SELECTED),
        ("stable", 3, ROLLED_BACK),
        ("stable", 7, NOT_FOUND),
    ],
)
def test_absent_targets_neither_serve_nor_load(
    label: str, version: int, reason: str | None
) -> None:
    expected = [AbsentTarget(label, version, reason)] if reason else []
    assert list(absent_targets({label: version}, KNOWN)) == expected


def test_absent_targets_each_have_a_remedy() -> None:
    labels = {"a": 7, "b": 1, "c": 3}
    targets = list(absent_targets(labels, KNOWN))
    assert [target.remedy for target in targets] == list(REMEDIES.values())


# --- In the output of `millpond config plan` ------------------------------------------------------

M = ModelConfig(name="m", base_path="/m")


def described(**model: object) -> Mapping[str, Mapping[str, Any]]:
    return {"m": {"found_versions": [1, 2], "labels": {}, "notes": [], **model}}


@pytest.mark.parametrize(
    ("selection", "label_version", "model", "reason"),
    [
        (Latest(1), 2, {}, None),
        (Latest(1), 3, {}, NOT_FOUND),
        (Latest(1), 1, {}, NOT_SELECTED),
        (Latest(1), 1, {"labels": {"stable": 1}}, None),
        # The same change adds the version.
        (All(), 1, {}, None),
        (Specific(frozenset({1})), 1, {}, None),
        (Specific(frozenset({3})), 3, {}, NOT_FOUND),
        (Latest(1), 3, {"notes": [{"event": "version_settling", "version": "3"}]}, None),
        (Latest(1), 3, {"notes": [{"event": "duplicate_version_ignored"}]}, NOT_FOUND),
        (Latest(1), 2, {"blocked": [2]}, ROLLED_BACK),
    ],
)
def test_plan_warns_of_labels_on_absent_versions(
    selection: VersionSelection, label_version: int, model: Mapping[str, Any], reason: str | None
) -> None:
    after = ModelConfig(
        name="m", base_path="/m", version_selection=selection, labels={"stable": label_version}
    )
    warnings = list(plan_warnings(plan_change([M], [after]), described(**model)))
    start = f"! model m: label stable waits for version {label_version}: {reason}; "
    assert [warning.startswith(start) for warning in warnings] == ([True] if reason else [])


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        ([], [ModelConfig(name="m", base_path="/m", labels={"stable": 9})]),
        ([M], [ModelConfig(name="m", base_path="/elsewhere", labels={"stable": 9})]),
        (
            [ModelConfig(name="m", base_path="/m", labels={"stable": 9})],
            [ModelConfig(name="m", base_path="/m", labels={"stable": 9})],
        ),
    ],
    ids=["added", "moved", "unchanged"],
)
def test_label_warnings_are_not_guessed(
    present: list[ModelConfig], wanted: list[ModelConfig]
) -> None:
    assert list(plan_warnings(plan_change(present, wanted), described())) == []
