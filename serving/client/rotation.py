"""Chooses the next of several servers by the health that each reports."""

import threading
from collections.abc import Sequence
from enum import IntEnum

from google.protobuf import wrappers_pb2

from serving.base.errors import StatusCode

HEALTH_WATCH = "/grpc.health.v1.Health/Watch"

# ServingStatus.SERVING of grpc.health.v1.
_SERVING = 1


class Health(IntEnum):
    """The health of a server; a better health is greater."""

    DOWN = 0
    UNKNOWN = 1
    SERVING = 2


def watch_request(service: str) -> bytes:
    """Returns a serialized HealthCheckRequest. Its field 1 is text, as in a StringValue."""
    return wrappers_pb2.StringValue(value=service).SerializeToString()


def health_of_response(response: bytes) -> Health:
    """Returns the health in a HealthCheckResponse. Its field 1 is a number, as in a UInt32Value."""
    status = wrappers_pb2.UInt32Value.FromString(response).value
    return Health.SERVING if status == _SERVING else Health.DOWN


def health_of_failed_watch(code: StatusCode) -> Health:
    """Returns SERVING if the server answers but has no health service, and DOWN otherwise.

    TensorFlow Serving has no health service unless it is switched on.
    """
    return Health.SERVING if code is StatusCode.UNIMPLEMENTED else Health.DOWN


def next_index(healths: Sequence[Health], last: int, avoid: int | None) -> int:
    """Returns the next index after `last` among the healthiest servers. Pure.

    At `avoid` an attempt has just failed, so it is worse than all servers that are not DOWN. If all
    servers are DOWN, they take turns all the same: the requested model may be healthy there.
    """

    def rank(index: int) -> float:
        return 0.5 * min(healths[index], 1) if index == avoid else healths[index]

    count = len(healths)
    return max(((last + step) % count for step in range(1, count + 1)), key=rank)


class Rotation:
    """Gives turns to `count` servers. Any thread."""

    def __init__(self, count: int) -> None:
        self._healths = [Health.UNKNOWN] * count
        self._last = count - 1
        self._lock = threading.Lock()

    def report(self, index: int, health: Health) -> None:
        """Sets the health of a server."""
        with self._lock:
            self._healths[index] = health

    def take(self, avoid: int | None = None) -> int:
        """Returns the index of the server whose turn it is."""
        with self._lock:
            self._last = next_index(self._healths, self._last, avoid)
            return self._last

    @property
    def healths(self) -> tuple[Health, ...]:
        """The health of each server, in the order given."""
        with self._lock:
            return tuple(self._healths)
