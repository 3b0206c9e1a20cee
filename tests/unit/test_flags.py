import re

import pytest

from serving.base.errors import TRANSIENT_CODES, InvalidConfig
from serving.config.flags import FLAGS, Flag, RefusedFlag, help_text, parse_flags
from serving.config.millpond_flags import GONE_FLAGS
from serving.config.server_config import HttpPort
from tests.unit.tensorflow_serving_flags import NAMES_IN_HELP

REFUSED = [flag.name for flag in FLAGS.values() if isinstance(flag, RefusedFlag)]
TAKEN = [flag.name for flag in FLAGS.values() if isinstance(flag, Flag)]


def test_flags_table_covers_tensorflow_serving():
    assert len(NAMES_IN_HELP) == 48
    assert set(NAMES_IN_HELP) <= set(FLAGS)


# The defaults of TensorFlow Serving, as accepted in spelled-out form.
DEFAULTS_OF_REFUSED_FLAGS = [
    "--tensorflow_session_config_file=",
    *("--use_alts_credentials=0", "--platform_config_file", ""),
    *("--per_process_gpu_memory_fraction=0.000000", "--prefer_tflite_model=false"),
    *("--remove_unused_fields_from_bundle_metagraph", "--xla_cpu_compilation_enabled=false"),
    *("--xla_gpu_compilation_enabled=false", "--thread_pool_factory_config_file="),
    *("--mixed_precision=",),
]


@pytest.mark.parametrize("name", REFUSED)
def test_parse_flags_refuses_flag_with_reason(name: str):
    # No refused flag accepts this value as harmless.
    with pytest.raises(InvalidConfig, match=f"--{name} is refused: .{{10,}}"):
        parse_flags([f"--{name}=unheard-of"])


def test_parse_flags_refused_flag_may_restate_default():
    assert parse_flags([*DEFAULTS_OF_REFUSED_FLAGS, "--port=1"]) == parse_flags(["--port=1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--platform_config_file", "/c"], "--platform_config_file is refused"),
        (["--prefer_tflite_model"], "is refused: Millpond serves SavedModels only"),
        (["--remove_unused_fields_from_bundle_metagraph=false"], "is refused: Millpond keeps"),
        (["--per_process_gpu_memory_fraction=0.5"], "; give --accelerator=cuda"),
        (["--mixed_precision=bfloat16"], "--mixed_precision is refused"),
        (
            ["--tensorflow_session_config_file=/c"],
            "is refused: use --tensorflow_intra_op_parallelism and "
            "--tensorflow_inter_op_parallelism; Millpond sets the rest",
        ),
    ],
)
def test_parse_flags_refused_flag_may_not_differ(arguments: list[str], message: str):
    with pytest.raises(InvalidConfig, match=message):
        parse_flags(arguments)


@pytest.mark.parametrize("flag", [flag for flag in FLAGS.values() if isinstance(flag, RefusedFlag)])
def test_refused_flag_names_accepted_replacement(flag: RefusedFlag):
    assert set(flag.replaced_by) <= set(TAKEN)


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--port=0"], "port", 0),
        (["--port", "9000"], "port", 9000),
        (["--port=1", "--port=2"], "port", 2),
        (["--rest_api_port=8600"], "rest_api_port", HttpPort(8600)),
        (["--rest_api_port=8501"], "rest_api_port", HttpPort(8501)),
        (["--rest_api_port=auto"], "rest_api_port", HttpPort(0)),
        (["--otlp_endpoint=http://c:4318"], "otlp_endpoint", "http://c:4318"),
        (["--otlp_endpoint=https://c/otlp/v1"], "otlp_endpoint", "https://c/otlp/v1"),
        (["--otlp_endpoint="], "otlp_endpoint", ""),
        (["--slow_request_log_seconds=0.02"], "slow_request_log_seconds", 0.02),
        (["--rest_api_port=0"], "rest_api_port", HttpPort(None)),
        ([], "rest_api_port", HttpPort(8501, is_required=False)),
        (["--rest_api_enable_cors_support"], "rest_api_enable_cors_support", True),
        (["--enable_batching"], "enable_batching", True),
        (["--batching_parameters_file=/b"], "batching_parameters_file", "/b"),
        (["--enable_model_warmup"], "enable_model_warmup", True),
        (["--enable_model_warmup=false"], "enable_model_warmup", False),
        (["--enable_model_warmup=TRUE"], "enable_model_warmup", True),
        (["--enable_model_warmup=0"], "enable_model_warmup", False),
        (["--enable_grpc_healthcheck_service"], "enable_grpc_healthcheck_service", True),
        (["--version"], "version", True),
        (["--model_name=a=b"], "model_name", "a=b"),
        (["--model_base_path=/m"], "model_base_path", "/m"),
        (["--file_system_poll_wait_seconds=0.25"], "file_system_poll_wait_seconds", 0.25),
        (["--file_system_poll_wait_seconds", "-1"], "file_system_poll_wait_seconds", -1),
        (["--load_retry_interval_micros=-1"], "load_retry_interval_micros", -1),
        (["--file_system_poll_wait_seconds=1e9"], "file_system_poll_wait_seconds", 1e9),
        (["--drain_seconds=86400"], "drain_seconds", 86400),
        (["--load_retry_interval_micros=1000000000000000"], "load_retry_interval_micros", 10**15),
        (
            ["--grpc_channel_arguments=grpc.a=2147483647,grpc.b=-2147483648"],
            "grpc_channel_arguments",
            {"grpc.a": 2**31 - 1, "grpc.b": -(2**31)},
        ),
        (["--saved_model_tags=serve,gpu"], "saved_model_tags", ("serve", "gpu")),
        (
            ["--grpc_channel_arguments=grpc.a=1,grpc.b=x=y,grpc.c="],
            "grpc_channel_arguments",
            {"grpc.a": 1, "grpc.b": "x=y", "grpc.c": ""},
        ),
        (["--grpc_channel_arguments="], "grpc_channel_arguments", {}),
        (["--allocator=glibc"], "allocator", "glibc"),
        (["--host=[::1]"], "host", "::1"),
        (["--host=::1"], "host", "::1"),
        (["--log_format=json"], "log_format", "json"),
        (["--model_config_file="], "model_config_file", ""),
        (["--flush_filesystem_caches=true"], "flush_filesystem_caches", True),
        (["--num_tflite_pools=4"], "num_tflite_pools", 4),
        (["--skip_initialize_tpu"], "skip_initialize_tpu", True),
        (["--monitoring_config_file=/m.txt"], "monitoring_config_file", "/m.txt"),
        (["--op_package=a", "--op_package", "b"], "op_package", ("a", "b")),
        (["--op_library=/a.so"], "op_library", ("/a.so",)),
        ([], "op_library", ()),
    ],
)
def test_parse_flags_spelling_gives_value(arguments: list[str], name: str, value: object):
    assert parse_flags(arguments)[name] == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port=65536"], "--port=65536: must be between 0 and 65535"),
        (["--port=x"], "--port=x: must be a whole number"),
        (["--rest_api_port=x"], "--rest_api_port=x: must be a whole number"),
        (["--otlp_endpoint=c:4317"], "must be a URL like http://collector:4318"),
        (["--otlp_endpoint=grpc://c"], "must be a URL like http://collector:4318"),
        (["--otlp_endpoint=http://"], "must be a URL like http://collector:4318"),
        (["--slow_request_log_seconds=-1"], "must not be negative"),
        (["--rest_api_port=65536"], "must be between 0 and 65535"),
        (["--rest_api_timeout_in_ms=0"], "must be between 1 and"),
        (["--port"], "--port needs a value"),
        (["--port", "--host=a"], "--port needs a value"),
        (["--port="], "--port=: must be a whole number"),
        (["--host=[]"], "must not be empty"),
        (["--enable_model_warmup=yes"], "must be true or false"),
        (["--enable_grpc_healthcheck_service=false"], "cannot be switched off"),
        (["--grpc_channel_arguments=a=1,b"], "'b' is not name=value"),
        (["--grpc_channel_arguments==1"], "'=1' is not name=value"),
        (["--saved_model_tags=serve,"], "without empty"),
        (["--saved_model_tags="], "without empty"),
        (["--model_cache_directory=gs://bucket/m"], "must be a local path"),
        (["--model_base_path="], "must not be empty"),
        (["--drain_seconds=-1"], "must not be negative"),
        (["--drain_seconds=inf"], "finite"),
        (["--file_system_poll_wait_seconds=nan"], "finite"),
        (["--drain_seconds=86401"], "--drain_seconds=86401: must be at most 86400 seconds"),
        (
            ["--file_system_poll_wait_seconds=1e10"],
            "--file_system_poll_wait_seconds=1e10: must be at most 1000000000 seconds",
        ),
        (
            ["--load_retry_interval_micros=1000000000000001"],
            "--load_retry_interval_micros=1000000000000001: must be between -1 and 1000000000000000",
        ),
        (
            ["--grpc_channel_arguments=a=1,b=2147483648"],
            "--grpc_channel_arguments=.*: 'b=2147483648' must be between -2147483648 and 2147483647",
        ),
        (["--grpc_channel_arguments=b=-2147483649"], "'b=-2147483649' must be between"),
        (["--num_load_threads=-1"], "must be between 0"),
        (["--allocator=tcmalloc"], "must be one of jemalloc, glibc"),
        (["--modelname=m"], "did you mean --model_name"),
        (["--model=m"], "--model is not a flag"),
        (["--zzzzzz"], "see millpond serve --help"),
        (["model"], "'model' is not a flag"),
        (["--"], "'--' is not a flag"),
    ],
)
def test_parse_flags_bad_argument_names_remedy(arguments: list[str], message: str):
    with pytest.raises(InvalidConfig, match=message):
        parse_flags(arguments)


@pytest.mark.parametrize("name", GONE_FLAGS)
def test_parse_flags_gone_flag_names_replacement(name: str):
    with pytest.raises(InvalidConfig, match=f"--{name} is no longer a flag: ..."):
        parse_flags([f"--{name}=1"])
    replaced_by = re.findall(r"--(\w+)", GONE_FLAGS[name])
    assert set(replaced_by) <= set(TAKEN)
    assert name not in NAMES_IN_HELP


def test_parse_flags_makes_base_path_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_flags(["--model_base_path=models"])["model_base_path"] == f"{tmp_path}/models"


def test_parse_flags_fills_every_accepted_flag():
    assert set(parse_flags([])) == set(TAKEN)


def test_help_text_names_every_flag():
    text = help_text()
    assert [name for name in FLAGS if f"--{name}" not in text] == []


def test_help_text_names_the_errors_that_are_retried():
    assert [code for code in TRANSIENT_CODES if code.name not in help_text()] == []


def test_help_text_prints_no_empty_default():
    text = help_text()
    assert "(default )" not in text
    assert "(default 0.0)" not in text


UNCLEAR = re.compile(r"^(Of|What|Those|Whether|of|what|those|whether)\b|\bwhere\b|nobody|\bis no\b")
"""Openings and words that made texts for users hard to read."""


@pytest.mark.parametrize("flag", FLAGS.values(), ids=lambda flag: flag.name)
def test_flag_help_and_reason_read_plainly(flag: Flag | RefusedFlag):
    text = flag.help if isinstance(flag, Flag) else flag.reason
    assert not UNCLEAR.search(text)
