"""What a server is asked to serve, and how: values only, read once from flags and files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.errors import InvalidConfig
from serving.version_selection import All, Latest, Specific, VersionSelection

if TYPE_CHECKING:
    from serving.protos import model_server_config_pb2

PLATFORM = "tensorflow"
"""The one platform there is; the loader is chosen by it."""

STOCK_RUNTIME = "stock"
"""TensorFlow as it comes: what Millpond's own runtime is measured against."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model: its name, where its versions appear, and which of them are aspired."""

    name: str
    base_path: str
    platform: str = PLATFORM
    version_selection: VersionSelection = Latest(1)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """One server process. The defaults here are the flags' defaults."""

    models: tuple[ModelConfig, ...]
    host: str = "0.0.0.0"
    port: int = 8500  # 0 takes a free one
    grpc_socket_path: str = ""
    grpc_channel_arguments: Mapping[str, int | str] = field(default_factory=dict)
    completion_queue_count: int = 0  # 0: one a core
    # TensorFlow Serving's own limit: a client whose messages fit there must fit here.
    max_message_bytes: int = 2**31 - 1
    file_system_poll_wait_seconds: float = 1.0  # 0: poll once, negative: never
    # Two, so that one model's slow load does not hold up another's; more would fight for the disk.
    num_load_threads: int = 2
    num_unload_threads: int = 1
    max_num_load_retries: int = 5
    load_retry_interval_micros: int = 60_000_000  # negative: no wait
    enable_model_warmup: bool = True
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
    saved_model_tags: tuple[str, ...] = ("serve",)
    # Above the deadline that clients usually set, below the time that orchestrators wait to kill.
    drain_seconds: float = 20.0

    @property
    def has_arenas(self) -> bool:
        """Whether versions lie in arenas of their own."""
        return self.arena and not self.is_stock

    @property
    def is_stock(self) -> bool:
        """Whether TensorFlow runs as it comes."""
        return self.tensorflow_runtime == STOCK_RUNTIME


def server_config(flags: Mapping[str, Any]) -> ServerConfig:
    """Builds the configuration from the values of `serving.flags.parse_flags`.

    Reads the file of --model_config_file. Raises InvalidConfig.
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
    return ServerConfig(
        models=_models(flags),
        host=flags["host"],
        port=flags["port"],
        grpc_socket_path=flags["grpc_socket_path"],
        grpc_channel_arguments=flags["grpc_channel_arguments"],
        completion_queue_count=flags["grpc_completion_queue_count"],
        max_message_bytes=flags["grpc_max_message_bytes"],
        file_system_poll_wait_seconds=flags["file_system_poll_wait_seconds"],
        num_load_threads=flags["num_load_threads"],
        num_unload_threads=flags["num_unload_threads"],
        max_num_load_retries=flags["max_num_load_retries"],
        load_retry_interval_micros=flags["load_retry_interval_micros"],
        enable_model_warmup=flags["enable_model_warmup"],
        num_request_iterations_for_warmup=flags["num_request_iterations_for_warmup"],
        tensorflow_intra_op_parallelism=intra_op_threads or session_threads,
        tensorflow_inter_op_parallelism=inter_op_threads or session_threads,
        tensorflow_runtime=flags["tensorflow_runtime"],
        tensorflow_load_pool=flags["tensorflow_load_pool"],
        arena=flags["arena"],
        arena_spare_slabs=flags["arena_spare_slabs"],
        arena_headroom_bytes=flags["arena_headroom_bytes"],
        arena_seal=flags["arena_seal"],
        model_memory_limit_bytes=flags["model_memory_limit_bytes"],
        load_priority=flags["load_priority"],
        load_patience_seconds=flags["load_patience_seconds"],
        pin_request_threads=flags["pin_request_threads"],
        restore_bytes_per_second=flags["restore_bytes_per_second"],
        swap_p99_guard=flags["swap_p99_guard"],
        self_warmup_requests=flags["self_warmup_requests"],
        saved_model_tags=flags["saved_model_tags"],
        drain_seconds=flags["drain_seconds"],
    )


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


def read_model_config_file(path: Path) -> tuple[ModelConfig, ...]:
    """Reads a text ModelServerConfig.

    Raises InvalidConfig, naming file, field, value and remedy: unreadable, no such text, no model,
    a name twice, a base path that is not absolute, a platform or field that Millpond does not have.
    """
    # Here, because these take 80 ms that a server of one model does not need before it listens.
    from google.protobuf import text_format

    from serving.protos import model_server_config_pb2

    try:
        config = text_format.Parse(
            path.read_text(encoding="utf-8"), model_server_config_pb2.ModelServerConfig()
        )
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path}: cannot be read: {error}") from error
    except text_format.ParseError as error:
        raise InvalidConfig(f"{path}: no text protobuf of ModelServerConfig: {error}") from error
    if config.HasField("custom_model_config"):
        raise InvalidConfig(f"{path}: custom_model_config is refused; use model_config_list")
    if not config.model_config_list.config:
        raise InvalidConfig(f"{path}: no model in it; add model_config_list {{ config {{ ... }} }}")
    models = tuple(_model(model, path) for model in config.model_config_list.config)
    _check_names_unique(models, path)
    return models


def _models(flags: Mapping[str, Any]) -> tuple[ModelConfig, ...]:
    base_path, config_file = flags["model_base_path"], flags["model_config_file"]
    if bool(base_path) == bool(config_file):
        raise InvalidConfig(
            "give one of --model_base_path and --model_config_file; see millpond serve --help"
        )
    if config_file:
        if flags["model_name"]:
            raise InvalidConfig("--model_name belongs to --model_base_path; the file has the names")
        return read_model_config_file(Path(config_file))
    return (ModelConfig(name=flags["model_name"] or "default", base_path=base_path),)


def _model(model: "model_server_config_pb2.ModelConfig", path: Path) -> ModelConfig:
    where = f"{path}: model {model.name!r}"
    if not model.name:
        raise InvalidConfig(f"{path}: a model with base_path {model.base_path!r} has no name")
    for not_there_yet in ("version_labels", "logging_config"):
        if not_there_yet in {descriptor.name for descriptor, _ in model.ListFields()}:
            raise InvalidConfig(f"{where}: {not_there_yet} is refused: Millpond has none yet")
    _check_platform(model, where)
    if not os.path.isabs(model.base_path):
        raise InvalidConfig(
            f"{where}: base_path {model.base_path!r} must be an absolute path of this machine"
        )
    return ModelConfig(
        name=model.name,
        base_path=model.base_path,
        version_selection=_version_selection(model.model_version_policy),
    )


def _check_platform(model: "model_server_config_pb2.ModelConfig", where: str) -> None:
    if model.model_platform not in ("", PLATFORM):
        raise InvalidConfig(
            f"{where}: model_platform {model.model_platform!r} is refused; "
            f"Millpond serves {PLATFORM!r}"
        )
    # The field that model_platform replaced in 2016; old files still carry it.
    model_type = type(model).DESCRIPTOR.fields_by_name["model_type"].enum_type
    if model_type.values_by_number[model.model_type].name == "OTHER":
        raise InvalidConfig(f"{where}: model_type OTHER is refused; Millpond serves {PLATFORM!r}")


def _version_selection(policy: Any) -> VersionSelection:
    """`policy` is a FileSystemStoragePathSourceConfig.ServableVersionPolicy; unset means latest."""
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return All()
    if kind == "specific":
        return Specific(frozenset(policy.specific.versions))
    # TensorFlow Serving reads 0, which is what an unset field looks like, as 1.
    return Latest(policy.latest.num_versions or 1)


def _check_names_unique(models: tuple[ModelConfig, ...], path: Path) -> None:
    seen: set[str] = set()
    for model in models:
        if model.name in seen:
            raise InvalidConfig(
                f"{path}: model {model.name!r} is there twice; give each its own name"
            )
        seen.add(model.name)
