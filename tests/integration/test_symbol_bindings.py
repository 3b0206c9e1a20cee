"""Whose functions a server process calls: gRPC's own libraries, or those inside TensorFlow.

libtensorflow_cc exports a gRPC, a BoringSSL, a zlib and a re2 that are not compatible with Debian's
(see serving/_native.py). What the dynamic linker bound is what it says itself: LD_DEBUG=bindings,
with LD_BIND_NOW so that it binds everything.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

# Loads the data plane as `millpond serve` does, and does what a start does.
START = """
from serving import _native
_native.initialize(intra_op_thread_count=1, inter_op_thread_count=1)
server = _native.GrpcServer(
    _native.ServingMap(), addresses=["127.0.0.1:0"], completion_queue_count=1,
    max_message_bytes=1000, channel_arguments={}, rare_methods=[],
)
server.start()
server.shutdown(0)
"""

BINDING = re.compile(
    rb"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: (?:normal|protected) symbol `(\S+?)'"
)
GRPC_FAMILY = (
    "libgrpc",
    "libgpr.",
    "libssl.",
    "libcrypto.",
    "libz.",
    "libre2.",
    "libcares.",
    "libaddress_sorting",
    "libupb",
)
TENSORFLOW = "libtensorflow"
# Instances of std templates: the same code on either side.
HARMLESS = re.compile(rb"_Z(NK?|T[ISV])?St")


def library(path: bytes) -> str:
    return Path(path.decode()).name


@pytest.fixture(scope="module")
def bindings(tmp_path_factory: pytest.TempPathFactory) -> "Counter[tuple[str, str, bytes]]":
    """(from, to, symbol) of what crosses between gRPC's libraries, TensorFlow's and the module."""
    log_path = tmp_path_factory.mktemp("bindings") / "ld"
    environment = {
        **os.environ,
        "LD_DEBUG": "bindings",
        "LD_BIND_NOW": "1",
        "LD_DEBUG_OUTPUT": str(log_path),
    }
    subprocess.run([sys.executable, "-c", START], env=environment, check=True, timeout=100)
    found: Counter[tuple[str, str, bytes]] = Counter()
    # Hundreds of megabytes: read line by line, and only what is asked about is kept.
    for path in log_path.parent.glob("ld.*"):
        with path.open("rb") as lines:
            for line in lines:
                binding = BINDING.search(line)
                if binding is not None:
                    source, target = library(binding[1]), library(binding[2])
                    if is_ours(source) and is_ours(target):
                        found[source, target, binding[3]] += 1
        path.unlink()
    return found


def is_ours(name: str) -> bool:
    return name.startswith((*GRPC_FAMILY, TENSORFLOW, "_data_plane"))


def crossing(
    bindings: "Counter[tuple[str, str, bytes]]", sources: tuple[str, ...], targets: tuple[str, ...]
) -> list[str]:
    """Bindings from `sources` to `targets` that are not harmless."""
    return sorted(
        f"{source} -> {target}: {symbol.decode()}"
        for source, target, symbol in bindings
        if source.startswith(sources) and target.startswith(targets) and not HARMLESS.match(symbol)
    )


def test_grpcs_libraries_call_nothing_of_tensorflows(
    bindings: "Counter[tuple[str, str, bytes]]",
):
    assert crossing(bindings, GRPC_FAMILY, (TENSORFLOW,)) == []


def test_tensorflows_libraries_call_nothing_of_grpcs(
    bindings: "Counter[tuple[str, str, bytes]]",
):
    assert crossing(bindings, (TENSORFLOW,), GRPC_FAMILY) == []


def test_module_calls_tensorflow_for_tensorflow_and_grpc_for_grpc(
    bindings: "Counter[tuple[str, str, bytes]]",
):
    symbols = {
        target: {
            symbol
            for source, bound, symbol in bindings
            if source.startswith("_data_plane") and bound.startswith(target)
        }
        for target in (TENSORFLOW, "libgrpc")
    }
    assert [s for s in symbols[TENSORFLOW] if b"grpc" in s.lower()] == []
    assert [s for s in symbols["libgrpc"] if b"tensorflow" in s or b"3tsl" in s] == []
    # And it does call both: the bindings were really read.
    assert any(b"tensorflow" in symbol for symbol in symbols[TENSORFLOW])
    assert any(b"grpc" in symbol for symbol in symbols["libgrpc"])


def test_openssl_and_the_others_are_called_by_grpc_in_debians_libraries(
    bindings: "Counter[tuple[str, str, bytes]]",
):
    called = {
        target.split(".so")[0]
        for source, target, _ in bindings
        if source.startswith("libgrpc") and not target.startswith("libgrpc")
    }
    assert {"libssl", "libcrypto", "libz", "libre2", "libcares"} <= called
