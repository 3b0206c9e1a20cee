"""The flags of `millpond serve`: TensorFlow Serving's own spellings, and Millpond's.

A flag is either taken or refused by name with the reason. None is ignored: a command line that was
moved over from `tensorflow_model_server` either means here what it meant there, or does not start.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.config import HttpPort, ServerConfig
from serving.errors import TRANSIENT_CODES, InvalidConfig

WAIT_SECONDS_MAX = 1_000_000_000
"""Thirty years: for ever, and still a time that threads can wait and int64 can hold in nanoseconds."""

DRAIN_SECONDS_MAX = 86_400
"""A day: no orchestrator waits as long to kill."""

Reader = Callable[[str], Any]
"""Turns a flag's text into its value; raises ValueError that says what would be right."""


@dataclass(frozen=True)
class Flag:
    """A flag that is taken. `metavar` is "" for a boolean, which may stand without a value."""

    name: str
    read: Reader
    default: Any
    help: str
    metavar: str = "VALUE"


@dataclass(frozen=True)
class RefusedFlag:
    """A flag of TensorFlow Serving that Millpond does not have (yet), and why."""

    name: str
    reason: str


def parse_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Reads a command line into the value of every taken flag, defaults included.

    Takes `--flag=value` and `--flag value`; booleans are `--flag` or `--flag=true|false`. The last
    one wins, as it does in TensorFlow Serving. Raises InvalidConfig for anything else.
    """
    values = {flag.name: flag.default for flag in FLAGS.values() if isinstance(flag, Flag)}
    remaining = list(arguments)
    while remaining:
        name, text = _split(remaining.pop(0))
        flag = _find(name)
        if text is None and flag.metavar:
            text = _following_value(flag, remaining)
        values[flag.name] = _read(flag, "true" if text is None else text)
    return values


def help_text() -> str:
    """What `millpond serve --help` prints: every taken flag, then the names of the refused ones."""
    taken = [flag for flag in FLAGS.values() if isinstance(flag, Flag)]
    refused = [flag.name for flag in FLAGS.values() if isinstance(flag, RefusedFlag)]
    lines = ["usage: millpond serve --model_base_path=DIR [--flag=value ...]", ""]
    for flag in taken:
        lines.append(f"  --{flag.name}" + (f"={flag.metavar}" if flag.metavar else ""))
        lines.append(f"        {flag.help}{_default_text(flag)}")
    lines += [
        "",
        "Flags of TensorFlow Serving that are refused by name, with the reason when you use one:",
    ]
    lines += [f"  --{name}" for name in refused]
    return "\n".join(lines)


def _default_text(flag: Flag) -> str:
    if isinstance(flag.default, bool):
        return f" (default {str(flag.default).lower()})"
    if isinstance(flag.default, tuple):
        return f" (default {','.join(flag.default)})"
    return f" (default {flag.default})" if flag.default not in ("", {}) else ""


def _split(argument: str) -> tuple[str, str | None]:
    if not argument.startswith("--") or argument == "--":
        raise InvalidConfig(f"{argument!r} is no flag; write --flag=value")
    name, separator, text = argument[2:].partition("=")
    return name, text if separator else None


def _find(name: str) -> Flag:
    flag = FLAGS.get(name)
    if flag is None:
        nearest = difflib.get_close_matches(name, FLAGS, n=1)
        remedy = f"did you mean --{nearest[0]}?" if nearest else "see millpond serve --help"
        raise InvalidConfig(f"--{name} is no flag of Millpond or TensorFlow Serving; {remedy}")
    if isinstance(flag, RefusedFlag):
        raise InvalidConfig(f"--{name} is refused: {flag.reason}")
    return flag


def _following_value(flag: Flag, remaining: list[str]) -> str:
    # A value that looks like a flag is a value forgotten; `--flag=--value` can still say it.
    if not remaining or remaining[0].startswith("--"):
        raise InvalidConfig(f"--{flag.name} needs a value: --{flag.name}={flag.metavar}")
    return remaining.pop(0)


def _read(flag: Flag, text: str) -> Any:
    try:
        return flag.read(text)
    except ValueError as error:
        raise InvalidConfig(f"--{flag.name}={text}: {error}") from None


def boolean(text: str) -> bool:
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise ValueError("must be true or false")


def integer(minimum: int, maximum: int = 2**63 - 1) -> Reader:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not minimum <= value <= maximum:
            raise ValueError(f"must be between {minimum} and {maximum}")
        return value

    return read


def http_port(text: str) -> HttpPort:
    """A port; 0 is none, as in TensorFlow Serving, and `auto` a free one."""
    if text == "auto":
        return HttpPort(0)
    number: int = integer(0, 65535)(text)
    return HttpPort(number or None)


def seconds(maximum: int) -> Reader:
    """A finite number of seconds; negative ones have a meaning for some flags."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("must be a number of seconds") from None
        if not abs(value) < float("inf"):
            raise ValueError("must be a finite number of seconds")
        if value > maximum:
            raise ValueError(f"must be at most {maximum} seconds")
        return value

    return read


def seconds_not_negative(maximum: int) -> Reader:
    def read(text: str) -> float:
        value: float = seconds(maximum)(text)
        if value < 0:
            raise ValueError("must not be negative")
        return value

    return read


def factor(text: str) -> float:
    """0, which is off, or a factor above 1."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if value != 0 and not 1 < value < float("inf"):
        raise ValueError("must be 0 (off) or a factor above 1, like 1.5")
    return value


def choice(*names: str) -> Reader:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return text

    return read


def not_empty(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def local_path(text: str) -> str:
    """A path on a local file system, made absolute."""
    if not text:
        raise ValueError("must not be empty")
    if "://" in text:
        raise ValueError("must be a local path; mount remote storage and name the mount point")
    return os.path.abspath(text)


def http_url(text: str) -> str:
    """The URL of an HTTP server, with or without a path."""
    if text and not re.fullmatch(r"https?://[^/?#\s]+[^?#\s]*", text):
        raise ValueError("must be a URL like http://collector:4318")
    return text


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once and none empty."""
    items = tuple(text.split(","))
    if not all(items) or len(set(items)) < len(items):
        raise ValueError("must be names separated by commas, none empty and none twice")
    return items


def channel_arguments(text: str) -> Mapping[str, int | str]:
    """`k=v,k=v`; a value that reads as a whole number is one, and gRPC's are int32."""
    arguments: dict[str, int | str] = {}
    for item in text.split(",") if text else []:
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise ValueError(f"{item!r} is no name=value; write name=value,name=value")
        try:
            arguments[key] = int(value)
        except ValueError:
            arguments[key] = value
            continue
        if not -(2**31) <= int(value) < 2**31:
            raise ValueError(f"{item!r} must be between {-(2**31)} and {2**31 - 1}")
    return arguments


def always_on(text: str) -> bool:
    if not boolean(text):
        raise ValueError("cannot be switched off: Millpond always answers grpc.health.v1")
    return True


_TRANSIENT = ", ".join(code.name for code in sorted(TRANSIENT_CODES))

_NOT_YET = "Millpond does not have it yet"
_BATCHING = "Millpond does not batch requests yet"
_TFLITE = "Millpond serves SavedModels only"
_XLA = "Millpond runs SavedModels on TensorFlow's CPU kernels, without XLA"

# All 48 flags of tensorflow_model_server, in the order of its own help.
_TENSORFLOW_SERVING_FLAGS: tuple[Flag | RefusedFlag, ...] = (
    Flag(
        "port",
        integer(0, 65535),
        ServerConfig.port,
        "TCP port of gRPC; 0 takes a free one, which the log's `listening` names",
    ),
    Flag("grpc_socket_path", local_path, "", "UNIX socket to listen on as well", "PATH"),
    Flag(
        "rest_api_port",
        http_port,
        ServerConfig.rest_api_port,
        "TCP port of HTTP: /healthz, /readyz, metrics and the page; 0: none, auto: a free one, which "
        "the log's `listening` names; where something else has the default one, there is no HTTP",
    ),
    Flag(
        "rest_api_num_threads",
        integer(0, 1024),
        ServerConfig.rest_api_num_threads,
        "threads for what HTTP cannot answer at once; 0: four a core",
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
    RefusedFlag("enable_batching", _BATCHING),
    RefusedFlag("batching_parameters_file", _BATCHING),
    RefusedFlag("enable_per_model_batching_parameters", _BATCHING),
    RefusedFlag(
        "allow_version_labels_for_unavailable_models",
        "not needed: a label and its version may be new together, and the label names the version "
        "once it is AVAILABLE",
    ),
    Flag(
        "model_config_file",
        local_path,
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
        "threads that load versions; 0 means 1: none loads on the manager's own thread",
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
    RefusedFlag(
        "flush_filesystem_caches",
        "Millpond never drops a version's files from the page cache; the kernel does under need",
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
    RefusedFlag("tensorflow_session_config_file", _NOT_YET),
    RefusedFlag("use_alts_credentials", "ALTS works inside Google's cloud only"),
    RefusedFlag("ssl_config_file", "Millpond has no TLS yet; put a proxy with TLS in front"),
    RefusedFlag(
        "platform_config_file",
        "Millpond has no platform configuration; its flags say the same, one by one",
    ),
    RefusedFlag("per_process_gpu_memory_fraction", "Millpond serves on the CPU"),
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
    RefusedFlag(
        "grpc_max_threads",
        "a completion queue of Millpond has one thread; say --grpc_completion_queue_count",
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
    RefusedFlag("monitoring_config_file", "Millpond has no metrics page yet"),
    RefusedFlag(
        "remove_unused_fields_from_bundle_metagraph",
        "Millpond keeps nothing of the meta graph but its signatures",
    ),
    RefusedFlag("prefer_tflite_model", _TFLITE),
    RefusedFlag("num_tflite_pools", _TFLITE),
    RefusedFlag("num_tflite_interpreters_per_pool", _TFLITE),
    RefusedFlag("enable_signature_method_name_check", _NOT_YET),
    RefusedFlag("xla_cpu_compilation_enabled", _XLA),
    RefusedFlag("xla_gpu_compilation_enabled", _XLA),
    RefusedFlag("enable_profiler", "Millpond has no ProfilerService; use perf on the process"),
    RefusedFlag("thread_pool_factory_config_file", "Millpond has no thread pool factories"),
    RefusedFlag("mixed_precision", _NOT_YET),
    RefusedFlag("skip_initialize_tpu", "Millpond serves on the CPU"),
    Flag(
        "enable_grpc_healthcheck_service",
        always_on,
        True,
        "grpc.health.v1; always on, so that only true is taken",
        "",
    ),
    RefusedFlag(
        "enable_serialization_as_tensor_content",
        "Millpond chooses the encoding of the outputs; clients read both",
    ),
)

_MILLPOND_FLAGS: tuple[Flag, ...] = (
    Flag("host", not_empty, ServerConfig.host, "address to listen on"),
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
        "of the threads that load, unload and keep memory, beside those that answer requests",
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
        "to a core each: while versions load and unload on machines of up to 8 cores, always, or "
        "never",
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
        "warmup_capture_directory",
        local_path,
        ServerConfig.warmup_capture_directory,
        "each minute and at the stop, the recent requests of each model are written to DIR/MODEL/"
        "tf_serving_warmup_requests, which a next version can have as its warm-up file",
        "DIR",
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
        "largest message taken or sent",
    ),
    Flag(
        "grpc_completion_queue_count",
        integer(0, 1024),
        ServerConfig.completion_queue_count,
        "completion queues, each with a thread that runs requests; 0: one a core",
    ),
    Flag(
        "stop_at_stdin_eof",
        boolean,
        False,
        "stop as at SIGTERM when standard input closes, so as not to outlive a parent process",
        "",
    ),
)

FLAGS: Mapping[str, Flag | RefusedFlag] = {
    flag.name: flag for flag in _TENSORFLOW_SERVING_FLAGS + _MILLPOND_FLAGS
}
