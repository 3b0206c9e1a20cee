"""The flags that Millpond has beside those of tensorflow_model_server."""

from serving.config import ServerConfig
from serving.flag_readers import (
    DRAIN_SECONDS_MAX,
    WAIT_SECONDS_MAX,
    admin_address,
    boolean,
    choice,
    factor,
    http_url,
    integer,
    local_path,
    not_empty,
    optional_names,
    seconds,
    seconds_not_negative,
)
from serving.flag_rows import Flag

MILLPOND_FLAGS: tuple[Flag, ...] = (
    Flag(
        "enable_session_run",
        boolean,
        ServerConfig.enable_session_run,
        "serve SessionService/SessionRun: whoever reaches the port may run any node of a model's "
        "graph, those too that write variables and files; no arena is sealed then",
        "",
    ),
    Flag(
        "strict_input_shapes",
        boolean,
        ServerConfig.strict_input_shapes,
        "refuse inputs whose shape is not the signature's; without it the model's kernels decide, "
        "as in TensorFlow Serving",
        "",
    ),
    Flag("host", not_empty, ServerConfig.host, "address to listen on"),
    Flag(
        "admin_address",
        admin_address,
        ServerConfig.admin_address,
        "where the server is operated: rollback, promote, capture, config and the like; auto: a UNIX "
        "socket in a run directory, which millpond commands of the same user find",
        "auto|off|unix:PATH|HOST:PORT",
    ),
    Flag(
        "admin_on_data_port",
        choice("local", "true", "false"),
        ServerConfig.admin_on_data_port,
        "who may reload the configuration (HandleReloadConfigRequest) and load models by name over "
        "the ports of requests: local: clients on this machine, true: everyone, who may then also "
        "call millpond.v1.Admin there; false: no client",
        "local|true|false",
    ),
    Flag(
        "admin_clients",
        optional_names,
        ServerConfig.admin_clients,
        "common or alternative names of client certificates that may operate the server over its "
        "port, with client_verify in --ssl_config_file",
        "NAME,NAME",
    ),
    Flag(
        "http_hosts",
        optional_names,
        ServerConfig.http_hosts,
        "names and addresses that a Host header may have over HTTP, beside loopback ones; requests "
        "for others get 421. Without it a server on a loopback address takes this machine's names, "
        "and any other server takes every name",
        "NAME,NAME",
    ),
    Flag(
        "allow_repository_control",
        boolean,
        ServerConfig.allow_repository_control,
        "clients of the open inference protocol may load and unload models, over gRPC and HTTP: "
        "whoever reaches a port then can take a model out of service",
        "",
    ),
    Flag(
        "model_settings_file",
        local_path,
        "",
        "TOML: policy, gates, canary and retention of each model, [default] and [models.NAME]",
        "FILE",
    ),
    Flag(
        "servable_versions_always_present",
        boolean,
        ServerConfig.servable_versions_always_present,
        "an emptied base path leaves the versions of its model loaded; false: it unloads them",
        "",
    ),
    Flag(
        "missing_asset_wait_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.missing_asset_wait_seconds,
        "a version that lacks an asset file is loaded without it after this time without a change; "
        "if its graph reads the file, the load fails",
    ),
    Flag(
        "listen_before_ready",
        boolean,
        ServerConfig.listen_before_ready,
        "open gRPC's port at the start; without it the port opens when each model has a version that "
        "serves or has failed for good",
        "",
    ),
    Flag(
        "max_startup_wait_seconds",
        seconds(WAIT_SECONDS_MAX),
        ServerConfig.max_startup_wait_seconds,
        "open gRPC's port after this time even if models are still being loaded; 0 or less: wait "
        "without end",
    ),
    Flag(
        "first_version_wait_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.first_version_wait_seconds,
        "requests for a model whose first version is being loaded wait for it up to their deadline, and "
        "for no longer than this; then they fail with UNAVAILABLE and the stage of the load",
    ),
    Flag(
        "load_jitter_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.load_jitter_seconds,
        "the load of a new version begins up to this much later, at random, so that a fleet does "
        "not swap in step",
    ),
    Flag(
        "allocator",
        choice("jemalloc", "glibc"),
        "jemalloc",
        "the process's malloc; jemalloc is preloaded",
        "jemalloc|glibc",
    ),
    Flag(
        "arena",
        boolean,
        ServerConfig.arena,
        "restore each version into memory of its own, which requests never touch",
        "",
    ),
    Flag(
        "arena_spare_slabs",
        integer(0, 16),
        ServerConfig.arena_spare_slabs,
        "slabs kept for each model's next version, so that a swap touches no fresh page; 0: memory "
        "of an unloaded version goes back to the system",
    ),
    Flag(
        "arena_headroom_bytes",
        integer(0, 2**44),
        ServerConfig.arena_headroom_bytes,
        "address space beside a version's variables, for what its init op allocates",
    ),
    Flag(
        "arena_seal",
        boolean,
        ServerConfig.arena_seal,
        "make a loaded version's memory read-only, where no request changes its variables",
        "",
    ),
    Flag(
        "model_memory_limit_bytes",
        integer(0),
        ServerConfig.model_memory_limit_bytes,
        "bytes that all loaded versions may take; one that does not fit is refused before anything "
        "of it is read; 0: what the machine or the control group has",
    ),
    Flag(
        "load_priority",
        choice("idle", "nice", "normal"),
        ServerConfig.load_priority,
        "of the threads that load, unload and keep memory, beside those that answer requests; until "
        "gRPC's port opens loads have the usual priority",
        "idle|nice|normal",
    ),
    Flag(
        "load_patience_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.load_patience_seconds,
        "seconds that a load or unload may wait for a core while requests take them all, before it "
        "gets the usual priority; 0: for ever",
    ),
    Flag(
        "pin_request_threads",
        choice("loads", "always", "never"),
        ServerConfig.pin_request_threads,
        "to a core each: while versions load and unload, or requests come over HTTP, on machines of up "
        "to 8 cores, always, or never",
        "loads|always|never",
    ),
    Flag(
        "restore_bytes_per_second",
        integer(0),
        ServerConfig.restore_bytes_per_second,
        "how fast a load may read its variables; 0: as fast as it can",
    ),
    Flag(
        "swap_p99_guard",
        factor,
        ServerConfig.swap_p99_guard,
        "slow a restore while live p99 is above this many times what it was before; 0: off",
        "FACTOR",
    ),
    Flag(
        "self_warmup_requests",
        integer(0, 10_000),
        ServerConfig.self_warmup_requests,
        "recent requests that are kept for each model and replayed on its next version before that "
        "serves; 0: none",
    ),
    Flag(
        "warmup_request_seconds",
        seconds_not_negative(86_400),
        ServerConfig.warmup_request_seconds,
        "longest run of one request that is replayed before a version serves; a version whose request "
        "runs for longer fails; 0: no limit",
    ),
    Flag(
        "warmup_capture_directory",
        local_path,
        ServerConfig.warmup_capture_directory,
        "each minute and at the stop, the recent requests of each model are written to DIR/MODEL/"
        "tf_serving_warmup_requests, which a next version can have as its warm-up file",
        "DIR",
    ),
    Flag(
        "ready_with_stuck_sources",
        boolean,
        ServerConfig.ready_with_stuck_sources,
        "a base path whose disk hangs leaves the server ready; false: readiness and health fail until "
        "a look at it ends",
        "",
    ),
    Flag(
        "state_directory",
        local_path,
        ServerConfig.state_directory,
        "what was rolled back is remembered in DIR, which no other server uses, and stays out after a "
        "restart; without it a restart serves such a version again",
        "DIR",
    ),
    Flag(
        "tensorflow_runtime",
        choice("millpond", "stock"),
        ServerConfig.tensorflow_runtime,
        "stock: TensorFlow's own device, allocator, restore and pools, to compare with",
        "millpond|stock",
    ),
    Flag(
        "tensorflow_load_pool",
        boolean,
        ServerConfig.tensorflow_load_pool,
        "of the stock runtime: restore and init run on a pool of their own",
        "",
    ),
    Flag(
        "drain_seconds",
        seconds_not_negative(DRAIN_SECONDS_MAX),
        ServerConfig.drain_seconds,
        "seconds that running requests have to finish after SIGTERM",
    ),
    Flag(
        "op_library",
        local_path,
        (),
        "shared library of TensorFlow ops and kernels, loaded before the first model",
        "PATH",
        is_repeatable=True,
    ),
    Flag(
        "op_package",
        not_empty,
        (),
        "pip package whose op libraries are loaded before the first model, like tensorflow-text; it "
        "is not imported",
        "NAME",
        is_repeatable=True,
    ),
    Flag(
        "otlp_endpoint",
        http_url,
        ServerConfig.otlp_endpoint,
        "base URL of an OpenTelemetry collector, which gets spans of the swaps and of the requests "
        "that their clients sample, by OTLP over HTTP; needs pip install 'millpond[otel]'; without "
        "it nothing is traced, whatever the environment says",
        "URL",
    ),
    Flag(
        "slow_request_log_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.slow_request_log_seconds,
        "a log line for each sampled request that takes so long, and for each that fails with "
        "INTERNAL, UNKNOWN or DATA_LOSS, with its trace's id; 0: none is slow, and failed ones have a "
        "line only with --otlp_endpoint",
    ),
    Flag(
        "log_format",
        choice("auto", "human", "json"),
        "auto",
        "log lines on standard error; auto: human on a terminal, else JSON",
        "human|json|auto",
    ),
    Flag(
        "grpc_max_message_bytes",
        integer(1, 2**31 - 1),
        ServerConfig.max_message_bytes,
        "largest message of a request, decompressed",
    ),
    Flag(
        "rest_api_max_body_bytes",
        integer(1, 2**31 - 1),
        ServerConfig.rest_api_max_body_bytes,
        "largest body of a request over HTTP, as it comes and decompressed; beyond it 413",
    ),
    Flag(
        "max_reply_bytes",
        integer(0, 2**31 - 1),
        ServerConfig.max_reply_bytes,
        "largest reply, before compression; beyond it RESOURCE_EXHAUSTED, over gRPC before memory is "
        "taken for it, over HTTP when its text has grown so large; 0: 1 GiB over gRPC and 256 MiB over HTTP",
    ),
    Flag(
        "request_memory_bytes",
        integer(0),
        ServerConfig.request_memory_bytes,
        "memory of requests and replies under way, over gRPC and HTTP together; beyond it "
        "RESOURCE_EXHAUSTED at once; 0: a quarter of what the machine or the control group leaves at "
        "the start, and at least two of --grpc_max_message_bytes",
    ),
    Flag(
        "run_memory_bytes",
        integer(0),
        ServerConfig.run_memory_bytes,
        "memory that the kernels of one run may have allocated at a time; beyond it the run ends with "
        "RESOURCE_EXHAUSTED; 0: half of --request_memory_bytes, and at "
        "least 256 MiB unless that flag is given; needs --allocator=jemalloc",
    ),
    Flag(
        "grpc_compression",
        choice("request", "none", "gzip", "deflate"),
        ServerConfig.grpc_compression,
        "of replies from 1 KiB on, where the client accepts it; request: as its request is, which may "
        "be compressed in any case",
        "request|none|gzip|deflate",
    ),
    Flag(
        "grpc_completion_queue_count",
        integer(0, 1024),
        ServerConfig.completion_queue_count,
        "completion queues, each with a thread that runs requests; 0: one a core, but no more than "
        "--grpc_max_threads",
    ),
    Flag(
        "max_in_flight_requests",
        integer(1, 2**31 - 1),
        ServerConfig.max_in_flight_requests,
        "requests that have arrived and are not answered, over gRPC and HTTP together; beyond them "
        "RESOURCE_EXHAUSTED at once",
    ),
    Flag(
        "max_in_flight_requests_per_model",
        integer(0, 2**31 - 1),
        ServerConfig.max_in_flight_requests_per_model,
        "the same for each model; max_in_flight_requests of --model_settings_file goes before it; "
        "0: none of its own",
    ),
    Flag(
        "stop_at_stdin_eof",
        boolean,
        False,
        "stop as at SIGTERM when standard input closes, so as not to outlive a parent process",
        "",
    ),
)
