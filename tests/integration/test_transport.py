"""TLS, compression, encodings, sockets and reflection, as stock clients meet them."""

import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from serving import ModelServer
from serving.base.protos import predict_pb2, prediction_service_pb2
from serving.client.stubs import PredictionServiceStub
from tests.integration.clients import (
    PREDICT,
    TIMEOUT_SECONDS,
    Caller,
    caller_to,
    health_request,
    predict_request,
    refusal,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import drop
from tests.integration.processes import address_space_mib_peak
from tests.unit.pem import Identity, config_text, make_identity, show_identity

REFLECTION_V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
COMPRESSIONS = [grpc.Compression.Gzip, grpc.Compression.Deflate]
INPUTS = {"dense": np.ones((2000, 3), np.float32), "ids": np.arange(2000)}


@pytest.fixture(scope="module")
def starts_warm() -> bool:
    """A test reads the server's command line."""
    return False


@pytest.fixture(scope="module")
def echo_base(tmp_path_factory: pytest.TempPathFactory, echo_export: Path) -> Path:
    base_path = tmp_path_factory.mktemp("echo")
    drop(echo_export, base_path, 1)
    return base_path


@pytest.fixture(scope="module")
def server(
    start_module_server: StartServer, echo_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> ModelServer:
    """Starts a server without TLS, with a UNIX socket and messages of up to 4 MB."""
    path = tmp_path_factory.mktemp("socket") / "grpc.sock"
    server = start_module_server(
        model_name="echo",
        base_path=echo_base,
        grpc_socket_path=path,
        max_request_bytes=4_000_000,
    )
    server.wait_until_available("echo", 1)
    return server


def socket_path(server: ModelServer) -> Path:
    (argument,) = [a for a in command_of(server) if a.startswith("--grpc_socket_path=")]
    return Path(argument.partition("=")[2])


def command_of(server: ModelServer) -> list[str]:
    return Path(f"/proc/{server.process_id}/cmdline").read_text().split("\0")


def echo_request() -> predict_pb2.PredictRequest:
    return predict_request("echo", INPUTS)


# TLS


class TlsServer:
    """Starts a server with --ssl_config_file; returns it with the file, and the identities in the
    file and beside it.
    """

    def __init__(self, start: StartServer, base_path: Path, directory: Path, is_mutual: bool):
        self.ca = make_identity(directory, "ca")
        self.is_mutual = is_mutual
        self.file = directory / "tls.config"
        self.show(make_identity(directory, "first"))
        self.server = start(model_name="echo", base_path=base_path, ssl_config_file=self.file)
        self.wait_for("ready")

    def wait_for(self, event: str) -> Any:
        return self.server.wait_for_event(lambda logged: logged["event"] == event, TIMEOUT_SECONDS)

    def show(self, identity: Identity) -> None:
        """Replaces the file."""
        self.shown = identity
        show_identity(self.file, identity, self.ca if self.is_mutual else None)

    @contextmanager
    def caller(self, trusted: str, client: Identity | None = None) -> Iterator[Caller]:
        credentials = grpc.ssl_channel_credentials(
            trusted.encode(),
            client.key.encode() if client else None,
            client.certificate.encode() if client else None,
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(self.server.target, credentials, options) as channel:
            yield Caller(channel)

    def is_served(self, trusted: Identity, client: Identity | None = None) -> bool:
        with self.caller(trusted.certificate, client) as caller:
            try:
                caller.send_bytes(HEALTH_CHECK, health_request(""))
            except grpc.RpcError as error:
                failed: Any = error
                assert failed.code() == grpc.StatusCode.UNAVAILABLE
                return False
            return True


@pytest.fixture(scope="module")
def tls(
    start_module_server: StartServer, echo_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> TlsServer:
    return TlsServer(
        start_module_server, echo_base, tmp_path_factory.mktemp("tls"), is_mutual=False
    )


def test_stock_stub_needs_tls(tls: TlsServer):
    with tls.caller(tls.shown.certificate) as caller:
        response = caller.predict(echo_request())
        assert response.model_spec.version.value == 1
    with caller_to(tls.server.target) as plain:
        code, _ = refusal(lambda: plain.predict(echo_request(), timeout=TIMEOUT_SECONDS))
    assert code == grpc.StatusCode.UNAVAILABLE


def test_client_without_certificate_is_refused(
    start_server: StartServer, echo_base: Path, tmp_path: Path
):
    tls = TlsServer(start_server, echo_base, tmp_path, is_mutual=True)
    client = make_identity(tmp_path, "client", issuer=tls.ca)
    stranger = make_identity(tmp_path, "stranger")
    assert tls.is_served(tls.shown, client)
    assert not tls.is_served(tls.shown)
    assert not tls.is_served(tls.shown, stranger)


def test_certificates_change_without_failed_request(tls: TlsServer, tmp_path: Path):
    first, second = tls.shown, make_identity(tmp_path, "second")
    trusted = first.certificate + second.certificate
    is_over = threading.Event()
    failures: list[str] = []
    counts = [0, 0]

    def send(number: int, is_reconnecting: bool) -> None:
        while not is_over.is_set():
            with tls.caller(trusted) as caller:
                while not is_over.wait(0.002):
                    try:
                        caller.predict(echo_request())
                    except grpc.RpcError as error:
                        failures.append(str(error))
                    counts[number] += 1
                    if is_reconnecting:
                        break

    threads = [
        threading.Thread(target=send, args=(number, is_reconnecting))
        for number, is_reconnecting in enumerate((False, True))
    ]
    for thread in threads:
        thread.start()
    try:
        for identity in (second, first) * 2:
            tls.show(identity)
            other = second if identity is first else first
            wait_until(lambda i=identity: tls.is_served(i), "the new certificate")  # type: ignore[misc]
            assert not tls.is_served(other)
            before = list(counts)
            wait_until(lambda b=before: min(np.subtract(counts, b)) > 3, "requests")  # type: ignore[misc]
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_bad_certificate_edit_keeps_old_ones(tls: TlsServer, tmp_path: Path):
    shown, other = tls.shown, make_identity(tmp_path, "other")
    tls.file.write_text(config_text(other.key, shown.certificate))
    event = tls.wait_for("certificates_refused")
    assert "KEY_VALUES_MISMATCH" in str(event)
    assert "PRIVATE KEY" not in tls.server.log_path.read_text()
    assert tls.is_served(shown)
    with caller_to(tls.server.admin_target) as caller:
        assert b"certificate and its key" in caller.send_bytes(
            "/millpond.v1.Admin/ListModels", b"{}"
        )
    tls.show(shown)


def test_bad_ssl_config_stops_start_with_reason(
    start_server: StartServer, echo_base: Path, tmp_path: Path
):
    file = tmp_path / "tls.config"
    file.write_text("client_verify: true")
    with pytest.raises(Exception, match="server_key must be a private key as PEM text"):
        start_server(model_name="echo", base_path=echo_base, ssl_config_file=file)


# Compression


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_messages_have_equal_values(server: ModelServer, compression: grpc.Compression):
    with grpc.insecure_channel(server.target) as channel:
        predict = PredictionServiceStub(channel).Predict
        plain = predict(echo_request(), timeout=TIMEOUT_SECONDS)
        compressed = predict(echo_request(), timeout=TIMEOUT_SECONDS, compression=compression)
    assert compressed == plain


def bytes_through_relay(server: ModelServer, compression: grpc.Compression) -> tuple[int, int]:
    """Returns the number of bytes that a large Predict and its reply take on the wire."""
    counts = [0, 0]

    def copy(number: int, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):  # The other end has closed first.
            while chunk := source.recv(65536):
                counts[number] += len(chunk)
                to.sendall(chunk)
            to.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with grpc.insecure_channel(f"127.0.0.1:{port}", compression=compression) as channel:
            call = PredictionServiceStub(channel).Predict.future(
                echo_request(), timeout=TIMEOUT_SECONDS
            )
            client, _ = listener.accept()
            upstream = socket.create_connection(("127.0.0.1", server.port))
            ends = ((0, client, upstream), (1, upstream, client))
            threads = [threading.Thread(target=copy, args=end) for end in ends]
            for thread in threads:
                thread.start()
            call.result()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
        client.close()
        upstream.close()
    return counts[0], counts[1]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_messages_take_fewer_bytes(server: ModelServer, compression: grpc.Compression):
    plain = bytes_through_relay(server, grpc.Compression.NoCompression)
    compressed = bytes_through_relay(server, compression)
    assert np.all(np.array(compressed) * 2 < plain), (compressed, plain)


@pytest.fixture(scope="module")
def packing_server(start_module_server: StartServer, echo_base: Path) -> ModelServer:
    """Starts a server that compresses all replies, and writes them as tensor_content."""
    server = start_module_server(
        model_name="echo",
        base_path=echo_base,
        grpc_compression="gzip",
        enable_serialization_as_tensor_content=True,
    )
    server.wait_until_available("echo", 1)
    return server


def test_flag_compresses_replies_for_all_clients(server: ModelServer, packing_server: ModelServer):
    none = grpc.Compression.NoCompression
    assert bytes_through_relay(packing_server, none)[1] * 2 < bytes_through_relay(server, none)[1]


def test_compression_bomb_is_refused_within_limit(server: ModelServer):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "echo"
    request.inputs["x"].tensor_content = bytes(300_000_000)
    with caller_to(server.target) as caller:
        caller.predict(echo_request())
        before_mib = address_space_mib_peak(server.process_id)
        call: Any = caller.channel.unary_unary(PREDICT)
        code, text = refusal(
            lambda: call(
                request.SerializeToString(),
                timeout=TIMEOUT_SECONDS,
                compression=grpc.Compression.Gzip,
            )
        )
        assert (code, "--max_request_bytes" in text) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            True,
        )
        assert address_space_mib_peak(server.process_id) - before_mib < 100
        caller.predict(echo_request())


# Encodings of replies


def test_tensor_content_equals_typed_fields(server: ModelServer, packing_server: ModelServer):
    with (
        caller_to(server.target) as typed_caller,
        caller_to(packing_server.target) as content_caller,
    ):
        typed = typed_caller.predict(echo_request()).outputs
        packed = content_caller.predict(echo_request()).outputs
        assert set(typed) == set(packed)
        for name in ("sum", "next"):
            assert (len(typed[name].tensor_content) > 0, len(packed[name].tensor_content) > 0) == (
                False,
                True,
            )
        expected = typed_caller.outputs("echo", INPUTS)
        for name, array in content_caller.outputs("echo", INPUTS).items():
            np.testing.assert_array_equal(array, expected[name])


# UNIX sockets


def test_unix_socket_answers_and_is_not_world_writable(server: ModelServer):
    path = socket_path(server)
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert not path.stat().st_mode & stat.S_IWOTH
    with caller_to(f"unix:{path}") as caller:
        assert caller.predict(echo_request()).model_spec.version.value == 1


# Reflection

SERVICES = {
    "tensorflow.serving.PredictionService": {
        *("Predict", "GetModelMetadata", "Classify", "Regress", "MultiInference"),
    },
    "tensorflow.serving.ModelService": {"GetModelStatus", "HandleReloadConfigRequest"},
    "grpc.health.v1.Health": {"Check", "Watch"},
    "grpc.reflection.v1.ServerReflection": {"ServerReflectionInfo"},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo"},
}


def test_reflection_client_describes_every_service(server: ModelServer):
    with grpc.insecure_channel(server.target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(SERVICES) <= set(database.get_services())
        pool: Any = DescriptorPool(database)
        for name in database.get_services():
            methods = pool.FindServiceByName(name).methods_by_name
            assert SERVICES.get(name, set(methods)) == set(methods), name
        predict = pool.FindMethodByName("tensorflow.serving.PredictionService.Predict")
        # Reflection reaches a file of TensorFlow's.
        tensor = predict.input_type.fields_by_name["inputs"].message_type.fields_by_name["value"]
        assert tensor.message_type.full_name == "tensorflow.TensorProto"
        assert "DT_FLOAT8_E5M2" in pool.FindEnumTypeByName("tensorflow.DataType").values_by_name
        with pytest.raises(KeyError):
            pool.FindServiceByName("millpond.v1.Unknown")


def test_reflected_predict_needs_no_local_proto(server: ModelServer):
    from google.protobuf import message_factory

    with grpc.insecure_channel(server.target) as channel:
        pool: Any = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        method = pool.FindMethodByName("tensorflow.serving.PredictionService.Predict")
        request_class = message_factory.GetMessageClass(method.input_type)
        response_class = message_factory.GetMessageClass(method.output_type)
        call: Any = channel.unary_unary(
            PREDICT,
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        request = request_class.FromString(echo_request().SerializeToString())
        response: Any = call(request, timeout=TIMEOUT_SECONDS)
    assert response.model_spec.version.value == 1


def test_reflection_lists_only_present_methods(server: ModelServer):
    with grpc.insecure_channel(server.target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool: Any = DescriptorPool(database)
        methods = [
            method
            for name in database.get_services()
            for method in pool.FindServiceByName(name).methods
            if not method.client_streaming and not method.server_streaming
        ]
        unknown = [
            method.full_name
            for method in methods
            if is_unimplemented(channel, f"/{method.containing_service.full_name}/{method.name}")
        ]
    assert unknown == []
    assert len(methods) > len(prediction_service_pb2.DESCRIPTOR.services_by_name)


def is_unimplemented(channel: grpc.Channel, path: str) -> bool:
    """An empty request is answered, or refused for its missing parts."""
    call: Any = channel.unary_unary(path)
    try:
        call(b"", timeout=TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        failed: Any = error
        # Other errors with this code concern the contents of the request.
        is_unknown = failed.details().startswith("this server has no method")
        return bool(failed.code() == grpc.StatusCode.UNIMPLEMENTED and is_unknown)
    return False


def test_v1_has_the_bytes_of_v1alpha(server: ModelServer):
    list_services = bytes([7 << 3 | 2, 1]) + b"*"
    with grpc.insecure_channel(server.target) as channel:
        answers: list[bytes] = []
        for path in (REFLECTION_V1, REFLECTION_V1.replace("v1", "v1alpha")):
            reflect: Any = channel.stream_stream(path)
            answers += reflect(iter([list_services]), timeout=TIMEOUT_SECONDS)
    assert answers[0] == answers[1]
    assert b"tensorflow.serving.PredictionService" in answers[0]


def test_reflection_streams_do_not_delay_stop(start_server: StartServer, echo_base: Path):
    server = start_server(model_name="echo", base_path=echo_base, drain_seconds=60)
    is_over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield bytes([7 << 3 | 2, 0])
        is_over.wait(TIMEOUT_SECONDS)

    with grpc.insecure_channel(server.target) as channel:
        reflect: Any = channel.stream_stream(REFLECTION_V1)
        stream = reflect(requests(), timeout=TIMEOUT_SECONDS)
        next(stream)
        server.stop()  # Raises if the server takes longer than a moment to drain.
        code, _ = refusal(lambda: next(stream))
        is_over.set()
    assert code == grpc.StatusCode.UNAVAILABLE
