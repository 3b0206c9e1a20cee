"""The CTR model's clients: draws distinct requests from a seed, and checks their answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from loadtest.plan.plan import NOT_KEPT, Outcome, Plan, Reply
from loadtest.plan.wrong_replies import (
    DESCRIBED_MAX,
    AnswerOrigins,
    Reference,
    WrongReply,
    described,
)
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


@dataclass(frozen=True)
class _Answer:
    """The outputs of a reply. `content` is the version as which the one that answered was exported."""

    version: int
    content: int
    outputs: Mapping[str, npt.NDArray[Any]]


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
        reference: Reference = reference_answer,
    ) -> None:
        self._right_answer = reference
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
        answer = self._answer(reply, content_of)
        if isinstance(answer, str):
            return False
        if "ctr" in answer.outputs and not self._is_close(answer, reply.payload).all():
            return False
        versions = answer.outputs.get("version")
        return versions is None or bool(np.all(versions == answer.content))

    def wrong(self, outcome: Outcome, content_of: ContentOf) -> npt.NDArray[np.bool_]:
        """See `Outcome.wrong`."""
        return outcome.wrong(lambda reply: self.is_right(reply, content_of))

    def wrong_count(self, outcome: Outcome, content_of: ContentOf = as_exported) -> int:
        """The number of requests that `wrong` finds."""
        return int(self.wrong(outcome, content_of).sum())

    def wrong_replies(
        self, outcome: Outcome, content_of: ContentOf = as_exported
    ) -> Sequence[WrongReply]:
        """Describes the first requests that `wrong` finds, in the order in which they were issued."""
        wrong = np.flatnonzero(self.wrong(outcome, content_of))
        first = wrong[np.argsort(outcome.issued_ns[wrong], kind="stable")][:DESCRIBED_MAX]
        if len(first) == 0:
            return []
        answers = (self._answer(reply, content_of) for reply in outcome.replies if reply.code == 0)
        contents = {answer.content for answer in answers if not isinstance(answer, str)}
        origins = AnswerOrigins(
            self._inputs, sorted(contents), self._table_rows, self._right_answer
        )
        return [self._wrong_reply(outcome, request, content_of, origins) for request in first]

    def _wrong_reply(
        self, outcome: Outcome, request: int, content_of: ContentOf, origins: AnswerOrigins
    ) -> WrongReply:
        issued_ns, number = int(outcome.issued_ns[request]), int(outcome.reply_of[request])
        times: dict[str, Any] = {
            "at_seconds": (issued_ns - outcome.started_ns) / NS_PER_SECOND,
            "latency_ms": (int(outcome.completed_ns[request]) - issued_ns) / 1e6,
        }
        if number == NOT_KEPT:
            return WrongReply(**times, problem="the reply was not kept")
        reply = outcome.replies[number]
        answer = self._answer(reply, content_of)
        if isinstance(answer, str):
            return WrongReply(**times, payload=reply.payload, problem=answer)
        return WrongReply(
            **times,
            payload=reply.payload,
            version=answer.version,
            **described(
                answer.outputs.get("ctr"),
                answer.outputs.get("version"),
                self._reference(answer.content, reply.payload),
                _TOLERANCE,
                lambda value, row: origins.of(value, reply.payload, row),
            ),
        )

    def _answer(self, reply: Reply, content_of: ContentOf) -> _Answer | str:
        """Reads the outputs that were requested; the reason if the reply has not all of them, of all rows."""
        response = parsed(reply)
        if response is None:
            return "the reply is no PredictResponse"
        if frozenset(response.outputs) != self._outputs:
            return f"the reply has the outputs {sorted(response.outputs)}"
        outputs = {name: from_tensor_proto(tensor) for name, tensor in response.outputs.items()}
        version = response.model_spec.version.value
        if version:
            content = content_of(version)
        elif "version" in outputs:
            # A server may leave the version out of `model_spec`, but the output has the version that
            # answered.
            content = int(np.ravel(outputs["version"])[0])
        else:
            return "the reply names no version"
        rows = len(self._inputs[reply.payload]["dense"])
        for name, output in outputs.items():
            if output.shape != ((rows, 1) if name == "ctr" else (rows,)):
                return f"the output '{name}' has the shape {output.shape}"
        return _Answer(version, content, outputs)

    def _is_close(self, answer: _Answer, payload: int) -> npt.NDArray[np.bool_]:
        """Says of each row whether its `ctr` is right."""
        close: npt.NDArray[np.bool_] = (
            np.abs(answer.outputs["ctr"] - self._reference(answer.content, payload)) <= _TOLERANCE
        )
        return close

    def _computed_reference(self, content: int, payload: int) -> npt.NDArray[Any]:
        return self._right_answer(content, self._inputs[payload], self._table_rows)


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
