"""The results of a client's calls. Values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from serving.core.servable import ServableState

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class VersionStatus:
    """One version as the server reports it. `error_code` is the number of a gRPC code; 0 is OK."""

    version: int
    state: ServableState
    error_code: int = 0
    error_message: str = ""


@dataclass(frozen=True)
class Prediction:
    """An answer, and the version that gave it."""

    version: int
    outputs: Mapping[str, Array]


@dataclass(frozen=True)
class ScoredClass:
    """One class of an example. `label` is "" if the model does not name its classes."""

    label: str
    score: float


@dataclass(frozen=True)
class Classification:
    """The classes of each example, in the order sent, and the version that gave them."""

    version: int
    classes: tuple[tuple[ScoredClass, ...], ...]


@dataclass(frozen=True)
class Regression:
    """float32[examples], in the order sent, and the version that gave them."""

    version: int
    values: Array
