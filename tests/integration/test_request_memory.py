"""Requests that exceed the memory limit of one client: each fails, and the server goes on."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving import ModelServer
from serving.base.protos import get_model_status_pb2, predict_pb2
from serving.rpc.model_service import GET_MODEL_STATUS
from tests.integration.clients import (
    PREDICT,
    TIMEOUT_SECONDS,
    array,
    caller_to,
    predict_request,
    refusal,
    wait_until,
)
from tests.integration.conftest import StartServer
from tests.integration.exports import drop, let_settle
from tests.integration.model_host import ModelHost
from tests.integration.processes import resident_mib

KIB = 2**10
MIB = 2**20
BUDGET_BYTES = 256 * MIB
RUN_BYTES = 128 * MIB
OVERHEAD_MIB = 64
"""Python's copies of one body and reply, and a kernel at work."""

SLACK_MIB = 128 + OVERHEAD_MIB
"""The pages that jemalloc keeps for a second, and OVERHEAD_MIB."""


@pytest.fixture(scope="module")
def hungry_export(export_path: Path) -> Path:
    """A model with replies and kernels that take as much memory as its inputs demand."""
    import tensorflow as tf

    def function(body: Callable[..., Any], **inputs: Any) -> Any:
        return tf.function(body).get_concrete_function(**inputs)

    def doubled(count: Any) -> dict[str, Any]:
        def double(i: Any, x: Any) -> tuple[Any, Any]:
            return i + 1, tf.concat([x, x], axis=0)

        shapes = [tf.TensorShape([]), tf.TensorShape([None])]
        _, x = tf.while_loop(
            lambda i, x: i < count, double, [0, tf.ones([1024])], shape_invariants=shapes
        )
        return {"y": tf.reduce_sum(x)}

    def words(count: Any) -> dict[str, Any]:
        word = tf.strings.reduce_join(tf.fill([1024], "x"))
        joined = tf.strings.join([tf.fill([count], word), "y"])
        return {"y": tf.reduce_sum(tf.strings.length(joined))}

    module = tf.Module()
    module.weights = tf.Variable(tf.ones([4, 2048]))
    module.bias = tf.Variable(tf.ones([2048]))

    def product(x: Any) -> dict[str, Any]:
        y = tf.nn.relu(tf.nn.bias_add(x @ module.weights, module.bias))
        return {"y": tf.reduce_sum(y, 1)}

    shape = tf.TensorSpec([None], tf.int64, name="x")
    count = tf.TensorSpec([], tf.int32, name="count")
    signatures = {
        "serving_default": function(lambda x: {"y": tf.reshape(tf.zeros([0]), x)}, x=shape),
        "zeros": function(lambda count: {"y": tf.reduce_sum(tf.zeros([count]))}, count=count),
        "fill": function(lambda count: {"y": tf.reduce_max(tf.fill([count], 7))}, count=count),
        "range": function(lambda count: {"y": tf.reduce_max(tf.range(count))}, count=count),
        "tile": function(
            lambda count: {"y": tf.reduce_sum(tf.tile(tf.ones([8]), [count // 8]))}, count=count
        ),
        "doubled": function(doubled, count=count),
        "words": function(words, count=count),
        "product": function(product, x=tf.TensorSpec([None, 4], tf.float32, name="x")),
        "echo": function(
            lambda x: {"y": tf.shape(x)}, x=tf.TensorSpec([None], tf.float32, name="x")
        ),
    }
    directory = export_path / "hungry"
    tf.saved_model.save(module, str(directory), signatures=signatures)
    return let_settle(directory)


@pytest.fixture(scope="module")
def host_flags() -> dict[str, object]:
    return {
        "request_memory_bytes": BUDGET_BYTES,
        "run_memory_bytes": RUN_BYTES,
        "max_reply_bytes": 64 * MIB,
    }


@pytest.fixture(scope="module")
def server(module_host: ModelHost, hungry_export: Path) -> ModelServer:
    server = module_host.model(name="hungry").serve(hungry_export).server
    assert ask(server, b'{"inputs":[2,0]}') == (200, b'{"outputs": [[], []]}')
    return server


def ask(server: ModelServer, body: bytes, path: str = "/v1/models/hungry:predict") -> Any:
    request = urllib.request.Request(server.url + path, body or None)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def grown_mib(server: ModelServer) -> Iterator[Callable[[], float]]:
    """Returns the greatest growth of the server during the test so far, in MiB.

    A server without limits would grow by far more than what the test before has left behind.
    """
    before_mib = resident_mib(server.process_id)
    peaks = [before_mib]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.01):
            peaks.append(max(peaks[-1], resident_mib(server.process_id)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: max(peaks) - before_mib
    finally:
        is_over.set()
        thread.join()


def metric(server: ModelServer, name: str) -> float:
    status, text = ask(server, b"", "/metrics")
    assert status == 200
    lines = [line for line in text.decode().splitlines() if line.startswith(name + " ")]
    return float(lines[0].split()[1])


@pytest.mark.parametrize("rows", [1_099_511_627_776, 100_000_000])
def test_empty_rows_in_any_number_take_no_memory(
    server: ModelServer, grown_mib: Callable[[], float], rows: int
) -> None:
    status, body = ask(server, b'{"inputs":[%d,0]}' % rows)
    assert (status, b"--max_reply_bytes" in body) == (429, True)
    assert ask(server, b'{"inputs":[1,0]}') == (200, b'{"outputs": [[]]}')
    assert grown_mib() < SLACK_MIB


@pytest.mark.parametrize("signature", ["zeros", "fill", "range", "tile"])
def test_oversized_run_fails_alone(
    server: ModelServer, grown_mib: Callable[[], float], signature: str
) -> None:
    body = b'{"signature_name":"%b","inputs":%d}'
    ended_count = metric(server, "serving_runs_ended_by_memory_total")
    assert ask(server, body % (signature.encode(), 1_000))[0] == 200
    status, message = ask(server, body % (signature.encode(), 400_000_000))
    assert (status, b"--run_memory_bytes" in message) == (429, True), message
    assert ask(server, body % (signature.encode(), 1_000))[0] == 200
    assert grown_mib() < RUN_BYTES / MIB + SLACK_MIB
    assert metric(server, "serving_runs_ended_by_memory_total") == ended_count + 1


# oneDNN's kernels, which multiply matrices, do not look if an allocation failed.
def test_product_beyond_the_limit_ends_no_server(
    server: ModelServer, grown_mib: Callable[[], float]
) -> None:
    def request(rows: int) -> predict_pb2.PredictRequest:
        x = np.ones((rows, 4), np.float32)
        return predict_request("hungry", {"x": x}, signature_name="product")

    with caller_to(server.target) as caller:
        for _ in range(2):
            assert array(caller.predict(request(2)).outputs["y"]).tolist() == [10240, 10240]
            with pytest.raises(grpc.RpcError, match="--run_memory_bytes") as refused:
                caller.predict(request(100_000))
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert grown_mib() < RUN_BYTES / MIB + SLACK_MIB


def test_a_loop_ends_once_it_has_taken_too_much(
    server: ModelServer, grown_mib: Callable[[], float]
) -> None:
    body = b'{"signature_name":"doubled","inputs":%d}'
    status, message = ask(server, body % 18)
    assert (status, b"--run_memory_bytes" in message) == (429, True), message
    # Memory that a step frees does not offset the run.
    assert ask(server, body % 10)[0] == 200
    assert grown_mib() < RUN_BYTES / MIB + SLACK_MIB


def test_strings_of_kernels_count_too(server: ModelServer) -> None:
    body = b'{"signature_name":"words","inputs":%d}'
    assert ask(server, body % 10)[0] == 200
    # A kernel allocates on several threads, and each try spreads the memory in another way.
    for _ in range(10):
        status, message = ask(server, body % 200_000)
        assert (status, b"--run_memory_bytes" in message) == (429, True), message
        assert ask(server, body % 10)[0] == 200


def send_body(server: ModelServer, byte_count: int) -> socket.socket:
    """Announces one byte more than it sends, so that the request stays under way."""
    client = socket.create_connection(
        ("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=TIMEOUT_SECONDS
    )
    head = (
        b"POST /v1/models/hungry:predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Length: %d\r\n\r\n" % (byte_count + 1)
    )
    try:
        client.sendall(head)
        for _ in range(byte_count // MIB):
            client.sendall(b" " * MIB)
    except (ConnectionError, TimeoutError):
        pass  # refused: the server has closed the connection
    return client


def has_all_back(server: ModelServer) -> bool:
    """Returns True if nothing counts but the connection that asks, with its request."""
    return metric(server, "serving_requests_under_way_bytes") < 32 * KIB


def test_many_large_bodies_stay_within_the_budget(
    server: ModelServer, grown_mib: Callable[[], float]
) -> None:
    refused_count = metric(server, "serving_requests_refused_for_memory_total")
    with ExitStack() as stack:
        threads = [
            threading.Thread(target=lambda: stack.enter_context(send_body(server, 63 * MIB)))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert ask(server, b"", "/healthz")[0] == 200
        assert metric(server, "serving_requests_under_way_bytes") <= BUDGET_BYTES
        assert metric(server, "serving_requests_refused_for_memory_total") >= refused_count + 10
        assert grown_mib() < BUDGET_BYTES / MIB + SLACK_MIB
    wait_until(lambda: has_all_back(server), "all bytes back")
    assert ask(server, b'{"inputs":[1,0]}')[0] == 200


def in_parallel(calls: Sequence[Callable[[], Any]], server: ModelServer) -> list[Any]:
    """Runs each of `calls` on its own thread and returns their results; probes are answered all the
    while.
    """
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        while not all(future.done() for future in futures):
            assert ask(server, b"", "/healthz")[0] == 200
        return [future.result() for future in futures]


CLOSED = 0
"""The status of a body if the server closed the connection before all of it was sent."""


def ask_until_closed(server: ModelServer, body: bytes) -> Any:
    try:
        return ask(server, body)
    except (urllib.error.URLError, ConnectionError):
        return CLOSED, b""


def test_many_large_requests_over_rest_are_decoded(
    server: ModelServer, grown_mib: Callable[[], float]
) -> None:
    # 16 MiB of text are 32 MiB of floats beside it. The allocator may keep the pages of the pieces in
    # which the texts of the requests under way arrived: no more than the budget once again.
    body = b'{"signature_name":"echo","inputs":[' + b"1," * (8 * MIB - 1) + b"1]}"
    answers = in_parallel([partial(ask_until_closed, server, body)] * 32, server)
    # Measured 430 to 480 MiB, and 1,150 to 1,250 MiB without a budget.
    assert grown_mib() < 2 * BUDGET_BYTES / MIB + OVERHEAD_MIB
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) <= {200, 429, CLOSED}
    assert all(
        json.loads(text) == {"outputs": [8 * MIB]} for status, text in answers if status == 200
    )
    assert all(b"--request_memory_bytes" in text for status, text in answers if status == 429)
    wait_until(lambda: has_all_back(server), "all bytes back")
    assert ask(server, body)[0] == 200


def test_many_large_messages_over_grpc_are_decoded(server: ModelServer) -> None:
    request = predict_request(
        "hungry", {"x": np.zeros(12 * MIB, np.float32)}, signature_name="echo"
    )
    message = request.SerializeToString()

    def predict() -> tuple[grpc.StatusCode, str]:
        with caller_to(server.target) as caller:
            try:
                reply = caller.send_bytes(PREDICT, message)
            except grpc.RpcError as error:
                failed: Any = error
                return failed.code(), failed.details()
            outputs = predict_pb2.PredictResponse.FromString(reply).outputs
            return grpc.StatusCode.OK, str(array(outputs["y"]).tolist())

    answers = in_parallel([predict] * 8, server)
    for code, text in answers:
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED), text
        expected = str([12 * MIB]) if code is grpc.StatusCode.OK else "--request_memory_bytes"
        assert expected in text
    wait_until(lambda: has_all_back(server), "all bytes back")
    assert predict() == (grpc.StatusCode.OK, str([12 * MIB]))


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_questions_with_long_junk_are_refused(
    server: ModelServer, compression: grpc.Compression
) -> None:
    junk = bytes(48 * MIB)

    def status_of_junk() -> tuple[grpc.StatusCode, str]:
        with caller_to(server.target) as caller:
            question: Any = caller.channel.unary_unary(GET_MODEL_STATUS)
            return refusal(lambda: question(junk, timeout=TIMEOUT_SECONDS, compression=compression))

    answers = in_parallel([status_of_junk] * 6, server)
    for code, message in answers:
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, message
        assert str(4 * MIB) in message
    wait_until(lambda: has_all_back(server), "all bytes back")
    with caller_to(server.target) as caller:
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "hungry"
        assert len(caller.model_status(request).model_version_status) == 1


@pytest.fixture(scope="module")
def tight_server(
    start_module_server: StartServer, hungry_export: Path, tmp_path_factory: pytest.TempPathFactory
) -> ModelServer:
    base_path = tmp_path_factory.mktemp("tight")
    drop(hungry_export, base_path, 1)
    server = start_module_server(
        model_name="hungry",
        base_path=base_path,
        # Far above a reply to /metrics, which counts (120 KB) a moment longer than its client reads.
        request_memory_bytes=512 * KIB,
        run_memory_bytes=4 * MIB,
        max_request_bytes=1 * MIB,
    )
    server.wait_until_available("hungry", 1)
    return server


def test_a_message_beyond_the_budget_is_refused(tight_server: ModelServer) -> None:
    with caller_to(tight_server.target) as caller:

        def ask_for(count: int) -> Any:
            x = np.zeros(count, np.float32)
            return caller.outputs("hungry", {"x": x}, signature_name="echo")

        code, message = refusal(lambda: ask_for(200_000))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--request_memory_bytes" in message
        assert ask_for(1_000)["y"].tolist() == [1_000]
    assert has_all_back(tight_server)


def test_a_body_above_its_flag_is_refused(tight_server: ModelServer) -> None:
    assert ask(tight_server, b'{"inputs":[1,0]}' + b" " * 900)[0] == 200
    assert ask(tight_server, b'{"inputs":[1,0]}' + b" " * MIB)[0] == 413
