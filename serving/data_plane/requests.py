"""The seam's servers, and the requests that they answer (see `plane`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from serving.base.trace_context import TraceContext
from serving.data_plane.request_statistics import RequestStatistics

REPLY_BYTES_MAX = (1 << 31) - 1
"""A reply has at most this many bytes, because gRPC's clients take no longer message."""

REPLY_COMPRESSIONS = ("none", "request", "deflate", "gzip")
"""The compressions of replies of `GrpcServer`; `request`: each as its request is."""


class Admission(Protocol):
    """The limits of requests in flight, over all protocols. Thread: any, at once.

    A request is in flight from its arrival until it is answered.
    """

    def set_model_limits(self, limits: Mapping[str, int]) -> None:
        """Replaces the limits of all models, each at least 1. A model without an entry has no limit
        of its own.
        """

    @property
    def in_flight_count(self) -> int:
        """The requests in flight now, of all models."""

    @property
    def refused_count(self) -> int:
        """The number of requests refused since the start."""


class ByteBudget(Protocol):
    """The memory that clients may take together. Thread: any, at once."""

    @property
    def limit_bytes(self) -> int:
        """The limit of messages. It never changes."""

    @property
    def in_use_bytes(self) -> int:
        """The bytes that clients have taken now."""

    @property
    def refused_count(self) -> int:
        """The number of times that a client asked for more than was left, since the start."""


class RareCall(Protocol):
    """A call of a method that Python answers. Answer it once. Thread: any.

    `reply` and `fail` raise FAILED_PRECONDITION if it has been answered; `fail` takes the number of a gRPC status
    code. If it is dropped unanswered, the client gets INTERNAL.
    """

    @property
    def method(self) -> str:
        """The full name, like `/tensorflow.serving.ModelService/GetModelStatus`."""

    @property
    def request(self) -> bytes:
        """The serialized request."""

    @property
    def remaining_seconds(self) -> float | None:
        """The seconds that the client still waits: 0 once its deadline has passed, None without a deadline."""

    @property
    def is_wanted(self) -> bool:
        """True if an answer can still reach the client, because it has neither cancelled nor been answered."""

    @property
    def trace_context(self) -> TraceContext | None:
        """The trace that the call is a part of, from its metadata."""

    @property
    def peer(self) -> str:
        """The client's end of the connection in gRPC's notation, like `ipv4:127.0.0.1:50000`."""

    @property
    def client_names(self) -> Sequence[str]:
        """The names in the client's verified certificate; empty without a certificate."""

    @property
    def is_forwarded(self) -> bool:
        """True if a proxy has forwarded the call, as its metadata shows."""

    @property
    def http_method(self) -> str:
        """The method of a request over HTTP, like `GET`; "" for a call of gRPC."""

    @property
    def target(self) -> bytes:
        """The target of a request over HTTP, as received: its path, and its query."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of a request over HTTP, as ASGI has them, with names in lower case."""

    def reply(self, response: bytes) -> None: ...
    def reply_http(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Answers a request over HTTP. `headers` do not include the length."""

    def fail(self, code: int, message: str) -> None: ...


@dataclass(frozen=True)
class RequestSpan:
    """A request that has ended, for a trace that its client samples."""

    context: TraceContext
    method: str
    """The method's name, like `Predict`."""

    model: str
    """The requested model; empty if the request names no model."""

    version: int | None
    """The version that the request reached."""

    code: int
    message: str
    """The error message of a failed request."""

    received_ns: int
    """The time of arrival, on the clock of `time.monotonic_ns`."""

    phase_ns: Mapping[str, int]
    """The time spent in `queue`, `decode`, `batch`, `run` and `encode`, for the phases that the
    request reached. They add up to the total. They follow one another, but for the part of
    `batch` that comes after `run`.
    """

    total_ns: int
    request_bytes: int
    response_bytes: int


class SpanBuffer(Protocol):
    """A buffer into which a server puts the spans of its requests.

    Requests never wait for it: spans that do not fit are dropped. Thread: any, but one at a time calls `take`.
    """

    def take(self, count_max: int) -> Sequence[RequestSpan]:
        """Removes and returns the oldest spans, without waiting."""

    @property
    def dropped_counts(self) -> Mapping[str, int]:
        """The number of dropped spans: `over_rate` for the limit of a second, `full` if they were
        not taken in time.
        """


class ServerCertificates(Protocol):
    """The key and certificates of a TLS server, as PEM texts. Thread: any, at once.

    Check the texts before: a server with bad ones does not start.
    """

    def replace(self, *, key: str, chain: str, client_ca: str) -> None:
        """Replaces the certificates for handshakes from now on. Existing connections stay.

        Does nothing if a text is bad.
        """


@dataclass(frozen=True)
class ReflectionTable:
    """The description of a server's services for its clients (`serving.rpc.reflection`)."""

    services: bytes
    """A serialized grpc.reflection.v1.ListServiceResponse."""

    files: Mapping[str, bytes]
    """Name of a file → a serialized FileDescriptorResponse: the file first, then all its
    dependencies.
    """

    symbols: Mapping[str, str]
    """Full name of a message, field, enum, value, service or method → name of its file."""

    extensions: Mapping[str, Mapping[int, str]]
    """Extended message → number of a field → name of the extension's file."""


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """The options of a `GrpcServer` for HTTP, of both versions."""

    hosts: Sequence[str] | None = None
    """The names that a Host header may have beside loopback names; None: all are answered."""

    probe_paths: Sequence[str] = ()
    """Paths of probes beside the usual ones, in lower case."""

    has_cors: bool = False
    """Pages of other sites may read the answers."""

    body_bytes_max: int = 64 * 2**20
    """The limit of the body of a request to a model, as sent and inflated."""

    reply_bytes_max: int = REPLY_BYTES_MAX
    """The limit of one reply."""

    request_seconds_max: float = 30.0
    """The time from a request's head to its answer."""

    connection_count_max: int = 0
    """The connections at a time; 0: a sixth of the descriptors of the process."""

    certificates: ServerCertificates | None = None
    """TLS on the TCP addresses. None: no TLS."""


@dataclass(frozen=True, kw_only=True)
class GrpcServerOptions:
    """The options of a `GrpcServer`."""

    addresses: Sequence[str]
    """`HOST:PORT` (port 0 takes a free port), `unix:PATH`, or `fd:N` for a socket that was handed in."""

    thread_count: int = 0
    """The request threads while no run lasts long; 0: one for each core."""

    has_accelerator: bool = False
    """As many threads again serve while some of these wait for an accelerator, up to `max_thread_count`."""

    max_thread_count: int = 0
    """The threads that run requests at a time; 0: four for each core."""

    thread_group_count: int = 0
    """The groups of request threads; 0: by the number of cores."""

    node_cores: Sequence[Sequence[int]] = ()
    """The cores that the process may use, of each NUMA node. None: all are of one node."""

    binds_threads_to_nodes: bool = False
    """Each request thread stays on the cores of one node."""

    admission: Admission | None = None
    """Limits the requests in flight, together with those over HTTP. None: the default limit applies."""

    first_version_wait_seconds: float = 0.0
    """A request waits this long for the first version of its model."""

    max_message_bytes: int = REPLY_BYTES_MAX
    """The limit of one request's message."""

    reply_bytes_max: int = REPLY_BYTES_MAX
    """The limit of one reply."""

    budget: ByteBudget | None = None
    """Counts and limits the bytes of requests and replies in flight, together with those over HTTP.
    None: they are not counted.
    """

    connections_per_address_max: int = 0
    """The limit of connections of one IP address; 0: no limit."""

    channel_arguments: Mapping[str, int | str] = field(default_factory=dict)
    """gRPC's channel arguments by name. docs/migrating.md lists those with an effect."""

    request_seconds_max: float = 0.0
    """The deadline of a request to a model that comes without one; 0: none."""

    rare_methods: Sequence[str] = ()
    """The full names of the methods that `GrpcServer.take_rare_call` returns."""

    rare_message_bytes_max: Mapping[str, int] = field(default_factory=dict)
    """The limits of the messages of rare methods; 4 MiB for a method without an entry."""

    request_statistics: RequestStatistics | None = None
    """Records the rare methods, and the requests that find no version. None: the server makes its
    own.
    """

    spans: SpanBuffer | None = None
    """Takes the requests whose trace is sampled. None: requests are not traced."""

    certificates: ServerCertificates | None = None
    """Sets up TLS at the TCP addresses. None: they have none."""

    reply_compression: str = "request"
    """One of `REPLY_COMPRESSIONS`. It applies if the client accepts it."""

    has_tensor_content: bool = False
    """Predict replies with tensor_content instead of typed fields."""

    serves_session_run: bool = False
    """Clients may run any part of a graph by SessionRun, as `DataPlane.initialize` has it too."""

    reflection: ReflectionTable | None = None
    """Describes the services to clients. None: the server has no reflection."""

    http: HttpOptions | None = None
    """None: the server has no HTTP."""


class GrpcServer(Protocol):
    """The server of gRPC, and of HTTP on the same threads.

    `take_rare_call` returns the calls of `rare_methods`, and `take_http_call` the requests over HTTP that
    are no run of a model. C++ answers all others.

    Thread: one at a time starts it, sets its health and shuts it down. Any thread, at once, may call
    `take_rare_call`, `take_http_call`, `pin_request_threads` and those of documents and lists, and
    read the properties.
    """

    def start(self) -> None:
        """Starts to listen. Call it once. Raises UNAVAILABLE if an address cannot be bound, naming it."""

    def start_http(self, addresses: Sequence[str]) -> None:
        """Starts to listen for HTTP, before `start` or after it. Raises UNAVAILABLE as `start` does.

        `addresses` are as `GrpcServerOptions.addresses`, and `own-fd:N` for a socket that listens
        already and that the server closes.
        """

    @property
    def port(self) -> int:
        """The bound TCP port; 0 before `start`, and if no address is TCP."""

    @property
    def http_port(self) -> int:
        """The same for HTTP."""

    @property
    def connection_count(self) -> int:
        """The number of open connections."""

    @property
    def limit_counts(self) -> Mapping[str, int]:
        """The number of times that clients reached each limit, by name, like "header_bytes"."""

    def take_rare_call(self, timeout_seconds: float) -> RareCall | None:
        """Waits for the next rare call, and takes it. Returns None at the timeout.

        Raises StopIteration after `shutdown`: no call comes any more.
        """

    def set_health(self, service: str, is_serving: bool) -> None:
        """Sets the grpc.health.v1 status of a service name, and notifies its watchers.

        "" is the whole server.
        """

    def remove_health(self, service: str) -> None:
        """Removes a service name. Check then answers NOT_FOUND, and watchers get SERVICE_UNKNOWN."""

    def take_http_call(self, is_probe: bool, timeout_seconds: float) -> RareCall | None:
        """Returns the next request over HTTP, a probe or one of all others, on any thread. Returns None
        at the timeout.

        Raises StopIteration after `shutdown_http`: none comes any more.
        """

    def set_http_document(self, path: str, status: int, body: bytes) -> None:
        """Answers each GET of `path` with this JSON from now on, without Python. Any thread.

        Names in `path` are escaped as `urllib.parse.quote` does without safe characters. Does nothing
        without HTTP.
        """

    def remove_http_document(self, path: str) -> None:
        """Lets Python answer `path` again."""

    def set_http_list(
        self, path: str, status: int, head: bytes, items: list[bytes], tail: bytes
    ) -> None:
        """Answers each GET of `path` from now on with `head`, the items and `tail`, as JSON. Any thread.

        Commas stand between the items. The first GET after a change joins the items.
        """

    def change_http_list(
        self, path: str, status: int, head: bytes, items: dict[int, bytes]
    ) -> None:
        """Replaces the head and these items of a list at once, each by its number from 0. Any thread.

        No GET sees a part of the change, whose cost is its own size. A number that the list does not have is
        ignored, and so is a path without a list.
        """

    def pin_request_threads(self, is_pinned: bool) -> bool:
        """Pins each request thread to a core of its own, or unpins all of them.

        Returns False, and changes nothing, before `start`, or if the process may use another number of cores
        than there are request threads.
        """

    def shutdown(self, drain_seconds: float) -> bool:
        """Refuses new calls, waits up to `drain_seconds` for those that have arrived, cancels the rest, and ends
        all threads.

        Returns True if no call was cut short. If a kernel still runs 0.9 seconds after the
        cancellation, its thread goes on: end the process. A second call does nothing and returns the
        same value.
        """

    def ask_http_to_go(self) -> None:
        """Has each answer over HTTP close its connection from now on. Requests that wait for the first
        version of their model are answered, and wait no more.
        """

    def shutdown_http(self, drain_seconds: float) -> bool:
        """The same as `shutdown` for HTTP, to be called after it. The threads end with the later one."""
