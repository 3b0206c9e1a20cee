"""A command line for tensorflow_model_server with its defaults spelled out also starts Millpond."""

from pathlib import Path
from urllib.request import urlopen

import numpy as np

from serving.client import Client
from serving.config.tensorflow_serving_flags import TENSORFLOW_SERVING_FLAGS
from tests.integration.clients import TIMEOUT_SECONDS
from tests.integration.conftest import StartServer
from tests.integration.exports import ScaleModel

X = np.array([1.0, 2.5, -3.0], np.float32)

# The defaults of TensorFlow Serving, and the health service.
DEFAULTS = {
    "grpc_socket_path": "",
    "rest_api_num_threads": 8,
    "rest_api_timeout_in_ms": 30000,
    "rest_api_enable_cors_support": False,
    "enable_batching": False,
    "batching_parameters_file": "",
    "enable_per_model_batching_parameters": False,
    "allow_version_labels_for_unavailable_models": False,
    "model_config_file": "",
    "model_config_file_poll_wait_seconds": 0,
    "num_load_threads": 0,
    "num_unload_threads": 0,
    "max_num_load_retries": 5,
    "load_retry_interval_micros": 60000000,
    "file_system_poll_wait_seconds": 1,
    "flush_filesystem_caches": True,
    "tensorflow_session_parallelism": 0,
    "tensorflow_intra_op_parallelism": 0,
    "tensorflow_inter_op_parallelism": 0,
    "tensorflow_session_config_file": "",
    "use_alts_credentials": False,
    "ssl_config_file": "",
    "platform_config_file": "",
    "per_process_gpu_memory_fraction": 0,
    "saved_model_tags": "serve",
    "grpc_channel_arguments": "",
    "grpc_max_threads": 8,
    "enable_model_warmup": True,
    "num_request_iterations_for_warmup": 0,
    "version": False,
    "remove_unused_fields_from_bundle_metagraph": True,
    "prefer_tflite_model": False,
    "num_tflite_pools": 2,
    "num_tflite_interpreters_per_pool": 1,
    "enable_signature_method_name_check": False,
    "xla_cpu_compilation_enabled": False,
    "xla_gpu_compilation_enabled": False,
    "enable_profiler": True,
    "thread_pool_factory_config_file": "",
    "mixed_precision": "",
    "skip_initialize_tpu": False,
    "enable_grpc_healthcheck_service": True,
    "enable_serialization_as_tensor_content": False,
}


def test_command_line_covers_tensorflow_serving_flags():
    given = {"port", "rest_api_port", "model_name", "model_base_path", "monitoring_config_file"}
    assert {*DEFAULTS, *given} == {flag.name for flag in TENSORFLOW_SERVING_FLAGS}


def test_command_line_of_tensorflow_serving_serves(
    start_server: StartServer, scale_model: ScaleModel, base_path: Path, tmp_path: Path
):
    scale_model.write(base_path, 1)
    monitoring = tmp_path / "monitoring.config"
    monitoring.write_text('prometheus_config { enable: true path: "/monitoring/mine" }')
    server = start_server(
        model_name="scale", base_path=base_path, monitoring_config_file=monitoring, **DEFAULTS
    )
    server.wait_until_available("scale", version=1)
    with Client(server.target) as client:
        answer = client.predict("scale", {"x": X})
    np.testing.assert_array_equal(answer.outputs["y"], ScaleModel.answer(1, X))
    for path in ("/monitoring/mine", "/monitoring/prometheus/metrics"):
        with urlopen(f"{server.url}{path}", timeout=TIMEOUT_SECONDS) as page:
            assert b":tensorflow:serving:request_count" in page.read()
