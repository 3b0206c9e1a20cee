"""REST over HTTP/2 with prior knowledge: curl and httpx, beside the same requests over HTTP/1.1."""

import asyncio
import gzip
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS

PREDICT = "/v1/models/scale:predict"
BODY = b'{"inputs": [1, 2]}'
ANSWER = {"outputs": {"y": [2, 3], "version": 1}}
INFER = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}],
}


@pytest.fixture(scope="module")
def server(slow_and_scale: ModelServer) -> ModelServer:
    return slow_and_scale


def client_of(server: ModelServer, *, http2: bool) -> httpx.Client:
    return httpx.Client(
        base_url=server.url, http1=not http2, http2=http2, timeout=TIMEOUT_SECONDS, trust_env=False
    )


@pytest.fixture(scope="module")
def client(server: ModelServer) -> Iterator[httpx.Client]:
    with client_of(server, http2=True) as client:
        yield client


@dataclass(frozen=True)
class Request:
    """One request of the table below."""

    method: str
    path: str
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


REQUESTS = {
    "alive": Request("GET", "/healthz", 200),
    "ready": Request("GET", "/readyz", 200),
    "head": Request("HEAD", "/healthz", 200),
    "page": Request("GET", "/", 200, headers={"accept": "text/html"}),
    "status": Request("GET", "/v1/models/scale", 200),
    "metadata": Request("GET", "/v1/models/scale/metadata", 200),
    "predict": Request("POST", PREDICT, 200, BODY),
    "of a version": Request("POST", "/v1/models/scale/versions/1:predict", 200, BODY),
    "infer": Request("POST", "/v2/models/scale/infer", 200, json.dumps(INFER).encode()),
    "gzipped": Request("POST", PREDICT, 200, gzip.compress(BODY), {"content-encoding": "gzip"}),
    "long": Request("POST", PREDICT, 200, json.dumps({"inputs": [1.5] * 100_000}).encode()),
    "asks for gzip": Request(
        "POST",
        PREDICT,
        200,
        json.dumps({"inputs": [1.5] * 10_000}).encode(),
        {"accept-encoding": "gzip"},
    ),
    "preflight": Request("OPTIONS", PREDICT, 200, headers={"origin": "http://other"}),
    "no model": Request("POST", "/v1/models/none:predict", 404, BODY),
    "no page": Request("GET", "/none", 404),
    "no method": Request("PUT", "/healthz", 405),
    "bad json": Request("POST", PREDICT, 400, b"{"),
    "foreign host": Request("GET", "/healthz", 421, headers={"host": "evil.example"}),
}


def comparable(response: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    headers = {
        name: value
        for name, value in response.headers.items()
        if name not in ("date", "connection")
    }
    return response.status_code, headers, response.content


@pytest.mark.parametrize("request_of_both", REQUESTS.values(), ids=REQUESTS.keys())
def test_both_protocols_answer_alike(
    server: ModelServer, client: httpx.Client, request_of_both: Request
) -> None:
    asked = request_of_both
    with client_of(server, http2=False) as other:
        one, two = (
            each.request(asked.method, asked.path, content=asked.body, headers=asked.headers)
            for each in (other, client)
        )
    assert (one.http_version, two.http_version) == ("HTTP/1.1", "HTTP/2")
    assert one.status_code == asked.status
    assert comparable(two) == comparable(one)


def test_metrics_are_read_over_http2(client: httpx.Client) -> None:
    assert "serving_request_latency_seconds" in client.get("/metrics").text


def test_curl_with_prior_knowledge_is_answered(server: ModelServer) -> None:
    command = ["curl", "--silent", "--show-error", "--fail", "--http2-prior-knowledge"]
    ended = subprocess.run(
        [*command, "--write-out", "%{http_version}", "--data-binary", BODY, server.url + PREDICT],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    assert ended.stdout[-1] == "2"
    assert json.loads(ended.stdout[:-1]) == ANSWER


def test_curl_that_expects_continue_is_answered(server: ModelServer) -> None:
    command = ["curl", "--silent", "--show-error", "--fail", "--http2-prior-knowledge"]
    ended = subprocess.run(
        [*command, "--header", "Expect: 100-continue", "--data-binary", BODY, server.url + PREDICT],
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    assert json.loads(ended.stdout) == ANSWER


def test_streams_of_one_connection_run_at_once(server: ModelServer) -> None:
    """Threads that share one of httpx's clients lose frames of HTTP/2, so this uses asyncio."""

    async def ask_all() -> list[object]:
        async with httpx.AsyncClient(
            base_url=server.url, http1=False, http2=True, timeout=TIMEOUT_SECONDS, trust_env=False
        ) as client:
            asked = (client.post(PREDICT, json={"inputs": [row]}) for row in range(200))
            return [reply.json()["outputs"]["y"] for reply in await asyncio.gather(*asked)]

    assert asyncio.run(ask_all()) == [[row + 1] for row in range(200)]
