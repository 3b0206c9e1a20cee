"""The flags that Millpond adds to the flags of tensorflow_model_server."""

from collections.abc import Mapping

from serving.config.flag_rows import (
    DRAIN_SECONDS_MAX,
    WAIT_SECONDS_MAX,
    Flag,
    accelerator,
    admin_address,
    boolean,
    choice,
    host,
    http_url,
    integer,
    local_path,
    not_empty,
    optional_names,
    optional_path,
    row_counts,
    seconds,
    seconds_from_one,
    seconds_not_negative,
    share,
)
from serving.config.server_config import ServerConfig

MILLPOND_FLAGS: tuple[Flag, ...] = (
    Flag(
        "enable_session_run",
        boolean,
        ServerConfig.enable_session_run,
        "serve SessionService/SessionRun: clients may run any node of a model's graph, including "
        "nodes that write variables and files; no arena is sealed then",
        "",
    ),
    Flag(
        "strict_input_shapes",
        boolean,
        ServerConfig.strict_input_shapes,
        "refuse inputs whose shape is not the signature's; without this flag the model's kernels "
        "decide, as in TensorFlow Serving",
        "",
    ),
    Flag("host", host, ServerConfig.host, "address to listen on"),
    Flag(
        "admin_address",
        admin_address,
        ServerConfig.admin_address,
        "address for operators' calls: rollback, promote, capture, config and the like; auto: a "
        "UNIX socket in a run directory, which the millpond commands of the same user find",
        "auto|off|unix:PATH|HOST:PORT",
    ),
    Flag(
        "admin_on_data_port",
        choice("local", "true", "false"),
        ServerConfig.admin_on_data_port,
        "clients that may reload the configuration (HandleReloadConfigRequest) and load models by "
        "name on the ports for requests; local: clients on this machine; true: all clients, which "
        "may then also call millpond.v1.Admin there; false: no client",
        "local|true|false",
    ),
    Flag(
        "admin_clients",
        optional_names,
        ServerConfig.admin_clients,
        "common or alternative names of client certificates that may operate the server over its "
        "port; needs client_verify in --ssl_config_file",
        "NAME,NAME",
    ),
    Flag(
        "rest_api_socket_path",
        optional_path,
        "",
        "UNIX socket on which HTTP is served as well, without TLS; with --rest_api_port=0 only there",
        "PATH",
    ),
    Flag(
        "rest_ssl_config_file",
        optional_path,
        ServerConfig.rest_ssl_config_file,
        "TLS on HTTP's TCP port: a text SSLConfig as in --ssl_config_file; an edited file takes "
        "effect within seconds, for new connections",
        "FILE",
    ),
    Flag(
        "http_hosts",
        optional_names,
        ServerConfig.http_hosts,
        "names and addresses that the Host header of an HTTP request may have, besides loopback "
        "ones; requests for others get 421. Without this flag a server on a loopback address "
        "accepts this machine's names, and any other server accepts every name",
        "NAME,NAME",
    ),
    Flag(
        "allow_repository_control",
        boolean,
        ServerConfig.allow_repository_control,
        "let clients of the open inference protocol load and unload models over gRPC and HTTP: "
        "any client that reaches a port can then take a model out of service",
        "",
    ),
    Flag(
        "model_settings_file",
        local_path,
        "",
        "TOML file with each model's policy, gates, canary and retention, in [default] and "
        "[models.NAME]",
        "FILE",
    ),
    Flag(
        "servable_versions_always_present",
        boolean,
        ServerConfig.servable_versions_always_present,
        "keep a model's versions loaded when its base path is emptied; false: unload them",
        "",
    ),
    Flag(
        "missing_asset_wait_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.missing_asset_wait_seconds,
        "a version that lacks an asset file is loaded without it after this time without a "
        "change; if its graph reads the file, the load fails",
    ),
    Flag(
        "listen_before_ready",
        boolean,
        ServerConfig.listen_before_ready,
        "open gRPC's port at the start; without this flag the port opens when each model has a "
        "version that serves, or has failed for good with no version left to try",
        "",
    ),
    Flag(
        "max_startup_wait_seconds",
        seconds(WAIT_SECONDS_MAX),
        ServerConfig.max_startup_wait_seconds,
        "open gRPC's port after this time even if models are still being loaded; 0 or less: no "
        "limit",
    ),
    Flag(
        "first_version_wait_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.first_version_wait_seconds,
        "longest time that a request waits for its model's first version while that is being "
        "loaded; a shorter deadline ends the wait. Then the request fails with UNAVAILABLE and "
        "the stage of the load",
    ),
    Flag(
        "load_jitter_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.load_jitter_seconds,
        "the load of a new version begins up to this much later, at random, so that the servers "
        "of a fleet do not swap at the same time",
    ),
    Flag(
        "allocator",
        choice("jemalloc", "glibc"),
        "jemalloc",
        "malloc of the process; jemalloc is preloaded",
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
        integer(-1, 64),
        ServerConfig.arena_spare_slabs,
        "swaps at a time that touch no fresh page: memory is kept for so many next versions, the "
        "largest of all models; -1: --num_load_threads; 0: none is kept",
    ),
    Flag(
        "arena_seal",
        boolean,
        ServerConfig.arena_seal,
        "make a loaded version's memory read-only if no request changes its variables",
        "",
    ),
    Flag(
        "accelerator",
        accelerator,
        ServerConfig.accelerator,
        "accelerator of versions, through the PJRT C API: cuda, the plugin of the package "
        "jax-cuda13-pjrt; pjrt:PLUGIN.so, any other plugin. Signatures that it cannot run stay on "
        "the CPU. Without this flag all versions run on the CPU",
        "cuda|pjrt:PLUGIN.so",
    ),
    Flag(
        "accelerator_rows",
        row_counts,
        ServerConfig.accelerator_rows,
        "numbers of rows that signatures are compiled for; a run of other rows is filled up to the "
        "next one, or split",
        "ROWS,ROWS",
    ),
    Flag(
        "accelerator_memory_fraction",
        share,
        ServerConfig.accelerator_memory_fraction,
        "share of a GPU's memory that this server may take",
    ),
    Flag(
        "accelerator_memory_bytes",
        integer(0),
        ServerConfig.accelerator_memory_bytes,
        "the most memory of each accelerator for parameters and runs, if that is less. 0: no such limit",
        "BYTES",
    ),
    Flag(
        "accelerator_cache_directory",
        optional_path,
        ServerConfig.accelerator_cache_directory,
        "directory of compiled programs, so that a graph that was compiled before a restart is not "
        "compiled again; default: a temporary one",
        "DIRECTORY",
    ),
    Flag(
        "accelerator_autotuning",
        choice("never", "start", "background"),
        ServerConfig.accelerator_autotuning,
        "when programs for a GPU are autotuned: before the server is ready (start), also those of graphs that "
        "come later, in another process while their versions serve (background), or never",
    ),
    Flag(
        "accelerator_autotuning_seconds",
        seconds_from_one(WAIT_SECONDS_MAX),
        ServerConfig.accelerator_autotuning_seconds,
        "the most time that a process of --accelerator_autotuning=background or --accelerator_compile_process takes "
        "for a version; then it is killed",
    ),
    Flag(
        "accelerator_compile_process",
        boolean,
        ServerConfig.accelerator_compile_process,
        "compile programs of versions that come after the start in another process, which needs no GPU, so that "
        "requests do not wait for the compiler, and its crash does not end the server",
        "",
    ),
    Flag(
        "model_memory_limit_bytes",
        integer(0),
        ServerConfig.model_memory_limit_bytes,
        "most bytes for all loaded versions together; a version that does not fit is refused "
        "before its files are read; 0: the memory of the machine or the control group",
    ),
    Flag(
        "load_priority",
        choice("auto", "idle", "nice", "normal"),
        ServerConfig.load_priority,
        "scheduling priority of the threads that load, unload and keep memory; until gRPC's port "
        "opens loads have the usual priority; auto: idle, or normal with --accelerator",
        "auto|idle|nice|normal",
    ),
    Flag(
        "numa",
        choice("auto", "off", "interleave"),
        ServerConfig.numa,
        "interleave: a request thread stays on the cores of its group's NUMA node, and the "
        "parameters of versions lie on all nodes in turns; off: neither; auto: interleave if the "
        "server may use cores of several nodes",
        "auto|off|interleave",
    ),
    Flag(
        "pin_request_threads",
        choice("loads", "always", "never"),
        ServerConfig.pin_request_threads,
        "pin each request thread to a core; loads: while versions load and unload or HTTP "
        "requests arrive, on machines of up to 8 cores; always; never",
        "loads|always|never",
    ),
    Flag(
        "load_seconds_target",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.load_seconds_target,
        "while requests come, a load reads its variables at 250 MB/s, which requests do not "
        "notice, or faster if that would take longer than this, up to 4 GB/s; 0: as fast as it can",
    ),
    Flag(
        "restore_bytes_per_second",
        integer(0),
        ServerConfig.restore_bytes_per_second,
        "most bytes per second that a load reads of its variables, also without requests; 0: as "
        "load_seconds_target says",
    ),
    Flag(
        "self_warmup_requests",
        integer(0, 10_000),
        ServerConfig.self_warmup_requests,
        "recent requests that are kept for each model and replayed on its next version before "
        "that version serves; 0: off",
    ),
    Flag(
        "warmup_request_seconds",
        seconds_not_negative(86_400),
        ServerConfig.warmup_request_seconds,
        "longest run of one request that is replayed before a version serves; a version whose "
        "request runs longer fails; 0: no limit",
    ),
    Flag(
        "warmup_capture_directory",
        local_path,
        ServerConfig.warmup_capture_directory,
        "write the recent requests of each model to DIR/MODEL/tf_serving_warmup_requests each "
        "minute and at the stop; a next version can have them as its warm-up file",
        "DIR",
    ),
    Flag(
        "state_directory",
        local_path,
        ServerConfig.state_directory,
        "keep the list of blocked versions in DIR, which no other server uses, so that a version "
        "that was rolled back stays blocked after a restart; without this flag a restart serves "
        "it again",
        "DIR",
    ),
    Flag(
        "fleet_member",
        boolean,
        ServerConfig.fleet_member,
        "load only versions that the coordinator of a fleet grants (millpond fleet start); with "
        "--state_directory a restart begins with the last grant",
        "",
    ),
    Flag(
        "model_cache_directory",
        local_path,
        ServerConfig.model_cache_directory,
        "directory for the copies of models whose base path is a URL, and for the files of request logs that "
        "wait for their upload to one; no other server may use it; "
        "without this flag: millpond/models in the user's cache directory",
        "DIR",
    ),
    Flag(
        "model_cache_bytes",
        integer(0),
        ServerConfig.model_cache_bytes,
        "bytes that the copies of one model may take before old ones are deleted; versions that "
        "serve or are selected stay even if they take more",
    ),
    Flag(
        "model_store_poll_wait_seconds",
        seconds_from_one(WAIT_SECONDS_MAX),
        ServerConfig.model_store_poll_wait_seconds,
        "seconds between two looks at a base path that is a URL; each look is at least one request",
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
        "pip package whose op libraries are loaded before the first model, like tensorflow-text; "
        "the package is not imported",
        "NAME",
        is_repeatable=True,
    ),
    Flag(
        "otlp_endpoint",
        http_url,
        ServerConfig.otlp_endpoint,
        "base URL of an OpenTelemetry collector for spans of swaps and of requests that their "
        "clients sample (OTLP over HTTP); needs pip install 'millpond[otel]'; without this flag "
        "tracing is off, even if OpenTelemetry's environment variables are set",
        "URL",
    ),
    Flag(
        "slow_request_log_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.slow_request_log_seconds,
        "log each sampled request that takes this long, and each that fails with INTERNAL, "
        "UNKNOWN or DATA_LOSS, with its trace id; 0: log no slow request, and failed ones only "
        "with --otlp_endpoint",
    ),
    Flag(
        "log_format",
        choice("auto", "human", "json"),
        "auto",
        "format of the log on standard error; auto: human on a terminal, else json",
        "human|json|auto",
    ),
    Flag(
        "max_request_bytes",
        integer(1, 2**31 - 1),
        ServerConfig.max_request_bytes,
        "largest message of a gRPC request and largest body of an HTTP request, as sent and "
        "decompressed; a larger body gets 413",
    ),
    Flag(
        "max_reply_bytes",
        integer(0, 2**31 - 1),
        ServerConfig.max_reply_bytes,
        "largest reply, before compression; a larger one gets RESOURCE_EXHAUSTED: over gRPC "
        "before memory is allocated for it, over HTTP when its text has grown to the limit; 0: 1 "
        "GiB over gRPC and 256 MiB over HTTP",
    ),
    Flag(
        "request_memory_bytes",
        integer(0),
        ServerConfig.request_memory_bytes,
        "most memory for requests and replies under way, over gRPC and HTTP together; requests "
        "beyond it get RESOURCE_EXHAUSTED at once; 0: a quarter of the memory that the machine or "
        "the control group has left at the start, and at least twice --max_request_bytes",
    ),
    Flag(
        "run_memory_bytes",
        integer(0),
        ServerConfig.run_memory_bytes,
        "most memory that the kernels of one run may hold at a time; a run beyond it ends with "
        "RESOURCE_EXHAUSTED; 0: half of --request_memory_bytes, and at least 256 MiB unless that "
        "flag is given; needs --allocator=jemalloc",
    ),
    Flag(
        "grpc_compression",
        choice("request", "none", "gzip", "deflate"),
        ServerConfig.grpc_compression,
        "compression of replies from 1 KiB on, if the client accepts it; request: the same as the "
        "request's; requests may be compressed with each value",
        "request|none|gzip|deflate",
    ),
    Flag(
        "grpc_request_threads",
        integer(0, 1024),
        ServerConfig.grpc_request_threads,
        "threads that run gRPC requests while no request runs long; 0: one per core, but no more "
        "than --grpc_max_threads. With --accelerator, as many again serve",
    ),
    Flag(
        "request_thread_groups",
        integer(0, 64),
        ServerConfig.request_thread_groups,
        "groups of request threads; each has connections and a queue of its own, and helps the "
        "others when it has nothing; 0: one for up to 16 cores, otherwise one for each 8 to 12; at "
        "most one a thread",
    ),
    Flag(
        "grpc_max_connections_per_address",
        integer(0, 2**31 - 1),
        ServerConfig.grpc_max_connections_per_address,
        "most gRPC connections of one IP address; the server closes further ones at once; 0: no "
        "limit",
    ),
    Flag(
        "max_request_seconds",
        seconds_not_negative(WAIT_SECONDS_MAX),
        ServerConfig.max_request_seconds,
        "deadline of a gRPC request to a model that comes without one; 0: none",
    ),
    Flag(
        "max_in_flight_requests",
        integer(1, 2**31 - 1),
        ServerConfig.max_in_flight_requests,
        "most requests that have arrived and have no reply yet, over gRPC and HTTP together; "
        "requests beyond it get RESOURCE_EXHAUSTED at once; --model_settings_file limits each model",
    ),
    Flag(
        "supervise",
        boolean,
        False,
        "run the server in a child process that is started again when a signal ends it; the parent "
        "holds the ports, so that connections wait meanwhile, and a version that crashed the server "
        "is blocked",
        "",
    ),
)

_CHANNEL_ARGUMENT = "use --grpc_channel_arguments={}"
_NO_SETTING = "it is a fixed limit now, and docs/api.md names it"

GONE_FLAGS: Mapping[str, str] = {
    "grpc_max_message_bytes": "use --max_request_bytes, which also limits the bodies of HTTP requests",
    "rest_api_max_body_bytes": "use --max_request_bytes, which also limits the messages of gRPC requests",
    "grpc_completion_queue_count": "use --grpc_request_threads",
    "max_in_flight_requests_per_model": "use max_in_flight_requests in the [default] table of "
    "--model_settings_file",
    "grpc_max_streams_per_connection": _CHANNEL_ARGUMENT.format(
        "grpc.max_concurrent_streams=COUNT"
    ),
    "grpc_max_header_bytes": _CHANNEL_ARGUMENT.format("grpc.max_metadata_size=BYTES"),
    "grpc_keepalive_seconds": _CHANNEL_ARGUMENT.format("grpc.keepalive_time_ms=MILLISECONDS"),
    "grpc_idle_seconds": _CHANNEL_ARGUMENT.format("grpc.max_connection_idle_ms=MILLISECONDS"),
    "grpc_max_connections": f"{_NO_SETTING}; --grpc_max_connections_per_address limits one address",
    "grpc_max_arriving_bytes": _NO_SETTING,
    "grpc_max_control_frames": _NO_SETTING,
    "grpc_max_resets_per_second": _NO_SETTING,
    "grpc_handshake_seconds": _NO_SETTING,
    "grpc_pause_seconds": _NO_SETTING,
    "ready_with_stuck_sources": "a server stays ready while the disk of a base path hangs; the alert "
    "MillpondSourceStuck tells you",
    "arena_headroom_bytes": "an arena has 256 MiB of headroom; docs/memory.md says what happens beyond it",
    **dict.fromkeys(
        ("tensorflow_runtime", "tensorflow_load_pool", "load_patience_seconds"),
        "it is a setting of the load tests, in the environment variable MILLPOND_LAB (docs/extending.md)",
    ),
    "stop_at_stdin_eof": "set the environment variable MILLPOND_STOP_AT_STDIN_EOF=1",
}
"""Flags of earlier versions, and what to use instead. None is a flag of tensorflow_model_server."""
