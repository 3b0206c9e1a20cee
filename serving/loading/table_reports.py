"""Reports what a load read of its large variables, and what it found in memory."""

from collections.abc import Sequence

import structlog

from serving.core.servable import ServableId
from serving.data_plane.loads import SavedModelLoad, TableReport
from serving.loading.loader import LoadProgress

RESTORED_IN_FULL = "delta_restored_in_full"
"""The note of a load, and the event in the log, if a delta was read like a whole version."""

_log = structlog.get_logger(__name__)


def report_tables(
    servable_id: ServableId, load: SavedModelLoad, progress: LoadProgress, *, is_first: bool
) -> None:
    """Reports the bytes that were read and kept, and why a delta was restored in full.

    The reason is no warning of a model's first version, which reads all of its variables. The notes of the load have
    it all the same.
    Does nothing for a version without tables, which always reads them. Call it after `run_init`.
    """
    reports = load.table_reports()
    if not reports:
        return
    changed_row_count = sum(report.changed_row_count for report in reports)
    progress.measured(
        {
            "restored_bytes": load.restored_bytes,
            "kept_bytes": load.kept_bytes,
            "copied_bytes": load.copied_bytes,
            "changed_row_count": changed_row_count,
        }
    )
    reason = restored_in_full(reports)
    if not reason:
        return
    progress.noted({RESTORED_IN_FULL: reason})
    (_log.info if is_first else _log.warning)(
        RESTORED_IN_FULL,
        model=servable_id.name,
        version=servable_id.version,
        restored_bytes=load.restored_bytes,
        reason=reason,
    )


def restored_in_full(reports: Sequence[TableReport]) -> str:
    """Says why tables of a delta were read; "" if none was, or if the version changes no rows."""
    read = [report for report in reports if report.reason and report.read_bytes]
    if not read or not any(report.changed_row_count for report in reports):
        return ""
    first = read[0]
    others = "" if len(read) == 1 else f" (and {len(read) - 1} more)"
    return f"{first.variable}{others}: {first.reason}"
