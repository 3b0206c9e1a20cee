"""The disturbances of a server beside its load, by name: hostile connections, visits, REST, endless runs."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from loadtest.drive.demo_model import MODEL_NAME
from loadtest.drive.hostile_clients import Attack, Crowd, attacks
from loadtest.drive.http_visitors import PagePolls, Visit, Visitor, scrape, visited
from loadtest.drive.life_slow_model import SLOW_MODEL_NAME, slow_request
from loadtest.drive.raw_http2 import calls, hello
from loadtest.drive.rest_load import steady_load
from serving.base.clock import Clock

REST = "rest"
ENDLESS = "endless"
ENDLESS_GRPC = "endless gRPC"

_ENDLESS_COUNT = 8


@dataclass(frozen=True, kw_only=True)
class Site:
    """The server under load, and all that a disturbance of `seconds` needs to know of it.

    `message` is a serialized PredictRequest. `rest_body` is the body of a request over REST, of which the
    server gets `rest_rate` a second.
    """

    target: str
    url: str
    message: bytes
    rest_body: bytes
    rest_rate: float
    seconds: float
    clock: Clock


@dataclass(frozen=True)
class Disturbance:
    """Disturbs a site inside `with`, which yields the crowd of a hostile disturbance.

    The goal is the highest ratio of a latency beside it to the same latency without it. If
    `is_start_measured`, the time of its start is measured too.
    """

    start: Callable[[Site], AbstractContextManager[Crowd | None]]
    goal: tuple[str, float]
    is_start_measured: bool = False


def _attack(name: str, site: Site) -> Crowd:
    return Crowd(attacks(MODEL_NAME, site.message)[name], site.target, site.url, site.clock)


def _visits(visits: Callable[[], Mapping[str, Visit]], site: Site) -> AbstractContextManager[None]:
    made = visits().items()
    return visited([Visitor(name, site.url, visit, site.clock) for name, visit in made])


def _endless(site: Site) -> Crowd:
    """Requests over REST to the slow model that do not end by themselves."""
    body = b'{"inputs": {"seconds": Infinity}}'
    head = b"POST /v1/models/%s:predict HTTP/1.1\r\nHost: localhost\r\n" % SLOW_MODEL_NAME.encode()
    opening = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    attack = Attack(ENDLESS, connection_count=_ENDLESS_COUNT, is_http=True, opening=opening)
    return Crowd(attack, site.target, site.url, site.clock)


def _endless_grpc(site: Site) -> Crowd:
    """The same over gRPC."""
    message = slow_request(math.inf).SerializeToString()
    opening = hello() + calls("/tensorflow.serving.PredictionService/Predict", message, count=1)
    attack = Attack(ENDLESS_GRPC, connection_count=_ENDLESS_COUNT, is_http=False, opening=opening)
    return Crowd(attack, site.target, site.url, site.clock)


@contextmanager
def _rest(site: Site) -> Iterator[None]:
    url = f"{site.url}/v1/models/{MODEL_NAME}:predict"
    with steady_load(url, site.rest_body, site.rest_rate, site.seconds, site.clock):
        yield


_P999_BESIDE_VISITS = ("p999_ms", 1.05)
_ATTACKS = tuple(attacks(MODEL_NAME, b""))

DISTURBANCES: Mapping[str, Disturbance] = MappingProxyType(
    {
        **{
            name: Disturbance(partial(_attack, name), ("p99_ms", 1.2), is_start_measured=True)
            for name in _ATTACKS
        },
        "page and scrape": Disturbance(
            partial(_visits, lambda: {"page": PagePolls(), "prometheus": scrape}),
            _P999_BESIDE_VISITS,
        ),
        "page": Disturbance(partial(_visits, lambda: {"page": PagePolls()}), _P999_BESIDE_VISITS),
        "scrape": Disturbance(
            partial(_visits, lambda: {"prometheus": scrape}), _P999_BESIDE_VISITS
        ),
        REST: Disturbance(_rest, ("p999_ms", 1.1)),
        ENDLESS: Disturbance(_endless, ("p99_ms", 1.2)),
        ENDLESS_GRPC: Disturbance(_endless_grpc, ("p99_ms", 1.2)),
    }
)
"""Half of what REST can do, a page that polls and a Prometheus that scrapes once a second, endless
requests of one other model, and the attacks of `hostile_clients`."""

GROUPS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "hostile": _ATTACKS,
        "monitoring": ("page and scrape", "page", "scrape"),
        "long runs": (ENDLESS, ENDLESS_GRPC),
    }
)
"""Names for several disturbances."""
