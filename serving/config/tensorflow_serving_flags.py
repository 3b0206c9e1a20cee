"""All 48 flags of tensorflow_model_server: each is supported, or refused by name with the reason.

A refused flag still accepts the values that match Millpond's behaviour anyway, above all TensorFlow
Serving's default. So a command line that states its defaults starts.
"""

from serving.base.errors import TRANSIENT_CODES
from serving.config.flag_rows import (
    DRAIN_SECONDS_MAX,
    WAIT_SECONDS_MAX,
    Flag,
    RefusedFlag,
    always_on,
    base_path,
    boolean,
    channel_arguments,
    http_port,
    integer,
    names,
    not_empty,
    optional_path,
    seconds,
    share,
)
from serving.config.server_config import ServerConfig

_TRANSIENT = ", ".join(code.name for code in sorted(TRANSIENT_CODES))

_TFLITE = "Millpond serves SavedModels only"
_ONLY_TFLITE = (
    "accepted for compatibility, without effect: it applies only to --prefer_tflite_model, "
    "which is refused"
)
_CLUSTERS = "Millpond compiles by XLA what a model says, and looks for no more"
_ONLY_CPU = "Millpond runs on CPUs"

# The flags are in the order of tensorflow_model_server's own help.
TENSORFLOW_SERVING_FLAGS: tuple[Flag | RefusedFlag, ...] = (
    Flag(
        "port",
        integer(0, 65535),
        ServerConfig.port,
        "TCP port for gRPC; 0: a free port, which the log's `listening` event names",
    ),
    Flag(
        "grpc_socket_path", optional_path, "", "UNIX socket on which gRPC listens as well", "PATH"
    ),
    Flag(
        "rest_api_port",
        http_port,
        ServerConfig.rest_api_port,
        "TCP port for HTTP: REST, /healthz, /readyz, metrics and the page; 0: no HTTP; auto: a "
        "free port, which the log's `listening` event names. If another process has the default "
        "port, the server runs without HTTP",
    ),
    Flag(
        "rest_api_num_threads",
        integer(0, 1024),
        ServerConfig.rest_api_num_threads,
        "threads that run REST requests and other HTTP requests that take time, at least 2; 0: "
        "four per core",
    ),
    Flag(
        "rest_api_timeout_in_ms",
        integer(1, DRAIN_SECONDS_MAX * 1_000),
        ServerConfig.rest_api_timeout_in_ms,
        "milliseconds within which the reply to an HTTP request must begin",
    ),
    Flag(
        "rest_api_enable_cors_support",
        boolean,
        ServerConfig.rest_api_enable_cors_support,
        "allow web pages of any origin to read HTTP replies (CORS)",
        "",
    ),
    Flag(
        "enable_batching",
        boolean,
        False,
        "let requests that wait for a thread share runs of the model; no request waits for "
        "later ones",
        "",
    ),
    Flag(
        "batching_parameters_file",
        optional_path,
        "",
        "text BatchingParameters: the limits of --enable_batching, for all models",
        "FILE",
    ),
    Flag(
        "enable_per_model_batching_parameters",
        boolean,
        ServerConfig.enable_per_model_batching_parameters,
        "read a version's own limits of --enable_batching from batching_params.pbtxt in its "
        "directory; a version without that file has the limits of all models",
        "",
    ),
    Flag(
        "allow_version_labels_for_unavailable_models",
        boolean,
        False,
        "accepted for compatibility, without effect: a label may always name a version that is "
        "not loaded yet, and moves to it when the version is AVAILABLE",
        "",
    ),
    Flag(
        "model_config_file",
        optional_path,
        "",
        "text ModelServerConfig: models with their base paths, version policies and labels",
        "FILE",
    ),
    Flag(
        "model_config_file_poll_wait_seconds",
        seconds(WAIT_SECONDS_MAX),
        ServerConfig.model_config_file_poll_wait_seconds,
        "seconds between two reads of --model_config_file and --model_settings_file; a change is "
        "applied as a whole or, if it has an error, not at all; 0: --model_config_file is read once, "
        "and --model_settings_file each second; negative: both are read once",
    ),
    Flag(
        "model_name",
        not_empty,
        "",
        "name of the model in --model_base_path; `default` if this flag is left out",
    ),
    Flag(
        "model_base_path",
        base_path,
        "",
        "directory whose numeric subdirectories are the versions of the model, or its URL in object "
        "storage: s3://, gs://, az:// or hf://",
        "DIR|URL",
    ),
    Flag(
        "num_load_threads",
        integer(0, 1024),
        ServerConfig.num_load_threads,
        "threads that load versions; 0 means 1: loads never run on the manager's own thread. "
        "Until gRPC's port opens there is at least one thread per core",
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
        f"retries of a load that failed with a transient error ({_TRANSIENT}); after any other "
        "error the load is tried again only when the version's files change",
    ),
    Flag(
        "load_retry_interval_micros",
        integer(-1, WAIT_SECONDS_MAX * 1_000_000),
        ServerConfig.load_retry_interval_micros,
        "longest wait before a retry of a load that failed with a transient error, in "
        "microseconds; -1: no wait",
    ),
    Flag(
        "file_system_poll_wait_seconds",
        seconds(WAIT_SECONDS_MAX),
        ServerConfig.file_system_poll_wait_seconds,
        "seconds between two scans of the base paths; 0: scan once; negative: never scan",
    ),
    Flag(
        "flush_filesystem_caches",
        boolean,
        True,
        "accepted for compatibility, without effect: it empties the caches of TensorFlow's remote "
        "file systems, and Millpond reads local files",
        "",
    ),
    Flag(
        "tensorflow_session_parallelism",
        integer(0, 4096),
        0,
        "sets --tensorflow_intra_op_parallelism and --tensorflow_inter_op_parallelism, each only "
        "if it is 0",
    ),
    Flag(
        "tensorflow_intra_op_parallelism",
        integer(0, 4096),
        ServerConfig.tensorflow_intra_op_parallelism,
        "threads of TensorFlow's pool that share the work of one kernel; 0: one per core",
    ),
    Flag(
        "tensorflow_inter_op_parallelism",
        integer(0, 4096),
        ServerConfig.tensorflow_inter_op_parallelism,
        "threads of TensorFlow's pool that run kernels side by side; 0: two, because a request runs "
        "on a thread of its own",
    ),
    RefusedFlag(
        "tensorflow_session_config_file",
        "Millpond sets the rest of a ConfigProto, devices, pools and graph optimizers, itself",
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
        "text SSLConfig with server_key, server_cert and custom_ca in PEM, and client_verify: TLS "
        "on gRPC's TCP port, but not on the UNIX socket nor on HTTP (--rest_ssl_config_file); an "
        "edited file takes effect within seconds, for new connections",
        "FILE",
    ),
    RefusedFlag(
        "platform_config_file",
        "Millpond has one platform, and a flag for each of its settings",
        harmless=("",),
    ),
    RefusedFlag(
        "per_process_gpu_memory_fraction",
        "it is of TensorFlow's GPU build; give --accelerator=cuda and --accelerator_memory_fraction",
        share,
        harmless=(0.0,),
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
        "limits of gRPC's connections, by the names of gRPC's channel arguments, like "
        "grpc.max_connection_age_ms=60000; docs/migrating.md lists those with an effect",
        "NAME=VALUE,...",
    ),
    Flag(
        "grpc_max_threads",
        integer(0, 4096),
        ServerConfig.grpc_max_threads,
        "most threads that run gRPC requests at a time when some requests run long; at least "
        "--grpc_request_threads; 0: four per core",
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
        "number of times that each warm-up record is replayed; 0 means 1",
    ),
    Flag("version", boolean, False, "print versions and exit", ""),
    Flag(
        "monitoring_config_file",
        optional_path,
        "",
        "text MonitoringConfig; if its prometheus_config is enabled, metrics are at its path too, "
        "besides /metrics and /monitoring/prometheus/metrics",
        "FILE",
    ),
    RefusedFlag(
        "remove_unused_fields_from_bundle_metagraph",
        "Millpond keeps nothing of the meta graph but its signatures",
        boolean,
        harmless=(True,),
    ),
    RefusedFlag("prefer_tflite_model", _TFLITE, boolean, harmless=(False,)),
    Flag("num_tflite_pools", integer(0), 0, f"{_ONLY_TFLITE}; 0: one per core"),
    Flag("num_tflite_interpreters_per_pool", integer(0), 1, _ONLY_TFLITE),
    Flag(
        "enable_signature_method_name_check",
        boolean,
        ServerConfig.enable_signature_method_name_check,
        "refuse Classify and Regress if the signature's method_name is that of another method",
        "",
    ),
    RefusedFlag("xla_cpu_compilation_enabled", _CLUSTERS, boolean, harmless=(False,)),
    RefusedFlag("xla_gpu_compilation_enabled", _ONLY_CPU, boolean, harmless=(False,)),
    Flag(
        "enable_profiler",
        boolean,
        ServerConfig.enable_profiler,
        "serve TensorFlow's ProfilerService on the gRPC port, for clients on this machine (see "
        "--admin_on_data_port)",
        "",
    ),
    RefusedFlag(
        "thread_pool_factory_config_file",
        "Millpond runs a request on one of its request threads",
        harmless=("",),
    ),
    RefusedFlag(
        "mixed_precision",
        "a model answers here as it was exported; export it in bfloat16",
        harmless=("",),
    ),
    Flag(
        "skip_initialize_tpu",
        boolean,
        False,
        "accepted for compatibility, without effect: Millpond does not use TPUs",
        "",
    ),
    Flag(
        "enable_grpc_healthcheck_service",
        always_on,
        True,
        "serve grpc.health.v1; always on: false is refused",
        "",
    ),
    Flag(
        "enable_serialization_as_tensor_content",
        boolean,
        ServerConfig.enable_serialization_as_tensor_content,
        "encode the numbers of Predict replies as tensor_content instead of typed fields",
        "",
    ),
)
