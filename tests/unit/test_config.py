from pathlib import Path
from typing import Any

import pytest

from serving.config import ModelConfig, read_model_config_file, server_config
from serving.errors import InvalidConfig
from serving.flags import parse_flags
from serving.version_selection import All, Latest, Specific


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models.config"


def one_model(fields: str) -> str:
    return f"model_config_list {{ config {{ {fields} }} }}"


def models_in(path: Path, text: str) -> tuple[ModelConfig, ...]:
    path.write_text(text)
    return read_model_config_file(path)


def test_read_model_config_file_of_two_models_keeps_order_and_policies(path: Path):
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
def test_read_model_config_file_policy_gives_version_selection(
    path: Path, policy: str, version_selection: Any
):
    (model,) = models_in(path, one_model(f'name: "m" base_path: "/m" {policy}'))
    assert model.version_selection == version_selection


def test_read_model_config_file_deprecated_model_type_is_taken(path: Path):
    (model,) = models_in(path, one_model('name: "m" base_path: "/m" model_type: TENSORFLOW'))
    assert model.platform == "tensorflow"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no model in it"),
        ("model_config_list {}", "no model in it"),
        ("model_config_list {", "no text protobuf of ModelServerConfig"),
        ("nonsense: 1", "nonsense"),
        ("custom_model_config {}", "custom_model_config is refused"),
        (one_model('base_path: "/m"'), "base_path '/m' has no name"),
        (one_model('name: "m"'), "base_path '' must be an absolute path"),
        (one_model('name: "m" base_path: "m"'), "base_path 'm' must be an absolute path"),
        (one_model('name: "m" base_path: "gs://m"'), "'gs://m' must be an absolute path"),
        (one_model('name: "m" base_path: "/m" model_platform: "jax"'), "'jax' is refused"),
        (one_model('name: "m" base_path: "/m" model_type: OTHER'), "model_type OTHER is refused"),
        (
            one_model('name: "m" base_path: "/m" version_labels { key: "a" value: 1 }'),
            "version_labels is refused",
        ),
        (one_model('name: "m" base_path: "/m" logging_config {}'), "logging_config is refused"),
        (
            one_model('name: "m" base_path: "/m" } config { name: "m" base_path: "/n"'),
            "'m' is there twice",
        ),
    ],
)
def test_read_model_config_file_bad_text_is_refused_with_file_and_value(
    path: Path, text: str, message: str
):
    with pytest.raises(InvalidConfig, match=message) as caught:
        models_in(path, text)
    assert caught.value.message.startswith(str(path))


def test_read_model_config_file_missing_file_is_refused(path: Path):
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_model_config_file(path)


def test_read_model_config_file_that_is_no_text_is_refused(path: Path):
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_model_config_file(path)


def test_server_config_of_base_path_serves_one_model():
    config = server_config(parse_flags(["--model_base_path=/m"]))
    assert config.models == (ModelConfig(name="default", base_path="/m"),)


def test_server_config_carries_every_flag():
    config = server_config(
        parse_flags(
            [
                *("--model_base_path=/m", "--model_name=n", "--host=::1", "--port=0"),
                *("--grpc_socket_path=/s", "--grpc_channel_arguments=a=1"),
                *("--grpc_completion_queue_count=3", "--grpc_max_message_bytes=9"),
                *("--file_system_poll_wait_seconds=2", "--num_load_threads=4"),
                *("--num_unload_threads=5", "--max_num_load_retries=6"),
                *("--load_retry_interval_micros=7", "--enable_model_warmup=false"),
                *("--num_request_iterations_for_warmup=8", "--saved_model_tags=x"),
                *("--tensorflow_intra_op_parallelism=1", "--tensorflow_inter_op_parallelism=2"),
                "--drain_seconds=0.5",
            ]
        )
    )
    assert config.models == (ModelConfig(name="n", base_path="/m"),)
    assert (config.host, config.port, config.grpc_socket_path) == ("::1", 0, "/s")
    assert config.grpc_channel_arguments == {"a": 1}
    assert (config.completion_queue_count, config.max_message_bytes) == (3, 9)
    assert config.file_system_poll_wait_seconds == 2
    assert (config.num_load_threads, config.num_unload_threads) == (4, 5)
    assert (config.max_num_load_retries, config.load_retry_interval_micros) == (6, 7)
    assert (config.enable_model_warmup, config.num_request_iterations_for_warmup) == (False, 8)
    assert config.saved_model_tags == ("x",)
    assert config.tensorflow_intra_op_parallelism == 1
    assert config.tensorflow_inter_op_parallelism == 2
    assert config.drain_seconds == 0.5


def test_server_config_of_file_reads_its_models(path: Path):
    path.write_text(one_model('name: "m" base_path: "/m"'))
    config = server_config(parse_flags([f"--model_config_file={path}"]))
    assert config.models == (ModelConfig(name="m", base_path="/m"),)


@pytest.mark.parametrize(
    "arguments", [[], ["--model_base_path=/m", "--model_config_file=/f"], ["--model_name=m"]]
)
def test_server_config_needs_exactly_one_of_base_path_and_file(arguments: list[str]):
    with pytest.raises(InvalidConfig, match="--model_base_path and --model_config_file"):
        server_config(parse_flags(arguments))


def test_server_config_model_name_beside_file_is_refused():
    with pytest.raises(InvalidConfig, match="--model_name belongs to --model_base_path"):
        server_config(parse_flags(["--model_config_file=/f", "--model_name=m"]))


def test_server_config_session_parallelism_fills_what_is_not_given():
    flags = parse_flags(
        [
            "--model_base_path=/m",
            "--tensorflow_session_parallelism=4",
            "--tensorflow_intra_op_parallelism=2",
        ]
    )
    config = server_config(flags)
    assert config.tensorflow_intra_op_parallelism == 2
    assert config.tensorflow_inter_op_parallelism == 4


def test_server_config_three_parallelism_flags_are_refused():
    flags = parse_flags(
        [
            "--model_base_path=/m",
            "--tensorflow_session_parallelism=4",
            "--tensorflow_intra_op_parallelism=2",
            "--tensorflow_inter_op_parallelism=2",
        ]
    )
    with pytest.raises(InvalidConfig, match="--tensorflow_session_parallelism"):
        server_config(flags)
