"""Reads the reply of a server's FleetReport (`serving/rpc/fleet_service.py`). Pure."""

from collections.abc import Mapping
from typing import Any

from serving.base.errors import DataLoss, StatusCode
from serving.core.servable import HEALTHY, Health, ServableState
from serving.fleet.figures import NO_REQUESTS, VersionFigures
from serving.fleet.reports import ModelReport, ServerReport, VersionReport


def server_report(document: Mapping[str, Any]) -> ServerReport:
    """Returns the report. Raises DataLoss for another document."""
    try:
        return ServerReport(
            incarnation=int(document["incarnation"]),
            is_draining=bool(document["is_draining"]),
            free_bytes=int(document["free_bytes"]),
            models={name: _model(model) for name, model in document["models"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataLoss(f"not a report for a fleet: {error!r}") from error


def _model(document: Mapping[str, Any]) -> ModelReport:
    return ModelReport(
        granted=document["granted"],
        order=document["order"],
        default_version=document["default_version"],
        found=frozenset(document["found"]),
        versions={int(version): _version(row) for version, row in document["versions"].items()},
        blocked={int(version): reason for version, reason in document["blocked"].items()},
    )


def _version(row: Mapping[str, Any]) -> VersionReport:
    code = StatusCode(row["error_code"])
    figures = VersionFigures(
        row.get("request_count", 0), row.get("failed_count", 0), tuple(row["latency_counts"])
    )
    return VersionReport(
        state=ServableState[row["state"]],
        health=HEALTHY if code is StatusCode.OK else Health(code, row["error_message"]),
        figures=figures if figures.request_count else NO_REQUESTS,
    )
