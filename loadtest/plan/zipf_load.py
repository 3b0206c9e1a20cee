"""Clients of many dense models, of which some are asked far more often than others."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtest.plan.arrivals import Offsets
from loadtest.plan.dense_load import OUTPUT, dense_inputs
from loadtest.plan.plan import Outcome, Plan, Reply
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto
from serving.commands.ctr_request import predict_request

_INPUT_SEED = 1


class ZipfLoad:
    """Requests to models of the same weights, with the same inputs, so that their answers are the same.

    The request rate of the model at rank k, counted from 1, is proportional to 1/k (Zipf's law with exponent 1).
    """

    def __init__(self, names: Sequence[str], rows: int) -> None:
        self.names = names
        self.rows = rows
        self.inputs = dense_inputs(_INPUT_SEED, rows)
        self.payloads = [predict_request(name, self.inputs).SerializeToString() for name in names]

    def plan(self, offsets_ns: Offsets, seed: int) -> Plan:
        """Plans one request at each of `offsets_ns`, to models drawn by `seed`."""
        # The arrivals use `seed` alone, and the models must not depend on the arrivals.
        generator = np.random.default_rng([seed, 1])
        models = generator.choice(len(self.names), len(offsets_ns), p=zipf_shares(len(self.names)))
        return Plan(
            offsets_ns=offsets_ns, payload_of=models.astype(np.int32), payloads=self.payloads
        )

    def wrong_count(self, outcome: Outcome, expected: Any, difference_max: float) -> int:
        """The answers that differ from `expected` by more than `difference_max`."""

        def is_right(reply: Reply) -> bool:
            response = predict_pb2.PredictResponse.FromString(reply.data)
            answer = from_tensor_proto(response.outputs[OUTPUT])
            return bool(
                answer.shape == expected.shape and np.abs(answer - expected).max() <= difference_max
            )

        return int(np.count_nonzero(outcome.wrong(is_right)))


def zipf_shares(count: int) -> npt.NDArray[np.float64]:
    """The share of requests of each of `count` models, the most popular first."""
    weights = 1 / np.arange(1, count + 1)
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares
