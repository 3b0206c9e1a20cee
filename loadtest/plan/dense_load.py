"""The clients of the dense models, whose answers are compared between servers and not with a reference."""

from typing import Any

import numpy as np

from loadtest.plan.arrivals import Offsets
from loadtest.plan.plan import Plan
from serving.commands.ctr_request import predict_request

INPUT, OUTPUT = "x", "y"

FEATURE_COUNT = 64
"""The float32 numbers of a row."""

_PAYLOAD_COUNT = 16


class DenseLoad:
    """A pool of requests to one dense model."""

    def __init__(self, model_name: str, rows: int) -> None:
        self.payloads = [
            predict_request(model_name, dense_inputs(seed, rows)).SerializeToString()
            for seed in range(_PAYLOAD_COUNT)
        ]

    def plan(self, offsets_ns: Offsets, seed: int) -> Plan:
        """Plans one request at each of `offsets_ns`, drawn from the pool by `seed`."""
        return Plan.drawn(self.payloads, offsets_ns, seed)


def dense_inputs(seed: int, rows: int) -> dict[str, Any]:
    """The inputs of one random request: `x` float32[rows, 64]."""
    generator = np.random.default_rng([seed, rows])
    return {INPUT: generator.standard_normal((rows, FEATURE_COUNT), np.float32)}
