"""The documents about one model that the data plane serves by itself, by their paths. Pure."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

from serving.core.servable import Health, ServableId, ServableState, ServableStatus
from serving.kserve.questions import version_number
from serving.rest.model_documents import status_document
from serving.rpc.model_service import status_response

MetadataOf = Callable[[int], Mapping[str, Any] | None]
"""Finds the open inference protocol's metadata of a version; None if it has none."""


class Document(NamedTuple):
    """An answer over HTTP: its status and its JSON."""

    status: int
    body: bytes


Documents = Mapping[str, Document]


class VersionView(NamedTuple):
    """One version as its documents show it: without the stage of its load."""

    version: int
    state: ServableState
    health: Health


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """All that the documents of a model show. A value: equal views have equal documents.

    `versions` are all that are remembered, ascending, and `ready_versions` those that answer. `labels` lead to
    versions that answer, and `label_targets` also to versions that do not answer yet.
    """

    name: str
    is_configured: bool
    is_draining: bool
    versions: tuple[VersionView, ...]
    ready_versions: tuple[int, ...]
    default_version: int | None
    labels: Mapping[str, int]
    label_targets: Mapping[str, int]


def model_documents(view: ModelView, metadata_of: MetadataOf) -> Documents:
    """Makes all documents of a model. What has none is answered by Python, with the reason."""
    documents = dict(_status_documents(view))
    if view.is_configured:
        documents.update(_ready_documents(view))
        documents.update(_metadata_documents(view, metadata_of))
    return documents


def document(value: object, status: int = 200) -> Document:
    """Makes a document of `value` as JSON."""
    return Document(status, json.dumps(value, separators=(",", ":")).encode())


def path_part(text: str) -> str:
    """A name as a part of a path, as the data plane writes it (`UrlEncode`)."""
    return quote(text, safe="", errors="surrogateescape")


def _status_documents(view: ModelView) -> Iterator[tuple[str, Document]]:
    if not view.versions:
        return
    path = f"/v1/models/{path_part(view.name)}"
    rows = {shown.version: _status_row(shown) for shown in reversed(view.versions)}
    by_version = {version: _status_list(row) for version, row in rows.items()}
    whole = _status_list(",".join(rows.values()))
    yield path, whole
    # Number 0 means all versions, unless there is a version 0 (`ModelService`).
    yield f"{path}/versions/0", whole
    for version, found in by_version.items():
        yield f"{path}/versions/{version}", found
    for label, version in view.label_targets.items():
        if version in by_version:
            yield f"{path}/labels/{path_part(label)}", by_version[version]


def _status_list(rows: str) -> Document:
    return Document(200, f'{{"model_version_status":[{rows}]}}'.encode())


# Cached, because a change of one version leaves the rows of the model's other versions as they are.
@lru_cache(maxsize=4096)
def _status_row(shown: VersionView) -> str:
    servable_id = ServableId("", shown.version)
    status = ServableStatus(id=servable_id, state=shown.state, health=shown.health)
    (row,) = status_document(status_response((status,)))["model_version_status"]
    return json.dumps(row, separators=(",", ":"))


def _ready_documents(view: ModelView) -> Iterator[tuple[str, Document]]:
    def answer(version: int | None) -> Document:
        is_ready = version in view.ready_versions and not view.is_draining
        return document({"name": view.name, "ready": is_ready}, 200 if is_ready else 503)

    yield _v2_path(view) + "/ready", answer(view.default_version)
    for part, version in _versions(view):
        yield f"{_v2_path(view, part)}/ready", answer(version)


def _metadata_documents(view: ModelView, metadata_of: MetadataOf) -> Iterator[tuple[str, Document]]:
    numbers = [str(version) for version in view.ready_versions]
    found = {version: metadata_of(version) for version in view.ready_versions}
    made = {
        version: document({**metadata, "versions": numbers})
        for version, metadata in found.items()
        if metadata is not None
    }
    if view.default_version in made:
        yield _v2_path(view), made[view.default_version]
    for part, version in _versions(view):
        if version in made:
            yield _v2_path(view, part), made[version]


def _versions(view: ModelView) -> Iterator[tuple[str, int]]:
    """Each version by its number and by its labels, as a part of a path."""
    for shown in view.versions:
        yield str(shown.version), shown.version
    for label, version in view.labels.items():
        # A label that is a number means that version.
        if version_number(label) is None:
            yield path_part(label), version


def _v2_path(view: ModelView, version: str = "") -> str:
    path = f"/v2/models/{path_part(view.name)}"
    return f"{path}/versions/{version}" if version else path
