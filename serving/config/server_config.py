"""What a server is asked to serve, and how: values only."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from serving.base.errors import InvalidConfig
from serving.base.name_text import fault_of_name
from serving.config.model_settings_file import SettingsByModel, read_model_settings_file
from serving.config.op_library_files import op_libraries_of
from serving.core.model_settings import ModelSettings
from serving.core.version_selection import Latest, Specific, VersionSelection

PLATFORM = "tensorflow"
"""The one platform there is; the loader is chosen by it."""

STOCK_RUNTIME = "stock"
"""TensorFlow as it comes: what Millpond's own runtime is measured against."""


@dataclass(frozen=True)
class HttpPort:
    """Where HTTP is served. `number` 0 takes a free port; None: nowhere.

    `is_required`: somebody has asked for this port, so a server that cannot have it does not start.
    """

    number: int | None
    is_required: bool = True

    def __str__(self) -> str:
        return {None: "0", 0: "auto"}.get(self.number, str(self.number))


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model: its name, where its versions appear, which of them are aspired, and how."""

    name: str
    base_path: str
    platform: str = PLATFORM
    version_selection: VersionSelection = Latest(1)
    # The version that each label is to name, once that version is AVAILABLE.
    labels: Mapping[str, int] = field(default_factory=dict)
    settings: ModelSettings = field(default_factory=ModelSettings)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """One server process. The defaults here are the flags' defaults."""

    models: tuple[ModelConfig, ...]
    # Of these models, where they are not the default, and of those that are added later.
    model_settings: SettingsByModel = field(default_factory=SettingsByModel)
    # Where the models and their settings come from, to be read again; "": from no file.
    model_config_file: str = ""
    model_settings_file: str = ""
    model_config_file_poll_wait_seconds: float = 0.0  # 0 or negative: read once
    host: str = "0.0.0.0"
    port: int = 8500  # 0 takes a free one
    # False: a client that waits for the port waits for the models, as with TensorFlow Serving.
    listen_before_ready: bool = False
    max_startup_wait_seconds: float = 0.0  # 0 or negative: without end
    # Above the load of a small model, below the deadline that clients usually set.
    first_version_wait_seconds: float = 2.0
    # TensorFlow Serving's usual one. There it is off by default; here health, metrics and the page
    # are there without a flag, and gRPC without them where something else has the port.
    rest_api_port: HttpPort = HttpPort(8501, is_required=False)
    rest_api_num_threads: int = 0  # 0: four a core
    rest_api_timeout_in_ms: int = 30_000
    # Held in memory as a whole: far above what a client writes as JSON.
    rest_api_max_body_bytes: int = 64 * 2**20
    rest_api_enable_cors_support: bool = False
    # Names by which HTTP is asked; none: on a loopback bind this machine's, else any.
    http_hosts: tuple[str, ...] = ()
    grpc_socket_path: str = ""
    # "auto": a UNIX socket in a run directory; "off"; unix:PATH; HOST:PORT.
    admin_address: str = "auto"
    # Who may reload and load over the data port: "local", "true" (everyone), "false".
    admin_on_data_port: str = "local"
    admin_clients: tuple[str, ...] = ()  # names in certificates
    ssl_config_file: str = ""  # "": no TLS
    grpc_compression: str = "request"
    enable_serialization_as_tensor_content: bool = False
    grpc_channel_arguments: Mapping[str, int | str] = field(default_factory=dict)
    completion_queue_count: int = 0  # 0: one a core
    grpc_max_threads: int = 0  # 0: four a core
    # Arrived and not answered, over gRPC and HTTP together. Above what healthy clients have in
    # flight, below what the last one's deadline would not outlast.
    max_in_flight_requests: int = 4_096
    max_in_flight_requests_per_model: int = 0  # 0: as many as the server
    # Of a request. TensorFlow Serving takes 2 GiB, which one client could fill a machine with.
    max_message_bytes: int = 64 * 2**20
    max_reply_bytes: int = 0  # 0: as request_memory.py has it
    request_memory_bytes: int = 0  # 0: a quarter of what the machine or the control group leaves
    run_memory_bytes: int = 0  # 0: half of that
    file_system_poll_wait_seconds: float = 1.0  # 0: poll once, negative: never
    # How long a version that lacks an asset is left alone after its last change.
    missing_asset_wait_seconds: float = 30.0
    # Whether a base path that is emptied leaves its model's versions loaded.
    servable_versions_always_present: bool = True
    # Two, so that one model's slow load does not hold up another's; more would fight for the disk.
    num_load_threads: int = 2
    num_unload_threads: int = 1
    max_num_load_retries: int = 5
    load_retry_interval_micros: int = 60_000_000  # negative: no wait
    # A load begins up to this much later, at random, so that a fleet does not swap in step.
    load_jitter_seconds: float = 0.0
    enable_model_warmup: bool = True
    # Of one request that is replayed before a version serves, or by its gates. 0: no limit.
    warmup_request_seconds: float = 60.0
    num_request_iterations_for_warmup: int = 0  # 0 means 1
    tensorflow_intra_op_parallelism: int = 0  # 0: one thread a core
    tensorflow_inter_op_parallelism: int = 0
    # The stock runtime is the control of the load tests: no arenas, TensorFlow's own everything.
    tensorflow_runtime: str = "millpond"
    tensorflow_load_pool: bool = False
    arena: bool = True
    arena_spare_slabs: int = 1
    # Reserved and not touched: it costs addresses until restore or init allocate beside variables.
    arena_headroom_bytes: int = 256 * 2**20
    arena_seal: bool = False
    model_memory_limit_bytes: int = 0  # 0: what the machine or the control group has
    load_priority: str = "idle"
    load_patience_seconds: float = 2.0  # 0: for ever
    pin_request_threads: str = "loads"
    restore_bytes_per_second: int = 0  # 0: as fast as it can
    swap_p99_guard: float = 0.0  # 0: off
    self_warmup_requests: int = 64  # 0: off
    warmup_capture_directory: str = ""  # "": off
    ready_with_stuck_sources: bool = True
    state_directory: str = ""  # "": what was rolled back is forgotten at the end
    otlp_endpoint: str = ""  # "": no spans are exported
    slow_request_log_seconds: float = 0.0  # 0: none is
    saved_model_tags: tuple[str, ...] = ("serve",)
    enable_signature_method_name_check: bool = False
    enable_session_run: bool = False
    # TensorFlow's ProfilerService, for those who may operate the server.
    enable_profiler: bool = True
    strict_input_shapes: bool = False
    metrics_path: str = ""  # one more than there always are
    op_libraries: tuple[str, ...] = ()  # paths, in the order in which they are loaded
    # Above the deadline that clients usually set, below the time that orchestrators wait to kill.
    drain_seconds: float = 20.0
    # Off, as Triton has it: over HTTP nobody else changes what is served.
    allow_repository_control: bool = False

    @property
    def has_arenas(self) -> bool:
        """Whether versions lie in arenas of their own."""
        return self.arena and not self.is_stock

    @property
    def is_tracing(self) -> bool:
        """Whether requests are asked for the trace that they are a part of."""
        return bool(self.otlp_endpoint) or self.slow_request_log_seconds > 0

    @property
    def is_stock(self) -> bool:
        """Whether TensorFlow runs as it comes."""
        return self.tensorflow_runtime == STOCK_RUNTIME


def check_models(models: Sequence[ModelConfig], where: str = "") -> None:
    """Raises InvalidConfig, whose message begins with `where`, for what cannot be served.

    That is a name that two models have or that holds a control character, a base path that is not
    absolute, and a label of a version that there is not or that the model's version policy never
    loads.
    """
    seen: set[str] = set()
    for model in models:
        if model.name in seen:
            raise InvalidConfig(
                f"{where}model {model.name!r} is there twice; give each its own name"
            )
        if fault := fault_of_name(model.name):
            raise InvalidConfig(f"{where}model {model.name!r}: {fault}")
        seen.add(model.name)
        _check_model(model, f"{where}model {model.name!r}: ")


def _check_model(model: ModelConfig, where: str) -> None:
    selection = model.version_selection
    if not os.path.isabs(model.base_path):
        raise InvalidConfig(
            f"{where}base_path {model.base_path!r} must be an absolute path of the server's machine"
        )
    for label, version in model.labels.items():
        if version < 0:
            raise InvalidConfig(f"{where}label {label!r}: {version} is no version; give 0 or more")
        if isinstance(selection, Specific) and version not in selection.versions:
            raise InvalidConfig(
                f"{where}label {label!r} is of version {version}, which model_version_policy "
                f"({selection}) does not load; add it there or move the label"
            )


_FIELD_NAMES = frozenset(field.name for field in fields(ServerConfig))


def server_config(flags: Mapping[str, Any]) -> ServerConfig:
    """Builds the configuration from the values of `serving.config.flags.parse_flags`.

    Reads the files of --model_config_file and --model_settings_file. Raises InvalidConfig.
    """
    session_threads = flags["tensorflow_session_parallelism"]
    intra_op_threads = flags["tensorflow_intra_op_parallelism"]
    inter_op_threads = flags["tensorflow_inter_op_parallelism"]
    if session_threads and intra_op_threads and inter_op_threads:
        raise InvalidConfig(
            "--tensorflow_session_parallelism stands for --tensorflow_intra_op_parallelism and "
            "--tensorflow_inter_op_parallelism; give it or both of them"
        )
    _check_arena_flags(flags)
    _check_ports(flags)
    _check_admin_clients(flags)
    models = _models(flags)
    settings = _settings(models, flags["model_settings_file"])
    # Most fields are called as the flag that they are.
    same = {name: flags[name] for name in _FIELD_NAMES & flags.keys()}
    other: dict[str, Any] = {
        "models": tuple(replace(model, settings=settings.of(model.name)) for model in models),
        "model_settings": settings,
        "completion_queue_count": flags["grpc_completion_queue_count"],
        "max_message_bytes": flags["grpc_max_message_bytes"],
        "tensorflow_intra_op_parallelism": intra_op_threads or session_threads,
        "tensorflow_inter_op_parallelism": inter_op_threads or session_threads,
        "self_warmup_requests": _self_warmup_requests(flags),
        "metrics_path": _metrics_path(flags["monitoring_config_file"]),
        "op_libraries": _op_libraries(flags),
    }
    return ServerConfig(**{**same, **other})


def _check_ports(flags: Mapping[str, Any]) -> None:
    http: HttpPort = flags["rest_api_port"]
    if http.number and http.is_required and http.number == flags["port"]:
        raise InvalidConfig(
            f"--rest_api_port={http.number} is the port of gRPC too, --port={http.number}; give HTTP "
            "another one, or 0 for none"
        )


def _check_admin_clients(flags: Mapping[str, Any]) -> None:
    if flags["admin_clients"] and not flags["ssl_config_file"]:
        raise InvalidConfig(
            f"--admin_clients={','.join(flags['admin_clients'])} names clients by their "
            "certificates; give --ssl_config_file with client_verify: true and custom_ca"
        )


def _self_warmup_requests(flags: Mapping[str, Any]) -> int:
    count: int = flags["self_warmup_requests"]
    if count == 0 and flags["warmup_capture_directory"]:
        raise InvalidConfig(
            "--self_warmup_requests=0: no requests are kept that --warmup_capture_directory="
            f"{flags['warmup_capture_directory']} could be given; leave one of them out"
        )
    return count


def _metrics_path(config_file: str) -> str:
    if not config_file:
        return ""
    # Here, because protobuf takes 80 ms that most servers do not need before they listen.
    from serving.config.monitoring_config_file import read_monitoring_config_file

    return read_monitoring_config_file(Path(config_file))


def _op_libraries(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of packages first: what is named by its path may build on them. Each once."""
    packages: Sequence[str] = flags["op_package"]
    tensorflow_version = metadata.version("tensorflow") if packages else ""
    of_packages = [
        path
        for package in packages
        for path in op_libraries_of(package, tensorflow_version=tensorflow_version)
    ]
    return tuple(dict.fromkeys([*of_packages, *flags["op_library"]]))


def _check_arena_flags(flags: Mapping[str, Any]) -> None:
    is_stock = flags["tensorflow_runtime"] == STOCK_RUNTIME
    has_arenas = flags["arena"] and not is_stock
    if has_arenas and flags["allocator"] != "jemalloc":
        raise InvalidConfig(
            f"--allocator={flags['allocator']}: the arenas of versions are jemalloc's; "
            "say --allocator=jemalloc or --arena=false"
        )
    if flags["arena_seal"] and not has_arenas:
        raise InvalidConfig(
            "--arena_seal seals arenas, and there are none; leave out --arena=false"
        )
    if flags["tensorflow_load_pool"] and not is_stock:
        raise InvalidConfig(
            "--tensorflow_load_pool belongs to --tensorflow_runtime=stock; Millpond's own runtime "
            "loads on the loader's thread"
        )


def _models(flags: Mapping[str, Any]) -> tuple[ModelConfig, ...]:
    base_path, config_file = flags["model_base_path"], flags["model_config_file"]
    if bool(base_path) == bool(config_file):
        raise InvalidConfig(
            "give one of --model_base_path and --model_config_file; see millpond serve --help"
        )
    if config_file:
        if flags["model_name"]:
            raise InvalidConfig("--model_name belongs to --model_base_path; the file has the names")
        # Here, because protobuf takes 80 ms that a server of one model does not need before it
        # listens.
        from serving.config.model_config_file import read_model_config_file

        return read_model_config_file(Path(config_file))
    return (ModelConfig(name=flags["model_name"] or "default", base_path=base_path),)


def _settings(models: Sequence[ModelConfig], settings_file: str) -> SettingsByModel:
    if not settings_file:
        return SettingsByModel()
    return read_model_settings_file(Path(settings_file), [model.name for model in models])
