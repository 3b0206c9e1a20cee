"""Gate runs: collect the figures of the gates on the loader's thread; `gates.py` decides on them.

A version's answers are compared with the golden answers of its own warm-up file. They are also
compared with the answers of its predecessor, which serves meanwhile (`gate_trials.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice

import structlog

from serving.base.clock import NS_PER_SECOND, Clock, seconds_since
from serving.base.errors import Cancelled, MillpondError, from_exception
from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateMode, GateSettings
from serving.core.servable import GateVerdict
from serving.data_plane.status_errors import statuses_as_errors
from serving.gates.answer_checks import (
    CONSTANT_INPUT_COUNT_MIN,
    Compared,
    constant_faults,
    constant_suspects,
    distinct_input_count,
    missing_output_faults,
    non_finite_faults,
)
from serving.gates.answer_watch import Answer, AnswerWatch
from serving.gates.gate_trials import (
    REPLAY_ASKED_COUNT_MIN,
    GateSubject,
    GateTrials,
    PredecessorGone,
    Trial,
    TrialRequest,
    latencies_of,
)
from serving.gates.gates import (
    Gate,
    convergence_verdict,
    drift_faults,
    drift_figures,
    golden_faults,
    golden_figures,
    golden_tolerance,
    is_worth_another_pass,
    latency_faults,
    latency_figures,
    mode_of,
    refused,
    skipped,
    verdict_of,
    warm_up_faults,
)
from serving.gates.replay_gate import ReplayCounts, failed_share_verdict, self_warm_up_verdict
from serving.gates.signature_gate import shape_faults, signature_faults
from serving.gates.tensor_compare import (
    Comparison,
    Tolerance,
    compare_outputs,
    has_non_finite,
    outputs_of,
)
from warmup.prediction_log import (
    METHODS,
    PREDICT,
    WARM_UP_FILE,
    Log,
    has_response,
    kind_of,
    read_logs,
)
from warmup.replay import Ask

REQUEST_COUNT_MAX = 32
"""The most requests that both versions are sent. More would delay the swap without another verdict."""

REQUEST_BYTES_MAX = 64 * 2**20
"""The most bytes of these requests together: all of them are in memory until the last round."""

CONVERGENCE_PASS_COUNT_MAX = 32
"""The most passes over the records of a warm-up, after the first. If a version still gets faster after
them, the fault is in the model and not in the warm-up."""

RESTART_COUNT_MAX = 3
"""The most restarts of one gate because the predecessor was replaced.

Rollbacks and promotions are at least seconds apart. If a gate would need more restarts, it is not passed.
"""

_RUN_ALONE = frozenset({Gate.GOLDEN, Gate.FINITE})
"""The gates that need no predecessor."""

_WRITES = "a request may change a variable"

_log = structlog.get_logger(__name__)


GateRun = Callable[[GateMode], GateVerdict]
"""Runs a gate in a mode that is not OFF."""


@dataclass
class _Record:
    """The runs of one record. `request` is None if the record must not be run again."""

    request: tuple[str, bytes] | None  # method, serialized
    durations_ns: list[int] = field(default_factory=list)


class WarmUpWatch:
    """Wraps a version's `answer` during one warm-up, on one thread.

    It times the runs, and shows `answers` what each answered. If `is_tolerant`, failed runs do not
    fail the warm-up.
    """

    def __init__(self, ask: Ask, *, answers: AnswerWatch, is_tolerant: bool, clock: Clock) -> None:
        self._ask = ask
        self._answers = answers
        self._is_tolerant = is_tolerant
        self._clock = clock
        self._last_request: tuple[str, bytes] | None = None
        self._records: list[_Record] = []
        self._kept_bytes = 0
        self._faults: list[str] = []

    def run(self, warm_up: Callable[[Ask], object]) -> None:
        """Runs `warm_up`, and takes its error as a fault. Raises Cancelled and bugs.

        Raises the other errors too unless this object is tolerant.
        """
        try:
            warm_up(self._timed_ask)
        except Cancelled:
            raise
        except Exception as error:
            self._faults.append(str(from_exception(error)))
            if not (self._is_tolerant and isinstance(error, (MillpondError, OSError))):
                raise

    def verdict(self, mode: GateMode) -> GateVerdict:
        """The verdict of the warm-up gate."""
        figures = {"record_count": len(self._records), "fault_count": len(self._faults)}
        return verdict_of(Gate.WARM_UP, mode, warm_up_faults(self._faults), figures)

    def converge(self, settings: GateSettings, cancellation: Cancellation) -> GateVerdict | None:
        """Runs the records again after `run`, in passes, until their latency has converged.

        Stops after `convergence_seconds` or CONVERGENCE_PASS_COUNT_MAX passes. Returns None if no
        record was answered. Raises Cancelled.
        """
        if not self._durations_ns:
            return None
        started_ns = self._clock.now_ns()
        end_ns = started_ns + round(settings.convergence_seconds * NS_PER_SECOND)
        ratio_min = settings.convergence_ratio_min
        pass_count = 0
        while is_worth_another_pass(self._durations_ns, ratio_min):
            if pass_count == CONVERGENCE_PASS_COUNT_MAX or self._clock.now_ns() >= end_ns:
                break
            if not self._run_pass(end_ns, cancellation):
                break
            pass_count += 1
        seconds = seconds_since(self._clock, started_ns)
        figures = {"pass_count": float(pass_count), "seconds": seconds}
        return convergence_verdict(self._durations_ns, settings, figures)

    def _run_pass(self, end_ns: int, cancellation: Cancellation) -> bool:
        """Runs the records once more; returns False if no record may be run again."""
        left = [record for record in self._records if record.request is not None]
        for record in left:
            if cancellation.is_cancelled:
                raise Cancelled("warm-up stopped; the version is no longer aspired")
            self._run_again(record)
            if self._clock.now_ns() >= end_ns:
                break
        return bool(left)

    def _run_again(self, record: _Record) -> None:
        assert record.request is not None
        started_ns = self._clock.now_ns()
        try:
            self._ask(*record.request)
        except Cancelled:
            raise
        except MillpondError:
            record.request = None  # A record that fails only sometimes was answered at least once.
        else:
            record.durations_ns.append(self._clock.now_ns() - started_ns)

    @property
    def _durations_ns(self) -> list[list[int]]:
        """The durations of each record that was answered."""
        return [record.durations_ns for record in self._records if record.durations_ns]

    def _timed_ask(self, method: str, request: bytes) -> bytes:
        # All iterations of a record come in succession.
        if (method, request) != self._last_request:
            self._begin_record(method, request)
        record = self._records[-1]
        started_ns = self._clock.now_ns()
        try:
            response = self._ask(method, request)
        except Cancelled:
            raise
        except MillpondError as error:
            if not self._is_tolerant:
                raise
            record.request = None
            self._faults.append(f"record {len(self._records)}: {error}")
            return b""
        record.durations_ns.append(self._clock.now_ns() - started_ns)
        self._answers.saw(method, request, response)
        return response

    def _begin_record(self, method: str, request: bytes) -> None:
        is_kept = self._kept_bytes + len(request) <= REQUEST_BYTES_MAX
        self._kept_bytes += len(request) if is_kept else 0
        self._records.append(_Record((method, request) if is_kept else None))
        self._last_request = (method, request)


class GateRuns:
    """Runs the gates of one version after its warm-up. Made for one load; used on its loader thread.

    Each request runs at the thread's priority. Cancellation is checked before each request.
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
        self._trials = GateTrials(subject, settings, cancellation=cancellation, clock=clock)
        self._compared: list[Trial] | None = None
        self._replayed: ReplayCounts | None = None

    def run(self) -> Iterator[GateVerdict]:
        """Yields the verdict of each gate that is not off, as soon as it is known.

        Without a predecessor only the gates of _RUN_ALONE run. Raises Cancelled.
        """
        runs: dict[Gate, GateRun] = {
            Gate.SIGNATURE: partial(self._signatures, Gate.SIGNATURE, signature_faults),
            Gate.SHAPES: partial(self._signatures, Gate.SHAPES, shape_faults),
            Gate.SELF_WARM_UP: partial(self._replay, Gate.SELF_WARM_UP, self_warm_up_verdict),
            Gate.FAILED_SHARE: partial(self._replay, Gate.FAILED_SHARE, failed_share_verdict),
            Gate.OUTPUTS: self._outputs,
            Gate.FINITE: self._finite,
            Gate.CONSTANT: self._constant,
            Gate.GOLDEN: self._golden,
            Gate.LATENCY: self._latency,
            Gate.DRIFT: self._drift,
            Gate.SHADOW: self._shadow,
        }
        for gate, run in runs.items():
            mode = mode_of(gate, self._settings)
            is_possible = self._trials.has_predecessor or gate in _RUN_ALONE
            if mode is not GateMode.OFF and is_possible:
                yield self._guarded(gate, mode, run)

    def _guarded(self, gate: Gate, mode: GateMode, run: GateRun) -> GateVerdict:
        try:
            with statuses_as_errors(self._subject.status_error):
                return self._restarted(gate, mode, run)
        except Cancelled:
            raise
        except Exception as error:  # noqa: BLE001 (a gate that raises is not passed; the load goes on)
            _log.exception("gate_broken", gate=gate.value)
            return verdict_of(gate, mode, [f"could not be run: {error!r}"])

    def _restarted(self, gate: Gate, mode: GateMode, run: GateRun) -> GateVerdict:
        """Runs a gate, and runs it again if another predecessor serves by then.

        Earlier verdicts stay valid, because the predecessor may also be replaced after the last gate.
        """
        for _ in range(RESTART_COUNT_MAX + 1):
            try:
                return run(mode)
            except PredecessorGone:
                self._compared = self._replayed = None
                if not self._trials.restart():
                    # No version serves now, so the new version must not wait for a comparison.
                    return skipped(gate, mode, "the predecessor was unloaded meanwhile")
        fault = f"the predecessor was replaced {RESTART_COUNT_MAX + 1} times meanwhile"
        return verdict_of(gate, mode, [fault])

    # --- The gates --------------------------------------------------------------------------------

    def _signatures(
        self, gate: Gate, find_faults: Callable[[bytes, bytes], list[str]], mode: GateMode
    ) -> GateVerdict:
        with self._trials.reading_predecessor() as predecessor:
            before = predecessor.signature_def_map()
        after = self._subject.candidate.signature_def_map()
        return verdict_of(gate, mode, find_faults(before, after))

    def _replay(
        self,
        gate: Gate,
        decide: Callable[[ReplayCounts, GateSettings], GateVerdict],
        mode: GateMode,
    ) -> GateVerdict:
        result = self._subject.self_warm_up
        if result is None:
            return skipped(gate, mode, "no live request was replayed")
        if result.failed_requests and self._may_write_variables():
            return skipped(gate, mode, _WRITES)
        if self._replayed is None:
            errors, asked_count = self._trials.errors_of_candidate_alone(result.failed_requests)
            self._replayed = ReplayCounts(
                answered_count=result.run_count,
                failed_count=len(result.failed_requests),
                asked_count=asked_count,
                errors=errors,
            )
        return decide(self._replayed, self._settings)

    def _outputs(self, mode: GateMode) -> GateVerdict:
        one_of_each = {answer.kind: answer for answer in self._subject.answers}
        return self._judge_answers(
            Gate.OUTPUTS, mode, list(one_of_each.values()), missing_output_faults
        )

    def _finite(self, mode: GateMode) -> GateVerdict:
        suspects = [answer for answer in self._subject.answers if has_non_finite(answer.outputs)]
        if self._trials.has_predecessor:
            return self._judge_answers(Gate.FINITE, mode, suspects, non_finite_faults)
        # Without a predecessor there is no answer to compare with, and such a value may be meant.
        alone = [Compared(answer=answer, before=None) for answer in suspects]
        faults = [f"{fault}, and it has no predecessor" for fault in non_finite_faults(alone)]
        figures = {"answer_count": len(self._subject.answers), "suspect_count": len(suspects)}
        verdict = verdict_of(Gate.FINITE, GateMode.WARN, faults, figures)
        return replace(verdict, has_predecessor=False)

    def _constant(self, mode: GateMode) -> GateVerdict:
        count = distinct_input_count(self._subject.answers)
        if self._subject.answers and count < CONSTANT_INPUT_COUNT_MIN:
            why = (
                f"{count} distinct inputs were replayed, and {CONSTANT_INPUT_COUNT_MIN} are needed"
            )
            return skipped(Gate.CONSTANT, mode, why)
        suspects = constant_suspects(self._subject.answers)
        return self._judge_answers(
            Gate.CONSTANT, mode, suspects, constant_faults, CONSTANT_INPUT_COUNT_MIN
        )

    def _judge_answers(
        self,
        gate: Gate,
        mode: GateMode,
        suspects: Sequence[Answer],
        find_faults: Callable[[Sequence[Compared]], list[str]],
        count_min: int = REPLAY_ASKED_COUNT_MIN,
    ) -> GateVerdict:
        """Asks the predecessor for the suspects, of which there are normally none."""
        answers = self._subject.answers
        if not answers:
            return skipped(gate, mode, "no request was replayed")
        if suspects and self._may_write_variables():
            return skipped(gate, mode, _WRITES)
        compared = self._trials.compared_answers(suspects, count_min)
        figures = {"answer_count": len(answers), "suspect_count": len(suspects)}
        return verdict_of(gate, mode, find_faults(compared), figures)

    def _golden(self, mode: GateMode) -> GateVerdict:
        if self._candidate_writes():
            return skipped(Gate.GOLDEN, mode, _WRITES)
        tolerance = golden_tolerance(self._settings)
        # All records are compared, because that takes only about as long as their replay in the warm-up.
        comparisons = [
            self._compare_with_golden(log, tolerance) for log in self._logs() if has_response(log)
        ]
        if not comparisons:
            return skipped(Gate.GOLDEN, mode, "no warm-up record has a response")
        if self._candidate_writes():  # A replay may have shown that.
            return skipped(Gate.GOLDEN, mode, _WRITES)
        figures = golden_figures(comparisons)
        return verdict_of(Gate.GOLDEN, mode, golden_faults(comparisons), figures)

    def _latency(self, mode: GateMode) -> GateVerdict:
        if self._may_write_variables():
            return skipped(Gate.LATENCY, mode, _WRITES)
        latencies = latencies_of(self._compared_trials())
        if self._may_write_variables():  # A replay may have shown that.
            return skipped(Gate.LATENCY, mode, _WRITES)
        if not latencies:
            return skipped(Gate.LATENCY, mode, "both versions answer no request")
        faults = latency_faults(latencies, self._settings.latency_ratio_max)
        return verdict_of(Gate.LATENCY, mode, faults, latency_figures(latencies))

    def _drift(self, mode: GateMode) -> GateVerdict:
        if self._may_write_variables():
            return skipped(Gate.DRIFT, mode, _WRITES)
        comparisons = self._drifts(self._compared_trials())
        if self._may_write_variables():  # A replay may have shown that.
            return skipped(Gate.DRIFT, mode, _WRITES)
        if not comparisons:
            return skipped(Gate.DRIFT, mode, "all requests have golden answers")
        faults = drift_faults(comparisons, self._settings.drift_share_max)
        return verdict_of(Gate.DRIFT, mode, faults, drift_figures(comparisons))

    def _shadow(self, mode: GateMode) -> GateVerdict:
        if self._may_write_variables():
            return skipped(Gate.SHADOW, mode, _WRITES)
        if self._subject.reservoir is None:
            return skipped(
                Gate.SHADOW, mode, "no live requests are kept (--self_warmup_requests=0)"
            )
        trials = list(self._trials.shadowed(self._subject.reservoir))
        if not trials:
            seconds = self._settings.shadow_seconds
            return skipped(Gate.SHADOW, mode, f"no new request arrived within {seconds:g} s")
        comparisons, latencies = self._drifts(trials), latencies_of(trials)
        faults = [
            *drift_faults(comparisons, self._settings.drift_share_max),
            *latency_faults(latencies, self._settings.latency_ratio_max),
        ]
        figures = {**drift_figures(comparisons), **latency_figures(latencies)}
        return verdict_of(Gate.SHADOW, mode, faults, figures)

    # --- Inputs of the gates ----------------------------------------------------------------------

    def _candidate_writes(self) -> bool:
        return self._subject.candidate.may_write_variables

    def _may_write_variables(self) -> bool:
        """True if either version may write variables: such requests must not be repeated."""
        if self._candidate_writes():
            return True
        with self._trials.reading_predecessor() as predecessor:
            return predecessor.may_write_variables

    def _compared_trials(self) -> list[Trial]:
        """Runs the trials of the latency and the drift gate, which share them.

        Only the first call runs them.
        """
        if self._compared is None:
            self._compared = self._trials.compared(self._trial_requests())
        return self._compared

    def _trial_requests(self) -> list[TrialRequest]:
        """The first records of the warm-up file, or if it has none, live requests."""
        requests = self._recorded_requests()
        if not requests and self._subject.reservoir is not None:
            live = self._subject.reservoir.requests()[:REQUEST_COUNT_MAX]
            requests = [TrialRequest(request=request) for request in live]
        return _within_bytes(requests, REQUEST_BYTES_MAX)

    def _recorded_requests(self) -> list[TrialRequest]:
        try:
            return [
                TrialRequest(
                    request=log.predict_log.request.SerializeToString(),
                    has_golden=has_response(log),
                )
                for log in islice(self._predict_logs(), REQUEST_COUNT_MAX)
            ]
        except (MillpondError, OSError):
            return []  # The warm-up gate reports a damaged file.

    def _logs(self) -> Iterator[Log]:
        path = self._subject.directory / WARM_UP_FILE
        if path.exists():
            yield from read_logs(path)

    def _predict_logs(self) -> Iterator[Log]:
        """The Predict records, which are sent to both versions.

        Live requests of other methods are not kept anyway.
        """
        return (log for log in self._logs() if kind_of(log) == PREDICT)

    def _compare_with_golden(self, log: Log, tolerance: Tolerance) -> Comparison:
        recorded = getattr(log, kind_of(log))
        request, golden = recorded.request.SerializeToString(), recorded.response
        try:
            actual, _ = self._trials.ask_candidate(request, METHODS[kind_of(log)])
        except Cancelled:
            raise
        except MillpondError as error:
            return refused(error)
        answered = type(golden).FromString(actual)
        return compare_outputs(outputs_of(golden), outputs_of(answered), tolerance)

    def _drifts(self, trials: Sequence[Trial]) -> list[Comparison]:
        """The comparisons, without those of golden requests if the golden gate is on.

        For these the golden answer is right, and not the predecessor's.
        """
        has_golden_gate = self._settings.golden is not GateMode.OFF
        return [
            trial.comparison
            for trial in trials
            if not (has_golden_gate and trial.trial_request.has_golden)
        ]


def _within_bytes(requests: Sequence[TrialRequest], bytes_max: int) -> list[TrialRequest]:
    """The first of `requests` that together have at most `bytes_max`. The first one is always taken."""
    sizes = accumulate(len(request.request) for request in requests)
    return [
        request
        for index, (request, size) in enumerate(zip(requests, sizes, strict=True))
        if index == 0 or size <= bytes_max
    ]
