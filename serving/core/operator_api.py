"""The operators' calls: the full names of the methods, and the values that they exchange."""

from dataclasses import dataclass

ALLOW = "/millpond.v1.Admin/Allow"
CAPTURE_WARM_UP = "/millpond.v1.Admin/CaptureWarmUp"
FLEET_REPORT = "/millpond.v1.Admin/FleetReport"
GET_CONFIG = "/millpond.v1.Admin/GetConfig"
GRANT = "/millpond.v1.Admin/Grant"
LIST_MODELS = "/millpond.v1.Admin/ListModels"
PROMOTE = "/millpond.v1.Admin/Promote"
RELOAD_CONFIG = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
ROLLBACK = "/millpond.v1.Admin/Rollback"


@dataclass(frozen=True)
class RollbackBlock:
    """A version that a rollback blocks. `reason` is for people.

    `has_served` is True if it was AVAILABLE since this server started.
    """

    version: int
    has_served: bool
    reason: str


@dataclass(frozen=True)
class Rollback:
    """The result of a rollback. `version` answers now; None: an earlier one is being loaded from disk.

    `warning` is the reason why the rollback may be lost when the server ends, or "". `blocked` are the
    versions that this rollback blocks: `rolled_back`, and newer ones that would serve in its place.
    """

    rolled_back: int
    version: int | None
    warning: str = ""
    blocked: tuple[RollbackBlock, ...] = ()
