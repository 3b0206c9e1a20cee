"""The clients of the trained model: requests for rows that change and rows that do not, with known answers."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from loadtest.plan.arrivals import Offsets
from loadtest.plan.ctr_load import parsed
from loadtest.plan.plan import NOT_KEPT, Outcome, Plan, Reply
from loadtest.plan.row_values import MARK_COUNT, Ids, RowValues
from serving.base.errors import InvalidArgument, InvalidConfig, StatusCode
from serving.base.tensor_proto import from_tensor_proto
from serving.commands.ctr_request import predict_request

INPUT, OUTPUT, VERSION_OUTPUT = "ids", "y", "version"

_PAYLOAD_COUNT = 64


class RowLoad:
    """A pool of requests to one model, and the right answer of each version to each of them."""

    def __init__(
        self, model_name: str, values: RowValues, *, rows: int, version_count: int, seed: int
    ) -> None:
        """Raises InvalidConfig if a request has not more rows than those that change in every version."""
        if rows <= MARK_COUNT:
            raise InvalidConfig(f"--rows={rows}: must be above {MARK_COUNT}")
        self._values = values
        self._version_count = version_count
        random = np.random.default_rng([seed, rows])
        self._ids = [_ids(values, rows, random) for _ in range(_PAYLOAD_COUNT)]
        self.payloads = [
            predict_request(model_name, {INPUT: ids}).SerializeToString() for ids in self._ids
        ]

    def plan(self, offsets_ns: Offsets, seed: int) -> Plan:
        """Plans one request at each of `offsets_ns`, drawn from the pool by `seed`."""
        return Plan.drawn(self.payloads, offsets_ns, seed)

    def versions(self, outcome: Outcome) -> npt.NDArray[np.int64]:
        """The version of each request's answer: 0 if it failed, and NOT_KEPT if the answer is wrong.

        An answer is right if its version, its `version` output and all its rows are of one version.
        """
        each = [self._version_of(reply) for reply in outcome.replies]
        # The last element stands for the requests whose reply was not kept.
        found = np.array([*each, NOT_KEPT], np.int64)[outcome.reply_of]
        return np.where(outcome.codes == StatusCode.OK, found, 0)

    def _version_of(self, reply: Reply) -> int:
        if reply.code != StatusCode.OK:
            return 0
        response = parsed(reply)
        if response is None or set(response.outputs) != {OUTPUT, VERSION_OUTPUT}:
            return NOT_KEPT
        version = int(response.model_spec.version.value)
        try:
            answer, versions = (
                from_tensor_proto(response.outputs[name]) for name in (OUTPUT, VERSION_OUTPUT)
            )
        except InvalidArgument:
            return NOT_KEPT
        is_known = 0 < version <= self._version_count
        is_right = (
            is_known
            and np.array_equal(answer, self._answers[reply.payload][version])
            and np.array_equal(np.ravel(versions), np.full(len(answer), version))
        )
        return version if is_right else NOT_KEPT

    @cached_property
    def _answers(self) -> npt.NDArray[np.float32]:
        """The right answers, [payloads, versions, rows, outputs]."""
        answers = self._values.answers(np.concatenate(self._ids), self._version_count)
        return np.stack(np.split(answers, _PAYLOAD_COUNT, axis=1))


def _ids(values: RowValues, rows: int, random: np.random.Generator) -> Ids:
    """The rows that change each time, and as many of the pool as of the whole table."""
    count = rows - MARK_COUNT
    from_pool = values.pool_ids(random.integers(0, values.pool_count, count // 2))
    others = random.integers(0, values.row_count, count - count // 2)
    return np.concatenate([values.marks, from_pool, others])
