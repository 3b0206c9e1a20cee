"""Whose turn it is among several servers, by what each says of its health."""

import threading
from collections.abc import Sequence
from enum import IntEnum

from google.protobuf import wrappers_pb2

from serving.base.errors import StatusCode

HEALTH_WATCH = "/grpc.health.v1.Health/Watch"

# ServingStatus.SERVING of grpc.health.v1.
_SERVING = 1


class Health(IntEnum):
    """Better ones are greater."""

    DOWN = 0
    UNKNOWN = 1
    SERVING = 2


def watch_request(service: str) -> bytes:
    """A serialized HealthCheckRequest: like a StringValue's, its field 1 is the text."""
    return wrappers_pb2.StringValue(value=service).SerializeToString()


def health_of_response(response: bytes) -> Health:
    """Of a serialized HealthCheckResponse: like a UInt32Value's, its field 1 is the number."""
    status = wrappers_pb2.UInt32Value.FromString(response).value
    return Health.SERVING if status == _SERVING else Health.DOWN


def health_of_failed_watch(code: StatusCode) -> Health:
    """A server that answers, but has no health service, takes its turns (TensorFlow Serving's, where
    that is not switched on).
    """
    return Health.SERVING if code is StatusCode.UNIMPLEMENTED else Health.DOWN


def next_index(healths: Sequence[Health], last: int, avoid: int | None) -> int:
    """The next after `last` among the healthiest. Pure.

    `avoid`, where an attempt has just failed, counts as worse than any that is not DOWN. Where all
    are DOWN they are taken in turn all the same: what they say of themselves as a whole may not be
    true of the model that is asked for.
    """

    def rank(index: int) -> float:
        return 0.5 * min(healths[index], 1) if index == avoid else healths[index]

    count = len(healths)
    return max(((last + step) % count for step in range(1, count + 1)), key=rank)


class Rotation:
    """Takes turns among `count` servers. Any thread."""

    def __init__(self, count: int) -> None:
        self._healths = [Health.UNKNOWN] * count
        self._last = count - 1
        self._lock = threading.Lock()

    def report(self, index: int, health: Health) -> None:
        """What is known of a server from now on."""
        with self._lock:
            self._healths[index] = health

    def take(self, avoid: int | None = None) -> int:
        """The index of the server whose turn it is."""
        with self._lock:
            self._last = next_index(self._healths, self._last, avoid)
            return self._last

    @property
    def healths(self) -> tuple[Health, ...]:
        """What is known of each, in the order given."""
        with self._lock:
            return tuple(self._healths)
