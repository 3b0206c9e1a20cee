"""The settings of the load tests, as they are in the environment."""

import pytest

from serving.base.errors import InvalidConfig
from serving.config.lab_settings import LAB_VARIABLE, NO_LAB, LabSettings, lab_settings


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", LabSettings()),
        ("tensorflow_runtime=millpond", LabSettings()),
        ("tensorflow_runtime=stock", LabSettings(is_stock=True)),
        (
            "tensorflow_load_pool=true tensorflow_runtime=stock load_patience_seconds=0",
            LabSettings(is_stock=True, has_load_pool=True, load_patience_seconds=0),
        ),
    ],
)
def test_lab_settings_are_read_from_one_variable(text: str, settings: LabSettings) -> None:
    assert lab_settings({LAB_VARIABLE: text}) == settings


def test_lab_settings_without_variable_are_defaults() -> None:
    assert lab_settings({}) == NO_LAB


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runtime=stock", "'runtime=stock' is not a setting of the load tests; unset the variable"),
        ("tensorflow_runtime=other", "tensorflow_runtime=other"),
        ("tensorflow_runtime", "'tensorflow_runtime'"),
        ("load_patience_seconds=long", "load_patience_seconds=long"),
        ("tensorflow_load_pool=true", "belongs to tensorflow_runtime=stock"),
    ],
)
def test_lab_settings_that_are_wrong_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        lab_settings({LAB_VARIABLE: text})
