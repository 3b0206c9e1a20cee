"""Front: the ports of a server, and the threads that answer rare calls and HTTP there."""

from collections.abc import Callable
from functools import partial

import structlog
from starlette.routing import BaseRoute

from serving.config.listen_addresses import listen_addresses
from serving.data_plane.status_errors import statuses_as_errors
from serving.http.health_routes import health_routes
from serving.http.listener import HttpListener
from serving.kserve.inference_service import InferenceService
from serving.kserve.questions import InferenceQuestions
from serving.loading.request_cores import pin_always
from serving.monitoring.tracing import NoTracing, Tracing
from serving.rpc.config_refusals import ConfigRefusals
from serving.rpc.model_service import GET_MODEL_STATUS
from serving.rpc.rare_calls import Handler
from serving.rpc.transport import Transport
from serving.server import http_parts, monitoring_parts, rpc_parts
from serving.server.admin_parts import make_admin_listener, make_profiler
from serving.server.drain import drain
from serving.server.foundation import Foundation
from serving.server.models import Models
from serving.server.port_reservation import PortReservation
from serving.server.request_parts import RequestParts
from serving.server.status import Status
from serving.server.stop_timeouts import PROFILER_TIMEOUT_SECONDS, SOURCE_TIMEOUT_SECONDS
from serving.server.versions import Versions

_log = structlog.get_logger(__name__)


class Front:
    """The ports for gRPC, for operators and for HTTP. They are opened once, and drained once."""

    def __init__(
        self,
        foundation: Foundation,
        *,
        requests: RequestParts,
        versions: Versions,
        models: Models,
        status: Status,
        tracing: Tracing | NoTracing,
        reserved_port: PortReservation | None,
        on_listening: Callable[[int], None],
    ) -> None:
        """Makes the parts. Nothing listens yet.

        `reserved_port` holds gRPC's port until it opens; if it is None, `open` reserves the port.
        `on_listening` is called with gRPC's port when it is open.
        """
        self._foundation = foundation
        self._requests = requests
        self._versions = versions
        self._models = models
        self._status = status
        self._tracing = tracing
        self._reserved_port = reserved_port
        self._on_listening = on_listening
        config, plane = foundation.config, foundation.data_plane
        self._transport = Transport(config, plane, foundation.clock)
        self._refusals = ConfigRefusals(models.watcher, self._transport)
        self._profiler = make_profiler(foundation)
        questions = rpc_parts.make_inference_questions(
            foundation, versions, models, status, requests=requests
        )
        handlers = self._make_handlers(questions)
        calls = {**handlers, **(self._profiler.handlers if config.enable_profiler else {})}
        make_grpc = partial(
            rpc_parts.make_grpc_server,
            foundation,
            requests=requests,
            rare_methods=list(calls),
            transport=self._transport,
        )
        self.grpc = make_grpc()
        status.health.push_to(self.grpc)
        self._documents = rpc_parts.make_status_documents(
            foundation, self.grpc, versions, models, status
        )
        if versions.cores is not None:
            versions.cores.add_listener(self.grpc.pin_request_threads)
        self._admin = make_admin_listener(
            foundation, handlers=calls, make_grpc=make_grpc, on_answered=tracing.add_call
        )
        self._rare_calls = rpc_parts.make_rare_calls(
            foundation, calls, on_answered=tracing.add_call
        )
        self.http = self._make_http(handlers[GET_MODEL_STATUS], questions)

    def _make_handlers(self, questions: InferenceQuestions) -> dict[str, Handler]:
        return {
            **rpc_parts.make_rare_handlers(self._versions, self._models, self._refusals),
            **InferenceService(questions).handlers,
            **rpc_parts.make_fleet_handlers(
                self._foundation,
                self._versions,
                self._models,
                self._status,
                requests=self._requests,
            ),
        }

    def _make_http(self, get_model_status: Handler, questions: InferenceQuestions) -> HttpListener:
        foundation = self._foundation
        rest = http_parts.make_rest_applications(
            foundation,
            get_model_status=get_model_status,
            inference_questions=questions,
            served=self._models.served,
            monitor=self._versions.monitor,
        )
        monitored = monitoring_parts.make_monitored_parts(
            foundation,
            self._versions,
            self._models,
            requests=self._requests,
            grpc=self.grpc,
            health=self._status.health,
            refusals=self._refusals,
            tracing=self._tracing,
        )
        routes: list[BaseRoute] = [
            *health_routes(self._status.health.view, self._models.served.notes),
            *monitoring_parts.make_routes(foundation, monitored),
        ]
        return http_parts.make_http(foundation, self.grpc, routes, rest)

    def open(self) -> None:
        """Reserves gRPC's port, and opens the ports of HTTP and of operators.

        Raises Unavailable or InvalidConfig if a port cannot be opened. Then call `drain`, which closes the
        ports that are open.
        """
        config = self._foundation.config
        reserved = self._reserved_port
        self._reserved_port = reserved or PortReservation.take(listen_addresses(config))
        with statuses_as_errors(self._foundation.data_plane.StatusError):
            self.http.start()
        self._admin.start()
        if not config.listen_before_ready and self.http.port is not None:
            _log.info("http_listening", host=config.http_host, http_port=self.http.port)

    def listen(self) -> None:
        """Opens gRPC's port. Raises Unavailable or InvalidConfig."""
        assert self._reserved_port is not None
        config = self._foundation.config
        self._versions.end_initial_loads()
        self._reserved_port.let_go()
        with rpc_parts.grpc_status_details(self._foundation):
            self.grpc.start()
        self._reserved_port.close()
        port = self.grpc.port
        _log.info("listening", host=config.host, port=port, http_port=self.http.port)
        self._on_listening(port)
        if config.pin_request_threads == "always":
            pin_always(self.grpc.pin_request_threads)
        elif self._versions.cores is not None:
            self._versions.cores.pin_again()
        self._status.readiness.note_listening(port)

    def answer(self) -> None:
        """Answers rare calls. Call it after the first configuration is applied, because a call may change it."""
        self._rare_calls.start(self.grpc.take_rare_call)
        self._admin.answer()

    def watch_files(self) -> None:
        """Begins to watch the files of certificates, and takes new ones."""
        self._transport.start()

    def stop_watching(self) -> None:
        """Ends the watch of certificates. Returns at once, and `join` waits for its thread."""
        self._transport.stop()

    def end_waits(self) -> None:
        """Ends idle HTTP connections and profiler traces, so that the drain need not wait for them."""
        self.grpc.ask_http_to_go()
        self._profiler.stop()

    def drain(self) -> bool:
        """Lets the running requests end, or cuts them short, and closes the ports.

        Returns False if a thread still runs.
        """
        drain(
            self._foundation.config.drain_seconds,
            grpc=self.grpc,
            admin=self._admin,
            http=self.http,
            clock=self._foundation.clock,
        )
        if self._reserved_port is not None:
            self._reserved_port.close()
        is_over = [self._rare_calls.stop(), self._profiler.join(PROFILER_TIMEOUT_SECONDS)]
        return all(is_over)

    def join(self) -> bool:
        """Waits, after `drain`, for the threads of HTTP and of the certificates. False if one still runs."""
        is_over = [self._transport.join(SOURCE_TIMEOUT_SECONDS), self.http.join()]
        return all(is_over)
