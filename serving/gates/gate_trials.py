"""Gate trials: the same requests, run in turn on a new version and on its predecessor."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from serving.base.clock import NS_PER_SECOND, Clock, pause
from serving.base.errors import (
    Cancelled,
    FailedPrecondition,
    MillpondError,
    PermissionDenied,
)
from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateMode, GateSettings
from serving.data_plane.servables import RequestReservoir, Servable
from serving.data_plane.status_errors import statuses_as_errors
from serving.gates.answer_checks import Compared
from serving.gates.answer_watch import Answer
from serving.gates.gates import Latency, drift_tolerance, latency_faults, refused
from serving.gates.replay_gate import is_failure_of_model
from serving.gates.tensor_compare import Comparison, compare_responses, read_outputs
from warmup.self_warm_up import SelfWarmUpResult

TIME_BUDGET_SECONDS = 0.5
"""The time for comparing given requests. Slow models get fewer rounds, then fewer requests, so that a
swap does not wait for long measurements."""

REPLAY_BUDGET_SECONDS = 5.0
"""The time for sending the suspicious requests of a replay, which the new version fails or answers
strangely, to the predecessor.

If the model is slow, the verdict rests on a part of them.
"""

REPLAY_ASKED_COUNT_MIN = 4
"""The requests that are sent even beyond REPLAY_BUDGET_SECONDS, because fewer are a poor sample."""

REPLAY_LIMIT_SECONDS = 30.0
"""The time after which no further request is sent, however few were sent before."""

# The usual number of rounds. Each request counts with its fastest round, so more change little.
ROUND_COUNT = 3

# The rounds before a version is found to be slow. If live requests keep the machine busy, 3 rounds may not
# be enough for one undisturbed run of each request. A version that is really slow is slow in all rounds.
ROUND_COUNT_MAX = 20

SHADOW_POLL_SECONDS = 0.1
"""The period of looking for new requests; the reservoir takes about 20 requests a second."""

Predict = Callable[[bytes], bytes]
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class GateSubject:
    """A version that is warm but not published, and the inputs of its gates.

    `incumbent` is called for each use, because the predecessor may be unloaded while the gates run.
    `self_warm_up` is None if no live request was replayed. `answers` are those of both warm-ups.
    `status_error` is the type of the data plane's errors.
    """

    directory: Path
    candidate: Servable
    incumbent: Callable[[], Servable | None]
    reservoir: RequestReservoir | None
    status_error: type[Exception]
    self_warm_up: SelfWarmUpResult | None = None
    answers: Sequence[Answer] = ()


class PredecessorGone(Exception):
    """The predecessor is unloaded, will be unloaded, or was replaced by another version."""


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """A request for both versions; `has_golden` if a golden answer to it exists."""

    request: bytes
    has_golden: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A request that the predecessor answered, with the comparison of both answers.

    `latency` is None if the new version returned an error.
    """

    trial_request: TrialRequest
    comparison: Comparison
    latency: Latency | None


def latencies_of(trials: Sequence[Trial]) -> list[Latency]:
    """The latencies of the requests that both versions answered."""
    return [trial.latency for trial in trials if trial.latency is not None]


class GateTrials:
    """Runs requests on a version and on its predecessor, on the calling loader thread.

    Methods marked "Raises" may raise Cancelled, before each request if the load is cancelled, and
    PredecessorGone.
    """

    def __init__(
        self,
        subject: GateSubject,
        settings: GateSettings,
        *,
        cancellation: Cancellation,
        clock: Clock,
    ) -> None:
        self._subject = subject
        self._settings = settings
        self._cancellation = cancellation
        self._clock = clock
        self._incumbent = subject.incumbent()

    @property
    def has_predecessor(self) -> bool:
        """True if another version served when the trials began."""
        return self._incumbent is not None

    def restart(self) -> bool:
        """Takes the version that serves now as predecessor.

        Returns False if none serves, or the same one as before.
        """
        serving = self._subject.incumbent()
        if serving is None or serving is self._incumbent:
            return False
        self._incumbent = serving
        return True

    @contextmanager
    def reading_predecessor(self) -> Iterator[Servable]:
        """Yields the predecessor, to be read in the block. Raises."""
        try:
            with statuses_as_errors(self._subject.status_error):
                yield self._predecessor()
        except FailedPrecondition as error:
            raise PredecessorGone from error

    def ask_candidate(self, request: bytes, method: str = "Predict") -> tuple[bytes, int]:
        """The new version's answer and its duration in ns.

        Raises; also PermissionDenied, if the request may change a variable, and other MillpondErrors.
        """
        return self._ask(partial(self._subject.candidate.replay, method), request)

    def compared(self, requests: Sequence[TrialRequest]) -> list[Trial]:
        """Trials of the requests that the predecessor answers. Raises.

        Takes about TIME_BUDGET_SECONDS.
        """
        end_ns = self._clock.now_ns() + round(TIME_BUDGET_SECONDS * NS_PER_SECOND)
        trials: list[Trial] = []
        for request in requests:
            if trials and self._clock.now_ns() >= end_ns:
                break
            trials += self._tried(request)
        if self._settings.latency is GateMode.OFF:
            return trials
        for round_number in range(1, ROUND_COUNT_MAX):
            is_slow = latency_faults(latencies_of(trials), self._settings.latency_ratio_max)
            if self._clock.now_ns() >= end_ns or (round_number >= ROUND_COUNT and not is_slow):
                break
            trials = [self._again(trial, round_number, end_ns) for trial in trials]
        return trials

    def errors_of_candidate_alone(self, requests: Sequence[bytes]) -> tuple[list[str], int]:
        """The new version's errors for the requests that only the predecessor answers, and the number of
        requests that were sent to the predecessor. Raises.

        Sends for REPLAY_BUDGET_SECONDS, and for longer until REPLAY_ASKED_COUNT_MIN are sent, but never
        after REPLAY_LIMIT_SECONDS.
        """
        errors: list[str] = []
        asked_count = 0
        for request in self._within_replay_budget(requests, REPLAY_ASKED_COUNT_MIN):
            errors += self._errors_of_candidate_alone(request)
            asked_count += 1
        return errors, asked_count

    def compared_answers(self, answers: Sequence[Answer], count_min: int) -> list[Compared]:
        """Adds to the new version's answers those that the predecessor gives to the same requests. Raises.

        Leaves out a request that the predecessor refuses. Asks it for REPLAY_BUDGET_SECONDS, and for longer
        until it was asked `count_min` times, but never after REPLAY_LIMIT_SECONDS.
        """
        compared = []
        for answer in self._within_replay_budget(answers, count_min):
            try:
                response, _ = self._ask_predecessor(answer.request, answer.method)
            except Cancelled:
                raise
            except MillpondError:
                # Raises if the predecessor is being unloaded, because its error then means nothing.
                self._predecessor()
                continue
            before = read_outputs(answer.method, response)
            if before is not None:
                compared.append(Compared(answer=answer, before=before))
        return compared

    def _within_replay_budget(self, items: Sequence[Item], count_min: int) -> Iterator[Item]:
        started_ns = self._clock.now_ns()
        end_ns = started_ns + round(REPLAY_BUDGET_SECONDS * NS_PER_SECOND)
        limit_ns = started_ns + round(REPLAY_LIMIT_SECONDS * NS_PER_SECOND)
        for count, item in enumerate(items):
            now_ns = self._clock.now_ns()
            is_enough = count >= count_min and now_ns >= end_ns
            if is_enough or (count > 0 and now_ns >= limit_ns):
                return
            yield item

    def shadowed(self, reservoir: RequestReservoir) -> Iterator[Trial]:
        """Yields trials of live requests that arrive from now on. Raises.

        Ends after `shadow_seconds` or `shadow_request_count` trials.
        """
        end_ns = self._clock.now_ns() + round(self._settings.shadow_seconds * NS_PER_SECOND)
        left_count = self._settings.shadow_request_count
        seen = set(reservoir.requests())
        while left_count > 0 and self._clock.now_ns() < end_ns:
            requests = reservoir.requests()
            for request in requests:
                if request in seen or left_count == 0 or self._clock.now_ns() >= end_ns:
                    continue
                for trial in self._tried(TrialRequest(request=request)):
                    left_count -= 1
                    yield self._settled(trial, end_ns)
            # A request that has left the reservoir and is in it again has arrived again.
            seen = set(requests)
            self._wait()

    def _wait(self) -> None:
        self._check_is_wanted()
        self._predecessor()
        pause(self._clock, SHADOW_POLL_SECONDS)

    # --- One request ------------------------------------------------------------------------------

    def _errors_of_candidate_alone(self, request: bytes) -> list[str]:
        """An empty list unless the predecessor answers and the new version fails again."""
        try:
            self._ask_predecessor(request)
        except MillpondError:
            self._check_is_wanted()
            self._predecessor()
            return []
        try:
            self.ask_candidate(request)
        except PermissionDenied:
            return []
        except MillpondError as error:
            self._check_is_wanted()
            return [str(error)] if is_failure_of_model(error) else []
        return []

    def _tried(self, trial_request: TrialRequest) -> list[Trial]:
        """Runs one trial.

        There is none if the predecessor refuses the request, or if the request must not be repeated.
        """
        try:
            expected, predecessor_ns = self._ask_predecessor(trial_request.request)
        except Cancelled:
            raise
        except MillpondError:
            # Raises if the predecessor is being unloaded, because its error then means nothing.
            self._predecessor()
            return []
        try:
            actual, candidate_ns = self.ask_candidate(trial_request.request)
        except Cancelled:
            raise
        except PermissionDenied:
            return []
        except MillpondError as error:
            return [Trial(trial_request=trial_request, comparison=refused(error), latency=None)]
        comparison = compare_responses(expected, actual, drift_tolerance(self._settings))
        latency = Latency(predecessor_ns=predecessor_ns, candidate_ns=candidate_ns)
        return [Trial(trial_request=trial_request, comparison=comparison, latency=latency)]

    def _settled(self, trial: Trial, end_ns: int) -> Trial:
        for round_number in range(1, ROUND_COUNT):
            trial = self._again(trial, round_number, end_ns)
        return trial

    def _again(self, trial: Trial, round_number: int, end_ns: int) -> Trial:
        """Runs another round if there is time for it, and returns the trial with the faster times."""
        if trial.latency is None or self._clock.now_ns() >= end_ns:
            return trial
        try:
            latency = self._latency(trial.trial_request.request, round_number)
        except Cancelled:
            raise
        except MillpondError:
            return trial  # A request that fails only sometimes was compared at least once.
        return replace(trial, latency=trial.latency.or_faster(latency))

    def _latency(self, request: bytes, round_number: int) -> Latency:
        # The order alternates, so that no version always runs on caches that the other version has warmed.
        if round_number % 2:
            _, candidate_ns = self.ask_candidate(request)
            _, predecessor_ns = self._ask_predecessor(request)
        else:
            _, predecessor_ns = self._ask_predecessor(request)
            _, candidate_ns = self.ask_candidate(request)
        return Latency(predecessor_ns=predecessor_ns, candidate_ns=candidate_ns)

    def _ask_predecessor(self, request: bytes, method: str = "Predict") -> tuple[bytes, int]:
        return self._ask(partial(self._predecessor().replay, method), request)

    def _ask(self, predict: Predict, request: bytes) -> tuple[bytes, int]:
        self._check_is_wanted()
        started_ns = self._clock.now_ns()
        with statuses_as_errors(self._subject.status_error):
            answer = predict(request)
        return answer, self._clock.now_ns() - started_ns

    def _predecessor(self) -> Servable:
        if self._incumbent is None or self._subject.incumbent() is not self._incumbent:
            raise PredecessorGone
        return self._incumbent

    def _check_is_wanted(self) -> None:
        if self._cancellation.is_cancelled:
            raise Cancelled("gates stopped; the version is no longer aspired")
