"""Starts TensorFlow in the process of a server."""

import structlog

from serving.config.server_config import ServerConfig
from serving.data_plane.plane import RuntimeOptions
from serving.data_plane.status_errors import statuses_as_errors
from serving.server.foundation import Foundation

_log = structlog.get_logger(__name__)

INTER_OP_THREAD_COUNT = 2
"""The threads of TensorFlow's pool for kernels side by side, by default. A run stays on its request thread, so a
thread for each core would only wait."""


def _inter_op_thread_count(config: ServerConfig) -> int:
    # The stock runtime runs requests in that pool, with a thread for each core (0).
    default_count = 0 if config.lab.is_stock else INTER_OP_THREAD_COUNT
    return config.tensorflow_inter_op_parallelism or default_count


def initialize_runtime(foundation: Foundation) -> None:
    """Starts TensorFlow as the flags configure it, and loads the op libraries that the flags name.

    Call it before any other function of the data plane. Raises NotFound or FailedPrecondition for a library.
    """
    config = foundation.config
    options = RuntimeOptions(
        intra_op_thread_count=config.tensorflow_intra_op_parallelism,
        inter_op_thread_count=_inter_op_thread_count(config),
        is_stock=config.lab.is_stock,
        has_load_pool=config.lab.has_load_pool,
        checks_method_names=config.enable_signature_method_name_check,
        serves_session_run=config.enable_session_run,
        keeps_graphs=bool(config.accelerator),
    )
    with statuses_as_errors(foundation.data_plane.StatusError):
        foundation.data_plane.initialize(options)
        for path in config.op_libraries:
            _log.info(
                "op_library_loaded",
                path=path,
                ops=list(foundation.data_plane.load_op_library(path)),
            )
