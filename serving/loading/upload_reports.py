"""Reports what a load sent to accelerators, and what was there already."""

from collections.abc import Sequence

import structlog

from serving.base.clock import NS_PER_SECOND
from serving.core.servable import ServableId
from serving.data_plane.servables import AcceleratorUploads
from serving.loading.loader import LoadProgress

UPLOADED_IN_FULL = "delta_uploaded_in_full"
"""The note of a load, and the event in the log, if an accelerator was sent a table of a delta as a whole."""

_log = structlog.get_logger(__name__)


def report_uploads(
    servable_id: ServableId, uploads: Sequence[AcceleratorUploads], progress: LoadProgress
) -> None:
    """Reports the bytes of the load's `uploads`, and why a delta was sent like a whole version.

    Does nothing for a version that is on no accelerator.
    """
    if not any(upload.upload_count for upload in uploads):
        return
    uploaded_bytes = sum(upload.uploaded_bytes for upload in uploads)
    kept_bytes = sum(upload.kept_bytes for upload in uploads)
    seconds = sum(upload.upload_ns for upload in uploads) / NS_PER_SECOND
    progress.measured(
        {
            "uploaded_bytes": uploaded_bytes,
            "accelerator_kept_bytes": kept_bytes,
            "upload_seconds": seconds,
        }
    )
    _log.info(
        "uploaded",
        model=servable_id.name,
        version=servable_id.version,
        uploaded_bytes=uploaded_bytes,
        kept_bytes=kept_bytes,
        seconds=seconds,
    )
    reason = next((upload.full_reason for upload in uploads if upload.full_reason), "")
    if not reason:
        return
    progress.noted({UPLOADED_IN_FULL: reason})
    _log.warning(
        UPLOADED_IN_FULL,
        model=servable_id.name,
        version=servable_id.version,
        uploaded_bytes=uploaded_bytes,
        reason=reason,
    )
