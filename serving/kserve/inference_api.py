"""`/v2`: the open inference protocol over HTTP. Inference goes to the data plane's workers."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread
from starlette.types import Receive, Scope, Send

from serving.base.errors import InvalidArgument
from serving.base.json_requests import parse_object
from serving.http.app import HttpSettings
from serving.kserve.paths import Question, parse_path
from serving.kserve.questions import InferenceQuestions, version_number
from serving.kserve.repository import WAIT_SECONDS_MAX
from serving.rest.asgi import RestApplication, read_body, send_json
from serving.rest.bridge import RestBridge, RestTarget
from serving.rpc.operator_access import Caller, http_caller
from serving.rpc.rare_calls import patience_seconds

SMALL_BODY_BYTES_MAX = 2**20
"""The limit of bodies other than inference: a few parameters, which are parsed on the event loop."""

Act = Callable[[Question, bytes], Awaitable[tuple[object, int]]]


class InferenceApi(RestApplication):
    """Answers all paths that begin with `/v2`."""

    def __init__(
        self,
        bridge: RestBridge,
        questions: InferenceQuestions,
        settings: HttpSettings,
        check_control: Callable[[Caller], None] = lambda caller: None,
    ) -> None:
        """`check_control` raises MillpondError for a caller that may not load and unload models."""
        super().__init__(bridge, settings)
        self._small = replace(settings, body_bytes_max=SMALL_BODY_BYTES_MAX)
        self._questions = questions
        self._check_control = check_control
        self._wait_seconds = patience_seconds(settings.timeout_seconds, WAIT_SECONDS_MAX)
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
        question = parse_path(scope["method"], scope.get("raw_path") or scope["path"].encode())
        if question.what == "infer":
            body = await read_body(scope, receive, self._settings)
            await self._run(_target(question), body, scope, send)
            return
        if question.what in ("load", "unload"):
            self._check_control(http_caller(scope))
        body = await read_body(scope, receive, self._small)
        document, status = await self._acts[question.what](question, body)
        await send_json(send, document, status, self._headers())

    async def _live(self, question: Question, body: bytes) -> tuple[object, int]:
        return {"live": True}, 200

    async def _ready(self, question: Question, body: bytes) -> tuple[object, int]:
        is_ready = self._questions.is_server_ready()
        return {"ready": is_ready}, 200 if is_ready else 503

    async def _model_ready(self, question: Question, body: bytes) -> tuple[object, int]:
        is_ready = self._questions.is_model_ready(question.model, question.version)
        return {"name": question.model, "ready": is_ready}, 200 if is_ready else 503

    async def _server_metadata(self, question: Question, body: bytes) -> tuple[object, int]:
        return self._questions.server_metadata(), 200

    async def _model_metadata(self, question: Question, body: bytes) -> tuple[object, int]:
        # Like the model's configuration, made of all its signatures. Hundreds of signatures take
        # milliseconds; the loop answers other requests meanwhile.
        tell = partial(self._questions.model_metadata, question.model, question.version)
        return await anyio.to_thread.run_sync(tell), 200

    async def _model_config(self, question: Question, body: bytes) -> tuple[object, int]:
        tell = partial(self._questions.model_config, question.model, question.version)
        return await anyio.to_thread.run_sync(tell), 200

    async def _statistics(self, question: Question, body: bytes) -> tuple[object, int]:
        tell = partial(self._questions.statistics, question.model, question.version)
        return await anyio.to_thread.run_sync(tell), 200

    async def _index(self, question: Question, body: bytes) -> tuple[object, int]:
        is_ready_only = _parsed(body).get("ready") is True
        return self._questions.index(is_ready_only=is_ready_only), 200

    async def _load(self, question: Question, body: bytes) -> tuple[object, int]:
        parameters = _parsed(body).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise InvalidArgument(f"parameters is not an object but {type(parameters).__name__}")
        load = partial(self._questions.load, question.model, parameters, self._wait_seconds)
        await anyio.to_thread.run_sync(load)
        return {}, 200

    async def _unload(self, question: Question, body: bytes) -> tuple[object, int]:
        unload = partial(self._questions.unload, question.model, self._wait_seconds)
        await anyio.to_thread.run_sync(unload)
        return {}, 200


def _target(question: Question) -> RestTarget:
    number = version_number(question.version)
    label = question.version if question.version and number is None else None
    return RestTarget("RestModelInfer", question.model, number, label)


def _parsed(body: bytes) -> dict[str, Any]:
    """Parses a body, which may be left out."""
    return parse_object(body) if body.strip() else {}
