"""The settings of the gRPC server: TLS, compression, the encoding of replies, reflection."""

from pathlib import Path

import structlog
from google.protobuf.descriptor import FileDescriptor

from serving.base.clock import Clock
from serving.base.compiled_protos import INFERENCE_SERVICE, PROFILER_SERVICE, file_of
from serving.base.protos import model_service_pb2, prediction_service_pb2, session_service_pb2
from serving.config.server_config import ServerConfig
from serving.config.tls_config import read_tls_config
from serving.data_plane.plane import DataPlane
from serving.data_plane.requests import ServerCertificates
from serving.reload.certificate_watch import CertificateWatcher
from serving.reload.config_watch import ConfigRefusal
from serving.rpc.reflection import reflect

POLL_SECONDS = 1.0
"""The time between two reads of --ssl_config_file: some kB, once a second."""

GRPC_SERVICES = (
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)

_log = structlog.get_logger(__name__)


def service_files(config: ServerConfig) -> list[FileDescriptor]:
    """The files of the services that a server of this configuration answers.

    Leaves out Millpond's own services, like millpond.v1.Admin, because reflection cannot describe their
    JSON.
    """
    session_files = [session_service_pb2.DESCRIPTOR] if config.enable_session_run else []
    profiler_files = [file_of(PROFILER_SERVICE)] if config.enable_profiler else []
    return [
        prediction_service_pb2.DESCRIPTOR,
        model_service_pb2.DESCRIPTOR,
        *session_files,
        *profiler_files,
        *map(file_of, (INFERENCE_SERVICE, *GRPC_SERVICES)),
    ]


class Transport:
    """The certificates and the reflection of `GrpcServer`, and the thread that checks for new
    certificates.
    """

    def __init__(self, config: ServerConfig, plane: DataPlane, clock: Clock) -> None:
        """Reads the certificates. Raises InvalidConfig for an invalid --ssl_config_file."""
        self._watcher: CertificateWatcher | None = None
        self.certificates: ServerCertificates | None = None
        if config.ssl_config_file:
            tls = read_tls_config(Path(config.ssl_config_file))
            if tls.client_ca and not tls.is_client_required:
                _log.warning(
                    "clients_not_verified",
                    file=config.ssl_config_file,
                    reason="custom_ca has no effect without client_verify: true",
                )
            self.certificates = plane.ServerCertificates(
                key=tls.key,
                chain=tls.chain,
                client_ca=tls.client_ca,
                is_client_required=tls.is_client_required,
            )
            self._watcher = CertificateWatcher(
                config.ssl_config_file,
                tls,
                self.certificates,
                period_seconds=POLL_SECONDS,
                clock=clock,
            )
        self.reflection = reflect(service_files(config))

    @property
    def refusal(self) -> ConfigRefusal | None:
        """The reason why the file's certificates are not in effect, or None. Any thread."""
        return self._watcher.refusal if self._watcher else None

    def start(self) -> None:
        """Starts to check for new certificates."""
        if self._watcher is not None:
            self._watcher.start()

    def stop(self) -> None:
        """Ends the checks for new certificates. Returns at once."""
        if self._watcher is not None:
            self._watcher.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the thread after `stop`; returns False if it still runs at the timeout."""
        return self._watcher is None or self._watcher.join(timeout_seconds)
