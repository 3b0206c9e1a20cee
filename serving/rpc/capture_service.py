"""Millpond's rare RPC that returns live requests, for the next version's warm-up file.

The request is JSON (UTF-8), `{"model": NAME, "count_max": N}`. The reply is a TFRecord file of
PredictionLogs, in the form of `assets.extra/tf_serving_warmup_requests`.
"""

from pathlib import Path

import structlog

from serving.base.clock import Clock
from serving.base.directory_files import PRIVATE_FILE_MODE, opened_directory_of_name
from serving.base.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.base.json_requests import parse_object
from serving.base.name_text import file_name, listed
from serving.base.periodic_thread import PeriodicThread
from serving.data_plane.servables import RequestReservoir
from serving.loading.background_work import BackgroundWork
from serving.loading.reservoirs import Reservoirs
from serving.reload.served_models import ServedModels
from warmup.capture import captured_logs
from warmup.prediction_log import RECORD_COUNT_MAX, WARM_UP_FILE, encode_logs
from warmup.records import encode_record, write_records_at


class CaptureService:
    """Answers `CAPTURE_WARM_UP` from the reservoirs, on the threads of the rare calls. Keeps nothing."""

    def __init__(self, served: ServedModels, reservoirs: Reservoirs) -> None:
        self._served = served
        self._reservoirs = reservoirs

    def capture_warm_up(self, request: bytes) -> bytes:
        """Replies with the requests in the model's reservoir, as a TFRecord file.

        The newest request of each signature and outputs comes first. Raises InvalidArgument for an
        invalid request, NotFound for a model that is not configured, and FailedPrecondition if no
        requests are kept or no request has come yet.
        """
        name, count_max = _parse(request)
        names = self._served.names
        if name not in names:
            raise NotFound(f"no model {name!r}; there are {listed(sorted(names))}")
        reservoir = self._reservoirs.of(name)
        if reservoir is None:
            raise FailedPrecondition(
                f"model {name!r}: no requests are kept; start the server with "
                "--self_warmup_requests above 0"
            )
        logs = captured_logs(reservoir.requests(), count_max)
        if not logs:
            raise FailedPrecondition(
                f"model {name!r}: no request was answered in the last minutes; "
                "send it live traffic first"
            )
        return b"".join(map(encode_record, encode_logs(logs, Path("capture"))))


def _parse(request: bytes) -> tuple[str, int]:
    document = parse_object(request)
    name = document.get("model")
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f'the request names no model: {document!r}; send {{"model": NAME}}')
    count_max = document.get("count_max", RECORD_COUNT_MAX)
    if type(count_max) is not int or not 1 <= count_max <= RECORD_COUNT_MAX:
        raise InvalidArgument(f"count_max {count_max!r}: give 1 to {RECORD_COUNT_MAX}")
    return name, count_max


PERIOD_SECONDS = 60.0
"""The time between two writes. A server that is killed loses at most the requests of this time."""


_log = structlog.get_logger(__name__)


class CaptureDirectory:
    """Writes the reservoirs to `directory/MODEL/tf_serving_warmup_requests`, on a thread of its own.

    MODEL is the model's name, percent-encoded, so that no name leads out of `directory`. Only the server's
    user can read the file, because it holds the requests of clients.

    A file is replaced atomically, and only if its requests have changed since the last write. A model
    whose reservoir is empty keeps its file. The reservoirs decide the number, size and age of
    requests. If the disk fails, that is logged and the write is repeated at the next period.
    """

    def __init__(
        self,
        directory: Path,
        reservoirs: Reservoirs,
        *,
        background: BackgroundWork,
        clock: Clock,
    ) -> None:
        """Takes the reservoirs to write. The thread works in the `background`."""
        self._directory = directory
        self._reservoirs = reservoirs
        self._written: dict[str, set[bytes]] = {}
        self._thread = PeriodicThread(
            "warm-up-capture",
            self.write_now,
            wait_seconds=PERIOD_SECONDS,
            failure_event="warm_up_capture_failed",
            at_start=background.enter,
            at_end=self.write_now,
            clock=clock,
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Writes once more and ends the thread; returns False if it still runs at the timeout."""
        self._thread.stop()
        return self._thread.join(timeout_seconds)

    def write_now(self) -> None:
        """Writes the reservoirs that have changed, on the calling thread. One thread at a time."""
        for name, reservoir in sorted(self._reservoirs.by_name().items()):
            try:
                self._write(name, reservoir)
            except OSError as error:
                _log.warning(
                    "warm_up_capture_failed",
                    model=name,
                    reason=str(error),
                    remedy="make --warmup_capture_directory writable for the server's user, with room",
                )

    def _write(self, name: str, reservoir: RequestReservoir) -> None:
        path = self._directory / file_name(name) / WARM_UP_FILE.name
        logs = captured_logs(reservoir.requests(), RECORD_COUNT_MAX)
        records = encode_logs(logs, path)
        if not records or set(records) == self._written.get(name):
            return
        try:
            with opened_directory_of_name(self._directory, name) as directory:
                write_records_at(directory, path.name, records, PRIVATE_FILE_MODE)
        except OSError as error:
            # Adds the whole path: a file opened relative to its directory has a short name.
            raise OSError(error.errno, error.strerror, str(path)) from error
        self._written[name] = set(records)
        _log.info("warm_up_captured", model=name, file=str(path), record_count=len(records))
