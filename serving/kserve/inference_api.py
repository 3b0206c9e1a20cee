"""`/v2`: the open inference protocol over HTTP, but for inference, which the data plane answers."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread
from starlette.types import Receive, Scope, Send

from serving.base.errors import InvalidArgument
from serving.base.json_requests import parse_object
from serving.kserve.paths import Route, parse_path
from serving.kserve.questions import InferenceQuestions
from serving.kserve.repository import WAIT_SECONDS_MAX
from serving.rest.asgi import RestApplication, read_body, send_json
from serving.rpc.operator_access import Caller, http_caller
from serving.rpc.rare_calls import patience_seconds

Act = Callable[[Route, bytes], Awaitable[tuple[object, int]]]


class InferenceApi(RestApplication):
    """Answers all paths that begin with `/v2`."""

    def __init__(
        self,
        questions: InferenceQuestions,
        timeout_seconds: float,
        check_control: Callable[[Caller], None] = lambda caller: None,
    ) -> None:
        """`timeout_seconds` is the longest time of a request.

        `check_control` raises MillpondError for a caller that may not load and unload models.
        """
        self._questions = questions
        self._check_control = check_control
        self._wait_seconds = patience_seconds(timeout_seconds, WAIT_SECONDS_MAX)
        self._acts: dict[str, Act] = {
            "live": self._live,
            "ready": self._ready,
            "server_metadata": self._server_metadata,
            "model_metadata": self._model_metadata,
            "model_ready": self._model_ready,
            "model_config": self._model_config,
            "statistics": self._statistics,
            "index": self._index,
            "load": self._load,
            "unload": self._unload,
        }

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Tests have no raw path, so they use the decoded path.
        route = parse_path(scope["method"], scope.get("raw_path") or scope["path"].encode())
        if route.action in ("load", "unload"):
            self._check_control(http_caller(scope))
        body = await read_body(receive)
        document, status = await self._acts[route.action](route, body)
        await send_json(send, document, status)

    async def _live(self, route: Route, body: bytes) -> tuple[object, int]:
        return {"live": True}, 200

    async def _ready(self, route: Route, body: bytes) -> tuple[object, int]:
        is_ready = self._questions.is_server_ready()
        return {"ready": is_ready}, 200 if is_ready else 503

    async def _model_ready(self, route: Route, body: bytes) -> tuple[object, int]:
        is_ready = self._questions.is_model_ready(route.model, route.version)
        return {"name": route.model, "ready": is_ready}, 200 if is_ready else 503

    async def _server_metadata(self, route: Route, body: bytes) -> tuple[object, int]:
        return self._questions.server_metadata(), 200

    async def _model_metadata(self, route: Route, body: bytes) -> tuple[object, int]:
        return await self._document(self._questions.model_metadata, route)

    async def _model_config(self, route: Route, body: bytes) -> tuple[object, int]:
        return await self._document(self._questions.model_config, route)

    async def _statistics(self, route: Route, body: bytes) -> tuple[object, int]:
        return await self._document(self._questions.statistics, route)

    async def _document(
        self, make_document: Callable[[str, str], object], route: Route
    ) -> tuple[object, int]:
        # Runs on a thread: a document of hundreds of signatures takes milliseconds, and the event loop
        # must answer other requests in that time.
        return await anyio.to_thread.run_sync(make_document, route.model, route.version), 200

    async def _index(self, route: Route, body: bytes) -> tuple[object, int]:
        is_ready_only = _parsed(body).get("ready") is True
        return self._questions.index(is_ready_only=is_ready_only), 200

    async def _load(self, route: Route, body: bytes) -> tuple[object, int]:
        parameters = _parsed(body).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise InvalidArgument(f"parameters is not an object but {type(parameters).__name__}")
        await anyio.to_thread.run_sync(
            self._questions.load, route.model, parameters, self._wait_seconds
        )
        return {}, 200

    async def _unload(self, route: Route, body: bytes) -> tuple[object, int]:
        await anyio.to_thread.run_sync(self._questions.unload, route.model, self._wait_seconds)
        return {}, 200


def _parsed(body: bytes) -> dict[str, Any]:
    """Parses a body, which may be left out."""
    return parse_object(body) if body.strip() else {}
