"""`/v1`: TensorFlow Serving's REST API, and a list of models, which that API lacks."""

from collections.abc import Callable
from typing import Any

import anyio.to_thread
from starlette.types import Receive, Scope, Send

from serving.data_plane.status_errors import statuses_as_errors
from serving.manager.state_monitor import StateMonitor
from serving.reload.served_models import ServedModels
from serving.rest import model_documents
from serving.rest.asgi import RestApplication, send_json
from serving.rest.paths import ListQuestion, MetadataQuestion, StatusQuestion, parse_path
from serving.rpc.rare_calls import Handler


class ModelQuestions:
    """Answers the GET requests about models. Any thread.

    `get_model_status` is ModelService's method and `get_model_metadata` the data plane's, which
    raises `status_error`.
    """

    def __init__(
        self,
        *,
        get_model_status: Handler,
        get_model_metadata: Callable[[str, int | None, str | None], bytes],
        served: ServedModels,
        monitor: StateMonitor,
        status_error: type[Exception],
    ) -> None:
        self._get_model_status = get_model_status
        self._get_model_metadata = get_model_metadata
        self._served = served
        self._monitor = monitor
        self._status_error = status_error

    def status(self, question: StatusQuestion) -> dict[str, Any]:
        """Answers with the statuses. Raises what `ModelService.get_model_status` raises."""
        request = model_documents.status_request(*question)
        return model_documents.status_document(self._get_model_status(request))

    def metadata(self, question: MetadataQuestion) -> dict[str, Any]:
        """Answers with the signatures. Raises NotFound, and InvalidArgument for an unknown label."""
        with statuses_as_errors(self._status_error):
            response = self._get_model_metadata(*question)
        return model_documents.metadata_document(response)

    def all_models(self) -> dict[str, Any]:
        """Returns the status of every configured model."""
        return model_documents.list_document(self._served.names, self._monitor.statuses())


class ModelApi(RestApplication):
    """Answers all paths that begin with `/v1/`, but for the requests that versions run."""

    def __init__(self, questions: ModelQuestions) -> None:
        self._questions = questions

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Tests have no raw path, so they use the decoded path.
        route = parse_path(scope["method"], scope.get("raw_path") or scope["path"].encode())
        await send_json(send, await self._document(route))

    async def _document(self, question: StatusQuestion | MetadataQuestion | ListQuestion) -> object:
        if isinstance(question, StatusQuestion):
            return self._questions.status(question)
        if isinstance(question, MetadataQuestion):
            # Runs on a thread: a document of hundreds of signatures takes milliseconds, and the event
            # loop must answer other requests in that time.
            return await anyio.to_thread.run_sync(self._questions.metadata, question)
        return self._questions.all_models()
