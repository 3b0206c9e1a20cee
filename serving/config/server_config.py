"""The configuration of a server: the models to serve, and all flags. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from serving.base.errors import InvalidConfig
from serving.base.tensorflow_package import installed_version
from serving.config.lab_settings import NO_LAB, LabSettings
from serving.config.model_settings_file import read_model_settings_file
from serving.config.op_library_files import op_libraries_of
from serving.core.model_config import ModelConfig, SettingsByModel
from serving.core.model_settings import (
    BATCHING_COUNT_MAX,
    BATCHING_OFF,
    BatchingChoice,
    BatchingSettings,
)
from serving.core.store_urls import check_store_url, is_store_url


@dataclass(frozen=True)
class HttpPort:
    """The port of HTTP. A `number` of 0 takes a free port; with None, HTTP is off.

    If `is_required`, the port was set explicitly, and a server that cannot bind it does not start.
    `host` replaces the server's host unless it is "". `descriptors` are listening sockets that were
    handed in; the server then binds no address for HTTP.
    """

    number: int | None
    is_required: bool = True
    host: str = ""
    descriptors: tuple[int, ...] = ()

    def __str__(self) -> str:
        return {None: "0", 0: "auto"}.get(self.number, str(self.number))


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """One server process. The defaults here are the flags' defaults."""

    models: tuple[ModelConfig, ...]
    # The settings of these models, and of models that are added later.
    model_settings: SettingsByModel = field(default_factory=SettingsByModel)
    # The files of the models and their settings, which are read again when they change; "": no file.
    model_config_file: str = ""
    model_settings_file: str = ""
    # 0: the file of models is read once, as with TensorFlow Serving, and the settings file each second.
    # Negative: both are read once.
    model_config_file_poll_wait_seconds: float = 0.0
    host: str = "0.0.0.0"
    port: int = 8500  # 0 takes a free port
    # Listening sockets that were handed in. `host` and `port` are then their address, or 0 for UNIX
    # sockets alone, and the server binds no TCP address for gRPC.
    grpc_descriptors: tuple[int, ...] = ()
    # If False, the port opens once the models are loaded, as with TensorFlow Serving.
    listen_before_ready: bool = False
    max_startup_wait_seconds: float = 0.0  # 0 or negative: without end
    # Above the load time of a small model, below the usual deadline of clients.
    first_version_wait_seconds: float = 2.0
    # TensorFlow Serving's usual port; there it is off by default. Here health, metrics and the page need
    # no flag. If another process has the port, the server starts without HTTP.
    rest_api_port: HttpPort = HttpPort(8501, is_required=False)
    rest_api_num_threads: int = 0  # 0: four a core
    rest_api_timeout_in_ms: int = 30_000
    rest_api_enable_cors_support: bool = False
    # The accepted Host names of HTTP. If empty: this machine's names on a loopback bind, else any name.
    http_hosts: tuple[str, ...] = ()
    grpc_socket_path: str = ""
    rest_api_socket_path: str = ""
    # "auto": a UNIX socket in a run directory; "off"; unix:PATH; HOST:PORT.
    admin_address: str = "auto"
    # The clients that may reload and load over the data port: "local", "true" (all) or "false".
    admin_on_data_port: str = "local"
    admin_clients: tuple[str, ...] = ()  # names in certificates
    ssl_config_file: str = ""  # "": no TLS
    rest_ssl_config_file: str = ""  # "": no TLS
    grpc_compression: str = "request"
    enable_serialization_as_tensor_content: bool = False
    grpc_channel_arguments: Mapping[str, int | str] = field(default_factory=dict)
    grpc_request_threads: int = 0  # 0: one a core
    grpc_max_threads: int = 0  # 0: four a core
    numa: str = "auto"
    request_thread_groups: int = 0  # 0: by the number of cores (native/rpc/group_plan.h)
    # native/rpc/wire_limits.h has the other limits of connections.
    grpc_max_connections_per_address: int = 0  # 0: no limit
    # The deadline of a gRPC request to a model that comes without one. 0: none.
    max_request_seconds: float = 60.0
    # The most requests without a reply, over gRPC and HTTP together. This is above what healthy clients
    # have in flight, and low enough for the last request to be answered before its deadline.
    max_in_flight_requests: int = 4_096
    # A request is held in memory as a whole. TensorFlow Serving takes 2 GiB over gRPC and any size over
    # HTTP, with which one client can fill a machine.
    max_request_bytes: int = 64 * 2**20
    max_reply_bytes: int = 0  # 0: chosen by request_memory.py
    request_memory_bytes: int = 0  # 0: a quarter of what the machine or the control group leaves
    run_memory_bytes: int = 0  # 0: half of that
    file_system_poll_wait_seconds: float = 1.0  # 0: poll once, negative: never
    # The time after its last change until a version that lacks an asset is loaded without it.
    missing_asset_wait_seconds: float = 30.0
    # The copies of models whose base path is in object storage; "": below the user's cache directory.
    model_cache_directory: str = ""
    model_cache_bytes: int = 10 * 2**30
    # Each look is a request that is paid for: six a minute, and a new version waits 5 s on average.
    model_store_poll_wait_seconds: float = 10.0
    # If True, the versions of a model stay loaded when its base path is emptied.
    servable_versions_always_present: bool = True
    # Two, so that a slow load of one model does not delay another's; more would compete for the disk.
    num_load_threads: int = 2
    num_unload_threads: int = 1
    max_num_load_retries: int = 5
    load_retry_interval_micros: int = 60_000_000  # negative: no wait
    # A load begins with a random delay up to this, so that a fleet does not swap in step.
    load_jitter_seconds: float = 0.0
    enable_model_warmup: bool = True
    # The time limit of one request that is replayed before a version serves, or by its gates. 0: none.
    warmup_request_seconds: float = 60.0
    num_request_iterations_for_warmup: int = 0  # 0 means 1
    # How requests share runs, unless the settings of their model, or its version's file, differ.
    batching: BatchingSettings = BATCHING_OFF
    enable_per_model_batching_parameters: bool = False
    tensorflow_intra_op_parallelism: int = 0  # 0: one thread a core
    tensorflow_inter_op_parallelism: int = 0  # 0: two threads
    arena: bool = True
    # Versions that may load at once and find their memory in place. Negative: as many as do load at once.
    arena_spare_slabs: int = -1
    arena_seal: bool = False
    accelerator: str = ""  # "": versions run on the CPU
    accelerator_rows: tuple[int, ...] = (1, 8, 32, 128, 512, 2048)
    accelerator_memory_fraction: float = 0.9
    accelerator_memory_bytes: int = 0  # of each device; 0: as the fraction says
    accelerator_cache_directory: str = ""  # "": a private one, removed at the end
    accelerator_autotuning: str = "background"
    accelerator_autotuning_seconds: float = 900.0  # of a process, beside requests
    accelerator_compile_process: bool = True
    model_memory_limit_bytes: int = 0  # 0: what the machine or the control group has
    load_priority: str = "auto"
    pin_request_threads: str = "loads"
    load_seconds_target: float = 10.0  # 0: as fast as it can
    restore_bytes_per_second: int = 0  # 0: as load_seconds_target says
    self_warmup_requests: int = 64  # 0: off
    warmup_capture_directory: str = ""  # "": off
    state_directory: str = ""  # "": blocked versions are forgotten when the process ends
    fleet_member: bool = False
    otlp_endpoint: str = ""  # "": no spans are exported
    slow_request_log_seconds: float = 0.0  # 0: no requests are logged
    saved_model_tags: tuple[str, ...] = ("serve",)
    enable_signature_method_name_check: bool = False
    enable_session_run: bool = False
    # TensorFlow's ProfilerService, for operators of the server.
    enable_profiler: bool = True
    strict_input_shapes: bool = False
    metrics_path: str = ""  # an additional path of the metrics
    op_libraries: tuple[str, ...] = ()  # paths, in the order in which they are loaded
    # Above the usual deadline of clients, below the time that orchestrators wait before they kill.
    drain_seconds: float = 20.0
    # Off, as in Triton: otherwise any client of HTTP could change the served models.
    allow_repository_control: bool = False
    lab: LabSettings = NO_LAB

    @property
    def http_host(self) -> str:
        """The host of HTTP."""
        return self.rest_api_port.host or self.host

    @property
    def has_arenas(self) -> bool:
        """True if each version has an arena of its own."""
        return self.arena and not self.lab.is_stock

    @property
    def spare_slab_count(self) -> int:
        """The versions that may load at once and find their memory in place."""
        if self.arena_spare_slabs < 0:
            return max(1, self.num_load_threads)
        return self.arena_spare_slabs

    @property
    def background_priority(self) -> str:
        """The priority of loads: --load_priority, or that which `auto` stands for.

        XLA and a driver hold locks that runs wait for, and their threads inherit the priority of the thread
        that needs them first. So nothing that uses an accelerator may lose its core to others.
        """
        if self.load_priority != "auto":
            return self.load_priority
        return "normal" if self.accelerator else "idle"

    @property
    def compile_priority(self) -> str:
        """The priority of a process that compiles for an accelerator: --load_priority, or idle for `auto`.

        It holds no lock that runs wait for.
        """
        return "idle" if self.load_priority == "auto" else self.load_priority

    @property
    def is_tracing(self) -> bool:
        """True if the trace context of requests is read."""
        return bool(self.otlp_endpoint) or self.slow_request_log_seconds > 0


_FIELD_NAMES = frozenset(field.name for field in fields(ServerConfig))


def server_config(flags: Mapping[str, Any], lab: LabSettings = NO_LAB) -> ServerConfig:
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
    _check_arena_flags(flags, lab)
    _check_ports(flags)
    _check_admin_clients(flags)
    _check_accelerator_flags(flags)
    models = _models(flags)
    settings = _settings(models, flags["model_settings_file"])
    # Most fields have the name of their flag.
    same = {name: flags[name] for name in _FIELD_NAMES & flags.keys()}
    other: dict[str, Any] = {
        "models": tuple(replace(model, settings=settings.of(model.name)) for model in models),
        "model_settings": settings,
        "batching": _batching(flags),
        "tensorflow_intra_op_parallelism": intra_op_threads or session_threads,
        "tensorflow_inter_op_parallelism": inter_op_threads or session_threads,
        "self_warmup_requests": _self_warmup_requests(flags),
        "metrics_path": _metrics_path(flags["monitoring_config_file"]),
        "op_libraries": _op_libraries(flags),
        "lab": lab,
    }
    return ServerConfig(**{**same, **other})


def _check_ports(flags: Mapping[str, Any]) -> None:
    http: HttpPort = flags["rest_api_port"]
    if http.number and http.is_required and http.number == flags["port"]:
        raise InvalidConfig(
            f"--rest_api_port={http.number} is the port of gRPC too, --port={http.number}; give HTTP "
            "another port, or 0 to turn it off"
        )
    if http.number is None and flags["rest_ssl_config_file"]:
        raise InvalidConfig(
            f"--rest_ssl_config_file={flags['rest_ssl_config_file']} is for HTTP over TCP, which "
            "--rest_api_port=0 turns off; remove one of the two flags"
        )
    rest_path = flags["rest_api_socket_path"]
    if rest_path and rest_path == flags["grpc_socket_path"]:
        raise InvalidConfig(
            f"--rest_api_socket_path={rest_path} is the socket of gRPC too; give HTTP another path"
        )


def _check_admin_clients(flags: Mapping[str, Any]) -> None:
    has_tls = flags["ssl_config_file"] or flags["rest_ssl_config_file"]
    if flags["admin_clients"] and not has_tls:
        raise InvalidConfig(
            f"--admin_clients={','.join(flags['admin_clients'])} names clients by their "
            "certificates; give --ssl_config_file with client_verify: true and custom_ca"
        )


def _check_accelerator_flags(flags: Mapping[str, Any]) -> None:
    if flags["accelerator"]:
        return
    for name in (
        "accelerator_rows",
        "accelerator_memory_fraction",
        "accelerator_memory_bytes",
        "accelerator_cache_directory",
        "accelerator_autotuning",
        "accelerator_autotuning_seconds",
        "accelerator_compile_process",
    ):
        if flags[name] != getattr(ServerConfig, name):
            raise InvalidConfig(
                f"--{name} has no effect without --accelerator; give both or neither"
            )


def _self_warmup_requests(flags: Mapping[str, Any]) -> int:
    count: int = flags["self_warmup_requests"]
    if count == 0 and flags["warmup_capture_directory"]:
        raise InvalidConfig(
            "--self_warmup_requests=0 keeps no requests for --warmup_capture_directory="
            f"{flags['warmup_capture_directory']}; remove one of the two flags"
        )
    return count


def _metrics_path(config_file: str) -> str:
    if not config_file:
        return ""
    # Imported here because protobuf takes 80 ms, which most servers can save before they listen.
    from serving.config.monitoring_config_file import read_monitoring_config_file

    return read_monitoring_config_file(Path(config_file))


def _batching(flags: Mapping[str, Any]) -> BatchingSettings:
    parameters_file = flags["batching_parameters_file"]
    if not flags["enable_batching"]:
        for name in ("batching_parameters_file", "enable_per_model_batching_parameters"):
            if flags[name]:
                raise InvalidConfig(
                    f"--{name} has no effect without --enable_batching; give both or neither"
                )
        return BATCHING_OFF
    if not parameters_file:
        return _batching_of_flag(flags)
    # Imported here because protobuf takes 80 ms, which most servers can save before they listen.
    from serving.config.batching_parameters_file import read_batching_parameters_file

    return read_batching_parameters_file(Path(parameters_file))


def _batching_of_flag(flags: Mapping[str, Any]) -> BatchingSettings:
    """Fills the largest program of an accelerator: a smaller run takes as long there."""
    settings = BatchingSettings(enabled=BatchingChoice.ON)
    if not flags["accelerator"]:
        return settings
    rows = min(max(flags["accelerator_rows"]), BATCHING_COUNT_MAX)
    return replace(settings, max_batch_size=max(settings.max_batch_size, rows))


def _op_libraries(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """The distinct op libraries. Libraries of packages come first: others may need them."""
    packages: Sequence[str] = flags["op_package"]
    tensorflow_version = installed_version()
    of_packages = [
        path
        for package in packages
        for path in op_libraries_of(package, tensorflow_version=tensorflow_version)
    ]
    return tuple(dict.fromkeys([*of_packages, *flags["op_library"]]))


def _check_arena_flags(flags: Mapping[str, Any], lab: LabSettings) -> None:
    has_arenas = flags["arena"] and not lab.is_stock
    if has_arenas and flags["allocator"] != "jemalloc":
        raise InvalidConfig(
            f"--allocator={flags['allocator']}: the arenas of versions need jemalloc; "
            "use --allocator=jemalloc or --arena=false"
        )
    if flags["arena_seal"] and not has_arenas:
        raise InvalidConfig("--arena_seal needs arenas; remove --arena=false")


def _models(flags: Mapping[str, Any]) -> tuple[ModelConfig, ...]:
    base_path, config_file = flags["model_base_path"], flags["model_config_file"]
    if bool(base_path) == bool(config_file):
        raise InvalidConfig(
            "give one of --model_base_path and --model_config_file; see millpond serve --help"
        )
    if config_file:
        if flags["model_name"]:
            raise InvalidConfig("--model_name belongs to --model_base_path; the file has the names")
        # Imported here because protobuf takes 80 ms, which a server of one model can save before it
        # listens.
        from serving.config.model_config_file import read_model_config_file

        return read_model_config_file(Path(config_file))
    if is_store_url(base_path):
        check_store_url(base_path, "--model_base_path: ")
    return (ModelConfig(name=flags["model_name"] or "default", base_path=base_path),)


def _settings(models: Sequence[ModelConfig], settings_file: str) -> SettingsByModel:
    if not settings_file:
        return SettingsByModel()
    return read_model_settings_file(Path(settings_file), [model.name for model in models])
