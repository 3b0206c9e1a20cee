import asyncio
import json
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from fleet.http.host_guard import HostGuard
from serving.http.hosts import HostRule, host_rule

LOOPBACK = host_rule((), "127.0.0.1", "Box.example.com")


def answered(rule: HostRule, *hosts: bytes) -> tuple[int, dict[str, Any]]:
    """Returns the status and body of a request with this Host header, or without; the application
    answers 204.
    """
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "server": ("127.0.0.1", 8501),
        "headers": [(b"host", host) for host in hosts],
    }
    asyncio.run(HostGuard(app, rule)(scope, receive, send))
    body = sent[1]["body"]
    return sent[0]["status"], json.loads(body) if body else {}


def test_foreign_host_is_answered_421_with_the_remedy():
    status, body = answered(LOOPBACK, b"evil.example.com:8501")
    assert status == 421
    assert "'evil.example.com:8501'" in body["error"]
    assert "--http_hosts" in body["error"]


def test_own_host_reaches_the_application():
    assert answered(LOOPBACK, b"localhost:8501") == (204, {})
    assert answered(LOOPBACK) == (204, {})
