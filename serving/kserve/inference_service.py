"""`inference.GRPCInferenceService` without ModelInfer: handlers from bytes to bytes, off the hot path."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from serving.base.compiled_protos import INFERENCE_SERVICE, message_class
from serving.base.errors import InvalidArgument, NotFound
from serving.kserve.questions import InferenceQuestions
from serving.kserve.repository import WAIT_SECONDS_MAX
from serving.rpc.rare_calls import Handler, Waiting, patience_seconds

REPOSITORY_MODEL_LOAD = f"/{INFERENCE_SERVICE}/RepositoryModelLoad"
REPOSITORY_MODEL_UNLOAD = f"/{INFERENCE_SERVICE}/RepositoryModelUnload"

Document = dict[str, Any]


class InferenceService:
    """Answers on the threads of the rare calls. Keeps nothing from one call to the next."""

    def __init__(self, questions: InferenceQuestions) -> None:
        self._questions = questions

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers, by the full name of the method."""
        answers: Mapping[str, Callable[[Any], Document]] = {
            "ServerLive": lambda request: {"live": True},
            "ServerReady": lambda request: {"ready": self._questions.is_server_ready()},
            "ModelReady": self._model_ready,
            "ServerMetadata": lambda request: self._questions.server_metadata(),
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._repository_index,
        }
        return {
            **{_path(method): partial(_answer, method, answers[method]) for method in answers},
            REPOSITORY_MODEL_LOAD: Waiting(self._load),
            REPOSITORY_MODEL_UNLOAD: Waiting(self._unload),
        }

    def _model_ready(self, request: Any) -> Document:
        try:
            is_ready = self._questions.is_model_ready(request.name, request.version)
        except NotFound:
            # Triton gives this answer for an unknown model.
            is_ready = False
        return {"ready": is_ready}

    def _model_metadata(self, request: Any) -> Document:
        return self._questions.model_metadata(request.name, request.version)

    def _model_config(self, request: Any) -> Document:
        return {"config": self._questions.model_config(request.name, request.version)}

    def _statistics(self, request: Any) -> Document:
        return self._questions.statistics(request.name, request.version)

    def _repository_index(self, request: Any) -> Document:
        return {"models": self._questions.index(is_ready_only=request.ready)}

    def _load(self, request: bytes, remaining_seconds: float | None) -> bytes:
        parsed = _parsed("RepositoryModelLoad", request)
        wait_seconds = patience_seconds(remaining_seconds, WAIT_SECONDS_MAX)
        self._questions.load(parsed.model_name, parsed.parameters, wait_seconds)
        return b""

    def _unload(self, request: bytes, remaining_seconds: float | None) -> bytes:
        # The parameter unload_dependents has no effect, because no model here depends on another.
        parsed = _parsed("RepositoryModelUnload", request)
        wait_seconds = patience_seconds(remaining_seconds, WAIT_SECONDS_MAX)
        self._questions.unload(parsed.model_name, wait_seconds)
        return b""


def _path(method: str) -> str:
    return f"/{INFERENCE_SERVICE}/{method}"


def _answer(method: str, make_document: Callable[[Any], Document], request: bytes) -> bytes:
    response = message_class(f"inference.{method}Response")()
    ParseDict(make_document(_parsed(method, request)), response)
    serialized: bytes = response.SerializeToString()
    return serialized


def _parsed(method: str, request: bytes) -> Any:
    name = f"{method}Request"
    try:
        return message_class(f"inference.{name}").FromString(request)
    except DecodeError as error:
        raise InvalidArgument(f"the request is not a valid {name}: {error}") from error
