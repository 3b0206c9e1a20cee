"""Files of a request log as the source of a warm-up file: a sample of the traffic that they hold."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest

from warmup.prediction_log import PREDICT, Log, kind_of

Pair = tuple[str, tuple[str, ...]]
"""A signature and a set of its outputs. A version is warm for each pair by itself."""


class LogSample:
    """A random sample of the logged requests that are distinct, with each pair's share of it.

    It holds at most `count_max` logs of each pair, whatever the size of the log (reservoir sampling). The
    same logs and seed give the same sample.
    """

    def __init__(
        self,
        count_max: int,
        *,
        seed: int,
        has_responses: bool,
        faults_of: Callable[[Log], Iterable[str]] = lambda _: (),
    ) -> None:
        """With `has_responses` the logs keep their responses, which are golden answers then.

        A log with faults is left out, because a version that cannot replay a record of its file is refused.
        """
        self._count_max = count_max
        self._random = random.Random(seed)
        self._has_responses = has_responses
        self._pairs: dict[Pair, _PairSample] = {}
        self.left_out_count = 0
        """The logs that are of another kind than predict_log, and so came from another program."""
        self._faults_of = faults_of
        self.fault_counts: Counter[str] = Counter()
        """The logs that were left out for a fault, by the first fault of each."""

    def add(self, logs: Iterable[Log]) -> None:
        """Adds logs of a request log."""
        for log in logs:
            if kind_of(log) != PREDICT:
                self.left_out_count += 1
                continue
            kept = _for_next_version(log, has_response=self._has_responses)
            fault = next(iter(self._faults_of(kept)), "")
            if fault:
                self.fault_counts[fault] += 1
                continue
            request = log.predict_log.request
            pair = (request.model_spec.signature_name, tuple(request.output_filter))
            if pair not in self._pairs:
                self._pairs[pair] = _PairSample(self._count_max, self._random.random)
            self._pairs[pair].add(kept)

    def logs(self) -> Sequence[Log]:
        """At most `count_max` logs: the first of each pair, then the second of each pair, and so on."""
        turns = zip_longest(*(sample.logs for sample in self._pairs.values()))
        in_turn = [log for log in chain.from_iterable(turns) if log is not None]
        return in_turn[: self._count_max]


class _PairSample:
    """Algorithm R of Vitter over distinct requests."""

    def __init__(self, count_max: int, draw: Callable[[], float]) -> None:
        self._count_max = count_max
        self._draw = draw
        self._seen_count = 0
        self._requests: set[bytes] = set()
        self.logs: list[Log] = []

    def add(self, log: Log) -> None:
        request = log.predict_log.request.SerializeToString(deterministic=True)
        if request in self._requests:
            return
        self._seen_count += 1
        if len(self.logs) < self._count_max:
            self.logs.append(log)
            self._requests.add(request)
            return
        place = int(self._draw() * self._seen_count)
        if place < self._count_max:
            before = self.logs[place].predict_log.request
            self._requests.discard(before.SerializeToString(deterministic=True))
            self._requests.add(request)
            self.logs[place] = log


def _for_next_version(log: Log, *, has_response: bool) -> Log:
    """The log without what belongs to one version or to the logging."""
    kept = Log()
    kept.predict_log.request.CopyFrom(log.predict_log.request)
    kept.predict_log.request.model_spec.ClearField("version_choice")
    if has_response:
        kept.predict_log.response.CopyFrom(log.predict_log.response)
    return kept
