"""Millpond's calls for operators, each to a single server.

The calls about the configuration and about warm-up records import what they read when they are called:
a client that only predicts does not pay for it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from serving.base.clock import Clock, SystemClock, pause
from serving.base.errors import FailedPrecondition, NotFound, StatusCode
from serving.client.calls import Call
from serving.client.channels import ChooseMethod
from serving.client.connection import Connection
from serving.client.results import VersionStatus
from serving.core.operator_api import (
    ALLOW,
    CAPTURE_WARM_UP,
    FLEET_REPORT,
    GET_CONFIG,
    GRANT,
    LIST_MODELS,
    PROMOTE,
    RELOAD_CONFIG,
    ROLLBACK,
    Rollback,
    RollbackBlock,
)
from serving.core.servable import ServableState

if TYPE_CHECKING:
    from serving.core.model_config import ModelConfig, SettingsByModel


ROLLBACK_POLL_SECONDS = 0.1
"""The period at which a cold rollback is looked at. A load takes longer than this."""


class OperatorCalls:
    """The operators' part of `Client`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def capture_warm_up(
        self, name: str, *, count_max: int, timeout_seconds: float = 60
    ) -> Iterator[bytes]:
        """Fetches at most `count_max` warm-up records, made from the model's recent live requests.

        Raises NotFound for an unknown model, and FailedPrecondition if there are no requests.
        """
        from warmup.records import decode_records

        request = json.dumps({"model": name, "count_max": count_max}).encode()
        reply = self._ask(CAPTURE_WARM_UP, request, timeout_seconds)
        return decode_records(reply, f"the reply of {self._connection.targets[0]}")

    def describe(self, *, timeout_seconds: float = 10) -> dict[str, Any]:
        """The reply of Millpond's ListModels: all about the server's models and config files."""
        reply: dict[str, Any] = json.loads(self._ask(LIST_MODELS, b"", timeout_seconds))
        return reply

    def describe_models(self, *, timeout_seconds: float = 10) -> dict[str, Any]:
        """The models of `describe`, by name."""
        reply = self.describe(timeout_seconds=timeout_seconds)
        return {model["name"]: model for model in reply["models"]}

    def list_models(self, *, timeout_seconds: float = 10) -> dict[str, tuple[VersionStatus, ...]]:
        """Lists every model and its versions. TensorFlow Serving does not have this call."""
        models = self.describe_models(timeout_seconds=timeout_seconds)
        return {
            name: tuple(_version_status(version) for version in model["versions"])
            for name, model in models.items()
        }

    def rollback(
        self, name: str, *, is_cold_allowed: bool = False, timeout_seconds: float = 10
    ) -> Rollback:
        """Puts the previous version in the place of the version that answers.

        The next request is answered by it. If the previous version is not in memory, raises
        FailedPrecondition. With `is_cold_allowed` it is loaded from disk while the present version
        serves: `version` of the result is None, and `wait_for_rollback` waits for it. Raises NotFound
        for an unknown model. If the server has a state directory, the rollback is on disk when the
        call returns, unless the result has a `warning`. `blocked` of the result has each version that
        the rollback blocks, and the reason.
        """
        request = {"model": name, "is_cold_allowed": is_cold_allowed}
        reply = self._order(ROLLBACK, request, timeout_seconds)
        blocked = tuple(RollbackBlock(**item) for item in reply.pop("blocked", ()))
        return Rollback(**reply, blocked=blocked)

    def wait_for_rollback(
        self,
        name: str,
        rolled_back: int,
        *,
        clock: Clock | None = None,
        timeout_seconds: float = 10,
    ) -> int:
        """Waits until another version answers in the place of `rolled_back`, and returns it.

        The next request is answered by it. A load may take long, so this waits for as long as the
        server tries; `timeout_seconds` is for each question. Raises FailedPrecondition if there is
        nothing left to wait for, and NotFound if the model is gone.
        """
        clock = clock or SystemClock()
        while True:
            models = self.describe_models(timeout_seconds=timeout_seconds)
            if name not in models:
                raise NotFound(f"model {name!r} was removed while an earlier version was loaded")
            version = replacement_of(models[name], rolled_back)
            if version is not None:
                return version
            pause(clock, ROLLBACK_POLL_SECONDS)

    def promote(self, name: str, *, timeout_seconds: float = 10) -> int:
        """Lets the model's canary answer all requests, and returns its version.

        Raises FailedPrecondition if the model has no canary.
        """
        version: int = self._order(PROMOTE, {"model": name}, timeout_seconds)["version"]
        return version

    def allow(self, name: str, version: int, *, timeout_seconds: float = 10) -> str:
        """Unblocks a version that was rolled back. Raises FailedPrecondition if it is not blocked.

        Returns "", or a warning that a restart of the server would undo it.
        """
        reply = self._order(ALLOW, {"model": name, "version": version}, timeout_seconds)
        warning: str = reply.get("warning", "")
        return warning

    def config(
        self, *, timeout_seconds: float = 10
    ) -> "tuple[tuple[ModelConfig, ...], SettingsByModel]":
        """The configured models, and the settings of these models and of models to come."""
        from serving.core.config_document import parse_config

        return parse_config(self._ask(GET_CONFIG, b"", timeout_seconds))

    def reload_config(self, config: bytes, *, timeout_seconds: float = 70) -> None:
        """Applies `config`, a serialized ModelServerConfig.

        Raises InvalidArgument if nothing has changed. Otherwise the models were changed: raises
        FailedPrecondition if a new model failed, and UNKNOWN if one is not loaded yet. The server
        answers a little before `timeout_seconds` are over, and after a minute at most.
        """
        from serving.core.model_config_messages import encode_reload_request

        self._ask(RELOAD_CONFIG, encode_reload_request(config), timeout_seconds)

    def fleet_report(
        self, latency_edges_ns: Sequence[int], *, timeout_seconds: float = 10
    ) -> dict[str, Any]:
        """Fetches the report by which a fleet's coordinator decides.

        Only a server with --fleet_member has it.
        """
        request = {"latency_edges_ns": list(latency_edges_ns)}
        reply: dict[str, Any] = self._order(FLEET_REPORT, request, timeout_seconds)
        return reply

    def grant(
        self, name: str, version: int | None, order: int, *, timeout_seconds: float = 10
    ) -> int | None:
        """Grants a version of a model to the server, and returns the version that is granted then.

        None withdraws the last grant. Another version is returned if the server has taken a grant with a
        higher `order`.
        """
        request = {"model": name, "version": version, "order": order}
        granted: int | None = self._order(GRANT, request, timeout_seconds)["version"]
        return granted

    def _ask(self, path: str, request: bytes, timeout_seconds: float) -> bytes:
        reply: bytes = self._run(lambda server: server.method(path), request, timeout_seconds)
        return reply

    def _order(self, path: str, request: Mapping[str, Any], timeout_seconds: float) -> Any:
        return json.loads(self._ask(path, json.dumps(request).encode(), timeout_seconds))

    def _run(self, method: ChooseMethod, request: Any, timeout_seconds: float) -> Any:
        call = Call[Any](
            method=method,
            request=request,
            timeout_seconds=timeout_seconds,
        )
        return self._connection.only().run(call)


def replacement_of(model: Mapping[str, Any], rolled_back: int) -> int | None:
    """The version that answers in the place of `rolled_back`; None if it is still to come. Pure.

    `model` is of `Client.describe_models`. Raises FailedPrecondition if no version is to come.
    """
    default = model.get("default_version")
    if default is not None and default != rolled_back and default not in model["blocked"]:
        version: int = default
        return version
    subject = f"model {model['name']!r}: version {rolled_back}"
    if default == rolled_back and rolled_back not in model["blocked"]:
        raise FailedPrecondition(f"{subject} serves: its rollback was undone meanwhile")
    if coming_versions(model):
        return None
    errors = [
        f"version {row['version']}: {row['error_message']}"
        for row in model["versions"]
        if is_failed_load(row)
    ]
    serves = f"{default} serves on" if default is not None else "no version serves"
    raise FailedPrecondition(
        f"{subject} is blocked, but no other version could be loaded, and {serves}; drop a version "
        f"that loads, or unblock {rolled_back} (millpond allow); {'; '.join(errors)}".rstrip("; ")
    )


def coming_versions(model: Mapping[str, Any]) -> list[int]:
    """The versions that are not blocked and may still be loaded, ascending. Pure.

    `model` is of `Client.describe_models`. Versions that already serve are left out.
    """
    over = {
        row["version"]
        for row in model.get("versions", ())
        if is_failed_load(row) or row["state"] == ServableState.AVAILABLE.name
    }
    return sorted({*model.get("found_versions", ())} - over - {*model.get("blocked", ())})


def is_failed_load(version: Mapping[str, Any]) -> bool:
    """True if the state is END, and neither an unload nor a cancellation has led to it.

    END alone would read like an unload. A cancelled load may have failed before.
    """
    is_cancelled = version.get("error_code") == int(StatusCode.CANCELLED)
    return (
        version["state"] == ServableState.END.name
        and version.get("failed_load_count", 0) > 0
        and not is_cancelled
    )


def _version_status(version: Mapping[str, Any]) -> VersionStatus:
    return VersionStatus(
        version=version["version"],
        state=ServableState[version["state"]],
        error_code=version["error_code"],
        error_message=version["error_message"],
    )
