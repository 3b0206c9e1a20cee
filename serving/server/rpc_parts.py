"""Makes the parts that answer over gRPC."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from serving.config.listen_addresses import listen_addresses, reason_for_not_listening
from serving.core.operator_api import CAPTURE_WARM_UP
from serving.data_plane.requests import GrpcServer, GrpcServerOptions
from serving.data_plane.status_errors import statuses_as_errors
from serving.kserve.questions import InferenceQuestions
from serving.kserve.repository import Repository
from serving.loading.memory_fit import available_bytes
from serving.rpc.admin_service import AdminService
from serving.rpc.capture_service import CaptureService
from serving.rpc.config_refusals import ConfigRefusals
from serving.rpc.config_service import ConfigService
from serving.rpc.model_service import GET_MODEL_STATUS, ModelService
from serving.rpc.rare_calls import AnsweredCall, Deferred, Handler, RareCallThreads
from serving.rpc.transport import Transport
from serving.server.admin_parts import guarded, rare_message_bytes_max
from serving.server.foundation import Foundation
from serving.server.http_parts import http_options
from serving.server.models import Models
from serving.server.numa import is_for_nodes, usable_nodes
from serving.server.request_parts import RequestParts
from serving.server.status import Status
from serving.server.status_documents import StatusDocuments
from serving.server.versions import Versions


def make_rare_handlers(
    versions: Versions, models: Models, refusals: ConfigRefusals
) -> dict[str, Handler]:
    """Makes the services that Python answers. Returns a handler for each method, by its full name."""
    served, monitor, streams = models.served, versions.monitor, versions.streams
    return {
        GET_MODEL_STATUS: ModelService(monitor, served, streams).get_model_status,
        CAPTURE_WARM_UP: CaptureService(served, versions.reservoirs).capture_warm_up,
        **ConfigService(models.reloader, served).handlers,
        **AdminService(
            served=served,
            monitor=monitor,
            control=versions.manager,
            streams=streams,
            request_logs=versions.request_logs,
            refusals=refusals,
            keeper=versions.keeper,
            tuning_of=versions.tuning_of,
        ).handlers,
    }


def make_fleet_handlers(
    foundation: Foundation,
    versions: Versions,
    models: Models,
    status: Status,
    *,
    requests: RequestParts,
) -> Mapping[str, Handler]:
    """Makes the service that a fleet's coordinator calls. Returns its handlers by full name.

    Returns none for a server that runs alone.
    """
    if models.grants is None:
        return {}
    # Imported here because a server that runs alone should not load this module.
    from serving.rpc.fleet_service import FleetService, FleetSources

    sources = FleetSources(
        served=models.served,
        monitor=versions.monitor,
        streams=versions.streams,
        requests=requests.statistics,
        health=status.health,
        drain_reported=status.drain_notice.note_report,
        free_bytes=available_bytes,
        incarnation=foundation.clock.wall_ns(),
    )
    return FleetService(sources, models.grants).handlers


def make_inference_questions(
    foundation: Foundation,
    versions: Versions,
    models: Models,
    status: Status,
    *,
    requests: RequestParts,
) -> InferenceQuestions:
    """Makes the object that answers all methods of the open inference protocol except inference."""
    return InferenceQuestions(
        served=models.served,
        monitor=versions.monitor,
        streams=versions.streams,
        health=status.health,
        requests=requests.statistics,
        repository=Repository(
            models.reloader,
            versions.monitor,
            models.served,
            is_allowed=foundation.config.allow_repository_control,
        ),
        server_version=foundation.data_plane.build_info()["millpond"],
    )


def make_status_documents(
    foundation: Foundation,
    grpc: GrpcServer,
    versions: Versions,
    models: Models,
    status: Status,
) -> StatusDocuments:
    """Makes what keeps the documents of HTTP up to date, and connects it with the models."""
    made = StatusDocuments(
        grpc,
        names=[model.name for model in foundation.config.models],
        monitor=versions.monitor,
        streams=versions.streams,
        notes=versions.notes,
        health=status.health,
        status_error=foundation.data_plane.StatusError,
        server_version=foundation.data_plane.build_info()["millpond"],
    )
    models.served.add_names_listener(made.set_models)
    return made


def make_rare_calls(
    foundation: Foundation,
    handlers: Mapping[str, Handler | Deferred],
    *,
    on_answered: Callable[[AnsweredCall], None],
) -> RareCallThreads:
    """Makes the threads that answer the calls of the data port. They are not started yet."""
    return RareCallThreads(
        guarded(handlers, foundation.config),
        on_answered=on_answered,
        # Two calls may wait at once, for a configuration and for a model; the third thread answers.
        thread_count=3,
        clock=foundation.clock,
    )


@contextmanager
def grpc_status_details(foundation: Foundation) -> Iterator[None]:
    """Turns an error that the start of the gRPC server raises in the block into an error with a remedy."""
    with (
        reason_for_not_listening(listen_addresses(foundation.config)),
        statuses_as_errors(foundation.data_plane.StatusError),
    ):
        yield


def make_grpc_server(
    foundation: Foundation,
    admin_addresses: Sequence[str] = (),
    *,
    requests: RequestParts,
    rare_methods: Sequence[str],
    transport: Transport,
) -> GrpcServer:
    """Makes the server of the data port, or of the admin listener if `admin_addresses` are given.

    The server of the data port also answers HTTP.
    """
    is_admin = bool(admin_addresses)
    config = foundation.config
    nodes = usable_nodes()
    options = GrpcServerOptions(
        addresses=admin_addresses or listen_addresses(config).of_grpc,
        # One thread is enough for the few calls of operators. A second thread helps while a prediction blocks
        # the first.
        thread_count=1 if is_admin else config.grpc_request_threads,
        has_accelerator=bool(config.accelerator) and not is_admin,
        max_thread_count=2 if is_admin else config.grpc_max_threads,
        thread_group_count=1 if is_admin else config.request_thread_groups,
        node_cores=[node.cores for node in nodes],
        binds_threads_to_nodes=not is_admin and is_for_nodes(config, nodes),
        admission=requests.admission,
        first_version_wait_seconds=config.first_version_wait_seconds,
        max_message_bytes=config.max_request_bytes,
        reply_bytes_max=requests.memory.limits.grpc_reply_bytes_max,
        budget=requests.memory.budget,
        connections_per_address_max=config.grpc_max_connections_per_address,
        channel_arguments=config.grpc_channel_arguments,
        request_seconds_max=config.max_request_seconds,
        rare_methods=rare_methods,
        rare_message_bytes_max=rare_message_bytes_max(rare_methods),
        request_statistics=requests.statistics,
        spans=requests.spans,
        certificates=transport.certificates,
        reply_compression=config.grpc_compression,
        has_tensor_content=config.enable_serialization_as_tensor_content,
        serves_session_run=config.enable_session_run,
        reflection=transport.reflection,
        http=None if is_admin else http_options(config, requests, transport.rest_certificates),
    )
    with statuses_as_errors(foundation.data_plane.StatusError):
        return foundation.data_plane.GrpcServer(requests.serving_map, options)
