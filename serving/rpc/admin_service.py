"""Millpond's own rare RPCs, for its command line. Requests and replies are JSON (UTF-8).

TensorFlow Serving has no RPC that lists models (GetModelStatus needs a name), and no RPC that puts
an earlier version back.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, replace
from typing import Any, Protocol, TypeVar

from serving.base.clock import NS_PER_SECOND
from serving.base.errors import InvalidArgument, Unavailable
from serving.base.json_requests import parse_object
from serving.core.blocked_versions import as_rows
from serving.core.operator_api import ALLOW, LIST_MODELS, PROMOTE, ROLLBACK, Rollback
from serving.core.servable import ServableId, ServableStatus
from serving.data_plane.servables import (
    CPU_REASONS,
    AcceleratedSignature,
    AcceleratorRuns,
    Servable,
    SignatureBatching,
)
from serving.loading.autotuning import Tuning, not_tuned
from serving.loading.table_reports import RESTORED_IN_FULL
from serving.loading.upload_reports import UPLOADED_IN_FULL
from serving.manager.blocked_version_file import BlockedVersionKeeper
from serving.manager.state_monitor import StateMonitor
from serving.manager.streams import Streams
from serving.reload.served_models import ServedModels
from serving.request_log.request_logs import RequestLogFigures, RequestLogs, log_document
from serving.rpc.config_refusals import ConfigRefusals
from serving.rpc.rare_calls import Handler, Waiting, patience_seconds
from serving.source.notes import Note

ANSWER_TIMEOUT_SECONDS = 10.0
"""The control thread answers within a millisecond, so a longer wait means that it is stuck.

If the caller has less time, the wait is shorter.
"""

KEPT_TIMEOUT_SECONDS = 3.0
"""The longest wait for the disk before the reply to a rollback. It writes a kilobyte, so a longer wait
means that the disk hangs. The rollback itself is in effect before this wait."""

Answer = TypeVar("Answer")


class VersionControl(Protocol):
    """The part of `AspiredVersionsManager` that operators use."""

    def rollback(self, name: str, *, is_cold_allowed: bool) -> Future[Rollback]: ...
    def promote(self, name: str) -> Future[int]: ...
    def allow(self, name: str, version: int) -> Future[None]: ...


class AdminService:
    """Answers on the threads of the rare calls. Keeps nothing from one call to the next.

    `keeper` keeps the blocked versions that the answers tell of.
    """

    def __init__(
        self,
        *,
        served: ServedModels,
        monitor: StateMonitor,
        control: VersionControl,
        streams: Streams,
        request_logs: RequestLogs,
        refusals: ConfigRefusals,
        keeper: BlockedVersionKeeper,
        tuning_of: Callable[[ServableId], Tuning | None] = not_tuned,
    ) -> None:
        self._served = served
        self._monitor = monitor
        self._control = control
        self._streams = streams
        self._request_logs = request_logs
        self._refusals = refusals
        self._keeper = keeper
        self._tuning_of = tuning_of

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers, by the full name of the method."""
        return {
            LIST_MODELS: self.list_models,
            ROLLBACK: Waiting(self.rollback),
            PROMOTE: Waiting(self.promote),
            ALLOW: Waiting(self.allow),
        }

    def list_models(self, request: bytes) -> bytes:
        """Replies `{"models": [{"name", "versions": [{"version", "state", …}], …}]}`, by name and version.

        The reply also has `"refused_config": {"file", "reason", "since_wall_ns"}`, null if the
        configuration files are in effect. `request` is ignored. Models without versions are listed
        too: an operator looks for exactly these.
        """
        del request
        statuses = self._monitor.statuses()
        names = sorted({*self._served.names, *statuses})
        logs = self._request_logs.figures()
        models = [self._model(name, statuses.get(name, ()), logs.get(name)) for name in names]
        refusal = self._refusals.first
        reply = {"models": models, "refused_config": asdict(refusal) if refusal else None}
        return json.dumps(reply).encode()

    def rollback(self, request: bytes, remaining_seconds: float | None = None) -> bytes:
        """Rolls a model back, as the manager's `rollback` does.

        Takes `{"model", "is_cold_allowed"}`; returns `{"rolled_back", "version", "warning", "blocked"}`. By
        the time of the reply, every request sees `version`, unless it is null, and the rollback is on disk,
        unless `warning` has the reason why it is not. `blocked` has `{"version", "has_served", "reason"}`
        of each version that the rollback blocks.
        """
        parsed = parse_object(request)
        is_cold_allowed = bool(parsed.get("is_cold_allowed", False))
        name = _model_name(parsed)
        answered = self._control.rollback(name, is_cold_allowed=is_cold_allowed)
        done = replace(
            _answer(answered, remaining_seconds), warning=self._kept_warning(remaining_seconds)
        )
        return json.dumps(asdict(done)).encode()

    def promote(self, request: bytes, remaining_seconds: float | None = None) -> bytes:
        """Lets the canary answer all requests. Takes `{"model"}` and returns `{"version"}`.

        Raises FailedPrecondition if the model has no canary.
        """
        name = _model_name(parse_object(request))
        version = _answer(self._control.promote(name), remaining_seconds)
        return json.dumps({"version": version}).encode()

    def allow(self, request: bytes, remaining_seconds: float | None = None) -> bytes:
        """Unblocks a version. Takes `{"model", "version"}` and returns `{"warning"}`.

        The change is on disk by then, unless `warning` has the reason why it is not.
        """
        parsed = parse_object(request)
        version = parsed.get("version")
        if not isinstance(version, int):
            raise InvalidArgument(f"version {version!r} is not a version number")
        _answer(self._control.allow(_model_name(parsed), version), remaining_seconds)
        return json.dumps({"warning": self._kept_warning(remaining_seconds)}).encode()

    def _kept_warning(self, remaining_seconds: float | None) -> str:
        """Waits until a change is on disk, and returns "". If it is not, returns the warning."""
        patience = patience_seconds(remaining_seconds, ANSWER_TIMEOUT_SECONDS)
        # Waits half of that time, because the control thread may have used some of it.
        reason = self._keeper.wait_until_kept(min(KEPT_TIMEOUT_SECONDS, patience / 2))
        if not reason:
            return ""
        return (
            f"done, and in effect until this server ends, but not on disk yet: {reason}; the "
            "server goes on trying, and a restart before that undoes it"
        )

    def _model(
        self, name: str, statuses: Sequence[ServableStatus], log: RequestLogFigures | None
    ) -> dict[str, Any]:
        stream = self._streams.status(name)
        return {
            "name": name,
            **(asdict(stream) if stream else self._blocks(name)),
            "found_versions": sorted(self._served.found_versions(name)),
            "notes": [_note(note) for note in sorted(self._served.notes(name), key=repr)],
            "versions": [self._version(status) for status in statuses],
            "request_log": log_document(log) if log else None,
        }

    def _blocks(self, name: str) -> dict[str, Any]:
        """The blocked versions of a model that has no other version."""
        blocks = self._streams.blocks(name)
        return {"blocked": sorted(blocks), "blocked_versions": as_rows(blocks)} if blocks else {}

    def _version(self, status: ServableStatus) -> dict[str, Any]:
        servable = self._streams.servable(status.id)
        return {
            "version": status.id.version,
            "state": status.state.name,
            "stage": status.stage.value if status.stage else None,
            "stage_seconds": {
                stage.value: seconds for stage, seconds in status.stage_seconds.items()
            },
            "failed_load_count": status.failed_load_count,
            "state_changed_wall_ns": status.state_changed_wall_ns,
            "error_code": int(status.health.code),
            "error_message": status.health.message,
            "verdicts": [asdict(verdict) for verdict in status.verdicts],
            "table_reads": _table_reads(status),
            "uploads": _uploads(status),
            **(_figures(servable) if servable else {}),
            "autotuning": _autotuning(self._tuning_of(status.id)),
        }


def _table_reads(status: ServableStatus) -> dict[str, Any] | None:
    """The bytes that a version with tables read and found in memory; None for a version without tables."""
    if "kept_bytes" not in status.figures:
        return None
    names = ("restored_bytes", "kept_bytes", "copied_bytes")
    reads: dict[str, Any] = {name: int(status.figures.get(name, 0)) for name in names}
    return reads | {RESTORED_IN_FULL: status.notes.get(RESTORED_IN_FULL, "")}


def _uploads(status: ServableStatus) -> dict[str, Any] | None:
    """The bytes that a load sent to accelerators and found there; None for a version that is on none."""
    if "uploaded_bytes" not in status.figures:
        return None
    names = ("uploaded_bytes", "accelerator_kept_bytes")
    uploads: dict[str, Any] = {name: int(status.figures[name]) for name in names}
    return uploads | {UPLOADED_IN_FULL: status.notes.get(UPLOADED_IN_FULL, "")}


def _figures(servable: Servable) -> dict[str, Any]:
    try:
        statistics, arena = servable.statistics(), servable.arena_statistics()
        batching = servable.batching()
        accelerator_bytes, runs = servable.accelerator_bytes, servable.accelerator_runs()
        accelerated = servable.accelerator_signatures()
        resident_bytes = sum(item.resident_bytes for item in servable.accelerator_uploads())
    except Exception:  # noqa: BLE001 (it may be in destruction)
        return {}
    return {
        "request_count": statistics.request_count,
        "failed_count": statistics.failed_count,
        "latency_ns_p999": statistics.latency_ns_p999,
        "arena_resident_bytes": arena.slab_resident_bytes if arena else None,
        "batching": [_batching(state) for state in batching],
        "accelerator_bytes": accelerator_bytes,
        "accelerator_resident_bytes": resident_bytes,
        "accelerator": [_accelerator(item) for item in runs],
        "accelerator_signatures": [_accelerated(signature) for signature in accelerated],
    }


def _autotuning(tuning: Tuning | None) -> dict[str, str] | None:
    """The progress of a version's autotuning; None if it has none, or needs none."""
    return None if tuning is None else {"state": tuning.state.value, "reason": tuning.reason}


def _accelerated(signature: AcceleratedSignature) -> dict[str, Any]:
    """The parts of a signature that run on the CPU, or the reason why all of it does."""
    return {
        "signature": signature.name,
        "reason": signature.reason,
        "cpu_ops": list(signature.host_ops),
        "cpu_tables": list(signature.host_tables),
        "sizes": [asdict(size) for size in signature.sizes],
        "untuned_rows": list(signature.untuned_rows),
    }


def _accelerator(runs: AcceleratorRuns) -> dict[str, Any]:
    """The runs of one signature on one accelerator, since the load."""
    return {
        "signature": runs.signature,
        "device": runs.device,
        "run_count": sum(runs.run_counts),
        "row_count": sum(runs.row_counts),
        "padding_row_count": runs.padding_row_count,
        "cpu_run_counts": dict(zip(CPU_REASONS, runs.cpu_run_counts, strict=True)),
    }


def _batching(state: SignatureBatching) -> dict[str, Any]:
    """The batching of one signature, with its figures since the load.

    The signature is "" for runs of several signatures at once. `requests_per_run` is null before the
    first run.
    """
    figures = state.figures
    runs = figures.run_count
    return {
        "signature": state.signature,
        "is_on": state.is_on,
        "refusal": state.refusal,
        "rows": state.rows,
        "rows_reason": state.rows_reason,
        "rows_limit": state.joined_rows_max,
        "run_count": runs,
        "request_count": figures.request_count,
        "row_count": figures.row_count,
        "padding_row_count": figures.padding_row_count,
        "failed_batch_count": figures.failed_batch_count,
        "split_request_count": figures.split_request_count,
        "wait_seconds": figures.wait_ns / NS_PER_SECOND,
        "run_seconds": figures.run_ns / NS_PER_SECOND,
        "requests_per_run": figures.request_count / runs if runs else None,
    }


def _note(note: Note) -> dict[str, Any]:
    return {"event": note.event, "level": note.level, **{k: str(v) for k, v in note.values}}


def _model_name(parsed: Mapping[str, Any]) -> str:
    name = parsed.get("model")
    if not isinstance(name, str) or not name:
        raise InvalidArgument('the request names no model: give {"model": NAME}')
    return name


def _answer(future: Future[Answer], remaining_seconds: float | None) -> Answer:
    """Waits for the control thread's answer. Raises Unavailable at the caller's deadline."""
    timeout_seconds = patience_seconds(remaining_seconds, ANSWER_TIMEOUT_SECONDS)
    try:
        return future.result(timeout_seconds)
    except FutureTimeoutError as error:
        raise Unavailable(
            f"the control thread did not answer in {timeout_seconds:.3g} s; see the server's log; "
            "the request may still take effect"
        ) from error
