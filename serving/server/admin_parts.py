"""Makes the parts through which a server is operated, and decides which clients may operate it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from serving.config.server_config import ServerConfig
from serving.core.operator_api import RELOAD_CONFIG
from serving.data_plane.requests import GrpcServer
from serving.kserve.inference_service import REPOSITORY_MODEL_LOAD, REPOSITORY_MODEL_UNLOAD
from serving.loading.memory_fit import available_bytes
from serving.rpc.operator_access import NOBODY, OperatorAccess
from serving.rpc.profiler_service import METHODS as PROFILER_METHODS
from serving.rpc.profiler_service import ProfilerService
from serving.rpc.rare_calls import (
    AnsweredCall,
    AnyHandler,
    Deferred,
    Guarded,
    Handler,
    RareCallThreads,
)
from serving.rpc.request_memory import GRPC_REPLY_BYTES_MAX
from serving.server.admin_listener import AUTO, OFF, UNIX_PREFIX, AdminListener
from serving.server.foundation import Foundation

ADMIN_PREFIX = "/millpond.v1.Admin/"

OPERATOR_MESSAGE_BYTES_MAX = 64 * 2**20
"""The size limit of a message from an operator, because a configuration of many models is long.

`native/rpc/server.cc` limits other rare calls to 4 MiB.
"""


def rare_message_bytes_max(methods: Iterable[str]) -> dict[str, int]:
    """The size limit of messages, in bytes, by full name: only for rare methods with long messages. Pure."""
    return {
        name: OPERATOR_MESSAGE_BYTES_MAX
        for name in methods
        if name in (RELOAD_CONFIG, REPOSITORY_MODEL_LOAD) or name.startswith(ADMIN_PREFIX)
    }


def guarded(
    handlers: Mapping[str, Handler | Deferred], config: ServerConfig
) -> dict[str, AnyHandler]:
    """The handlers for the data port. They answer an operator's call only if its client may operate."""
    access = make_operator_access(config)
    checks = {
        RELOAD_CONFIG: access.check_control,
        REPOSITORY_MODEL_LOAD: access.check_control,
        REPOSITORY_MODEL_UNLOAD: access.check_control,
        **dict.fromkeys(PROFILER_METHODS, access.check_profiling),
        **{name: access.check_admin for name in handlers if name.startswith(ADMIN_PREFIX)},
    }
    return {
        name: Guarded(handler, checks[name]) if name in checks else handler
        for name, handler in handlers.items()
    }


def make_profiler(foundation: Foundation) -> ProfilerService:
    """Makes the service that answers the profiler's methods."""
    return ProfilerService(
        foundation.data_plane,
        available_bytes=available_bytes,
        xspace_bytes_max=foundation.config.max_reply_bytes or GRPC_REPLY_BYTES_MAX,
        clock=foundation.clock,
    )


def make_operator_access(config: ServerConfig) -> OperatorAccess:
    """Makes the rule that decides which clients may operate the server over the data port."""
    return OperatorAccess(
        on_data_port=config.admin_on_data_port, clients=frozenset(config.admin_clients)
    )


def make_admin_listener(
    foundation: Foundation,
    *,
    handlers: Mapping[str, Handler | Deferred],
    make_grpc: Callable[[Sequence[str]], GrpcServer],
    on_answered: Callable[[AnsweredCall], None],
) -> AdminListener:
    """Makes the listener for operators, which answers all of `handlers`."""
    answered: Mapping[str, AnyHandler] = handlers
    address = foundation.config.admin_address
    is_tcp = address not in (AUTO, OFF) and not address.startswith(UNIX_PREFIX)
    if is_tcp and foundation.config.admin_clients:
        # The listener is at a TCP address, and --admin_clients names certificates. So only clients with one
        # of these certificates are operators.
        only_clients = replace(foundation.config, admin_on_data_port=NOBODY)
        answered = guarded(handlers, only_clients)
    calls = RareCallThreads(
        answered,
        on_answered=on_answered,
        # As many as on the data port: while two calls wait, the third thread answers status.
        thread_count=3,
        thread_name="admin-call",
        clock=foundation.clock,
    )
    return AdminListener(
        address,
        data_port=foundation.config.port,
        make_grpc=make_grpc,
        calls=calls,
        status_error=foundation.data_plane.StatusError,
    )
