"""Ops without a kernel for the CPU: which of them must keep a version from serving."""

from collections.abc import Sequence

import structlog

from serving.base.errors import Cancelled, FailedPrecondition, MillpondError
from serving.core.servable import ServableId
from serving.data_plane.loads import MissingKernel, SavedModelLoad
from serving.data_plane.servables import Servable
from serving.data_plane.status_errors import statuses_as_errors
from serving.loading.load_checks import (
    has_failed_for_kernel,
    missing_kernels_fault,
    missing_kernels_message,
)

_log = structlog.get_logger(__name__)


class MissingKernels:
    """The ops of a graph that was read which have no kernel. Used on the loader thread."""

    def __init__(self, servable_id: ServableId, load: SavedModelLoad) -> None:
        """Raises FailedPrecondition if requests are certain to fail."""
        self._id = servable_id
        self._rows = load.missing_kernels()
        self._signature_names = load.signature_names
        self._certain = [row for row in self._rows if row.is_certain]
        self._raise_for(self._certain)
        if self._rows:
            _log.warning(
                "op_without_kernel",
                model=servable_id.name,
                version=servable_id.version,
                reason=f"requests that come to it fail: {missing_kernels_message(self._rows)}",
            )

    def try_out(self, servable: Servable, status_error: type[Exception]) -> None:
        """Raises FailedPrecondition if requests fail because of an op in a branch that they do not take.

        TensorFlow makes the kernels of both branches, unless it finds out before that one is never
        taken. A run of made-up values shows that, whatever branch it takes.
        """
        uncertain = [
            row for row in self._rows if not row.is_certain and row.is_built and row.signature
        ]
        if uncertain:
            failed = self._failed_rows(servable, uncertain, status_error)
            self._raise_for([*self._certain, *failed])

    def _raise_for(self, rows: Sequence[MissingKernel]) -> None:
        fault = missing_kernels_fault(rows, self._signature_names)
        if fault:
            raise FailedPrecondition(f"{self._id}: {fault}")

    def _failed_rows(
        self, servable: Servable, rows: Sequence[MissingKernel], status_error: type[Exception]
    ) -> list[MissingKernel]:
        """Finds the rows for whose kernel a made-up request fails."""
        # Only here, because it imports numpy and grpcio, which few servers need.
        from warmup.synthesis import made_up_request

        found: list[MissingKernel] = []
        for row in rows:
            signatures = servable.signature_def_map()
            request = made_up_request(signatures, self._id.name, row.signature)
            if request is None:
                continue
            try:
                with statuses_as_errors(status_error):
                    servable.replay("Predict", request)
            except Cancelled:
                raise
            except MillpondError as error:
                found += [row] if has_failed_for_kernel(row, str(error)) else []
        return found
