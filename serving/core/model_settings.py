"""The settings of one model beyond TensorFlow Serving's config. Values only.

They come from the file of --model_settings_file, which `model_settings_file.py` reads, and may change while
the server runs, so read them again for each swap.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from serving.base.errors import InvalidConfig

_METADATA_KEY = re.compile(r"[a-z0-9._-]+")

BATCHING_COUNT_MAX = 2**31 - 1
"""The largest number of rows, batches and threads in the settings of batching."""

BATCH_LATENCY_MS_MAX = 3_600_000
"""The longest time of a run that may be set: an hour, in effect any time."""


class GateMode(Enum):
    """The effect of a gate that a new version does not pass."""

    OFF = "off"  # the gate does not run
    WARN = "warn"  # the log and the status report it, and the version serves
    ENFORCE = "enforce"  # the version ends, and its predecessor serves on


class InputShapes(Enum):
    """The shapes of inputs that requests for a model may have."""

    AS_FLAG = "flag"
    """The choice of --strict_input_shapes."""
    ANY = "any"
    """Any shape that the kernels of the model accept."""
    STRICT = "strict"
    """Only the shapes that the signature names."""


class Platform(Enum):
    """The runtime that answers requests for a model, if the server has an accelerator."""

    AUTO = "auto"
    """The accelerator, for the signatures that it can run; TensorFlow for the rest, with a warning."""
    TENSORFLOW = "tensorflow"
    """TensorFlow, on the CPU."""
    PJRT = "pjrt"
    """The accelerator. A version of which no signature can run there is refused."""


class TablePlace(Enum):
    """The place of the tables in which signatures on an accelerator look rows up."""

    AUTO = "auto"
    """The accelerator, as far as they fit. The largest stay in the server's memory if they do not."""
    HOST = "host"
    """The server's memory: the CPU looks up, and the rows travel."""
    DEVICE = "device"
    """The accelerator. A version whose tables do not fit runs on the CPU."""


class Priority(Enum):
    """The order of models whose runs wait for the accelerator."""

    NORMAL = "normal"
    LOW = "low"
    """Its runs begin only while no run of another model waits."""


class BatchingChoice(Enum):
    """If requests for a model share runs."""

    AS_FLAG = "flag"
    """As the flags of batching say, and the version's own file, if the flags allow one."""
    ON = True
    OFF = False


class PolicyName(Enum):
    """The name of an aspired-version policy, as in `POLICIES`."""

    AVAILABILITY = "availability"  # the old version serves until the new one does
    RESOURCE = "resource"  # the old version is unloaded first: memory for one
    AUTO = "auto"  # resource only for a version that does not fit beside the old one


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """The gates that a version must pass before it is AVAILABLE.

    The defaults refuse a version that fails requests which its predecessor answers, or answers them
    with values that are never meant. They warn of other suspicious results, and pass every change that
    may be intended.
    """

    # The names and dtypes of the inputs and outputs that the predecessor's clients use.
    signature: GateMode = GateMode.ENFORCE
    # The declared shapes of the same tensors. Only a warning: the graph may take other shapes.
    shapes: GateMode = GateMode.WARN
    # Replayed live requests: at least one that the predecessor answers is answered.
    self_warm_up: GateMode = GateMode.ENFORCE
    # The same requests: at most this share of them fails. With fewer requests than this count, the share is
    # not judged.
    failed_share: GateMode = GateMode.ENFORCE
    failed_share_max: float = 0.1
    failed_share_request_count_min: int = 10
    # The answers to the requests of both warm-ups, compared with the predecessor's: no output is
    # missing, none is NaN or infinite unless the predecessor's is, and none is the same for distinct
    # inputs if the predecessor's varies. `answer_checks.py` has the rules.
    outputs: GateMode = GateMode.ENFORCE
    finite: GateMode = GateMode.ENFORCE
    constant: GateMode = GateMode.ENFORCE
    # A record of the version's own warm-up file that fails, as in TensorFlow Serving.
    warm_up: GateMode = GateMode.ENFORCE
    # Further runs of those records no longer make the version faster. The records are run again for
    # this time; the last runs must take at least this share of the time of the runs before them.
    convergence: GateMode = GateMode.WARN
    convergence_ratio_min: float = 0.5
    convergence_seconds: float = 1.0
    # p99 of the answers to the same requests, over the predecessor's. The limit is wide, because
    # figures that are taken during a swap are noisy.
    latency: GateMode = GateMode.WARN
    latency_ratio_max: float = 3.0
    # The answers, compared with the responses that warm-up records hold.
    golden: GateMode = GateMode.WARN
    golden_relative_tolerance: float = 1e-3
    golden_absolute_tolerance: float = 1e-6
    # The answers, compared with the predecessor's: NaN, shape, dtype, and the share of values that differ
    # by more than the tolerance. The default allows any share, because a retrained model may differ in each
    # value.
    drift: GateMode = GateMode.WARN
    drift_tolerance: float = 0.1
    drift_share_max: float = 1.0
    # Live requests, answered by the predecessor, repeated on the new version and compared.
    shadow: GateMode = GateMode.OFF
    shadow_seconds: float = 10.0
    shadow_request_count: int = 100


@dataclass(frozen=True, kw_only=True)
class CanarySettings:
    """The share of requests that a new version begins with, and the rule that ends its canary."""

    # Share of the requests that name no version; 0: a new version gets all of them at once.
    weight: float = 0.0
    # Requests with the same value of this gRPC metadata key get the same version; "": at random.
    header: str = ""
    # Requests that the new version answers before the rule decides; 0: a person decides.
    request_count: int = 0
    # The rule: the new version's p90 to p999, and its share of failures, may be this many times the old
    # version's. `canary.py` has further bounds.
    latency_ratio_max: float = 2.0
    error_ratio_max: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight < 1:
            raise InvalidConfig(
                f"canary weight {self.weight:g} is not a share of the requests; give 0 (off) to 0.99"
            )
        if self.header and not _METADATA_KEY.fullmatch(self.header):
            raise InvalidConfig(
                f"canary header {self.header!r} cannot be sent: gRPC metadata keys are lower-case; "
                "give letters a-z, digits and . _ -"
            )
        if self.request_count < 0:
            raise InvalidConfig(
                f"canary request_count {self.request_count} is not a number of requests; "
                "give 0 (a person decides) or 1 or more"
            )


def check_batch_size(size: int) -> None:
    """Raises InvalidConfig unless a run may have so many rows."""
    if not 1 <= size <= BATCHING_COUNT_MAX:
        raise InvalidConfig(
            f"max_batch_size {size} is not a number of rows; give 1 to {BATCHING_COUNT_MAX}"
        )


def check_batch_sizes(sizes: Sequence[int], limit_name: str, limit: int) -> None:
    """Raises InvalidConfig unless `sizes` is empty, or increases from 1 or more to `limit`."""
    if not sizes:
        return
    listed = ", ".join(map(str, sizes))
    if sizes[0] < 1 or any(after <= before for before, after in pairwise(sizes)):
        raise InvalidConfig(
            f"allowed_batch_sizes {listed} must increase, and begin with 1 or more; "
            "order them and remove duplicates"
        )
    if sizes[-1] != limit:
        raise InvalidConfig(
            f"allowed_batch_sizes {listed} must end with {limit_name}, which is {limit}; "
            f"add {limit} to them, or change {limit_name} to {sizes[-1]}"
        )


@dataclass(frozen=True, kw_only=True)
class BatchingSettings:
    """The way in which requests for a model share runs. The defaults are those of --enable_batching alone."""

    enabled: BatchingChoice = BatchingChoice.AS_FLAG
    # The most rows of a run. A larger request runs in pieces, or alone if it is not split.
    max_batch_size: int = 1024
    # The time that a run may take, by the cost that was measured. 0: any.
    max_batch_latency_ms: float = 10.0
    splits_large_requests: bool = True
    # The rows that a run may have, increasing: a batch is padded to the next size. Empty: any.
    allowed_batch_sizes: tuple[int, ...] = ()
    # Inputs that differ in their dimensions after the first are padded with zeros.
    pads_variable_length_inputs: bool = False
    # The batches of requests that may wait. 0: no limit.
    max_enqueued_batches: int = 0
    # The batches that may run at the same time. 0: as many as the server's file allows.
    num_batch_threads: int = 0
    # The largest difference between an answer in a batch and the answer alone that counts as rounding of
    # float32, relative to the magnitude of the output. This key and the next one apply whatever turns
    # batching on.
    batch_relative_tolerance: float = 1e-5
    # Signatures whose graph mixes rows are batched, as long as no comparison shows that they do.
    may_mix_rows: bool = False

    def __post_init__(self) -> None:
        check_batch_size(self.max_batch_size)
        if not 0 <= self.max_batch_latency_ms <= BATCH_LATENCY_MS_MAX:
            raise InvalidConfig(
                f"max_batch_latency_ms {self.max_batch_latency_ms:g} is not a time of a run; "
                f"give 0 (any time) to {BATCH_LATENCY_MS_MAX}"
            )
        for name in ("max_enqueued_batches", "num_batch_threads"):
            if not 0 <= getattr(self, name) <= BATCHING_COUNT_MAX:
                raise InvalidConfig(
                    f"{name} {getattr(self, name)} is not a number of batches; "
                    f"give 0 (no limit of its own) to {BATCHING_COUNT_MAX}"
                )
        check_batch_sizes(self.allowed_batch_sizes, "max_batch_size", self.max_batch_size)

    @property
    def is_on(self) -> bool:
        """True if requests share runs whatever the flags say."""
        return self.enabled is BatchingChoice.ON


BATCHING_OFF = BatchingSettings(enabled=BatchingChoice.OFF)
"""Requests do not share runs."""


ALL_NAMES = ("*",)
"""The names of all inputs or outputs."""


@dataclass(frozen=True, kw_only=True)
class RequestLogSettings:
    """The content and the files of a model's request log. Its configuration turns the log on."""

    # The inputs and outputs that are logged, by name: all of them, or only these.
    inputs: tuple[str, ...] = ALL_NAMES
    outputs: tuple[str, ...] = ALL_NAMES
    # A file is complete once it has this size, or its first record is so old.
    file_bytes_max: int = 64 * 2**20
    file_seconds_max: float = 600.0
    # The complete files may have this size together. The oldest files are deleted first.
    disk_bytes_max: int = 2**30

    def __post_init__(self) -> None:
        if not 1 <= self.file_bytes_max <= self.disk_bytes_max:
            raise InvalidConfig(
                f"file_bytes_max {self.file_bytes_max} is not from 1 to disk_bytes_max, which is "
                f"{self.disk_bytes_max}; lower it, or raise disk_bytes_max"
            )
        if self.file_seconds_max < 1:
            raise InvalidConfig(
                f"file_seconds_max {self.file_seconds_max:g} is too short for a file; give 1 or more"
            )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The settings of one model."""

    aspired_version_policy: PolicyName = PolicyName.AVAILABILITY
    # How long the previous version stays in memory, ready for `millpond rollback`.
    keep_previous_seconds: float = 0.0
    # The most requests that have arrived and are not answered; further requests get
    # RESOURCE_EXHAUSTED. 0: no limit but the server's.
    max_in_flight_requests: int = 0
    # The shapes of inputs that requests may have. Applies to versions whose load starts after a change.
    input_shapes: InputShapes = InputShapes.AS_FLAG
    # Applies to versions whose load starts after a change.
    platform: Platform = Platform.AUTO
    # The most memory of the accelerator for all versions of the model, parameters and runs. 0: all.
    accelerator_memory_bytes: int = 0
    # Applies to versions whose load starts after a change.
    accelerator_priority: Priority = Priority.NORMAL
    # Applies to versions whose load starts after a change.
    accelerator_tables: TablePlace = TablePlace.AUTO
    # The places of the devices that the model may be on; none: any. Applies to versions whose load starts
    # after a change, as the next one does.
    accelerator_devices: tuple[int, ...] = ()
    # The devices that have the model at once; 0: all that it may be on.
    accelerator_replicas: int = 1
    # Applies to versions whose load starts after a change.
    batching: BatchingSettings = field(default_factory=BatchingSettings)
    canary: CanarySettings = field(default_factory=CanarySettings)
    gates: GateSettings = field(default_factory=GateSettings)
    request_log: RequestLogSettings = field(default_factory=RequestLogSettings)
