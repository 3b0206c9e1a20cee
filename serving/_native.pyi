"""The seam between the control plane (Python decides) and the data plane (C++ serves).

Everything that crosses is named here; `scripts/check_stub.py` checks this file against the built
module.
Every call that can take longer than a microsecond releases the GIL. Failures of the data plane
raise `StatusError(code, message)` with the number of the gRPC status code.
"""

from collections.abc import Mapping, Sequence
from typing import final

class StatusError(Exception):
    """A status that is not OK: `args == (code, message)`, `code` a gRPC status code's number."""

def build_info() -> dict[str, str]:
    """Versions compiled in or linked: keys `millpond`, `tensorflow`, `grpc`, `jemalloc`, `allocator`.

    `allocator` is `jemalloc` where it is preloaded, else `glibc`; `jemalloc` is "" in that case.
    """

def initialize(*, intra_op_thread_count: int, inter_op_thread_count: int) -> None:
    """Registers the request allocator and the device factory and sets TensorFlow's pools (0: one thread a core).

    Call once, before anything else here that touches TensorFlow. A second call with other figures
    raises StatusError(FAILED_PRECONDITION).
    """

def check_saved_model(directory: str) -> None:
    """Raises StatusError where `directory` is no complete SavedModel, with what is missing and where.

    Complete: `saved_model.pb` or `saved_model.pbtxt` parses; where a graph in it has variables,
    `variables/variables.index` is readable and every shard it names is as long as the index says.
    FAILED_PRECONDITION: incomplete (a copy may still be under way). DATA_LOSS: does not parse.
    """

@final
class RequestMemoryStatistics:
    """Bytes that TensorFlow's allocator holds: requests' tensors, and the versions' parameters."""

    @property
    def in_use_bytes(self) -> int: ...
    @property
    def in_use_bytes_peak(self) -> int: ...
    @property
    def allocation_count(self) -> int: ...

def request_memory_statistics() -> RequestMemoryStatistics: ...

@final
class ServableStatistics:
    """What one version has served since it was loaded; latencies within 1 % (log-linear histogram)."""

    @property
    def request_count(self) -> int: ...
    @property
    def failed_count(self) -> int: ...
    @property
    def latency_ns_p50(self) -> int: ...
    @property
    def latency_ns_p99(self) -> int: ...
    @property
    def latency_ns_p999(self) -> int: ...
    @property
    def latency_ns_max(self) -> int: ...

@final
class Servable:
    """One loaded version. Made by `SavedModelLoad.finish`, freed by `destroy`."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def handle_count(self) -> int:
        """Requests that hold this version at the moment."""

    def predict(self, request: bytes) -> bytes:
        """Answers a serialized PredictRequest exactly as the gRPC method does (its model_spec's name
        and version are not looked at) and returns the serialized PredictResponse.
        """

    def signature_def_map(self) -> bytes:
        """A serialized tensorflow.serving.SignatureDefMap of this version."""

    def statistics(self) -> ServableStatistics: ...
    def quiesce(self, timeout_seconds: float) -> bool:
        """Waits until no request holds this version; False where the timeout came first.

        Raises StatusError(FAILED_PRECONDITION) while the version is still in a serving map.
        """

    def destroy(self) -> None:
        """Frees session and memory on the calling thread.

        Raises StatusError(FAILED_PRECONDITION) while it is published or a request holds it. A second
        call does nothing; any other call after it raises FAILED_PRECONDITION.
        """

@final
class SavedModelLoad:
    """One version being loaded, step by step, on the calling thread, so that each step can be timed.

    Each step is called once, in the order written here; out of order raises FAILED_PRECONDITION.
    Dropping the object before `finish` frees everything.
    """

    def __init__(self, name: str, version: int, directory: str, tags: Sequence[str]) -> None: ...
    def read_graph(self) -> None:
        """Reads the meta graph with exactly these tags. NOT_FOUND where there is none, DATA_LOSS where
        it does not parse.
        """

    def create_session(self) -> None: ...
    def restore(self) -> None:
        """Restores the variables. DATA_LOSS for a checksum that differs, OUT_OF_RANGE for a shard cut short."""

    def run_init(self) -> None:
        """Runs the model's init op (tables, assets)."""

    def make_callables(self) -> None:
        """Makes one callable for each signature, run inline by the request threads.

        Fails where serving_default, or every signature, cannot be run; of another one its requests
        say why.
        """

    def finish(self) -> Servable: ...

@final
class ServingMap:
    """What requests see now. Reads are wait-free; these calls are for the control plane."""

    def __init__(self) -> None: ...
    def publish(self, servable: Servable) -> None:
        """Requests see the version from now on. ALREADY_EXISTS where that version is published."""

    def retire(self, name: str, version: int) -> None:
        """No request sees the version any more once this returns; running ones still hold it (`Servable.quiesce`).
        NOT_FOUND where it is not published.
        """

    def versions(self, name: str) -> list[int]:
        """Published versions of a name, ascending; empty where there are none."""

@final
class RareCall:
    """A call of a method that Python answers. Answer it once, from any thread.

    Dropping it unanswered answers INTERNAL.
    """

    @property
    def method(self) -> str:
        """The full name, like `/tensorflow.serving.ModelService/GetModelStatus`."""

    @property
    def request(self) -> bytes: ...
    def reply(self, response: bytes) -> None: ...
    def fail(self, code: int, message: str) -> None: ...

@final
class GrpcServer:
    """The gRPC server: Predict, GetModelMetadata and grpc.health.v1 in C++, `rare_methods` through `take_rare_call`."""

    def __init__(
        self,
        serving_map: ServingMap,
        *,
        addresses: Sequence[str],
        completion_queue_count: int,
        max_message_bytes: int,
        channel_arguments: Mapping[str, int | str],
        rare_methods: Sequence[str],
    ) -> None:
        """`addresses`: `HOST:PORT` (port 0 takes a free one) or `unix:PATH`. `completion_queue_count` 0: one a core."""

    def start(self) -> None:
        """Listens. UNAVAILABLE where an address cannot be bound, naming it."""

    @property
    def port(self) -> int:
        """The TCP port bound; 0 where none of the addresses is TCP."""

    def take_rare_call(self, timeout_seconds: float) -> RareCall | None:
        """The next rare call, on any thread; None at the timeout, or at once after `shutdown`."""

    def set_health(self, service: str, is_serving: bool) -> None:
        """Sets the grpc.health.v1 status of a service name ("" is the whole server) and tells its watchers."""

    def remove_health(self, service: str) -> None:
        """Forgets a service name: Check answers NOT_FOUND, watchers SERVICE_UNKNOWN."""

    def shutdown(self, drain_seconds: float) -> bool:
        """Takes no new call and lets those that have arrived finish, cancels what is left after
        `drain_seconds`, stops all threads.

        True where nothing was cut short. Where a kernel still runs two seconds after that, its
        threads go on: end the process. A second call does nothing and returns the same.
        """
