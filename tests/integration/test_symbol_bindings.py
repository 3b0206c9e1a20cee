"""Checks which libraries a server process calls: its own, or those inside TensorFlow.

libtensorflow_cc exports a BoringSSL and a zlib of its own (see native/CMakeLists.txt). The dynamic
linker prints its bindings itself, with LD_DEBUG=bindings; LD_BIND_NOW makes it bind everything.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

from serving.config.op_library_files import op_libraries_of
from tests.unit.pem import make_identity

# Loads the data plane as `millpond serve` does, and takes the steps of a start.
START = """
import socket, ssl, sys
from serving.data_plane import _native
from serving.data_plane.plane import RuntimeOptions
from serving.data_plane.requests import GrpcServerOptions
_native.initialize(RuntimeOptions(intra_op_thread_count=1, inter_op_thread_count=1))
print(_native.load_op_library(sys.argv[1]))
certificates = _native.ServerCertificates(
    key=sys.argv[2], chain=sys.argv[3], client_ca="", is_client_required=False
)
options = GrpcServerOptions(addresses=["127.0.0.1:0"], thread_count=1, certificates=certificates)
server = _native.GrpcServer(_native.ServingMap(), options)
server.start()
trusting = ssl.create_default_context(cadata=sys.argv[3])
trusting.set_alpn_protocols(["h2"])
with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
    with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
        assert secured.selected_alpn_protocol() == "h2"
server.shutdown(0)
"""

BINDING = re.compile(
    rb"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: (?:normal|protected) symbol `(\S+?)'"
)
# The wire's libraries. The module has its own copies of them, linked statically with hidden symbols.
SYSTEM_LIBRARIES = ("libssl.", "libcrypto.", "libz.", "libnghttp2.")
TENSORFLOW = "libtensorflow"
PYTHON_SSL = "_ssl."
# Libraries of tensorflow-text, with their own copies of re2, zlib and abseil.
OP_LIBRARY = "_sentencepiece_tokenizer"
OURS = (*SYSTEM_LIBRARIES, OP_LIBRARY, PYTHON_SSL, "_data_plane")
# Instances of std templates: the same code on either side.
HARMLESS = re.compile(rb"_Z(NK?|ZN|T[ISV])?St")


def library(path: bytes) -> str:
    return Path(path.decode()).name


@pytest.fixture(scope="module")
def bindings(tmp_path_factory: pytest.TempPathFactory) -> "Counter[tuple[str, str, bytes]]":
    """Returns (from, to, symbol) of each binding between the wire's libraries, TensorFlow's and the
    module.
    """
    log_path = tmp_path_factory.mktemp("bindings") / "ld"
    environment = {
        **os.environ,
        "LD_DEBUG": "bindings",
        "LD_BIND_NOW": "1",
        "LD_DEBUG_OUTPUT": str(log_path),
    }
    (op_library,) = (
        path
        for path in op_libraries_of("tensorflow-text", tensorflow_version=version("tensorflow"))
        if Path(path).stem == OP_LIBRARY
    )
    server = make_identity(tmp_path_factory.mktemp("pem"), "server")
    command = [sys.executable, "-c", START, op_library, server.key, server.certificate]
    subprocess.run(command, env=environment, check=True, timeout=100)
    found: Counter[tuple[str, str, bytes]] = Counter()
    for path in log_path.parent.glob("ld.*"):
        for line in lines_with_our_names(path):
            binding = BINDING.search(line)
            if binding is not None:
                source, target = library(binding[1]), library(binding[2])
                if is_ours(source) and is_ours(target):
                    found[source, target, binding[3]] += 1
        path.unlink()
    return found


def lines_with_our_names(path: Path) -> list[bytes]:
    """Returns the lines that name another library than TensorFlow: most of hundreds of megabytes do not."""
    names = [word for name in OURS for word in ("-e", name)]
    command = ["grep", "--text", "--fixed-strings", *names, str(path)]
    searched = subprocess.run(
        command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, check=False, timeout=100
    )
    no_match = 1
    assert searched.returncode in (0, no_match), searched.stderr
    return searched.stdout.splitlines()


def is_ours(name: str) -> bool:
    return name.startswith((TENSORFLOW, *OURS))


def crossing(
    bindings: "Counter[tuple[str, str, bytes]]", sources: tuple[str, ...], targets: tuple[str, ...]
) -> list[str]:
    """Returns the bindings from `sources` to `targets`, without the harmless ones."""
    return sorted(
        f"{source} -> {target}: {symbol.decode()}"
        for source, target, symbol in bindings
        if source.startswith(sources) and target.startswith(targets) and not HARMLESS.match(symbol)
    )


def test_module_has_its_own_libraries_of_the_wire(bindings: "Counter[tuple[str, str, bytes]]"):
    called = {symbol for source, _, symbol in bindings if source.startswith("_data_plane")}
    libraries = (b"SSL_", b"X509_", b"EVP_", b"inflate", b"deflate", b"nghttp2_")
    foreign = [symbol for symbol in called if symbol.startswith(libraries)]
    assert foreign == []
    # The bindings were really read.
    assert any(b"tensorflow" in symbol for symbol in called)


def test_tensorflow_calls_nothing_of_the_system(
    bindings: "Counter[tuple[str, str, bytes]]",
):
    assert crossing(bindings, (TENSORFLOW,), (*SYSTEM_LIBRARIES, "_data_plane")) == []


def test_python_ssl_calls_nothing_of_tensorflow(
    bindings: "Counter[tuple[str, str, bytes]]",
):
    assert crossing(bindings, (PYTHON_SSL,), (TENSORFLOW,)) == []
    assert any(source.startswith(PYTHON_SSL) for source, _, _ in bindings)


def test_op_library_calls_tensorflow_only(
    bindings: "Counter[tuple[str, str, bytes]]",
):
    assert crossing(bindings, (OP_LIBRARY,), SYSTEM_LIBRARIES) == []
    called = {
        symbol
        for source, target, symbol in bindings
        if source.startswith(OP_LIBRARY) and target.startswith(TENSORFLOW)
    }
    assert any(b"OpDefBuilderWrapper" in symbol for symbol in called)


def test_module_calls_nothing_of_op_library(
    bindings: "Counter[tuple[str, str, bytes]]",
):
    assert crossing(bindings, (*SYSTEM_LIBRARIES, "_data_plane"), (OP_LIBRARY,)) == []
