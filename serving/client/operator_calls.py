"""Millpond's own calls, for whoever runs a server; each is asked of one server.

What they need of the control plane is imported when one is called: a client that only predicts
should not pay for it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from serving.base.protos import model_management_pb2
from serving.client.results import VersionStatus
from serving.client.servers import Servers
from serving.core.servable import ServableState

if TYPE_CHECKING:
    from serving.config.model_settings_file import SettingsByModel
    from serving.config.server_config import ModelConfig
    from serving.manager.rollout import Rollback


class OperatorCalls:
    """A part of `Client`."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def capture_warm_up(
        self, name: str, *, count_max: int, timeout_seconds: float = 60
    ) -> Iterator[bytes]:
        """The records, at most `count_max`, of a warm-up file of the model's recent live requests.

        Raises NotFound, and FailedPrecondition where there are none.
        """
        from serving.rpc.capture_service import CAPTURE_WARM_UP
        from warmup.records import decode_records

        request = json.dumps({"model": name, "count_max": count_max}).encode()
        reply = self._ask(CAPTURE_WARM_UP, request, timeout_seconds)
        return decode_records(reply, f"the reply of {self._servers.targets[0]}")

    def describe(self, *, timeout_seconds: float = 10) -> dict[str, Any]:
        """All that the server says of its models and its config files: the JSON of Millpond's ListModels."""
        from serving.rpc.admin_service import LIST_MODELS

        reply: dict[str, Any] = json.loads(self._ask(LIST_MODELS, b"", timeout_seconds))
        return reply

    def describe_models(self, *, timeout_seconds: float = 10) -> dict[str, Any]:
        """All that the server says of each model, by name."""
        reply = self.describe(timeout_seconds=timeout_seconds)
        return {model["name"]: model for model in reply["models"]}

    def list_models(self, *, timeout_seconds: float = 10) -> dict[str, tuple[VersionStatus, ...]]:
        """Every model and its versions. TensorFlow Serving has no call for it."""
        models = self.describe_models(timeout_seconds=timeout_seconds)
        return {
            name: tuple(_version_status(version) for version in model["versions"])
            for name, model in models.items()
        }

    def rollback(
        self, name: str, *, is_cold_allowed: bool = False, timeout_seconds: float = 10
    ) -> "Rollback":
        """Puts the version before the one that answers back; the next request is answered by it.

        Raises NotFound, and FailedPrecondition where none is in memory, unless `is_cold_allowed`:
        then it is loaded from disk while the present one goes on. If the server has a state
        directory, the rollback is on disk there on return, unless the result has a `warning`.
        `blocked` of the result names each version that the rollback blocks, and why.
        """
        from serving.manager.rollout import Rollback, RollbackBlock
        from serving.rpc.admin_service import ROLLBACK

        request = {"model": name, "is_cold_allowed": is_cold_allowed}
        reply = self._order(ROLLBACK, request, timeout_seconds)
        blocked = tuple(RollbackBlock(**item) for item in reply.pop("blocked", ()))
        return Rollback(**reply, blocked=blocked)

    def promote(self, name: str, *, timeout_seconds: float = 10) -> int:
        """The model's canary answers everything from now on; its version. FailedPrecondition without."""
        from serving.rpc.admin_service import PROMOTE

        version: int = self._order(PROMOTE, {"model": name}, timeout_seconds)["version"]
        return version

    def allow(self, name: str, version: int, *, timeout_seconds: float = 10) -> str:
        """Lets a version that was rolled back serve again. FailedPrecondition where it may.

        Returns "", or a warning that a restart of the server would undo it.
        """
        from serving.rpc.admin_service import ALLOW

        reply = self._order(ALLOW, {"model": name, "version": version}, timeout_seconds)
        warning: str = reply.get("warning", "")
        return warning

    def config(
        self, *, timeout_seconds: float = 10
    ) -> "tuple[tuple[ModelConfig, ...], SettingsByModel]":
        """The models as they are configured now, and the settings of these and of those to come."""
        from serving.config.document import GET_CONFIG, parse_config

        return parse_config(self._ask(GET_CONFIG, b"", timeout_seconds))

    def reload_config(self, config: bytes, *, timeout_seconds: float = 70) -> None:
        """Has the server serve what `config`, a serialized ModelServerConfig, says.

        Raises InvalidArgument, and nothing has changed; FailedPrecondition where the models were
        changed and a new one failed, UNKNOWN where one has not come yet: the server answers a
        little before `timeout_seconds` are over, and after a minute at most.
        """
        request = model_management_pb2.ReloadConfigRequest()
        request.config.ParseFromString(config)
        self._servers.only().call(
            lambda server: server.models.HandleReloadConfigRequest,
            request,
            timeout_seconds,
            is_repeatable=False,
        )

    def _ask(self, path: str, request: bytes, timeout_seconds: float) -> bytes:
        reply: bytes = self._servers.only().call(
            lambda server: server.method(path), request, timeout_seconds
        )
        return reply

    def _order(self, path: str, request: Mapping[str, Any], timeout_seconds: float) -> Any:
        reply = self._servers.only().call(
            lambda server: server.method(path),
            json.dumps(request).encode(),
            timeout_seconds,
            is_repeatable=False,
        )
        return json.loads(reply)


def _version_status(version: Mapping[str, Any]) -> VersionStatus:
    return VersionStatus(
        version=version["version"],
        state=ServableState[version["state"]],
        error_code=version["error_code"],
        error_message=version["error_message"],
    )
