"""A thousand mutated requests over gRPC, and as many over HTTP: no crash, no leak, no wrong answer.

`make fuzz` goes on for MILLPOND_FUZZ_SECONDS a test with new seeds, or from MILLPOND_FUZZ_SEED. A failure
names the seed and the number of its mutant. Each such request becomes an example of its own, in the corpus
of tests/native or in test_bad_requests.py.
"""

import http.client
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from google.protobuf.message import DecodeError

from loadtest.measure.server_pages import ServerPages
from serving import ModelServer
from serving.base.clock import SystemClock, seconds_since
from serving.base.protos import predict_pb2
from tests.integration import body_fuzzer, request_fuzzer
from tests.integration.clients import PREDICT, TIMEOUT_SECONDS, Caller, array, wait_until
from tests.integration.model_host import ModelHost
from tests.integration.processes import is_alive
from tests.integration.protobuf_parity import has_entry_with_two_values, what_millpond_reads

COUNT = 1_000
SECONDS = float(os.environ.get("MILLPOND_FUZZ_SECONDS", "0"))
_NEW_SEED = random.SystemRandom().randrange(2**31) if SECONDS else 20261121
SEED = int(os.environ.get("MILLPOND_FUZZ_SEED", _NEW_SEED))

# The codes for mistakes of a client. Any other code would be a mistake of the server.
CLEAN_CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    # A tensor above 2 GB.
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
CLEAN_STATUSES = {200, 400, 404, 429}


def seeds() -> Iterator[int]:
    """Yields the seed of each round: one, or as many as MILLPOND_FUZZ_SECONDS has time for."""
    clock = SystemClock()
    began_ns = clock.now_ns()
    seed = SEED
    yield seed
    while seconds_since(clock, began_ns) < SECONDS:
        seed += 1
        yield seed


@pytest.fixture(scope="module")
def server(module_host: ModelHost, echo_export: Path) -> ModelServer:
    return module_host.model(name="echo").serve(echo_export, 7).server


def assert_frees_all_bytes(server: ModelServer, send_all: Callable[[], object]) -> None:
    """Asserts that requests which were sent before leave no memory in use when they are sent again."""

    def in_use_bytes() -> float:
        return ServerPages(server.url).metrics().total("serving_request_memory_in_use_bytes")

    # The requests that were sent before may not have reached all one-time allocations.
    send_all()
    before_bytes = in_use_bytes()
    send_all()
    wait_until(lambda: in_use_bytes() <= before_bytes, f"only {before_bytes} bytes in use")
    assert is_alive(server.process_id)


# --- gRPC -------------------------------------------------------------------------------------------


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


def assert_reads_like_protobuf(
    message: bytes, request: predict_pb2.PredictRequest | None, code: grpc.StatusCode, details: str
) -> None:
    if request is None and code == grpc.StatusCode.OK:
        assert parsed(what_millpond_reads(message)) is not None, (
            "protobuf refuses it, the server answers"
        )
    elif request is not None and "bytes are no" in details:
        assert has_entry_with_two_values(message), "protobuf reads it, the server does not"


def assert_is_echo(request: predict_pb2.PredictRequest, reply: bytes) -> None:
    """Asserts that the answer equals the sent tensor as TensorFlow's own decoder reads it."""
    import tensorflow as tf

    sent, got = request.inputs["x"], predict_pb2.PredictResponse.FromString(reply).outputs["y"]
    assert got.dtype == sent.dtype
    assert [dim.size for dim in got.tensor_shape.dim] == [dim.size for dim in sent.tensor_shape.dim]
    dtype = tf.dtypes.as_dtype(sent.dtype)
    if dtype == tf.bool and max(sent.tensor_content, default=0) > 1:
        # TensorFlow refuses such bytes in a bool; Millpond takes them as true.
        return
    expected, answer = (
        tf.io.parse_tensor(proto.SerializeToString(), dtype).numpy() for proto in (sent, got)
    )
    if dtype == tf.string:
        # tobytes() of strings would compare addresses.
        assert expected.tolist() == answer.tolist()
    else:
        assert expected.tobytes() == answer.tobytes()


def test_fuzzed_requests_are_taken_as_by_tensorflow(server: ModelServer, caller: Caller):
    for seed in seeds():
        codes: Counter[grpc.StatusCode] = Counter()
        refused_count = echo_count = 0
        for mutant in request_fuzzer.mutants(COUNT, seed):
            request = parsed(mutant.message)
            code, details, reply = send(caller, mutant.message)
            codes[code] += 1
            try:
                assert code in CLEAN_CODES
                assert_reads_like_protobuf(mutant.message, request, code, details)
                refused_count += request is None and code != grpc.StatusCode.OK
                if code == grpc.StatusCode.OK and request is not None and is_of_echo(request):
                    assert_is_echo(request, reply)
                    echo_count += 1
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, {mutant}: {code} {details}") from error
        # The fuzzer reaches the refusals of bytes and of values, and the answers.
        assert codes[grpc.StatusCode.INVALID_ARGUMENT] > COUNT / 5, codes
        assert refused_count > COUNT / 10
        assert echo_count > COUNT / 20
    again = [mutant.message for mutant in request_fuzzer.mutants(COUNT, SEED)]
    assert_frees_all_bytes(server, lambda: [send(caller, message) for message in again])
    original = request_fuzzer.originals()[0]
    ids = array(original.inputs["ids"])
    assert array(caller.predict(original).outputs["next"]).tolist() == (ids + 1).tolist()


def is_of_echo(request: predict_pb2.PredictRequest) -> bool:
    """Returns True if the signature returns its input `x`."""
    return bool(request.model_spec.signature_name.startswith("echo_"))


# --- HTTP -------------------------------------------------------------------------------------------


def post(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, bytes]:
    connection.request("POST", path, body)
    response = connection.getresponse()
    return response.status, response.read()


def assert_is_clean(status: int, body: bytes) -> None:
    """Asserts that the answer is well-formed."""
    assert status in CLEAN_STATUSES
    answer = json.loads(body)
    if status == 200:
        assert answer.keys() & {"predictions", "outputs"}
    else:
        assert list(answer) == ["error"]
        assert answer["error"].strip()


def test_fuzzed_bodies_get_clean_answers(server: ModelServer):
    address = urlsplit(server.url).netloc
    with closing(http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)) as connection:
        for path, document in body_fuzzer.originals():
            status, answer = post(connection, path, json.dumps(document).encode())
            assert status == 200, (document, answer)
        for seed in seeds():
            statuses: Counter[int] = Counter()
            paths = set()
            for mutant in body_fuzzer.mutants(COUNT, seed):
                status, answer = post(connection, mutant.path, mutant.body)
                statuses[status] += 1
                paths.add(mutant.path)
                try:
                    assert_is_clean(status, answer)
                except (AssertionError, ValueError) as error:
                    raise AssertionError(f"seed {seed}, {mutant}: {status} {answer!r}") from error
            # The fuzzer reaches both the refusals and the answers, of both protocols.
            assert statuses[200] > COUNT / 20, statuses
            assert statuses[400] > COUNT / 5, statuses
            assert paths == {body_fuzzer.PREDICT, body_fuzzer.INFER}
        again = list(body_fuzzer.mutants(COUNT, SEED))
        assert_frees_all_bytes(
            server, lambda: [post(connection, mutant.path, mutant.body) for mutant in again]
        )


# --- In this process --------------------------------------------------------------------------------

# Answers every mutant three times through Servable.predict, the code path of the gRPC method.
# Prints the allocator's bytes in use and the number of handles after each round.
IN_PROCESS = """
import json, sys
from serving.data_plane import _native
from serving.data_plane.plane import RuntimeOptions
from tests.integration.request_fuzzer import mutants

_native.initialize(RuntimeOptions(intra_op_thread_count=1, inter_op_thread_count=1))
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
        timeout=TIMEOUT_SECONDS,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    # The first round may still make one-time allocations, such as an executor's state.
    _, second, third = json.loads(result.stdout.splitlines()[-1])
    assert second == third
    assert third[1] == 0
