"""What can be said of one model beyond TensorFlow Serving's config: values only.

They come from the file of --model_settings_file (`model_settings_file.py` reads it) and may change
while the server runs: who uses them asks again for each swap.
"""

import re
from dataclasses import dataclass, field
from enum import Enum

from serving.base.errors import InvalidConfig

_METADATA_KEY = re.compile(r"[a-z0-9._-]+")


class GateMode(Enum):
    """What comes of a gate that a new version does not pass."""

    OFF = "off"  # it is not looked at
    WARN = "warn"  # the log and the status say so, and the version serves
    ENFORCE = "enforce"  # the version ends, and its predecessor serves on


class InputShapes(Enum):
    """Which shapes of inputs a model's requests may have."""

    AS_FLAG = "flag"
    """As --strict_input_shapes has it."""
    ANY = "any"
    """The model's kernels decide."""
    STRICT = "strict"
    """Only the shapes that the signature names."""


class PolicyName(Enum):
    """Which aspired-version policy a model has."""

    AVAILABILITY = "availability"  # the old version serves until the new one does
    RESOURCE = "resource"  # the old version goes first: memory for one
    AUTO = "auto"  # resource only for a version that does not fit beside the old one


@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """What a version must pass before it is AVAILABLE.

    The defaults refuse a version that fails requests which its predecessor answers, warn of what
    looks wrong, and let every change through that may be on purpose.
    """

    # Names and dtypes of what the predecessor's clients send and ask for.
    signature: GateMode = GateMode.ENFORCE
    # The declared shapes of the same. A warning: the graph may take other shapes than are declared.
    shapes: GateMode = GateMode.WARN
    # Replayed live requests: at least one that the predecessor answers is answered.
    self_warm_up: GateMode = GateMode.ENFORCE
    # The same requests: at most this share fails. It counts from so many requests on.
    failed_share: GateMode = GateMode.ENFORCE
    failed_share_max: float = 0.1
    failed_share_request_count_min: int = 10
    # A record of the version's own warm-up file that fails, as in TensorFlow Serving.
    warm_up: GateMode = GateMode.ENFORCE
    # Whether further runs of those records would still make the version faster. They are run again
    # for so long; the last runs then take at least this share of the time of the ones before.
    convergence: GateMode = GateMode.WARN
    convergence_ratio_min: float = 0.5
    convergence_seconds: float = 1.0
    # p99 of the answers to the same requests, over the predecessor's. Wide: a swap is no bench.
    latency: GateMode = GateMode.WARN
    latency_ratio_max: float = 3.0
    # Answers against the responses that warm-up records hold.
    golden: GateMode = GateMode.WARN
    golden_relative_tolerance: float = 1e-3
    golden_absolute_tolerance: float = 1e-6
    # Answers against the predecessor's: not a number, shape, dtype; share of values that differ by
    # more than the tolerance, where a retrained model is expected to differ in all.
    drift: GateMode = GateMode.WARN
    drift_tolerance: float = 0.1
    drift_share_max: float = 1.0
    # Live requests, answered by the predecessor, repeated on the new version and compared.
    shadow: GateMode = GateMode.OFF
    shadow_seconds: float = 10.0
    shadow_request_count: int = 100


@dataclass(frozen=True, kw_only=True)
class CanarySettings:
    """How a new version gets its first requests."""

    # Share of the requests that name no version; 0: a new version gets all of them at once.
    weight: float = 0.0
    # Requests with the same value of this gRPC metadata key get the same version; "": at random.
    header: str = ""
    # Answered by the new version before the rule decides; 0: a person does.
    request_count: int = 0
    # The rule: the new version's p999 and share of failures, over the old one's. p999 counts from
    # 1,000 requests of either on; `canary.py` has the bounds that hold besides.
    p999_ratio_max: float = 2.0
    error_ratio_max: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.weight < 1:
            raise InvalidConfig(
                f"canary weight {self.weight:g} is no share of the requests; give 0 (off) to 0.99"
            )
        if self.header and not _METADATA_KEY.fullmatch(self.header):
            raise InvalidConfig(
                f"canary header {self.header!r} is never sent: gRPC metadata keys are lower-case; "
                "give letters a-z, digits and . _ -"
            )
        if self.request_count < 0:
            raise InvalidConfig(
                f"canary request_count {self.request_count} is no number of requests; "
                "give 0 (a person decides) or 1 or more"
            )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """One model's."""

    aspired_version_policy: PolicyName = PolicyName.AVAILABILITY
    # How long the version before stays in memory, ready for `millpond rollback`.
    keep_previous_seconds: float = 0.0
    # Requests that have arrived and are not answered; beyond them RESOURCE_EXHAUSTED. 0: as
    # --max_in_flight_requests_per_model says.
    max_in_flight_requests: int = 0
    # Which shapes of inputs requests may have. Applies to versions whose load starts after a change.
    input_shapes: InputShapes = InputShapes.AS_FLAG
    canary: CanarySettings = field(default_factory=CanarySettings)
    gates: GateSettings = field(default_factory=GateSettings)
