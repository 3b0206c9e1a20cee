"""Ten thousand mutated requests: no crash, no leak, no wrong answer.

MILLPOND_FUZZ_SEED and MILLPOND_FUZZ_COUNT change the requests and their number.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

from serving import ModelServer
from serving.base.protos import predict_pb2, types_pb2
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import (
    PREDICT,
    Caller,
    array,
    wait_for_states,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import drop
from tests.integration.processes import anonymous_mib, is_alive
from tests.integration.request_fuzzer import Mutant, mutants, originals

SEED = int(os.environ.get("MILLPOND_FUZZ_SEED", "20261121"))
COUNT = int(os.environ.get("MILLPOND_FUZZ_COUNT", "10000"))

# The codes for mistakes of a client. Any other code would be a mistake of the server.
CLEAN_CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    # A tensor above 2 GB.
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
# A leak of one tensor in one request of a hundred would exceed this in a thousand requests.
GROWTH_MIB_MAX = 4.0


@pytest.fixture(scope="module")
def all_mutants() -> list[Mutant]:
    return list(mutants(COUNT, SEED))


@pytest.fixture
def echo_base_path(base_path: Path, echo_export: Path) -> Path:
    drop(echo_export, base_path, 7)
    return base_path


@pytest.fixture
def server(start_server: StartServer, echo_base_path: Path) -> ModelServer:
    server = start_server(model_name="echo", base_path=echo_base_path)
    server.wait_until_available("echo", 7)
    return server


def send(caller: Caller, message: bytes) -> tuple[grpc.StatusCode, str, bytes]:
    """Returns the code, the message and the bytes of the answer."""
    try:
        return grpc.StatusCode.OK, "", caller.send_bytes(PREDICT, message)
    except grpc.RpcError as error:
        failed: Any = error
        return failed.code(), failed.details(), b""


def parsed(message: bytes) -> predict_pb2.PredictRequest | None:
    """Returns the message as Python's protobuf reads it, or None if it refuses the bytes."""
    try:
        return predict_pb2.PredictRequest.FromString(message)
    except DecodeError:
        return None


def test_fuzzed_requests_get_clean_answers(
    server: ModelServer,
    caller: Caller,
    all_mutants: list[Mutant],
    echo_base_path: Path,
    echo_export: Path,
):
    codes: Counter[grpc.StatusCode] = Counter()
    for mutant in all_mutants:
        code, details, _ = send(caller, mutant.message)
        assert code in CLEAN_CODES, f"{mutant}: {code} {details}"
        codes[code] += 1
    assert is_alive(server.process_id)
    # The fuzzer reaches both the refusals and the answers.
    assert codes[grpc.StatusCode.OK] > COUNT / 20, codes
    assert codes[grpc.StatusCode.INVALID_ARGUMENT] > COUNT / 5, codes
    answer = caller.predict(originals()[0])
    ids = array(originals()[0].inputs["ids"])
    assert array(answer.outputs["next"]).tolist() == (ids + 1).tolist()
    # No request still holds a handle: the version that answered can be unloaded.
    drop(echo_export, echo_base_path, 8)
    with Client(server.target) as client:
        wait_for_states(client, "echo", {7: END, 8: AVAILABLE})


def test_fuzzed_requests_do_not_grow_the_server(
    server: ModelServer, caller: Caller, all_mutants: list[Mutant]
):
    def send_all() -> float:
        for mutant in all_mutants:
            send(caller, mutant.message)
        return anonymous_mib(server.process_id)

    # The first round does all one-time allocations; jemalloc returns the memory freed in a round
    # after 10 s.
    send_all()
    before_mib = send_all()
    send_all()
    wait_until(
        lambda: anonymous_mib(server.process_id) - before_mib < GROWTH_MIB_MAX,
        f"at most {GROWTH_MIB_MAX} MiB more than the {before_mib:.1f} MiB of a round before",
    )


# The numbers of the fields in the protos.
MODEL_SPEC, INPUTS, OUTPUT_FILTER = 1, 2, 3
KEY, VALUE = 1, 2
DTYPE, TENSOR_SHAPE, TENSOR_CONTENT = 1, 2, 4
VALUE_FIELDS = {
    **dict.fromkeys(("DT_HALF", "DT_BFLOAT16"), 13),
    "DT_FLOAT": 5,
    "DT_DOUBLE": 6,
    "DT_STRING": 8,
    "DT_COMPLEX64": 9,
    "DT_INT64": 10,
    "DT_BOOL": 11,
    "DT_COMPLEX128": 12,
    "DT_UINT32": 16,
    "DT_UINT64": 17,
}
INT_FIELD = 7
DELIMITED = 2


@dataclass(frozen=True)
class Field:
    """One field of a message: `raw` is all of it, `body` the content of a delimited field."""

    number: int
    kind: int
    raw: bytes
    body: bytes


def fields(message: bytes) -> Iterator[Field]:
    """Yields the fields of a message as long as it is well-formed; then raises IndexError."""
    position = 0
    while position < len(message):
        begin = position
        tag, position = read_varint(message, position)
        start = position
        if tag & 7 == 0:
            _, position = read_varint(message, position)
        elif tag & 7 == DELIMITED:
            size, start = read_varint(message, position)
            position = start + size
        elif tag & 7 in (1, 5):
            position += 8 if tag & 7 == 1 else 4
        yield Field(tag >> 3, tag & 7, message[begin:position], message[start:position])


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    """Returns the value and the position after it."""
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position


def delimited(number: int, body: bytes) -> bytes:
    size = bytearray()
    rest = len(body)
    while rest >= 128:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | DELIMITED, *size, rest]) + body


def has_entry_with_two_values(message: bytes) -> bool:
    """Protobuf merges the two fields. Encoders never write this, and Millpond refuses it."""
    return any(
        sum((field.number, field.kind) == (VALUE, DELIMITED) for field in fields(entry.body)) > 1
        for entry in fields(message)
        if (entry.number, entry.kind) == (INPUTS, DELIMITED)
    )


def what_millpond_reads(message: bytes) -> bytes:
    """Returns the message without the parts that the server skips unread.

    These parts are request options and the like, an input that a later one of the same name
    replaces, and in a tensor the values for other dtypes.
    """
    kept = []
    inputs: dict[bytes, bytes] = {}
    for field in fields(message):
        if field.kind == DELIMITED and field.number in (MODEL_SPEC, OUTPUT_FILTER):
            kept.append(field.raw)
        elif field.kind == DELIMITED and field.number == INPUTS:
            key, value = b"", b""
            for part in fields(field.body):
                if (part.number, part.kind) == (KEY, DELIMITED):
                    key = part.body
                elif (part.number, part.kind) == (VALUE, DELIMITED):
                    value = part.body
            inputs[key] = value
    for key, value in inputs.items():
        entry = delimited(KEY, key) + delimited(VALUE, what_millpond_reads_of_a_tensor(value))
        kept.append(delimited(INPUTS, entry))
    return b"".join(kept)


def what_millpond_reads_of_a_tensor(tensor: bytes) -> bytes:
    parts = list(fields(tensor))
    dtype = 0
    for part in parts:
        if (part.number, part.kind) == (DTYPE, 0):
            dtype, _ = read_varint(part.body, 0)
    name = types_pb2.DataType.Name(dtype)
    read = {DTYPE, TENSOR_SHAPE, TENSOR_CONTENT, VALUE_FIELDS.get(name, INT_FIELD)}
    return b"".join(part.raw for part in parts if part.number in read)


def test_fuzzed_bytes_are_refused_as_by_protobuf(caller: Caller, all_mutants: list[Mutant]):
    refused_count = 0
    for mutant in all_mutants:
        request = parsed(mutant.message)
        code, details, _ = send(caller, mutant.message)
        if request is None and code == grpc.StatusCode.OK:
            assert parsed(what_millpond_reads(mutant.message)) is not None, (
                f"{mutant}: protobuf refuses it, the server answers"
            )
        elif request is None:
            refused_count += 1
        elif "bytes are no" in details:
            assert has_entry_with_two_values(mutant.message), (
                f"{mutant}: protobuf reads it, the server says {code} {details}"
            )
    assert refused_count > COUNT / 10


def test_answered_fuzzed_requests_are_right(caller: Caller, all_mutants: list[Mutant]):
    """The answer of the echo equals the sent tensor as TensorFlow's own decoder reads it."""
    import tensorflow as tf

    checked_count = 0
    for mutant in all_mutants:
        request = parsed(mutant.message)
        signature_name = request.model_spec.signature_name if request else ""
        if request is None or not signature_name.startswith("echo_"):
            continue
        code, _, reply = send(caller, mutant.message)
        if code != grpc.StatusCode.OK:
            continue
        sent, got = request.inputs["x"], predict_pb2.PredictResponse.FromString(reply).outputs["y"]
        assert (got.dtype, [dim.size for dim in got.tensor_shape.dim]) == (
            sent.dtype,
            [dim.size for dim in sent.tensor_shape.dim],
        ), mutant
        dtype = tf.dtypes.as_dtype(sent.dtype)
        if dtype == tf.bool and max(sent.tensor_content, default=0) > 1:
            # TensorFlow refuses such bytes in a bool; Millpond takes them as true.
            continue
        expected, answer = (
            tf.io.parse_tensor(proto.SerializeToString(), dtype).numpy() for proto in (sent, got)
        )
        # tobytes() of strings would compare addresses.
        same = (
            expected.tolist() == answer.tolist()
            if dtype == tf.string
            else expected.tobytes() == answer.tobytes()
        )
        assert same, mutant
        checked_count += 1
    assert checked_count > COUNT / 20


# Answers every mutant three times through Servable.predict, the code path of the gRPC method.
# Prints the allocator's bytes in use and the number of handles after each round.
IN_PROCESS = """
import json, sys
from serving.data_plane import _native
from tests.integration.request_fuzzer import mutants

_native.initialize(intra_op_thread_count=1, inter_op_thread_count=1)
load = _native.SavedModelLoad("echo", 7, sys.argv[1], ["serve"])
for step in (
    load.read_graph, load.create_session, load.restore, load.run_init, load.make_callables,
):
    step()
servable = load.finish()
messages = [mutant.message for mutant in mutants(int(sys.argv[2]), int(sys.argv[3]))]
rounds = []
for _ in range(3):
    for message in messages:
        try:
            servable.predict(message)
        except _native.StatusError:
            pass
    statistics = _native.request_memory_statistics()
    rounds.append([statistics.in_use_bytes, servable.handle_count])
servable.destroy()
print(json.dumps(rounds))
"""


def test_fuzzed_requests_free_all_their_bytes(echo_export: Path):
    result = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, str(echo_export), str(COUNT), str(SEED)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    # The first round may still make one-time allocations, such as an executor's state.
    _, second, third = json.loads(result.stdout.splitlines()[-1])
    assert second == third
    assert third[1] == 0
