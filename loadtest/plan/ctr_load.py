"""The CTR model's clients: draws distinct requests from a seed, and checks their answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from loadtest.plan.plan import Outcome, Plan, Reply
from serving.base.clock import NS_PER_SECOND
from serving.base.errors import InvalidArgument
from serving.base.protos import predict_pb2
from serving.base.tensor_proto import from_tensor_proto
from serving.commands.ctr_model import reference_answer, request_inputs
from serving.commands.ctr_request import predict_request

OUTPUTS = ("ctr", "version")

# Enough payloads that no cache holds the answer, few enough to compute every reference after a run.
_PAYLOAD_COUNT = 64
# The answers are float32 sums of 429 products; the reference sums in float64.
_TOLERANCE = 1e-5

ContentOf = Callable[[int], int]
"""The version as which the files of a served version were exported, by its number."""


def as_exported(version: int) -> int:
    """`version` itself, for served versions that have the numbers that they were exported with."""
    return version


class CtrLoad:
    """A pool of requests to one model. Immutable; references are computed when first needed."""

    def __init__(
        self,
        model_name: str,
        *,
        rows: int,
        table_rows: int,
        seed: int,
        output_filter: Sequence[str] = (),
        deadline_seconds: float = Plan.deadline_ns / NS_PER_SECOND,
    ) -> None:
        self._deadline_ns = round(deadline_seconds * NS_PER_SECOND)
        if unknown := set(output_filter) - set(OUTPUTS):
            raise InvalidArgument(f"the CTR model has no output {unknown}; it has {OUTPUTS}")
        self._table_rows = table_rows
        self._outputs = frozenset(output_filter or OUTPUTS)
        # Distinct from the requests of other seeds and from the warm-up records.
        seeds = (
            int(s) for s in np.random.SeedSequence([seed, rows]).generate_state(_PAYLOAD_COUNT)
        )
        self._inputs = [request_inputs(s, rows, table_rows) for s in seeds]
        self.payloads = [_serialized(model_name, inputs, output_filter) for inputs in self._inputs]
        self._reference = lru_cache(maxsize=None)(self._computed_reference)

    def plan(self, offsets_ns: npt.NDArray[np.int64], seed: int) -> Plan:
        """Plans one request at each of `offsets_ns`, drawn from the pool by `seed`."""
        plan = Plan.drawn(self.payloads, offsets_ns, seed)
        return replace(plan, deadline_ns=self._deadline_ns)

    def is_right(self, reply: Reply, content_of: ContentOf) -> bool:
        """True if the reply has the requested outputs, with the right values for the version that it names."""
        response = parsed(reply)
        if response is None or frozenset(response.outputs) != self._outputs:
            return False
        outputs = {name: from_tensor_proto(tensor) for name, tensor in response.outputs.items()}
        if response.model_spec.version.value:
            content = content_of(response.model_spec.version.value)
        elif "version" in outputs:
            # A server may leave the version out of `model_spec`, but the output has the version that
            # answered.
            content = int(np.ravel(outputs["version"])[0])
        else:
            return False
        reference = self._reference(content, reply.payload)
        if "ctr" in outputs and not _is_close(outputs["ctr"], reference):
            return False
        versions = outputs.get("version")
        return versions is None or (len(versions) == len(reference) and all(versions == content))

    def wrong(self, outcome: Outcome, content_of: ContentOf) -> npt.NDArray[np.bool_]:
        """See `Outcome.wrong`."""
        return outcome.wrong(lambda reply: self.is_right(reply, content_of))

    def wrong_count(self, outcome: Outcome, content_of: ContentOf = as_exported) -> int:
        """The number of requests that `wrong` finds."""
        return int(self.wrong(outcome, content_of).sum())

    def _computed_reference(self, content: int, payload: int) -> npt.NDArray[Any]:
        return reference_answer(content, self._inputs[payload], self._table_rows)


def parsed(reply: Reply) -> predict_pb2.PredictResponse | None:
    """Parses the response; None if the bytes do not parse."""
    try:
        return predict_pb2.PredictResponse.FromString(reply.data)
    except DecodeError:
        return None


def _serialized(model_name: str, inputs: Any, output_filter: Sequence[str]) -> bytes:
    request = predict_request(model_name, inputs)
    request.output_filter.extend(output_filter)
    serialized: bytes = request.SerializeToString()
    return serialized


def _is_close(ctr: npt.NDArray[Any], reference: npt.NDArray[Any]) -> bool:
    return ctr.shape == reference.shape and bool(np.all(np.abs(ctr - reference) <= _TOLERANCE))
