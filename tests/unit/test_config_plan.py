import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import InvalidConfig
from serving.config.plan import ConfigPlan, ModelChange, applied, plan_change
from serving.core.model_config import ModelConfig
from serving.core.model_settings import CanarySettings, GateMode, GateSettings, ModelSettings
from serving.core.request_logging import RequestLogging
from serving.core.version_selection import Specific
from tests.unit.worlds.reload import CONFIGS

X = ModelConfig(name="x", base_path="/x")
Y = ModelConfig(name="y", base_path="/y")
Z = ModelConfig(name="z", base_path="/z")


def test_plan_change_sorts_models_by_outcome() -> None:
    moved = replace(Y, base_path="/elsewhere")
    unchanged = ModelConfig(name="u", base_path="/u")
    assert plan_change([Y, Z, unchanged], [unchanged, X, moved]) == ConfigPlan(
        added=(X,), removed=(Z,), changed=(ModelChange(Y, moved),), unchanged=(unchanged,)
    )


def test_plan_lines_list_changes() -> None:
    before = replace(Y, labels={"stable": 3, "old": 1})
    after = replace(
        Y,
        base_path="/elsewhere",
        version_selection=Specific(frozenset({3, 4})),
        labels={"stable": 4, "next": 4},
        logging=RequestLogging(sampling_rate=0.1, filename_prefix="/logs/y"),
        settings=ModelSettings(gates=GateSettings(signature=GateMode.WARN)),
    )
    new = replace(
        X,
        labels={"stable": 1},
        logging=RequestLogging(sampling_rate=1, filename_prefix="/logs/x"),
        settings=ModelSettings(canary=CanarySettings(weight=0.05)),
    )
    assert plan_change([before, Z], [new, after]).lines() == (
        "+ model x: /x, versions latest 1, labels stable 1, request log 1 to /logs/x (tfrecord), "
        "settings canary.weight 0.05",
        "~ model y: base_path /y -> /elsewhere",
        "~ model y: versions latest 1 -> specific 3, 4",
        "~ model y: labels next - -> 4",
        "~ model y: labels old 1 -> -",
        "~ model y: labels stable 3 -> 4",
        "~ model y: request log off -> 0.1 to /logs/y (tfrecord)",
        "~ model y: settings gates.signature enforce -> warn",
        "- model z",
    )


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([X, Y, X], "duplicate model 'x'; give each model its own name"),
        ([replace(X, base_path="models/x")], "base_path 'models/x' must be an absolute path"),
        ([replace(X, base_path="s3://key:secret@b/x")], "give credentials by the environment"),
        ([replace(X, platform="jax")], "model 'x': model_platform 'jax': it is served as"),
        (
            [replace(X, labels={"a": 1}, version_selection=Specific(frozenset({2})))],
            "label 'a' is of version 1, which model_version_policy .specific 2. does not load",
        ),
        ([replace(X, labels={"a": -1})], "label 'a': -1 is not a version"),
    ],
)
def test_plan_change_that_cannot_be_is_refused(wanted: list[ModelConfig], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        plan_change([X], wanted)


# --- Any two configurations -----------------------------------------------------------------------


@given(CONFIGS, CONFIGS)
def test_applied_plan_yields_target_models(
    present: list[ModelConfig], wanted: list[ModelConfig]
) -> None:
    after = applied(present, plan_change(present, wanted))
    assert {model.name: model for model in after} == {model.name: model for model in wanted}
    assert len(after) == len(wanted)


@given(CONFIGS, st.randoms(use_true_random=False))
def test_plan_change_ignores_order_of_models(
    models: list[ModelConfig], shuffler: random.Random
) -> None:
    shuffled = list(models)
    shuffler.shuffle(shuffled)
    plan = plan_change(models, shuffled)
    assert plan.is_empty
    assert plan.lines() == ()


@given(CONFIGS, CONFIGS)
def test_plan_text_has_line_per_touched_model(
    present: list[ModelConfig], wanted: list[ModelConfig]
) -> None:
    plan = plan_change(present, wanted)
    touched = {model.name for model in (*plan.added, *plan.removed)}
    touched |= {change.after.name for change in plan.changed}
    assert {line.split()[2].rstrip(":") for line in plan.lines()} == touched
