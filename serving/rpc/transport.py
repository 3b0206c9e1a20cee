"""The settings of the gRPC server: TLS, compression, the encoding of replies, reflection."""

from google.protobuf.descriptor import FileDescriptor

from serving.base.clock import Clock
from serving.base.compiled_protos import INFERENCE_SERVICE, PROFILER_SERVICE, file_of
from serving.base.protos import model_service_pb2, prediction_service_pb2, session_service_pb2
from serving.config.server_config import ServerConfig
from serving.data_plane.plane import DataPlane
from serving.data_plane.requests import ServerCertificates
from serving.reload.config_watch import ConfigRefusal
from serving.reload.port_certificates import PortCertificates
from serving.rpc.reflection import reflect

GRPC_SERVICES = (
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)


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
    """The certificates and the reflection of `GrpcServer`, which also answers HTTP, and the threads that
    check for new certificates.
    """

    def __init__(self, config: ServerConfig, plane: DataPlane, clock: Clock) -> None:
        """Reads the certificates. Raises InvalidConfig for an invalid file of them."""
        self._grpc = PortCertificates(config.ssl_config_file, plane, clock)
        self._rest = PortCertificates(config.rest_ssl_config_file, plane, clock)
        self.reflection = reflect(service_files(config))

    @property
    def certificates(self) -> ServerCertificates | None:
        """The certificates of gRPC; None if it has no TLS."""
        return self._grpc.value

    @property
    def rest_certificates(self) -> ServerCertificates | None:
        """The certificates of HTTP; None if it has no TLS."""
        return self._rest.value

    @property
    def refusal(self) -> ConfigRefusal | None:
        """The reason why certificates of a file are not in effect, or None. Any thread."""
        return self._grpc.refusal or self._rest.refusal

    def start(self) -> None:
        """Starts to check for new certificates."""
        self._grpc.start()
        self._rest.start()

    def stop(self) -> None:
        """Ends the checks for new certificates. Returns at once."""
        self._grpc.stop()
        self._rest.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the threads after `stop`; returns False if one still runs at its timeout."""
        are_over = [port.join(timeout_seconds) for port in (self._grpc, self._rest)]
        return all(are_over)
