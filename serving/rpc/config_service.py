"""The rare RPCs about configuration: TensorFlow Serving's reload, and Millpond's GetConfig."""

from collections.abc import Mapping

from serving.base.protos import model_management_pb2
from serving.config.model_config_file import decode_reload_request
from serving.core.config_document import config_document
from serving.core.operator_api import GET_CONFIG, RELOAD_CONFIG
from serving.reload.config_reload import ConfigReloader
from serving.reload.served_models import ServedModels
from serving.rpc.rare_calls import Handler, Waiting, patience_seconds

RELOAD_TIMEOUT_SECONDS = 60.0
"""The longest that a reload waits for new models, if its caller would wait longer.

A caller that gave up may repeat the reload at once (see `ConfigReloader`).
"""


class ConfigService:
    """Answers on the threads of the rare calls. A reload holds one thread while it waits."""

    def __init__(self, reloader: ConfigReloader, served: ServedModels) -> None:
        self._reloader = reloader
        self._served = served

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers, by the full name of the method."""
        return {RELOAD_CONFIG: Waiting(self.reload_config), GET_CONFIG: self.get_config}

    def reload_config(self, request: bytes, remaining_seconds: float | None = None) -> bytes:
        """Applies a ReloadConfigRequest and returns a ReloadConfigResponse, whose status is OK.

        An error is the status of the call. INVALID_ARGUMENT: the configuration is invalid or has
        no list of models, and nothing has changed. The other errors come after the change is made:
        FAILED_PRECONDITION if a new model failed, UNKNOWN if a model has not come yet (a repeated
        request waits again), ABORTED if a newer change came in between. They come before the
        caller's deadline, which is `remaining_seconds` away (None: no deadline). `metric_names`
        is ignored: the service has no such counters.
        """
        models = decode_reload_request(request)
        self._reloader.reload(models, patience_seconds(remaining_seconds, RELOAD_TIMEOUT_SECONDS))
        response = model_management_pb2.ReloadConfigResponse()
        response.status.error_code = 0
        serialized: bytes = response.SerializeToString()
        return serialized

    def get_config(self, request: bytes) -> bytes:
        """Replies with the document that `parse_config` reads. `request` is ignored."""
        del request
        return config_document(self._served.models, self._reloader.settings)
