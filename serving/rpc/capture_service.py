"""Millpond's rare RPC that gives out live requests, for the next version's warm-up file.

The request is JSON (UTF-8), `{"model": NAME, "count_max": N}`; the reply is a TFRecord file of
PredictionLogs, as it belongs into `assets.extra/tf_serving_warmup_requests`.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from serving.base.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.base.json_requests import parse_object
from serving.base.name_text import listed
from serving.data_plane.servables import RequestReservoir
from warmup.capture import captured_logs
from warmup.prediction_log import RECORD_COUNT_MAX, encode_logs
from warmup.records import encode_record

CAPTURE_WARM_UP = "/millpond.v1.Admin/CaptureWarmUp"


class CaptureService:
    """Answers `CAPTURE_WARM_UP` out of the reservoirs. On the threads of the rare calls; keeps nothing."""

    def __init__(
        self,
        model_names: Callable[[], Collection[str]],
        reservoirs: Callable[[str], RequestReservoir | None],
    ) -> None:
        """`model_names` are those configured now; `reservoirs` has None where none is kept."""
        self._model_names = model_names
        self._reservoirs = reservoirs

    def capture_warm_up(self, request: bytes) -> bytes:
        """Replies what the model's reservoir holds: first the newest request of each signature and outputs.

        Raises InvalidArgument, NotFound for a model that is not configured, FailedPrecondition
        where no requests are kept or none has come yet.
        """
        name, count_max = _parse(request)
        if name not in self._model_names():
            raise NotFound(f"no model {name!r}; there are {listed(sorted(self._model_names()))}")
        reservoir = self._reservoirs(name)
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
