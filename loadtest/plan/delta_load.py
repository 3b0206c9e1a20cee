"""Requests to a model whose answers are known to the bit, and the check of what was answered."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.plan.ctr_load import parsed
from loadtest.plan.plan import Outcome, Plan, Reply
from serving.base.tensor_proto import from_tensor_proto
from serving.commands.ctr_request import predict_request

Answers = Mapping[int, npt.NDArray[Any]]
"""The answers `y` float32 [requests, ids, 4] of each version."""


class DeltaLoad:
    """Requests for `probes`, int64 [requests, ids], to the model of `DeltaSeries`."""

    def __init__(self, model_name: str, probes: npt.NDArray[Any]) -> None:
        self.payloads = [
            predict_request(model_name, {"ids": ids}).SerializeToString() for ids in probes
        ]

    def plan(self, offsets_ns: npt.NDArray[np.int64], seed: int) -> Plan:
        """Plans one request at each of `offsets_ns`, drawn from the probes by `seed`."""
        return Plan.drawn(self.payloads, offsets_ns, seed)

    def wrong_count(self, outcome: Outcome, answers: Answers) -> int:
        """Counts the requests that were answered with OK, but not with the bits of the version that answered.

        A version without answers must not answer. Replies that were not kept count as wrong.
        """
        return int(outcome.wrong(lambda reply: is_right(reply, answers)).sum())


def is_right(reply: Reply, answers: Answers) -> bool:
    """True if the reply has exactly the answer of the version that it names. Pure."""
    response = parsed(reply)
    if response is None or set(response.outputs) != {"y"}:
        return False
    right = answers.get(response.model_spec.version.value)
    if right is None:
        return False
    return has_same_bits(from_tensor_proto(response.outputs["y"]), right[reply.payload])


def has_same_bits(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    """True if dtype, shape and bytes agree. Pure."""
    is_alike = left.dtype == right.dtype and left.shape == right.shape
    return is_alike and left.tobytes() == right.tobytes()
