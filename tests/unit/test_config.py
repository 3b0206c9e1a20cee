from dataclasses import fields
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from serving.base.errors import InvalidConfig
from serving.config.flags import parse_flags
from serving.config.server_config import HttpPort, ServerConfig, server_config
from serving.core.model_config import ModelConfig, check_models
from serving.core.model_settings import BatchingChoice, BatchingSettings, ModelSettings
from serving.server.loading_parts import warn_of_load_priority


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models.config"


def test_server_config_of_base_path_serves_one_model():
    config = server_config(parse_flags(["--model_base_path=/m"]))
    assert config.models == (ModelConfig(name="default", base_path="/m"),)


def test_server_config_has_no_field_that_no_flag_sets():
    flags = parse_flags(["--model_base_path=/m"])
    made_of_others = {
        *("models", "model_settings", "metrics_path", "op_libraries"),
        "batching",
        "grpc_descriptors",  # handed in
        "lab",  # from the environment
    }
    assert {field.name for field in fields(ServerConfig)} - flags.keys() == made_of_others


def test_server_config_carries_every_flag():
    config = server_config(
        parse_flags(
            [
                *("--model_base_path=/m", "--model_name=n", "--host=::1", "--port=0"),
                *("--grpc_socket_path=/s", "--grpc_channel_arguments=a=1"),
                *("--grpc_request_threads=3", "--max_request_bytes=9"),
                *("--file_system_poll_wait_seconds=2", "--num_load_threads=4"),
                *("--num_unload_threads=5", "--max_num_load_retries=6"),
                *("--load_retry_interval_micros=7", "--enable_model_warmup=false"),
                *("--num_request_iterations_for_warmup=8", "--saved_model_tags=x"),
                *("--tensorflow_intra_op_parallelism=1", "--tensorflow_inter_op_parallelism=2"),
                *("--drain_seconds=0.5", "--load_jitter_seconds=1.5"),
                *("--servable_versions_always_present=false",),
                "--model_config_file_poll_wait_seconds=9",
                "--warmup_capture_directory=/captured",
                *("--rest_api_port=8600", "--rest_api_num_threads=11"),
                *("--rest_api_timeout_in_ms=12", "--rest_api_enable_cors_support"),
                *("--otlp_endpoint=http://c:4318", "--slow_request_log_seconds=0.25"),
            ]
        )
    )
    assert config.models == (ModelConfig(name="n", base_path="/m"),)
    assert (config.host, config.port, config.grpc_socket_path) == ("::1", 0, "/s")
    assert config.grpc_channel_arguments == {"a": 1}
    assert (config.grpc_request_threads, config.max_request_bytes) == (3, 9)
    assert config.file_system_poll_wait_seconds == 2
    assert (config.num_load_threads, config.num_unload_threads) == (4, 5)
    assert (config.max_num_load_retries, config.load_retry_interval_micros) == (6, 7)
    assert (config.enable_model_warmup, config.num_request_iterations_for_warmup) == (False, 8)
    assert config.saved_model_tags == ("x",)
    assert config.tensorflow_intra_op_parallelism == 1
    assert config.tensorflow_inter_op_parallelism == 2
    assert config.warmup_capture_directory == "/captured"
    assert (config.rest_api_port, config.rest_api_num_threads) == (HttpPort(8600), 11)
    assert (config.rest_api_timeout_in_ms, config.rest_api_enable_cors_support) == (12, True)
    assert (config.drain_seconds, config.load_jitter_seconds) == (0.5, 1.5)
    assert config.model_config_file_poll_wait_seconds == 9
    assert not config.servable_versions_always_present
    assert (config.otlp_endpoint, config.slow_request_log_seconds) == ("http://c:4318", 0.25)


@pytest.mark.parametrize(
    ("arguments", "choice"),
    [
        ([], BatchingChoice.OFF),
        (["--enable_batching=false"], BatchingChoice.OFF),
        (["--enable_batching"], BatchingChoice.ON),
        (["--enable_batching", "--enable_per_model_batching_parameters"], BatchingChoice.ON),
    ],
)
def test_server_config_batches_by_flag(arguments: list[str], choice: BatchingChoice):
    config = server_config(parse_flags(["--model_base_path=/m", *arguments]))
    assert config.batching == BatchingSettings(enabled=choice)
    assert config.enable_per_model_batching_parameters is (len(arguments) == 2)


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ([], 1024),
        (["--accelerator=cuda"], 2048),
        (["--accelerator=cuda", "--accelerator_rows=1,8"], 1024),
        (["--accelerator=cuda", "--accelerator_rows=1,8192"], 8192),
    ],
)
def test_a_batch_fills_an_accelerators_program(arguments: list[str], rows: int):
    config = server_config(parse_flags(["--model_base_path=/m", "--enable_batching", *arguments]))
    assert config.batching.max_batch_size == rows


def test_server_config_reads_batching_parameters(path: Path):
    path.write_text("max_batch_size { value: 16 }")
    flags = ["--enable_batching", f"--batching_parameters_file={path}"]
    config = server_config(parse_flags(["--model_base_path=/m", *flags]))
    assert config.batching == BatchingSettings(
        enabled=BatchingChoice.ON,
        max_batch_size=16,
        splits_large_requests=False,
        max_enqueued_batches=10,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--batching_parameters_file=/b"],
            "--batching_parameters_file has no effect without --enable_batching; give both",
        ),
        (
            ["--enable_per_model_batching_parameters"],
            "--enable_per_model_batching_parameters has no effect without --enable_batching",
        ),
        (
            ["--enable_batching", "--batching_parameters_file=/nowhere/b"],
            "/nowhere/b: cannot be read",
        ),
    ],
)
def test_server_config_refuses_batching_flags(arguments: list[str], message: str):
    with pytest.raises(InvalidConfig, match=message):
        server_config(parse_flags(["--model_base_path=/m", *arguments]))


@pytest.mark.parametrize(
    "flag",
    [
        "rows=1,8",
        "memory_fraction=0.5",
        "memory_bytes=7",
        "cache_directory=/var/cache/programs",
        "autotuning=never",
        "autotuning_seconds=7",
    ],
)
def test_accelerator_flags_need_an_accelerator(flag: str):
    arguments = ["--model_base_path=/m", f"--accelerator_{flag}"]
    with pytest.raises(InvalidConfig, match="has no effect without --accelerator; give both"):
        server_config(parse_flags(arguments))
    server_config(parse_flags([*arguments, "--accelerator=cuda"]))


def test_server_config_of_file_reads_its_models(path: Path):
    path.write_text('model_config_list { config { name: "m" base_path: "/m" } }')
    config = server_config(parse_flags([f"--model_config_file={path}"]))
    assert config.models == (ModelConfig(name="m", base_path="/m"),)
    assert config.model_config_file == str(path)


def test_server_config_reads_settings_per_model(path: Path):
    path.write_text("[models.m]\nkeep_previous_seconds = 300")
    flags = ["--model_base_path=/m", "--model_name=m", f"--model_settings_file={path}"]
    config = server_config(parse_flags(flags))
    assert config.models[0].settings == ModelSettings(keep_previous_seconds=300)
    assert config.model_settings_file == str(path)


def test_server_config_refuses_unknown_model_settings(path: Path):
    path.write_text("[models.n]\nkeep_previous_seconds = 300")
    flags = parse_flags(["--model_base_path=/m", f"--model_settings_file={path}"])
    with pytest.raises(InvalidConfig, match=r"models\.n: no model 'n' is configured.*default"):
        server_config(flags)


@pytest.mark.parametrize(
    "arguments", [[], ["--model_base_path=/m", "--model_config_file=/f"], ["--model_name=m"]]
)
def test_server_config_needs_base_path_or_file(arguments: list[str]):
    with pytest.raises(InvalidConfig, match="--model_base_path and --model_config_file"):
        server_config(parse_flags(arguments))


def test_server_config_refuses_model_name_beside_file():
    with pytest.raises(InvalidConfig, match="--model_name belongs to --model_base_path"):
        server_config(parse_flags(["--model_config_file=/f", "--model_name=m"]))


def test_server_config_session_parallelism_fills_gaps():
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


def test_server_config_refuses_three_parallelism_flags():
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


def test_server_config_refuses_same_port_twice():
    flags = ["--model_base_path=/m", "--port=8600", "--rest_api_port=8600"]
    with pytest.raises(InvalidConfig, match=r"--rest_api_port=8600 is the port of gRPC too"):
        server_config(parse_flags(flags))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--rest_ssl_config_file=/tls", "--rest_api_port=0"],
            r"--rest_ssl_config_file=/tls is for HTTP over TCP, which --rest_api_port=0 turns off",
        ),
        (
            ["--rest_api_socket_path=/s", "--grpc_socket_path=/s"],
            "--rest_api_socket_path=/s is the socket of gRPC too",
        ),
    ],
)
def test_server_config_refuses_http_contradictions(flags: list[str], message: str):
    with pytest.raises(InvalidConfig, match=message):
        server_config(parse_flags(["--model_base_path=/m", *flags]))


def test_admin_clients_may_use_certificates_of_http():
    flags = ["--model_base_path=/m", "--admin_clients=op", "--rest_ssl_config_file=/tls"]
    assert server_config(parse_flags(flags)).admin_clients == ("op",)


@pytest.mark.parametrize("flag", ["--port=8501", "--rest_api_port=auto", "--rest_api_port=0"])
def test_server_config_chosen_ports_never_collide(flag: str):
    server_config(parse_flags(["--model_base_path=/m", "--port=0", flag]))


def test_server_config_capture_needs_kept_requests():
    flags = ["--model_base_path=/m", "--self_warmup_requests=0", "--warmup_capture_directory=/c"]
    with pytest.raises(InvalidConfig, match="keeps no requests"):
        server_config(parse_flags(flags))


@pytest.mark.parametrize(
    ("flags", "is_tracing"),
    [([], False), (["--otlp_endpoint=http://c"], True), (["--slow_request_log_seconds=1"], True)],
)
def test_server_config_traces_to_collector_or_log(flags: list[str], is_tracing: bool):
    config = server_config(parse_flags(["--model_base_path=/m", *flags]))
    assert config.is_tracing == is_tracing


def test_server_config_orders_op_libraries(
    monkeypatch: pytest.MonkeyPatch,
):
    of_package = {"text": ("/t/a.so", "/t/b.so"), "more": ("/m.so",)}
    monkeypatch.setattr(
        "serving.config.server_config.op_libraries_of",
        lambda package, tensorflow_version: of_package[package],
    )
    arguments = [
        "--op_library=/x.so",
        "--op_library=/t/b.so",
        "--op_package=text",
        "--op_package=more",
    ]
    config = server_config(parse_flags(["--model_base_path=/m", *arguments]))
    assert config.op_libraries == ("/t/a.so", "/t/b.so", "/m.so", "/x.so")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "m\x00"])
def test_check_models_refuses_control_characters(name: str):
    with pytest.raises(InvalidConfig, match="control character") as caught:
        check_models([ModelConfig(name=name, base_path="/m")])
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["../../x", "/abs", "a b", "模型"])
def test_check_models_takes_names_that_look_like_paths(name: str):
    check_models([ModelConfig(name=name, base_path="/m")])


@pytest.mark.parametrize(
    ("accelerator", "given", "expected"),
    [
        ("", "auto", "idle"),
        ("cuda", "auto", "normal"),
        ("cuda", "nice", "nice"),
        ("", "normal", "normal"),
    ],
)
def test_loads_for_an_accelerator_are_not_lowered(
    accelerator: str, given: str, expected: str
) -> None:
    config = ServerConfig(models=(), accelerator=accelerator, load_priority=given)
    assert config.background_priority == expected


@pytest.mark.parametrize(
    ("given", "warns"), [("auto", False), ("normal", False), ("idle", True), ("nice", True)]
)
def test_lowered_loads_beside_an_accelerator_warn(given: str, warns: bool) -> None:
    config = ServerConfig(models=(), accelerator="cuda", load_priority=given)
    with capture_logs() as logs:
        warn_of_load_priority(config)
    assert [log["event"] for log in logs] == ["load_priority_delays_runs"] * warns
    for log in logs:
        assert log["load_priority"] == given
        assert "--load_priority=auto" in log["remedy"]
