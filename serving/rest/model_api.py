"""`/v1`: TensorFlow Serving's REST API, and a list of models, which that API lacks."""

from typing import Any

from starlette.types import Receive, Scope, Send

from serving.manager.state_monitor import StateMonitor
from serving.reload.served_models import ServedModels
from serving.rest import model_documents
from serving.rest.asgi import RestApplication, send_json
from serving.rest.paths import StatusQuestion, parse_path
from serving.rpc.rare_calls import Handler


class ModelQuestions:
    """Answers the GET requests about models for which the data plane has no document. Any thread.

    `get_model_status` is ModelService's method.
    """

    def __init__(
        self,
        *,
        get_model_status: Handler,
        served: ServedModels,
        monitor: StateMonitor,
    ) -> None:
        self._get_model_status = get_model_status
        self._served = served
        self._monitor = monitor

    def status(self, question: StatusQuestion) -> dict[str, Any]:
        """Answers with the statuses. Raises what `ModelService.get_model_status` raises."""
        request = model_documents.status_request(*question)
        return model_documents.status_document(self._get_model_status(request))

    def all_models(self) -> dict[str, Any]:
        """Returns the status of every configured model."""
        return model_documents.list_document(self._served.names, self._monitor.statuses())


class ModelApi(RestApplication):
    """Answers the paths that begin with `/v1/` and that the data plane does not answer."""

    def __init__(self, questions: ModelQuestions) -> None:
        self._questions = questions

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Tests have no raw path, so they use the decoded path.
        question = parse_path(scope["method"], scope.get("raw_path") or scope["path"].encode())
        if isinstance(question, StatusQuestion):
            await send_json(send, self._questions.status(question))
        else:
            await send_json(send, self._questions.all_models())
