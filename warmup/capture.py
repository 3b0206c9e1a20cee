"""Capture: turns live requests into the records of the next version's warm-up file."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from google.protobuf.message import DecodeError

from serving.base.errors import MillpondError
from serving.base.protos import predict_pb2
from warmup.prediction_log import Log

Answer = Callable[[predict_pb2.PredictRequest], predict_pb2.PredictResponse]
"""Sends a request to a server; raises MillpondError."""


def captured_logs(requests: Iterable[bytes], count_max: int) -> list[Log]:
    """The logs of the first `count_max` distinct serialized PredictRequests. Pure.

    The version that a client named is left out, because the records are for the next version.
    """
    logs: dict[bytes, Log] = {}
    for request in requests:
        log = Log()
        # Our decoder checks less of a request than protobuf's. A request that the server answered
        # may not parse in Python, and then it could not be replayed either.
        with suppress(DecodeError):
            log.predict_log.request.ParseFromString(request)
            log.predict_log.request.model_spec.ClearField("version_choice")
            logs.setdefault(log.SerializeToString(deterministic=True), log)
        if len(logs) == count_max:
            break
    return list(logs.values())


def answered_logs(logs: Sequence[Log], answer: Answer) -> list[Log]:
    """The logs, each with the response that one version gives to it now.

    All records are sent to the version that gave the first response. Raises the errors of `answer`, with
    the number of the record; NotFound if the version is unloaded meanwhile.
    """
    version: int | None = None
    answered: list[Log] = []
    for number, log in enumerate(logs, start=1):
        request = predict_pb2.PredictRequest()
        request.CopyFrom(log.predict_log.request)
        if version is not None:
            request.model_spec.version.value = version
        try:
            response = answer(request)
        except MillpondError as error:
            raise type(error)(f"record {number}: {error}", code=error.code) from error
        version = response.model_spec.version.value
        answered.append(_with_response(log, response))
    return answered


def _with_response(log: Log, response: predict_pb2.PredictResponse) -> Log:
    answered = Log()
    answered.CopyFrom(log)
    answered.predict_log.response.CopyFrom(response)
    return answered
