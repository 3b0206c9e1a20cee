"""All 48 flags of tensorflow_model_server: each is taken, or refused by name with the reason.

Of a refused one those values are taken that ask for what Millpond does anyway, TensorFlow Serving's
default above all: a command line that spells its defaults out starts.
"""

from serving.config import ServerConfig
from serving.errors import TRANSIENT_CODES
from serving.flag_readers import (
    DRAIN_SECONDS_MAX,
    WAIT_SECONDS_MAX,
    always_on,
    boolean,
    channel_arguments,
    http_port,
    integer,
    local_path,
    names,
    not_empty,
    optional_path,
    seconds,
    share,
)
from serving.flag_rows import Flag, RefusedFlag

_TRANSIENT = ", ".join(code.name for code in sorted(TRANSIENT_CODES))

_NOT_YET = "Millpond does not have it yet"
_BATCHING = "Millpond does not batch requests yet"
_TFLITE = "Millpond serves SavedModels only"
_ONLY_TFLITE = "any value: it means something with --prefer_tflite_model only, which is refused"
_XLA = "Millpond runs SavedModels on TensorFlow's CPU kernels, without XLA"

# In the order of its own help.
TENSORFLOW_SERVING_FLAGS: tuple[Flag | RefusedFlag, ...] = (
    Flag(
        "port",
        integer(0, 65535),
        ServerConfig.port,
        "TCP port of gRPC; 0 takes a free one, which the log's `listening` names",
    ),
    Flag("grpc_socket_path", optional_path, "", "UNIX socket to listen on as well", "PATH"),
    Flag(
        "rest_api_port",
        http_port,
        ServerConfig.rest_api_port,
        "TCP port of HTTP: REST, /healthz, /readyz, metrics and the page; 0: none, auto: a free one, which "
        "the log's `listening` names; where something else has the default one, there is no HTTP",
    ),
    Flag(
        "rest_api_num_threads",
        integer(0, 1024),
        ServerConfig.rest_api_num_threads,
        "threads that run REST's requests and what else HTTP cannot answer at once, at least 2; 0: four a core",
    ),
    Flag(
        "rest_api_timeout_in_ms",
        integer(1, DRAIN_SECONDS_MAX * 1_000),
        ServerConfig.rest_api_timeout_in_ms,
        "milliseconds that an HTTP request may take until its answer begins",
    ),
    Flag(
        "rest_api_enable_cors_support",
        boolean,
        ServerConfig.rest_api_enable_cors_support,
        "let pages of any other site read what HTTP answers",
        "",
    ),
    RefusedFlag("enable_batching", _BATCHING, boolean, harmless=(False,)),
    RefusedFlag("batching_parameters_file", _BATCHING, harmless=("",)),
    RefusedFlag("enable_per_model_batching_parameters", _BATCHING, boolean, harmless=(False,)),
    Flag(
        "allow_version_labels_for_unavailable_models",
        boolean,
        True,
        "either value: a label and its version may always be new together, and the label names the "
        "version once it is AVAILABLE",
        "",
    ),
    Flag(
        "model_config_file",
        optional_path,
        "",
        "text ModelServerConfig: several models, their base paths, version policies and labels",
        "FILE",
    ),
    Flag(
        "model_config_file_poll_wait_seconds",
        seconds(WAIT_SECONDS_MAX),
        ServerConfig.model_config_file_poll_wait_seconds,
        "seconds between two looks at --model_config_file and --model_settings_file, whose changes "
        "are applied as a whole or, where something is wrong, not at all; 0: read once",
    ),
    Flag(
        "model_name",
        not_empty,
        "",
        "name of the model of --model_base_path; `default` where it is not given",
    ),
    Flag("model_base_path", local_path, "", "directory whose numeric entries are versions", "DIR"),
    Flag(
        "num_load_threads",
        integer(0, 1024),
        ServerConfig.num_load_threads,
        "threads that load versions; 0 means 1: none loads on the manager's own thread. Until gRPC's "
        "port opens there is at least one for each core",
    ),
    Flag(
        "num_unload_threads",
        integer(0, 1024),
        ServerConfig.num_unload_threads,
        "threads that unload versions; 0 means 1",
    ),
    Flag(
        "max_num_load_retries",
        integer(0),
        ServerConfig.max_num_load_retries,
        f"retries of a load that failed with a transient error ({_TRANSIENT}); any other ends the "
        "load at once, which is tried again when the version's files change",
    ),
    Flag(
        "load_retry_interval_micros",
        integer(-1, WAIT_SECONDS_MAX * 1_000_000),
        ServerConfig.load_retry_interval_micros,
        "wait before a retry of a load that failed with a transient error, in microseconds; -1: none",
    ),
    Flag(
        "file_system_poll_wait_seconds",
        seconds(WAIT_SECONDS_MAX),
        ServerConfig.file_system_poll_wait_seconds,
        "seconds between two looks at the base paths; 0: look once; negative: never",
    ),
    Flag(
        "flush_filesystem_caches",
        boolean,
        False,
        "either value: it is about TensorFlow's clients of remote storage, and Millpond reads local "
        "files, which the kernel's page cache keeps",
        "",
    ),
    Flag(
        "tensorflow_session_parallelism",
        integer(0, 4096),
        0,
        "sets --tensorflow_intra_op_parallelism and --tensorflow_inter_op_parallelism where they "
        "are 0",
    ),
    Flag(
        "tensorflow_intra_op_parallelism",
        integer(0, 4096),
        ServerConfig.tensorflow_intra_op_parallelism,
        "threads of TensorFlow's pool inside one kernel; 0: one a core",
    ),
    Flag(
        "tensorflow_inter_op_parallelism",
        integer(0, 4096),
        ServerConfig.tensorflow_inter_op_parallelism,
        "threads of TensorFlow's pool between kernels; 0: one a core",
    ),
    RefusedFlag(
        "tensorflow_session_config_file",
        "what else a ConfigProto says, of devices, pools and the graph's optimizers, Millpond sets "
        "itself",
        harmless=("",),
        replaced_by=("tensorflow_intra_op_parallelism", "tensorflow_inter_op_parallelism"),
    ),
    RefusedFlag(
        "use_alts_credentials", "ALTS works inside Google's cloud only", boolean, harmless=(False,)
    ),
    Flag(
        "ssl_config_file",
        optional_path,
        ServerConfig.ssl_config_file,
        "text SSLConfig with server_key, server_cert, custom_ca and client_verify, PEM each: TLS at "
        "gRPC's TCP port, not at the UNIX socket nor at HTTP's; an edited file is taken within "
        "seconds, for new connections",
        "FILE",
    ),
    RefusedFlag(
        "platform_config_file",
        "Millpond has one platform, and its flags say one by one what this file says of it",
        harmless=("",),
    ),
    RefusedFlag(
        "per_process_gpu_memory_fraction", "Millpond serves on the CPU", share, harmless=(0.0,)
    ),
    Flag(
        "saved_model_tags",
        names,
        ServerConfig.saved_model_tags,
        "tags of the meta graph to serve",
        "TAG,...",
    ),
    Flag(
        "grpc_channel_arguments",
        channel_arguments,
        {},
        "arguments for the gRPC server, like grpc.max_connection_age_ms=60000",
        "NAME=VALUE,...",
    ),
    Flag(
        "grpc_max_threads",
        integer(0, 4096),
        ServerConfig.grpc_max_threads,
        "threads that run requests of gRPC at a time, where some run long; at least one for each "
        "completion queue; 0: four a core",
    ),
    Flag(
        "enable_model_warmup",
        boolean,
        ServerConfig.enable_model_warmup,
        "replay assets.extra/tf_serving_warmup_requests before a version serves",
        "",
    ),
    Flag(
        "num_request_iterations_for_warmup",
        integer(0, 1_000_000),
        ServerConfig.num_request_iterations_for_warmup,
        "times each warm-up record is replayed; 0 means 1",
    ),
    Flag("version", boolean, False, "print versions and exit", ""),
    Flag(
        "monitoring_config_file",
        optional_path,
        "",
        "text MonitoringConfig: one more path of the metrics, where prometheus_config enables one; "
        "they are at /metrics and /monitoring/prometheus/metrics without it",
        "FILE",
    ),
    RefusedFlag(
        "remove_unused_fields_from_bundle_metagraph",
        "Millpond keeps nothing of the meta graph but its signatures",
        boolean,
        harmless=(True,),
    ),
    RefusedFlag("prefer_tflite_model", _TFLITE, boolean, harmless=(False,)),
    Flag("num_tflite_pools", integer(0), 0, _ONLY_TFLITE),
    Flag("num_tflite_interpreters_per_pool", integer(0), 0, _ONLY_TFLITE),
    Flag(
        "enable_signature_method_name_check",
        boolean,
        ServerConfig.enable_signature_method_name_check,
        "refuse Classify and Regress where the signature's method_name is another method's",
        "",
    ),
    RefusedFlag("xla_cpu_compilation_enabled", _XLA, boolean, harmless=(False,)),
    RefusedFlag("xla_gpu_compilation_enabled", _XLA, boolean, harmless=(False,)),
    Flag(
        "enable_profiler",
        boolean,
        ServerConfig.enable_profiler,
        "answer TensorFlow's ProfilerService on the gRPC port, for clients on this machine "
        "(see --admin_on_data_port)",
        "",
    ),
    RefusedFlag(
        "thread_pool_factory_config_file",
        "Millpond runs a request on the thread that received it",
        harmless=("",),
    ),
    RefusedFlag(
        "mixed_precision",
        "a model answers here as it was exported; export it in bfloat16",
        harmless=("",),
    ),
    Flag("skip_initialize_tpu", boolean, True, "either value: Millpond serves on the CPU", ""),
    Flag(
        "enable_grpc_healthcheck_service",
        always_on,
        True,
        "grpc.health.v1; always on, so that only true is taken",
        "",
    ),
    Flag(
        "enable_serialization_as_tensor_content",
        boolean,
        ServerConfig.enable_serialization_as_tensor_content,
        "Predict replies with numbers as tensor_content, and not as typed fields",
        "",
    ),
)
