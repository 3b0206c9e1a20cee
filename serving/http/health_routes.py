"""`/healthz` and `/readyz`: the server's health for orchestrators and balancers, over HTTP.

`/healthz` answers 200 as long as the process is alive, also while it drains. `/readyz` reports if
requests should be sent here, and otherwise why not. It takes the same decision as gRPC's health: a
model that is added to a serving server counts once it has come. `?model=NAME` reports that model
alone. The data plane answers GET of both, by documents that are made here; the routes refuse other
methods, and models that are not configured.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from serving.base.errors import NotFound
from serving.base.name_text import listed
from serving.core.servable import ServableStatus
from serving.http.app import json_response
from serving.rpc.health import HealthView, why_unavailable
from serving.source.notes import Note

DRAINING = "the server is draining: it finishes what it has and stops"
_NO_STORE: Mapping[str, str] = {"Cache-Control": "no-store"}


Notes = Callable[[str], Collection[Note]]
"""Finds the notes of a model's source on its base path."""


def no_notes(name: str) -> Collection[Note]:
    """No notes, for a server without sources."""
    del name
    return ()


@dataclass(frozen=True)
class Readiness:
    """The readiness of a server, and for each model the reason why it is not ready.

    The reason of a ready model is None.
    """

    is_ready: bool
    reason: str | None
    reason_by_model: Mapping[str, str | None]

    @property
    def status(self) -> int:
        """The status of the answer."""
        return 200 if self.is_ready else 503


def readiness(view: HealthView, notes: Notes = no_notes) -> Readiness:
    """The readiness of the whole server. Pure."""
    reasons = {name: _reason_of(view, name, notes) for name in view.models}
    waiting = [name for name, reason in reasons.items() if reason is not None]
    reason = server_reason(waiting, is_serving=view.is_serving, is_draining=view.is_draining)
    return Readiness(view.is_serving, reason, reasons)


def model_readiness(view: HealthView, name: str, notes: Notes = no_notes) -> Readiness:
    """The readiness of one model. Pure. Raises NotFound if it is not configured."""
    if name not in view.models:
        configured = listed(view.models)
        raise NotFound(f"model {name!r} is not configured; configured: {configured}")
    reason = _reason_of(view, name, notes)
    return model_readiness_of(name, reason, is_draining=view.is_draining)


def model_readiness_of(name: str, reason: str | None, *, is_draining: bool) -> Readiness:
    """The readiness of a model that is not ready for `reason`; None if it is. Pure."""
    is_ready = reason is None and not is_draining
    return Readiness(is_ready, DRAINING if is_draining else None, {name: reason})


def health_routes(view: Callable[[], HealthView], notes: Notes = no_notes) -> Sequence[BaseRoute]:
    """Makes the two routes. `view` is `HealthReporter.view`, `notes` is `ServedModels.notes`."""

    async def healthz(request: Request) -> Response:
        del request
        return Response(b"ok\n", 200, _NO_STORE, "text/plain")

    async def readyz(request: Request) -> Response:
        name = request.query_params.get("model")
        seen = view()
        found = readiness(seen, notes) if name is None else model_readiness(seen, name, notes)
        return json_response(readiness_document(found), found.status)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def readiness_document(found: Readiness) -> dict[str, Any]:
    """The answer of `/readyz` as JSON. Pure."""
    models = {
        name: {"is_ready": reason is None, **_reason(reason)}
        for name, reason in found.reason_by_model.items()
    }
    return {"is_ready": found.is_ready, **_reason(found.reason), "models": models}


def _reason_of(view: HealthView, name: str, notes: Notes) -> str | None:
    versions = view.statuses.get(name, ())
    return model_reason(versions, () if versions else notes(name))


def model_reason(versions: Sequence[ServableStatus], notes: Collection[Note]) -> str | None:
    """The reason why a model with these versions is not ready; None if it is. Pure.

    `notes` are those of its source on its base path.
    """
    reason = why_unavailable(versions)
    if reason is None or versions:
        return reason
    # Lists the entries of the base path that are not versions. An empty base path is `reason`'s matter.
    texts = sorted(_note_text(note) for note in notes if note.values)
    return f"{reason} ({'; '.join(texts)})" if texts else reason


def _note_text(note: Note) -> str:
    return " ".join([note.event, *(f"{key}={value}" for key, value in note.values)])


def server_reason(waiting: Iterable[str], *, is_serving: bool, is_draining: bool) -> str | None:
    """The reason why a server is not ready; None if it is. `waiting` are its models without a version. Pure."""
    if is_draining:
        return DRAINING
    if is_serving:
        return None
    return f"no version is available of: {listed(waiting)}"


def _reason(reason: str | None) -> Mapping[str, str]:
    return {} if reason is None else {"reason": reason}
