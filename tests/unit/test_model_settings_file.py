import json
from pathlib import Path

import pytest

from serving.base.errors import InvalidConfig
from serving.config.model_settings_file import parse_model_settings, read_model_settings_file
from serving.core.model_config import SettingsByModel
from serving.core.model_settings import (
    BatchingChoice,
    BatchingSettings,
    CanarySettings,
    GateMode,
    GateSettings,
    ModelSettings,
    PolicyName,
)
from serving.core.settings_table import as_table, overridden

MODELS = ("ctr", "rank")


def settings_in(text: str) -> SettingsByModel:
    return parse_model_settings(text, "settings.toml", MODELS)


def test_empty_settings_are_defaults() -> None:
    assert settings_in("").of("ctr") == ModelSettings()


def test_quota_of_accelerator_may_be_larger_than_2_gb() -> None:
    found = settings_in("[models.ctr]\naccelerator_memory_bytes = 80_000_000_000")
    assert found.of("ctr").accelerator_memory_bytes == 80_000_000_000


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("[models.ctr.canary]\nweight = 0\nheader = 'x-user'", 0.0),
        ("[default.canary]\nheader = 'x-user'\n[models.ctr.canary]\nweight = 0.1", 0.1),
        ("[default.canary]\nweight = 0.2\n[models.ctr.canary]\nheader = 'x-user'", 0.2),
        ("[default.canary]\nweight = 0\nheader = 'x-user'", 0.0),
    ],
    ids=["off", "default_header", "default_weight", "default_off"],
)
def test_canary_settings_complete_default_ones(text: str, weight: float) -> None:
    assert settings_in(text).of("ctr").canary == CanarySettings(weight=weight, header="x-user")


def test_model_settings_override_default_by_key() -> None:
    settings = settings_in(
        """
        [default]
        keep_previous_seconds = 60
        max_in_flight_requests = 100
        [default.gates]
        signature = "enforce"
        latency_ratio_max = 2
        [models.ctr]
        aspired_version_policy = "auto"
        [models.ctr.gates]
        latency_ratio_max = 1.5
        [models.ctr.canary]
        weight = 0.05
        header = "user"
        request_count = 1000
        """
    )
    assert settings.of("ctr") == ModelSettings(
        aspired_version_policy=PolicyName.AUTO,
        keep_previous_seconds=60.0,
        max_in_flight_requests=100,
        canary=CanarySettings(weight=0.05, header="user", request_count=1000),
        gates=GateSettings(signature=GateMode.ENFORCE, latency_ratio_max=1.5),
    )
    assert settings.of("rank") == ModelSettings(
        keep_previous_seconds=60.0,
        max_in_flight_requests=100,
        gates=GateSettings(signature=GateMode.ENFORCE, latency_ratio_max=2.0),
    )


def test_batching_settings_complete_default_ones() -> None:
    settings = settings_in(
        """
        [default.batching]
        max_batch_size = 64
        max_batch_latency_ms = 2.5
        [models.ctr.batching]
        enabled = true
        splits_large_requests = false
        allowed_batch_sizes = [8, 64]
        pads_variable_length_inputs = true
        max_enqueued_batches = 3
        num_batch_threads = 2
        batch_relative_tolerance = 1e-4
        may_mix_rows = true
        """
    )
    assert settings.of("ctr").batching == BatchingSettings(
        enabled=BatchingChoice.ON,
        max_batch_size=64,
        max_batch_latency_ms=2.5,
        splits_large_requests=False,
        allowed_batch_sizes=(8, 64),
        pads_variable_length_inputs=True,
        max_enqueued_batches=3,
        num_batch_threads=2,
        batch_relative_tolerance=1e-4,
        may_mix_rows=True,
    )
    assert settings.of("rank").batching.enabled is BatchingChoice.AS_FLAG


@pytest.mark.parametrize(
    ("word", "choice"),
    [
        ("true", BatchingChoice.ON),
        ("false", BatchingChoice.OFF),
        ('"flag"', BatchingChoice.AS_FLAG),
    ],
)
def test_batching_of_a_model_may_be_turned_on_and_off(word: str, choice: BatchingChoice) -> None:
    settings = settings_in(f"[models.ctr.batching]\nenabled = {word}\nmax_batch_size = 4")
    assert settings.of("ctr").batching == BatchingSettings(enabled=choice, max_batch_size=4)


def test_comparison_of_batches_is_set_beside_a_flag() -> None:
    settings = settings_in(
        "[default.batching]\nbatch_relative_tolerance = 1e-3\n[models.ctr.batching]\nmay_mix_rows = true"
    )
    assert settings.of("rank").batching == BatchingSettings(batch_relative_tolerance=1e-3)
    assert settings.of("ctr").batching == BatchingSettings(
        batch_relative_tolerance=1e-3, may_mix_rows=True
    )


def test_whole_number_of_seconds_becomes_float() -> None:
    seconds = settings_in("[default]\nkeep_previous_seconds = 300").default.keep_previous_seconds
    assert (seconds, type(seconds)) == (300, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[default", "settings.toml: not valid TOML"),
        ("[defaults]", "settings.toml: 'defaults' is unknown; known: default, models"),
        ("models = 3", r"models: 3 is not a table; write \[models\]"),
        ("[models.cdr]", "models.cdr: no model 'cdr' is configured; configured: ctr, rank"),
        ("[models]\nctr = 1", "models.ctr: 1 is not a table"),
        (
            "[default]\nkeep = 1",
            "default: 'keep' is unknown; known: aspired_version_policy, keep_previous_seconds",
        ),
        ("[default]\ngates = 1", r"default.gates: 1 is not a table; write \[default.gates\]"),
        ("[models.ctr.gates]\nsignatur = 'off'", "models.ctr.gates: 'signatur' is unknown"),
        (
            "[models.ctr.gates]\nsignature = 'of'",
            'models.ctr.gates.signature: \'of\' is not known; give one of "off", "warn", "enforce"',
        ),
        ("[default.gates]\nsignature = true", "default.gates.signature: True is not known"),
        ("[default]\nkeep_previous_seconds = '5'", "keep_previous_seconds: '5' is not a number"),
        ("[default]\nkeep_previous_seconds = true", "keep_previous_seconds: True is not a number"),
        ("[default]\nkeep_previous_seconds = -1", "-1 is out of range; give from 0 to 1000000000"),
        ("[default]\nkeep_previous_seconds = nan", "nan is out of range"),
        ("[default.gates]\nlatency_ratio_max = inf", "inf is out of range; give 0 or more"),
        ("[default.gates]\ndrift_share_max = 1.5", "1.5 is out of range; give from 0 to 1"),
        ("[default.canary]\nrequest_count = 1.5", "request_count: 1.5 is not a whole number"),
        ("[default.canary]\nheader = 1", "header: 1 is not text"),
        (
            "[default.canary]\nheader = 'X-User'",
            "default.canary: canary header 'X-User' cannot be sent: gRPC metadata keys are lower",
        ),
        (
            "[models.ctr.canary]\nheader = 'x-user'",
            "models.ctr.canary: header without a weight: no version begins as a canary",
        ),
        (
            "[default.canary]\nheader = 'x-user'\nrequest_count = 9\n[models.ctr]",
            "default.canary: header, request_count without a weight: .* set a weight above 0",
        ),
        (
            "[default.canary]\nweight = 0\n[models.ctr.canary]\nheader = 'x-user'",
            "models.ctr.canary: header without a weight",
        ),
        ("[models.ctr.canary]\nweight = 1", "models.ctr.canary: canary weight 1 is not a share"),
        ("[default.batching]\nenabled = 1", '1 is not known; give one of "flag", true, false'),
        ("[default.batching]\nenabled = 'on'", "batching.enabled: 'on' is not known"),
        (
            "[models.ctr.batching]\nmax_batch_size = 8",
            "models.ctr.batching: max_batch_size without enabled: .* set enabled = true",
        ),
        (
            "[default.batching]\nmax_batch_size = 8\n[models.ctr]",
            "default.batching: max_batch_size without enabled",
        ),
        (
            "[default.batching]\nmay_mix_rows = true",
            r"may_mix_rows is for the models that you know; give it in \[models\.NAME\.batching\]",
        ),
        ("[default.batching]\nbatch_relative_tolerance = 2", "2 is out of range; give from 0 to 1"),
        ("[default.batching]\nsplits_large_requests = 1", "1 is not known; give true or false"),
        (
            "[default.batching]\nallowed_batch_sizes = 8",
            r"allowed_batch_sizes: 8 is not a list of whole numbers; write \[1, 2\]",
        ),
        ("[default.batching]\nallowed_batch_sizes = [1, true]", "is not a list of whole numbers"),
        ("[default.batching]\nmax_batch_size = 0", "max_batch_size 0 is not a number of rows"),
        (
            "[default.batching]\nmax_batch_latency_ms = -1",
            "-1 is out of range; give from 0 to 3600",
        ),
        (
            "[default.batching]\nenabled = true\nallowed_batch_sizes = [8, 64]",
            "default.batching: allowed_batch_sizes 8, 64 must end with max_batch_size, which is 1024",
        ),
    ],
)
def test_bad_settings_name_file_key_and_remedy(text: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message) as caught:
        settings_in(text)
    assert caught.value.message.startswith("settings.toml: ")


def test_missing_settings_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"nowhere\.toml: cannot be read"):
        read_model_settings_file(tmp_path / "nowhere.toml", MODELS)


def test_read_model_settings_file_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[models.ctr]\nkeep_previous_seconds = 5")
    settings = read_model_settings_file(path, MODELS)
    assert settings.of("ctr").keep_previous_seconds == 5
    assert settings.of("rank") == ModelSettings()


def test_as_table_survives_overriding() -> None:
    settings = ModelSettings(
        aspired_version_policy=PolicyName.RESOURCE,
        batching=BatchingSettings(
            enabled=BatchingChoice.ON, max_batch_size=4, allowed_batch_sizes=(1, 4)
        ),
        canary=CanarySettings(weight=0.5, header="user"),
        gates=GateSettings(drift=GateMode.OFF, shadow_request_count=7),
    )
    table = json.loads(json.dumps(as_table(settings)))
    assert overridden(ModelSettings(), table, "table") == settings
