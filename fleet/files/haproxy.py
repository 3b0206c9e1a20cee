"""Writes a configuration for HAProxy 2.6 or newer, which sends each gRPC call to the least busy server. Pure.

HAProxy cannot read the model's name in the body of a gRPC call. So if not all servers have the same models,
each model needs its own address.

HAProxy checks a server by a call of gRPC's health service. Its HTTP checks cannot send such a call, because
the call's body contains zero bytes. So a TCP check sends the bytes of the call as they are on the wire, and
waits for the reply SERVING.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from serving.base.errors import InvalidConfig

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
# Entries of HPACK's static table: first whole headers, then names of headers whose values follow.
_METHOD_POST, _SCHEME_HTTP, _SCHEME_HTTPS = b"\x83", b"\x86", b"\x87"
_PATH, _AUTHORITY, _CONTENT_TYPE = 4, 1, 31
_EMPTY_MESSAGE = bytes(5)
SERVING_REPLY = bytes((0, 0, 0, 0, 2, 8, 1))
"""The bytes by which gRPC answers SERVING: the length of a HealthCheckResponse, and the message itself."""

_DESCRIPTION = "millpond-"
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_SAFE_ADDRESS = _SAFE | frozenset(":[]@/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A server behind HAProxy: its name, the HOST:PORT of its gRPC port, and its models.

    A draining server gets no further requests, and answers those that it has. If `models` is empty, the
    models of the server are not known yet.
    """

    name: str
    address: str
    is_draining: bool = False
    models: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class HaproxySettings:
    """The addresses at which HAProxy listens, and the way in which it reaches and checks servers."""

    # The address of all models.
    bind: str = "127.0.0.1:8600"
    # The address of each model. If there are any, they replace `bind`, and clients cannot reach other models
    # over HAProxy.
    binds: Mapping[str, str] = field(default_factory=dict)
    # A UNIX socket for statistics, over which a new process also takes the listeners of the old process.
    stats_socket: str = "/run/haproxy/millpond.sock"
    # The time between two checks of a server.
    check_seconds: float = 1.0
    # The longest time that a client's call may take.
    request_seconds_max: float = 3_600.0
    # The time that an old process has to answer its last requests after a reload.
    drain_seconds: float = 60.0
    # The certificate of the authority that signed the servers' certificates; "" if servers have no TLS.
    ca_file: str = ""

    def __post_init__(self) -> None:
        _check("bind", self.bind, _SAFE_ADDRESS)
        self._check_binds()
        _check("stats_socket", self.stats_socket, _SAFE_ADDRESS)
        if self.ca_file:
            _check("ca_file", self.ca_file, _SAFE_ADDRESS)

    def _check_binds(self) -> None:
        # The file's reader does not check the type of this value.
        binds: object = self.binds
        if not isinstance(binds, dict) or not all(isinstance(text, str) for text in binds.values()):
            raise InvalidConfig(
                'haproxy: binds is not a table of addresses like {ctr = "0.0.0.0:8600"}'
            )
        for model, address in self.binds.items():
            _check("model name", model, _SAFE)
            _check("bind", address, _SAFE_ADDRESS)
        if len({*self.binds.values()}) < len(self.binds):
            raise InvalidConfig("haproxy: two models have the same address in binds")


def health_call(*, is_tls: bool = False) -> bytes:
    """The bytes that a client sends on a new connection to ask gRPC's health service about the whole server."""
    headers = b"".join(
        (
            _METHOD_POST,
            _SCHEME_HTTPS if is_tls else _SCHEME_HTTP,
            _indexed(_PATH, b"/grpc.health.v1.Health/Check"),
            _indexed(_AUTHORITY, b"haproxy"),
            _indexed(_CONTENT_TYPE, b"application/grpc"),
            b"\x00" + _text(b"te") + _text(b"trailers"),
        )
    )
    return b"".join(
        (
            PREFACE,
            _frame(_SETTINGS, 0, 0, b""),
            _frame(_HEADERS, _END_HEADERS, 1, headers),
            _frame(_DATA, _END_STREAM, 1, _EMPTY_MESSAGE),
        )
    )


def haproxy_text(backends: Iterable[Backend], settings: HaproxySettings) -> str:
    """The text of the configuration. The same servers give the same text, whatever their order.

    Raises InvalidConfig for a name or an address that HAProxy cannot read. Also raises it if the servers
    have different models, and `settings` has one address for all models.
    """
    rows = sorted(backends, key=lambda item: item.name)
    check_ms = round(settings.check_seconds * 1_000)
    lines = [
        f"    stats socket {settings.stats_socket} mode 600 level admin expose-fd listeners",
        f"    hard-stop-after {round(settings.drain_seconds)}s",
        "",
        "defaults",
        "    mode http",
        "    timeout connect 1s",
        f"    timeout client {round(settings.request_seconds_max)}s",
        f"    timeout server {round(settings.request_seconds_max)}s",
        f"    timeout check {check_ms}ms",
        "    retries 3",
        "    option redispatch 1",
        "    retry-on conn-failure",
        *_proxies(rows, settings),
    ]
    body = "\n".join([*lines, ""])
    fingerprint = hashlib.sha256(body.encode()).hexdigest()[:16]
    # HAProxy's `show info` prints the fingerprint, so the coordinator sees which text HAProxy has read.
    return (
        "# Written by Millpond's fleet; changes are lost.\n"
        f"global\n    description {_DESCRIPTION}{fingerprint}\n{body}"
    )


def fingerprint_of(text: str) -> str:
    """Finds the fingerprint in a text of `haproxy_text` or in a reply to `show info`; "" if it has none."""
    found = re.search(rf"^\s*description:? {_DESCRIPTION}([0-9a-f]+)$", text, re.MULTILINE)
    return found[1] if found else ""


def _proxies(backends: Sequence[Backend], settings: HaproxySettings) -> Iterator[str]:
    """Yields the lines of the frontends and backends: one pair for all models, or a pair for each model."""
    if not settings.binds:
        _check_same_models(backends)
        yield from _proxy("millpond", settings.bind, "servers", backends, settings)
    for model, address in sorted(settings.binds.items()):
        having = [backend for backend in backends if model in backend.models]
        yield from _proxy(f"millpond-{model}", address, f"servers-{model}", having, settings)


def _check_same_models(backends: Sequence[Backend]) -> None:
    """Raises InvalidConfig if two servers that get requests have different models."""
    known = [backend for backend in backends if backend.models and not backend.is_draining]
    for backend in known:
        if backend.models != known[0].models:
            model = min(backend.models ^ known[0].models)
            raise InvalidConfig(
                f"haproxy: servers {known[0].name} and {backend.name} do not have the same models "
                f"({model!r}), and one address cannot choose between them: give each model an "
                'address, as in binds = {ctr = "0.0.0.0:8600"}'
            )


def _proxy(
    frontend: str, address: str, name: str, backends: Sequence[Backend], settings: HaproxySettings
) -> Iterator[str]:
    is_tls = bool(settings.ca_file)
    ssl = f" ssl verify required ca-file {settings.ca_file} alpn h2" if is_tls else ""
    check_ms = round(settings.check_seconds * 1_000)
    yield from (
        "",
        f"frontend {frontend}",
        f"    bind {address} proto h2",
        f"    default_backend {name}",
        "",
        f"backend {name}",
        "    balance leastconn",
        "    option tcp-check",
        f"    tcp-check connect{' ssl alpn h2' if is_tls else ''}",
        f"    tcp-check send-binary {health_call(is_tls=is_tls).hex()} comment gRPC-health",
        f"    tcp-check expect binary {SERVING_REPLY.hex()}",
        # Without `none`, HAProxy refuses the whole file if it cannot resolve one host name now.
        f"    default-server init-addr last,libc,none check inter {check_ms}ms fall 2 rise 1 proto h2{ssl}",
    )
    yield from (_server_line(backend) for backend in backends)


def _server_line(backend: Backend) -> str:
    _check("server name", backend.name, _SAFE)
    _check("server address", backend.address, _SAFE_ADDRESS)
    # With weight 0 the server gets no new requests.
    return (
        f"    server {backend.name} {backend.address}{' weight 0' if backend.is_draining else ''}"
    )


def _check(what: str, text: str, allowed: frozenset[str]) -> None:
    """Raises InvalidConfig for a text that HAProxy would not read as one word."""
    if not text or not allowed.issuperset(text):
        raise InvalidConfig(
            f"haproxy: {what} {text!r} has other characters than letters, digits and ._-:[]@/"
        )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    header = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return header + payload


def _indexed(name: int, value: bytes) -> bytes:
    """The bytes of a header whose name is entry `name` of HPACK's static table, followed by its value."""
    # Four bits hold an entry up to 14. For a higher entry they are all set, and the rest is in a further byte.
    prefix = bytes((name,)) if name < 15 else bytes((15, name - 15))
    return prefix + _text(value)


def _text(value: bytes) -> bytes:
    return bytes((len(value),)) + value
