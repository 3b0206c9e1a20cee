"""The file of --model_config_file."""

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from serving.base.errors import InvalidConfig
from serving.base.protos import model_server_config_pb2
from serving.config.model_config_file import (
    decode_model_config,
    decode_reload_request,
    encode_model_config,
    read_model_config_file,
)
from serving.core.config_document import config_document, parse_config
from serving.core.model_config import ModelConfig, SettingsByModel
from serving.core.model_config_messages import encode_reload_request
from serving.core.request_logging import RequestLogging
from serving.core.version_selection import All, Latest, Specific


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models.config"


def one_model(fields: str) -> str:
    return f"model_config_list {{ config {{ {fields} }} }}"


def models_in(path: Path, text: str) -> tuple[ModelConfig, ...]:
    path.write_text(text)
    return read_model_config_file(path)


def test_config_file_keeps_order_and_policies(path: Path):
    text = """
    model_config_list {
      config {
        name: "b" base_path: "/models/b" model_platform: "tensorflow"
        model_version_policy { specific { versions: 7 versions: 3 } }
      }
      config { name: "a" base_path: "/models/a" model_version_policy { all {} } }
    }
    """
    assert models_in(path, text) == (
        ModelConfig(name="b", base_path="/models/b", version_selection=Specific(frozenset({3, 7}))),
        ModelConfig(name="a", base_path="/models/a", version_selection=All()),
    )


@pytest.mark.parametrize(
    ("policy", "version_selection"),
    [
        ("", Latest(1)),
        ("model_version_policy {}", Latest(1)),
        ("model_version_policy { latest {} }", Latest(1)),
        ("model_version_policy { latest { num_versions: 3 } }", Latest(3)),
        ("model_version_policy { specific {} }", Specific(frozenset())),
    ],
)
def test_config_file_policy_selects_versions(path: Path, policy: str, version_selection: Any):
    (model,) = models_in(path, one_model(f'name: "m" base_path: "/m" {policy}'))
    assert model.version_selection == version_selection


def test_config_file_accepts_deprecated_model_type(path: Path):
    (model,) = models_in(path, one_model('name: "m" base_path: "/m" model_type: TENSORFLOW'))
    assert model.platform == "tensorflow"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_config_list {", "Error parsing text-format tensorflow.serving.ModelServerConfig"),
        ("nonsense: 1", "nonsense"),
        ("custom_model_config {}", "custom_model_config is refused"),
        (one_model('base_path: "/m"'), "base_path '/m' has no name"),
        (one_model('name: "m"'), "base_path '' must be an absolute path"),
        (one_model('name: "m" base_path: "m"'), "base_path 'm' must be an absolute path"),
        (one_model('name: "m" base_path: "ftp://m"'), "the scheme 'ftp' is unknown"),
        (one_model('base_path: "s3://key:secret@b"'), "the model of base_path a URL has no name"),
        (one_model('name: "m" base_path: "/m" model_platform: "jax"'), "'jax' is refused"),
        (one_model('name: "m" base_path: "/m" model_type: OTHER'), "model_type OTHER is refused"),
        (
            one_model('name: "m" base_path: "/m" version_labels { value: 1 }'),
            "'m': a label of version 1 has no name",
        ),
        (
            one_model('name: "m" base_path: "/m" version_labels { key: "a" value: -1 }'),
            "'m': label 'a': -1 is not a version; give 0 or more",
        ),
        (
            one_model(
                'name: "m" base_path: "/m" version_labels: '
                '[{ key: "a" value: 1 }, { key: "a" value: 2 }]'
            ),
            "'m': duplicate label 'a', for versions 1 and 2",
        ),
        (
            one_model(
                'name: "m" base_path: "/m" version_labels { key: "a" value: 1 } '
                "model_version_policy { specific { versions: [2, 3] } }"
            ),
            r"label 'a' is of version 1, which model_version_policy \(specific 2, 3\) does not load",
        ),
        (
            one_model('name: "m" base_path: "/m" } config { name: "m" base_path: "/n"'),
            "duplicate model 'm'",
        ),
    ],
)
def test_config_file_bad_text_names_file_and_value(path: Path, text: str, message: str):
    with pytest.raises(InvalidConfig, match=message) as caught:
        models_in(path, text)
    assert caught.value.message.startswith(str(path))


@pytest.mark.parametrize("quoted", [b"/caf\xe9", b"/caf\\351", b"/caf\\xe9"])
def test_base_path_may_be_any_bytes(path: Path, quoted: bytes):
    text = b'# \xff is passed over in a comment\nmodel_config_list { config { name: "m\xc3\xa9" '
    path.write_bytes(text + b'base_path: "' + quoted + b'" } }')
    (model,) = read_model_config_file(path)
    assert model.name == "m\xe9"
    assert os.fsencode(model.base_path) == b"/caf\xe9"
    request = encode_reload_request(encode_model_config(path))
    assert decode_reload_request(request) == (model,)
    assert parse_config(config_document([model], SettingsByModel()))[0] == (model,)


def test_base_path_of_other_text_is_kept(path: Path):
    (model,) = models_in(path, one_model('name: "m" base_path: "/modèles/模型/\\303\\251"'))
    assert model.base_path == "/modèles/模型/é"


def test_base_path_with_a_nul_is_refused(path: Path):
    with pytest.raises(InvalidConfig, match="has a NUL"):
        models_in(path, one_model('name: "m" base_path: "/m\\000/x"'))


def test_name_that_is_not_text_is_refused(path: Path):
    path.write_bytes(one_model('name: "NAME" base_path: "/m"').encode().replace(b"NAME", b"\xff"))
    with pytest.raises(InvalidConfig, match="Error parsing text-format"):
        read_model_config_file(path)


@pytest.mark.parametrize("text", ["", "# nothing yet", "model_config_list {}"])
def test_config_file_may_have_no_model(path: Path, text: str):
    assert models_in(path, text) == ()


def logging_of(path: Path, fields: str) -> RequestLogging | None:
    """Reads the log of a model with these fields of a logging_config."""
    (model,) = models_in(
        path, one_model(f'name: "m" base_path: "/m" logging_config {{ {fields} }}')
    )
    return model.logging


def collector(fields: str, rate: float = 0.1) -> str:
    """Returns the fields of a logging_config that samples at this rate."""
    return f"sampling_config {{ sampling_rate: {rate} }} log_collector_config {{ {fields} }}"


@pytest.mark.parametrize("fields", ["", collector('type: "tfrecord"', rate=0)])
def test_logging_config_without_a_rate_is_off(path: Path, fields: str):
    assert logging_of(path, fields) is None


@pytest.mark.parametrize("file_type", ["", "tfrecord", "parquet"])
def test_logging_config_names_share_and_files(path: Path, file_type: str):
    fields = collector(f'type: "{file_type}" filename_prefix: "/logs/m"')
    assert logging_of(path, fields) == RequestLogging(
        sampling_rate=0.1, filename_prefix="/logs/m", file_type=file_type or "tfrecord"
    )
    models = read_model_config_file(path)
    assert parse_config(config_document(models, SettingsByModel()))[0] == models


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (collector('type: "kafka" filename_prefix: "/l/m"'), "type 'kafka' is unknown; known: tf"),
        (collector('type: "kafka"', rate=0), "type 'kafka' is unknown"),
        (collector('filename_prefix: "/l/m"', rate=1.5), "sampling_rate 1.5 is not a share"),
        (collector('filename_prefix: "/l/m"', rate=-0.1), "sampling_rate -0.1 is not a share"),
        (collector('filename_prefix: "/l/m"', rate=math.nan), "sampling_rate nan is not a share"),
        (collector(""), "filename_prefix '' is not the absolute path of a file"),
        (collector('filename_prefix: "logs/m"'), "is not the absolute path of a file"),
        (collector('filename_prefix: "/logs/"'), "is not the absolute path of a file"),
        (collector('filename_prefix: "/logs/.."'), "is not the absolute path of a file"),
        (collector('filename_prefix: "/l/a\\nb"'), "the control character"),
        (collector(f'filename_prefix: "/l/{"x" * 151}"'), "more than 150 bytes"),
        (collector('filename_prefix: "hf://org/repo/m"'), "takes a commit for each file"),
        ("sampling_config { attributes: 1 }", "attributes would have no effect"),
        (
            "sampling_config { per_task_sampling_configs { sampling_rate: 1 } }",
            "per_task_sampling_configs would have no effect",
        ),
    ],
)
def test_logging_config_that_cannot_be_is_refused(path: Path, fields: str, fault: str):
    with pytest.raises(InvalidConfig, match=re.escape(fault)) as refused:
        logging_of(path, fields)
    assert "model 'm': logging_config" in refused.value.message


def test_two_logs_of_one_prefix_are_refused(path: Path):
    logging = f"logging_config {{ {collector('filename_prefix: %s')} }}"
    models = "".join(
        f'config {{ name: "{name}" base_path: "/{name}" {logging % prefix} }}'
        for name, prefix in (("a", '"/logs/m"'), ("b", '"/logs//m"'))
    )
    path.write_text(f"model_config_list {{ {models} }}")
    with pytest.raises(InvalidConfig, match="model 'b': model 'a' logs to filename_prefix"):
        read_model_config_file(path)


def test_missing_config_file_is_refused(path: Path):
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_model_config_file(path)


def test_binary_config_file_is_refused(path: Path):
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="Error parsing text-format"):
        read_model_config_file(path)


def test_read_model_config_file_labels_are_versions(path: Path) -> None:
    labels = 'version_labels { key: "stable" value: 3 } version_labels { key: "next" value: 4 }'
    (model,) = models_in(path, one_model(f'name: "m" base_path: "/m" {labels}'))
    assert model.labels == {"stable": 3, "next": 4}


def test_decode_model_config_reads_client_bytes() -> None:
    config = model_server_config_pb2.ModelServerConfig()
    model = config.model_config_list.config.add(name="m", base_path="/m")
    model.version_labels["stable"] = 3
    model.model_version_policy.specific.versions.extend([3, 4])
    assert decode_model_config(config.SerializeToString(), "request") == (
        ModelConfig(
            name="m",
            base_path="/m",
            version_selection=Specific(frozenset({3, 4})),
            labels={"stable": 3},
        ),
    )


def test_decode_model_config_of_junk_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="request: not a ModelServerConfig"):
        decode_model_config(b"\xff", "request")
