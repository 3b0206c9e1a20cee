from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.base.errors import Cancelled, DataLoss, InvalidArgument
from serving.base.protos import get_model_metadata_pb2, predict_pb2, regression_pb2
from serving.base.tensor_proto import to_tensor_proto
from serving.core.cancellation import Cancellation
from serving.core.model_settings import GateMode, GateSettings
from serving.core.servable import GateVerdict, ServableId
from serving.data_plane.status_errors import statuses_as_errors
from serving.gates.answer_checks import CONSTANT_INPUT_COUNT_MIN
from serving.gates.answer_watch import AnswerWatch
from serving.gates.gate_runs import (
    CONVERGENCE_PASS_COUNT_MAX,
    REQUEST_COUNT_MAX,
    RESTART_COUNT_MAX,
    GateRuns,
    WarmUpWatch,
)
from serving.gates.gate_trials import (
    REPLAY_ASKED_COUNT_MIN,
    REPLAY_BUDGET_SECONDS,
    REPLAY_LIMIT_SECONDS,
    TIME_BUDGET_SECONDS,
    GateSubject,
)
from tests.unit.fakes.clocks import FakeClock
from tests.unit.fakes.errors import StatusError
from tests.unit.fakes.requests import FakeReservoir
from tests.unit.fakes.servables import FakeServable
from warmup.prediction_log import WARM_UP_FILE, Log, write_logs
from warmup.replay import Ask
from warmup.self_warm_up import SelfWarmUpResult

OFF, WARN, ENFORCE = GateMode.OFF, GateMode.WARN, GateMode.ENFORCE

ALL_OFF = dict.fromkeys(
    (
        *("signature", "shapes", "self_warm_up", "failed_share", "warm_up", "convergence"),
        *("outputs", "finite", "constant", "latency", "golden", "drift", "shadow"),
    ),
    OFF,
)

Respond = Callable[[bytes], bytes]


def request(number: float) -> bytes:
    message = predict_pb2.PredictRequest()
    message.inputs["x"].CopyFrom(to_tensor_proto(np.float32(number)))
    serialized: bytes = message.SerializeToString()
    return serialized


def number_of(serialized: bytes) -> float:
    values = predict_pb2.PredictRequest.FromString(serialized).inputs["x"].tensor_content
    return float(np.frombuffer(values, np.float32)[0])


def response(*values: float) -> bytes:
    message = predict_pb2.PredictResponse()
    message.outputs["y"].CopyFrom(to_tensor_proto(np.array(values, np.float32)))
    serialized: bytes = message.SerializeToString()
    return serialized


def answers(factor: float = 1.0) -> Respond:
    return lambda serialized: response(number_of(serialized) * factor)


def refuses(code: int, message: str) -> Respond:
    def respond(serialized: bytes) -> bytes:
        raise StatusError(code, message)

    return respond


class Swap:
    """Version 1 serves, and version 2 waits at its gates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.old = FakeServable(ServableId("m", 1))
        self.candidate = FakeServable(ServableId("m", 2))
        self.old.respond = self.candidate.respond = answers()
        self.serves: FakeServable | None = self.old
        self.reservoir: FakeReservoir | None = FakeReservoir()
        self.cancellation = Cancellation()
        self.self_warm_up: SelfWarmUpResult | None = None
        self.watch = AnswerWatch()

    def warm_up(self, *numbers: float) -> None:
        """Runs these requests on the new version alone, as its warm-ups do."""
        for number in numbers:
            serialized = request(number)
            self.watch.saw("Predict", serialized, self.candidate.respond(serialized))

    def keep(self, *numbers: float) -> None:
        assert self.reservoir is not None
        self.reservoir.kept = [request(number) for number in numbers]

    def record(self, number: float, golden: bytes | None = None) -> Log:
        log = Log()
        log.predict_log.request.ParseFromString(request(number))
        if golden is not None:
            log.predict_log.response.ParseFromString(golden)
        return log

    def write_records(self, *logs: Log) -> None:
        path = self.directory / WARM_UP_FILE
        path.parent.mkdir(exist_ok=True)
        write_logs(path, logs)

    def takes(self, servable: FakeServable, *seconds: float, factor: float = 1.0) -> None:
        """Makes `servable` answer in these seconds, one after the other; the last value repeats."""
        left = list(seconds)

        def respond(serialized: bytes) -> bytes:
            self.clock.advance(left.pop(0) if len(left) > 1 else left[0])
            return answers(factor)(serialized)

        servable.respond = respond

    def verdicts(self, **settings: Any) -> dict[str, GateVerdict]:
        """Returns the verdicts of the gates that `settings` name; all others are off."""
        subject = GateSubject(
            directory=self.directory,
            candidate=self.candidate,
            incumbent=lambda: self.serves,
            reservoir=self.reservoir,
            status_error=StatusError,
            self_warm_up=self.self_warm_up,
            answers=self.watch.answers,
        )
        runs = GateRuns(
            subject,
            GateSettings(**{**ALL_OFF, **settings}),
            cancellation=self.cancellation,
            clock=self.clock,
        )
        return {verdict.gate: verdict for verdict in runs.run()}

    def verdict(self, gate: str, **settings: Any) -> GateVerdict:
        return self.verdicts(**{gate: ENFORCE, **settings})[gate]


@pytest.fixture
def swap(tmp_path: Path) -> Swap:
    return Swap(tmp_path)


# --- Choice of gates ------------------------------------------------------------------------------


def test_gates_that_are_off_run_nothing(swap: Swap):
    swap.keep(1)
    assert swap.verdicts() == {}
    assert swap.candidate.predicted == []


def test_gates_have_their_verdicts_in_order(swap: Swap):
    swap.keep(1)
    verdicts = swap.verdicts(
        signature=WARN, golden=ENFORCE, latency=WARN, drift=ENFORCE, shadow=WARN
    )
    assert [(verdict.gate, verdict.mode) for verdict in verdicts.values()] == [
        ("signature", "warn"),
        ("golden", "enforce"),
        ("latency", "warn"),
        ("drift", "enforce"),
        ("shadow", "warn"),
    ]
    assert all(verdict.is_passed for verdict in verdicts.values())


def test_gates_without_predecessor_are_golden_answers(swap: Swap):
    swap.serves = None
    swap.keep(1)
    swap.write_records(swap.record(1, golden=response(1)))
    verdicts = swap.verdicts(
        signature=ENFORCE, golden=ENFORCE, latency=ENFORCE, drift=ENFORCE, shadow=ENFORCE
    )
    assert list(verdicts) == ["golden"]


@pytest.mark.parametrize("writer", ["old", "candidate"])
def test_gates_skip_version_that_may_write_variables(swap: Swap, writer: str):
    getattr(swap, writer).may_write_variables = True
    swap.keep(1)
    verdicts = swap.verdicts(latency=ENFORCE, drift=ENFORCE, shadow=ENFORCE)
    assert len(verdicts) == 3
    for verdict in verdicts.values():
        assert (verdict.is_passed, verdict.reason) == (
            True,
            "skipped: a request may change a variable",
        )
    assert swap.old.predicted == swap.candidate.predicted == []


@pytest.mark.parametrize("writer", ["old", "candidate"])
def test_gates_leave_out_requests_that_would_write(swap: Swap, writer: str):
    swap.keep(1, 2)
    getattr(swap, writer).writing_requests = {request(1)}
    assert swap.verdict("drift").is_passed
    assert set(swap.candidate.predicted) == {request(2)}


def test_golden_gate_skips_versions_that_write(swap: Swap):
    swap.candidate.may_write_variables = True
    swap.write_records(swap.record(1, golden=response(2)))
    assert swap.verdict("golden").is_passed
    assert swap.candidate.predicted == []


# --- Signature ------------------------------------------------------------------------------------


def signatures(*names: str) -> bytes:
    definitions = get_model_metadata_pb2.SignatureDefMap()
    for name in names:
        definitions.signature_def[name].method_name = "predict"
    serialized: bytes = definitions.SerializeToString()
    return serialized


def test_signature_gate_compares_with_predecessor(swap: Swap):
    swap.old.signatures, swap.candidate.signatures = signatures("a", "b"), signatures("b")
    verdict = swap.verdict("signature")
    assert (verdict.is_passed, verdict.reason) == (False, "signature 'a' is gone")
    swap.candidate.signatures = signatures("a", "b", "c")
    assert swap.verdict("signature").is_passed


# --- Replayed live requests ----------------------------------------------------------------------


REPLAY_GATES: dict[str, Any] = {"self_warm_up": ENFORCE, "failed_share": ENFORCE}


def replayed(run_count: int, *failed: float) -> SelfWarmUpResult:
    return SelfWarmUpResult(
        run_count=run_count,
        failed_count=len(failed),
        skipped_count=0,
        first_error="first" if failed else "",
        seconds=0,
        failed_requests=tuple(request(number) for number in failed),
    )


def test_replay_fails_if_only_predecessor_answers(swap: Swap):
    swap.self_warm_up = replayed(0, 1, 2)
    swap.candidate.respond = refuses(3, "no input 'x'")
    verdict = swap.verdict("self_warm_up")
    assert (verdict.is_passed, verdict.figures) == (False, {"request_count": 2, "failed_count": 2})
    assert "no input 'x'" in verdict.reason


def test_replay_share_counts_answered_and_failed(swap: Swap):
    swap.self_warm_up = replayed(8, 1, 2)
    swap.candidate.respond = refuses(3, "no input 'x'")
    verdicts = swap.verdicts(**REPLAY_GATES)
    assert [verdict.is_passed for verdict in verdicts.values()] == [True, False]
    assert "2 of 10" in verdicts["failed_share"].reason
    assert len(swap.old.predicted) == len(swap.candidate.predicted) == 2


def test_replay_skips_requests_predecessor_refuses(swap: Swap):
    swap.self_warm_up = replayed(0, *range(20))
    swap.old.respond = swap.candidate.respond = refuses(3, "no input 'x'")
    assert all(verdict.is_passed for verdict in swap.verdicts(**REPLAY_GATES).values())


def test_replay_that_failed_once_does_not_count(swap: Swap):
    swap.self_warm_up = replayed(0, *range(20))
    assert all(verdict.is_passed for verdict in swap.verdicts(**REPLAY_GATES).values())


@pytest.mark.parametrize("code", [1, 4, 14])
def test_replay_that_was_cut_short_does_not_count(swap: Swap, code: int):
    swap.self_warm_up = replayed(0, *range(20))
    swap.candidate.respond = refuses(code, "stopped from outside")
    assert all(verdict.is_passed for verdict in swap.verdicts(**REPLAY_GATES).values())


def test_replay_without_a_predecessor_has_no_verdict(swap: Swap):
    swap.serves = None
    swap.self_warm_up = replayed(0, 1)
    swap.candidate.respond = refuses(3, "no input 'x'")
    assert swap.verdicts(**REPLAY_GATES) == {}


def test_replay_whose_predecessor_goes_away_is_skipped(swap: Swap):
    swap.self_warm_up = replayed(0, 1)

    def go(serialized: bytes) -> bytes:
        swap.serves = None
        raise StatusError(9, "it is unloaded")

    swap.old.respond, swap.candidate.respond = go, refuses(3, "no input 'x'")
    assert swap.verdict("self_warm_up").reason == "skipped: the predecessor was unloaded meanwhile"


def test_replay_is_judged_anew_by_another_predecessor(swap: Swap):
    swap.self_warm_up = replayed(0, 1)
    other = FakeServable(ServableId("m", 0))
    other.respond = answers()

    def change(serialized: bytes) -> bytes:
        swap.serves = other
        raise StatusError(9, "it is unloaded")

    swap.old.respond, swap.candidate.respond = change, refuses(3, "no input 'x'")
    assert not swap.verdict("self_warm_up").is_passed
    assert len(other.predicted) == 1


def test_replay_of_slow_models_sends_few_requests(swap: Swap):
    swap.self_warm_up = replayed(0, *range(20))
    swap.takes(swap.old, REPLAY_BUDGET_SECONDS)
    swap.candidate.respond = refuses(3, "no input 'x'")
    assert not swap.verdict("self_warm_up").is_passed
    assert len(swap.old.predicted) == REPLAY_ASKED_COUNT_MIN


def test_replay_of_very_slow_models_sends_one_request(swap: Swap):
    swap.self_warm_up = replayed(0, *range(20))
    swap.takes(swap.old, REPLAY_LIMIT_SECONDS)
    swap.candidate.respond = refuses(3, "no input 'x'")
    assert not swap.verdict("self_warm_up").is_passed
    assert len(swap.old.predicted) == 1


def test_replay_share_of_slow_models_counts_failures(swap: Swap):
    swap.self_warm_up = replayed(50, *range(14))
    swap.takes(swap.old, 1.0)
    swap.candidate.respond = refuses(3, "no input 'x'")
    verdict = swap.verdict("failed_share")
    assert len(swap.old.predicted) == 5
    assert (verdict.is_passed, verdict.figures["request_count"]) == (False, 64)


@pytest.mark.parametrize("writer", ["old", "candidate"])
def test_replay_is_single_if_it_may_write_variables(swap: Swap, writer: str):
    getattr(swap, writer).may_write_variables = True
    swap.self_warm_up = replayed(0, 1)
    assert swap.verdict("self_warm_up").reason == "skipped: a request may change a variable"
    assert swap.old.predicted == []


def test_replay_that_did_not_take_place_is_skipped(swap: Swap):
    assert swap.verdict("self_warm_up").reason == "skipped: no live request was replayed"


def test_replay_that_is_cancelled_stops(swap: Swap):
    swap.self_warm_up = replayed(0, 1, 2)

    def cancel(serialized: bytes) -> bytes:
        swap.cancellation.cancel()
        raise StatusError(3, "no input 'x'")

    swap.candidate.respond = cancel
    with pytest.raises(Cancelled):
        swap.verdict("self_warm_up")
    assert len(swap.old.predicted) == 1


# --- Answers that are never meant -----------------------------------------------------------------

NEVER_MEANT: dict[str, Any] = {"outputs": ENFORCE, "finite": ENFORCE, "constant": ENFORCE}


def test_answers_without_suspects_ask_no_predecessor(swap: Swap):
    swap.candidate.respond = answers(factor=3)
    swap.warm_up(*range(CONSTANT_INPUT_COUNT_MIN))
    verdicts = swap.verdicts(**NEVER_MEANT)
    assert all(verdict.is_passed and not verdict.reason for verdict in verdicts.values())
    # One request of each kind is compared by the names of its outputs.
    assert (len(swap.old.predicted), swap.candidate.predicted) == (1, [])


def test_finite_gate_refuses_nan_for_a_rare_request(swap: Swap):
    swap.candidate.respond = lambda sent: response(float("nan") if number_of(sent) == 77 else 1)
    swap.warm_up(*range(100))
    verdict = swap.verdict("finite")
    assert (verdict.is_passed, verdict.mode) == (False, "enforce")
    assert verdict.reason == "output 'y' is NaN in 1 of 1 values"
    assert verdict.figures == {"answer_count": 100, "suspect_count": 1}
    assert swap.old.predicted == [request(77)]


def test_finite_gate_passes_nan_of_the_predecessor(swap: Swap):
    swap.old.respond = swap.candidate.respond = answers(factor=float("nan"))
    swap.warm_up(1, 2)
    assert swap.verdict("finite").is_passed


def test_finite_gate_passes_nan_if_predecessor_refuses(swap: Swap):
    swap.old.respond, swap.candidate.respond = refuses(3, "bad"), answers(factor=float("nan"))
    swap.warm_up(1, 2)
    assert swap.verdict("finite").is_passed


def test_finite_gate_without_predecessor_warns(swap: Swap):
    swap.serves = None
    swap.candidate.respond = answers(factor=float("nan"))
    swap.warm_up(1, 2)
    verdicts = swap.verdicts(**NEVER_MEANT)
    assert list(verdicts) == ["finite"]
    assert (verdicts["finite"].is_passed, verdicts["finite"].mode) == (False, "warn")
    assert not verdicts["finite"].has_predecessor
    assert verdicts["finite"].reason == (
        "output 'y' is NaN in 2 of 2 values, and it has no predecessor"
    )


def test_finite_gate_asks_slow_predecessor_few_times(swap: Swap):
    swap.candidate.respond = answers(factor=float("nan"))
    swap.warm_up(*range(50))
    swap.takes(swap.old, REPLAY_BUDGET_SECONDS)
    assert not swap.verdict("finite").is_passed
    assert len(swap.old.predicted) == REPLAY_ASKED_COUNT_MIN


def test_constant_gate_refuses_constant_answers(swap: Swap):
    swap.candidate.respond = lambda sent: response(7)
    swap.warm_up(*range(CONSTANT_INPUT_COUNT_MIN))
    verdict = swap.verdict("constant")
    assert not verdict.is_passed
    assert "output 'y' of signature 'serving_default' is the same for 10" in verdict.reason


def test_constant_gate_of_few_inputs_is_skipped(swap: Swap):
    swap.candidate.respond = lambda sent: response(7)
    swap.warm_up(*range(CONSTANT_INPUT_COUNT_MIN - 1), 0, 1, 2)
    verdict = swap.verdict("constant")
    assert verdict.is_passed
    assert verdict.reason == "skipped: 9 distinct inputs were replayed, and 10 are needed"


def regressed(*values: float) -> bytes:
    message = regression_pb2.RegressionResponse()
    for value in values:
        message.result.regressions.add(value=value)
    serialized: bytes = message.SerializeToString()
    return serialized


def test_constant_gate_refuses_constant_regressions(swap: Swap):
    swap.old.respond = lambda sent: regressed(*range(CONSTANT_INPUT_COUNT_MIN))
    sent = regression_pb2.RegressionRequest()
    for number in range(CONSTANT_INPUT_COUNT_MIN):
        features = sent.input.example_list.examples.add().features
        features.feature["x"].float_list.value.append(number)
    constant = regressed(*[1.0] * CONSTANT_INPUT_COUNT_MIN)
    swap.watch.saw("Regress", sent.SerializeToString(), constant)
    verdict = swap.verdict("constant")
    assert not verdict.is_passed
    assert "output 'values' of signature 'serving_default' is the same for 10" in verdict.reason


def test_constant_gate_that_reads_no_input_is_skipped(swap: Swap):
    """It must not pass as if it had compared: it has seen answers, but to no input that it can read."""
    swap.watch.saw("Predict", b"not a request", response(7))
    verdict = swap.verdict("constant")
    assert verdict.reason == "skipped: 0 distinct inputs were replayed, and 10 are needed"


def test_constant_gate_asks_slow_predecessor_enough(swap: Swap):
    swap.candidate.respond = lambda sent: response(7)
    swap.warm_up(*range(50))
    swap.takes(swap.old, 2.0)
    assert not swap.verdict("constant").is_passed
    assert len(swap.old.predicted) == CONSTANT_INPUT_COUNT_MIN


def test_outputs_gate_refuses_a_missing_output(swap: Swap):
    swap.candidate.respond = lambda sent: b""
    swap.warm_up(1, 2)
    verdict = swap.verdict("outputs")
    assert (verdict.is_passed, verdict.reason) == (False, "output 'y' is missing")


def test_answers_of_no_request_pass_with_note(swap: Swap):
    reasons = {verdict.reason for verdict in swap.verdicts(**NEVER_MEANT).values()}
    assert reasons == {"skipped: no request was replayed"}


@pytest.mark.parametrize("writer", ["old", "candidate"])
def test_suspects_are_not_repeated_if_they_may_write(swap: Swap, writer: str):
    swap.candidate.respond = answers(factor=float("nan"))
    swap.warm_up(1)
    getattr(swap, writer).may_write_variables = True
    assert swap.verdict("finite").reason == "skipped: a request may change a variable"
    assert swap.old.predicted == []


def test_answers_are_compared_with_new_predecessor(swap: Swap):
    other = FakeServable(ServableId("m", 0))
    other.respond = answers(factor=float("nan"))

    def change(serialized: bytes) -> bytes:
        swap.serves = other
        raise StatusError(9, "it is unloaded")

    swap.candidate.respond, swap.old.respond = answers(factor=float("nan")), change
    swap.warm_up(1)
    assert swap.verdict("finite").is_passed
    assert len(other.predicted) == 1


# --- Golden ---------------------------------------------------------------------------------------


def test_unmet_golden_answer_is_reported(swap: Swap):
    swap.write_records(
        swap.record(1, golden=response(1)), swap.record(2), swap.record(3, golden=response(4))
    )
    verdict = swap.verdict("golden")
    assert not verdict.is_passed
    assert verdict.reason == "1 of 2 golden answers differ: output 'y' value 0 is 3, was 4"
    assert verdict.figures == {"golden_count": 2, "failed_count": 1}
    assert swap.old.predicted == []


def golden_classes(score: float, label: str = "cat") -> Log:
    log = Log()
    classes = log.classify_log.response.result.classifications.add().classes
    classes.add(label=label, score=score)
    classes.add(label="dog", score=0.5)
    return log


def golden_values(*values: float) -> Log:
    log = Log()
    for value in values:
        log.regress_log.response.result.regressions.add(value=value)
    return log


def golden_tasks(value: float) -> Log:
    log = Log()
    log.multi_inference_log.response.results.add().classification_result.CopyFrom(
        golden_classes(0.25).classify_log.response.result
    )
    log.multi_inference_log.response.results.add().regression_result.regressions.add(value=value)
    return log


def answer_as(swap: Swap, log: Log) -> None:
    """The new version answers the content of `log`, which has to be run by its own method."""
    kind = log.WhichOneof("log_type")
    methods = {"classify_log": "Classify", "regress_log": "Regress"}

    def answer(method: str, serialized: bytes) -> bytes:
        assert method == methods.get(kind, "MultiInference")
        response: bytes = getattr(log, kind).response.SerializeToString()
        return response

    swap.candidate.answer = answer  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize(
    ("golden", "answered", "reason"),
    [
        (golden_classes(0.25), golden_classes(0.2500001), None),
        (golden_classes(0.25), golden_classes(0.75), "output 'scores' value 0 is 0.75, was 0.25"),
        (golden_classes(0.25), golden_classes(0.25, "cow"), "output 'labels' value 0 is b'cow'"),
        (golden_values(1, 2), golden_values(1, 2), None),
        (golden_values(1, 2), golden_values(1, 3), "output 'values' value 1 is 3, was 2"),
        (golden_values(1, 2), golden_values(1), "output 'values' has shape [1], had [2]"),
        (golden_tasks(1), golden_tasks(1), None),
        (golden_tasks(1), golden_tasks(4), "output 'task 1 values' value 0 is 4, was 1"),
    ],
)
def test_golden_answers_cover_methods_beside_predict(
    swap: Swap, golden: Log, answered: Log, reason: str | None
):
    swap.write_records(golden)
    answer_as(swap, answered)
    verdict = swap.verdict("golden")
    assert verdict.is_passed == (reason is None)
    assert verdict.figures == {"golden_count": 1, "failed_count": 0 if reason is None else 1}
    assert (reason or "") in verdict.reason


def test_golden_answer_within_the_tolerance_is_met(swap: Swap):
    swap.write_records(swap.record(1, golden=response(1.0005)))
    assert swap.verdict("golden").is_passed
    assert not swap.verdict("golden", golden_relative_tolerance=1e-4).is_passed


def test_golden_request_that_is_refused_is_not_passed(swap: Swap):
    swap.write_records(swap.record(1, golden=response(1)))
    swap.candidate.respond = refuses(3, "no input 'x'")
    verdict = swap.verdict("golden")
    assert not verdict.is_passed
    assert "refused: no input 'x'" in verdict.reason


def test_golden_without_answers_passes_with_note(swap: Swap):
    swap.write_records(swap.record(1))
    verdict = swap.verdict("golden")
    assert (verdict.is_passed, verdict.reason) == (
        True,
        "skipped: no warm-up record has a response",
    )


def test_golden_file_that_is_damaged_is_not_passed(swap: Swap):
    swap.write_records(swap.record(1, golden=response(1)))
    (swap.directory / WARM_UP_FILE).write_bytes(b"no records")
    verdict = swap.verdict("golden")
    assert not verdict.is_passed
    assert "could not be run" in verdict.reason


# --- Drift ----------------------------------------------------------------------------------------


def test_drift_compares_answers_to_live_requests(swap: Swap):
    swap.keep(1, 2, 3)
    swap.candidate.respond = answers(factor=float("nan"))
    verdict = swap.verdict("drift")
    assert not verdict.is_passed
    assert verdict.reason == "3 of 3 answers: output 'y' is NaN in 1 of 1 values"


def test_drift_of_all_values_is_a_retrained_model(swap: Swap):
    swap.keep(1, 2, 3, 0)
    swap.candidate.respond = answers(factor=2)
    verdict = swap.verdict("drift")
    assert verdict.is_passed
    assert verdict.figures == {"answer_count": 4, "value_count": 4, "changed_ratio": 0.75}
    assert not swap.verdict("drift", drift_share_max=0.5).is_passed


def test_drift_prefers_records_if_present(swap: Swap):
    swap.keep(1)
    swap.write_records(swap.record(5), swap.record(6))
    assert swap.verdict("drift").figures["answer_count"] == 2
    assert {number_of(sent) for sent in swap.old.predicted} == {5, 6}


def test_drift_is_skipped_if_golden_answers_exist(swap: Swap):
    swap.write_records(swap.record(1, golden=response(2)), swap.record(2))
    swap.candidate.respond = answers(factor=2)
    assert swap.verdict("drift", golden=WARN).figures["answer_count"] == 1
    assert swap.verdict("drift").figures["answer_count"] == 2


def test_drift_uses_live_requests_if_file_is_damaged(swap: Swap):
    swap.keep(1)
    swap.write_records(swap.record(5))
    (swap.directory / WARM_UP_FILE).write_bytes(b"no records")
    assert swap.verdict("drift").is_passed
    assert {number_of(sent) for sent in swap.candidate.predicted} == {1}


def test_drift_reports_newly_refused_request(swap: Swap):
    swap.keep(1)
    swap.candidate.respond = refuses(3, "no input 'x'")
    verdict = swap.verdict("drift")
    assert (verdict.is_passed, verdict.reason) == (False, "1 of 1 answers: refused: no input 'x'")


def test_drift_skips_requests_predecessor_refuses(swap: Swap):
    swap.keep(1)
    swap.old.respond = swap.candidate.respond = refuses(9, "no such signature")
    verdict = swap.verdict("drift")
    assert verdict.is_passed
    assert verdict.reason.startswith("skipped")


def test_drift_looks_at_a_bounded_number_of_requests(swap: Swap):
    swap.keep(*range(REQUEST_COUNT_MAX + 5))
    assert swap.verdict("drift").figures["answer_count"] == REQUEST_COUNT_MAX


def test_drift_of_unreadable_answer_fails_cleanly(swap: Swap):
    swap.keep(1)
    swap.candidate.respond = lambda serialized: b"\xff"
    verdict = swap.verdict("drift")
    assert not verdict.is_passed
    assert "could not be run" in verdict.reason


# --- Latency --------------------------------------------------------------------------------------


def test_latency_of_a_slow_version_is_not_passed(swap: Swap):
    swap.keep(1, 2)
    swap.takes(swap.old, 0.001)
    swap.takes(swap.candidate, 0.005)
    verdict = swap.verdict("latency")
    assert not verdict.is_passed
    assert verdict.figures["p99_ratio"] == pytest.approx(5)
    assert verdict.figures["request_count"] == 2
    assert swap.verdict("latency", latency_ratio_max=6).is_passed


def test_latency_is_measured_again_after_interruption(swap: Swap):
    swap.keep(1)
    swap.takes(swap.old, 0.001)
    swap.takes(swap.candidate, *[0.02] * 6, 0.001)
    verdict = swap.verdict("latency")
    assert verdict.is_passed
    assert verdict.figures["p99_ratio"] == pytest.approx(1)


def test_latency_is_measured_in_turn(swap: Swap):
    swap.keep(1)
    order: list[str] = []

    def recorded(name: str, serialized: bytes) -> bytes:
        order.append(name)
        return answers()(serialized)

    swap.old.respond, swap.candidate.respond = partial(recorded, "old"), partial(recorded, "new")
    assert swap.verdict("latency").is_passed
    assert order == ["old", "new", "new", "old", "old", "new"]


def test_latency_of_slow_models_keeps_to_its_budget(swap: Swap):
    swap.keep(*range(50))
    for servable in (swap.old, swap.candidate):
        swap.takes(servable, 0.075)
    started_ns = swap.clock.now_ns()
    verdict = swap.verdict("latency", drift=ENFORCE)
    seconds = (swap.clock.now_ns() - started_ns) / 1e9
    assert verdict.figures["request_count"] == 4
    assert seconds < TIME_BUDGET_SECONDS + 0.15


def test_latency_and_drift_share_their_requests(swap: Swap):
    swap.keep(1)
    swap.verdicts(latency=WARN, drift=WARN)
    assert len(swap.old.predicted) == len(swap.candidate.predicted) == 3


def test_latency_without_requests_passes_with_note(swap: Swap):
    assert swap.verdict("latency").reason == "skipped: both versions answer no request"


# --- Shadow ---------------------------------------------------------------------------------------


def arrive(swap: Swap, *batches: list[float]) -> None:
    """Fills the reservoir with the next of `batches` at each poll after the first."""
    left = [list[float](), *batches]

    class Arrivals(FakeReservoir):
        def requests(self) -> list[bytes]:
            numbers = left.pop(0) if len(left) > 1 else left[0]
            return [request(number) for number in numbers]

    swap.reservoir = Arrivals()


def test_shadow_repeats_each_new_request_once_it_comes(swap: Swap):
    arrive(swap, [1], [1, 2], [2, 3])
    verdict = swap.verdict("shadow")
    assert verdict.is_passed
    assert verdict.figures["answer_count"] == 3
    assert {number_of(sent) for sent in swap.candidate.predicted} == {1, 2, 3}


def test_shadow_leaves_out_requests_of_before(swap: Swap):
    swap.keep(1, 2)
    verdict = swap.verdict("shadow", shadow_seconds=3.0)
    assert verdict.reason == "skipped: no new request arrived within 3 s"
    assert sum(swap.clock.waits) == pytest.approx(3)


def test_shadow_ends_when_it_has_seen_enough(swap: Swap):
    arrive(swap, [1, 2, 3, 4])
    assert swap.verdict("shadow", shadow_request_count=3).figures["answer_count"] == 3
    assert sum(swap.clock.waits) < 1


def test_shadow_reports_drift_and_latency(swap: Swap):
    arrive(swap, [1, 2])
    swap.takes(swap.old, 0.001)
    swap.takes(swap.candidate, 0.010, factor=float("nan"))
    verdict = swap.verdict("shadow")
    assert not verdict.is_passed
    assert "NaN" in verdict.reason
    assert "10 times the predecessor's 1 ms" in verdict.reason


def test_shadow_is_cancelled_between_two_polls(swap: Swap):
    arrive(swap, [])
    waited = swap.clock.wait

    def cancel(condition: Any, timeout_seconds: float | None) -> bool:
        swap.cancellation.cancel()
        return waited(condition, timeout_seconds)

    swap.clock.wait = cancel  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        swap.verdict("shadow")
    assert len(swap.clock.waits) == 1


def test_shadow_ends_at_once_when_the_predecessor_goes(swap: Swap):
    arrive(swap, [])
    waited = swap.clock.wait

    def go(condition: Any, timeout_seconds: float | None) -> bool:
        swap.serves = None
        return waited(condition, timeout_seconds)

    swap.clock.wait = go  # type: ignore[method-assign]
    verdict = swap.verdict("shadow")
    assert (verdict.is_passed, verdict.reason) == (
        True,
        "skipped: the predecessor was unloaded meanwhile",
    )
    assert len(swap.clock.waits) == 1


def test_shadow_without_reservoir_passes_with_note(swap: Swap):
    swap.reservoir = None
    assert "--self_warmup_requests=0" in swap.verdict("shadow").reason


# --- Cancellation, and a predecessor that leaves --------------------------------------------------


@pytest.mark.parametrize("gate", ["golden", "latency", "drift"])
def test_gates_are_cancelled_before_the_next_request(swap: Swap, gate: str):
    swap.write_records(*[swap.record(number, golden=response(1)) for number in (1, 2)])
    sent = []

    def cancel(serialized: bytes) -> bytes:
        sent.append(serialized)
        swap.cancellation.cancel()
        return response(1)

    swap.old.respond = swap.candidate.respond = cancel
    with pytest.raises(Cancelled):
        swap.verdict(gate)
    assert len(sent) == 1


def test_gates_are_passed_once_the_predecessor_goes(swap: Swap):
    swap.keep(1, 2)

    def go(serialized: bytes) -> bytes:
        swap.serves = None
        return response(1)

    swap.candidate.respond = go
    verdicts = swap.verdicts(latency=ENFORCE, drift=ENFORCE, shadow=ENFORCE)
    reasons = {verdict.reason for verdict in verdicts.values()}
    assert reasons == {"skipped: the predecessor was unloaded meanwhile"}
    assert all(verdict.is_passed for verdict in verdicts.values())


def test_gates_begin_anew_with_another_predecessor(swap: Swap):
    swap.keep(1, 2)
    other = FakeServable(ServableId("m", 3))
    other.respond = answers(2)

    def exchange(serialized: bytes) -> bytes:
        swap.serves = other
        return answers()(serialized)

    swap.candidate.respond = exchange
    verdicts = swap.verdicts(latency=ENFORCE, drift=ENFORCE, drift_share_max=0.5)
    assert verdicts["latency"].is_passed
    assert verdicts["latency"].figures["request_count"] == 2
    assert not verdicts["drift"].is_passed
    assert "100.0% of the values changed" in verdicts["drift"].reason
    assert {request(1), request(2)} <= set(other.predicted)


def test_gate_fails_if_predecessor_keeps_changing(swap: Swap):
    swap.keep(1, 2)

    def exchange(serialized: bytes) -> bytes:
        swap.serves = FakeServable(ServableId("m", 3))
        swap.serves.respond = answers()
        return answers()(serialized)

    swap.candidate.respond = exchange
    verdict = swap.verdict("drift")
    assert not verdict.is_passed
    assert "replaced 4 times" in verdict.reason
    assert len(swap.candidate.predicted) == RESTART_COUNT_MAX + 1


def test_gate_retries_if_exchanged_predecessor_refuses(swap: Swap):
    swap.keep(1)
    other = FakeServable(ServableId("m", 3))
    other.respond = answers(2)

    def unloaded(serialized: bytes) -> bytes:
        swap.serves = other
        raise StatusError(9, "m version 1 is destroyed")

    swap.old.respond = unloaded
    verdict = swap.verdict("drift", drift_share_max=0.5)
    assert not verdict.is_passed
    assert "of the values changed" in verdict.reason


def test_signature_gate_passes_destroyed_predecessor(swap: Swap):
    def destroyed() -> bytes:
        raise StatusError(9, "m version 1 is destroyed")

    swap.old.signature_def_map = destroyed  # type: ignore[method-assign]
    verdict = swap.verdict("signature")
    assert (verdict.is_passed, verdict.reason) == (
        True,
        "skipped: the predecessor was unloaded meanwhile",
    )


# --- The warm-up's watch --------------------------------------------------------------------------


def watch(respond: Respond, clock: FakeClock, *, is_tolerant: bool) -> WarmUpWatch:
    def ask(method: str, serialized: bytes) -> bytes:
        assert method == "Predict"
        with statuses_as_errors(StatusError):
            return respond(serialized)

    return WarmUpWatch(ask, answers=AnswerWatch(), is_tolerant=is_tolerant, clock=clock)


def replay(numbers: list[float], iterations: int, ask: Ask) -> None:
    for number in numbers:
        for _ in range(iterations):
            ask("Predict", request(number))


def slow_at_first(clock: FakeClock, *seconds: float) -> Respond:
    """Takes each of `seconds` for one run after the other, and then always the last one."""
    left = list(seconds)

    def respond(serialized: bytes) -> bytes:
        clock.advance(left.pop(0) if len(left) > 1 else left[0])
        return response(1)

    return respond


def converged(
    respond: Respond, clock: FakeClock, numbers: list[float], iterations: int = 1, **how: Any
) -> GateVerdict | None:
    watched = watch(respond, clock, is_tolerant=True)
    watched.run(partial(replay, numbers, iterations))
    return watched.converge(GateSettings(**how), Cancellation())


def test_watch_counts_the_records_and_their_faults():
    watched = watch(answers(), FakeClock(), is_tolerant=False)
    watched.run(partial(replay, [1, 2], 4))
    verdict = watched.verdict(ENFORCE)
    assert (verdict.gate, verdict.mode, verdict.is_passed) == ("warm_up", "enforce", True)
    assert verdict.figures == {"record_count": 2, "fault_count": 0}


def test_watch_repeats_records_until_converged():
    clock = FakeClock()
    # Once each, then passes over both: 0.2, 0.1 | 0.01, 0.01 | 0.01, 0.01.
    respond = slow_at_first(clock, 0.4, 0.4, 0.2, 0.1, 0.01)
    verdict = converged(respond, clock, [1, 2])
    assert verdict is not None
    assert (verdict.gate, verdict.mode, verdict.is_passed) == ("convergence", "warn", True)
    assert verdict.reason == ""
    # After two passes the last one took a tenth of the one before; after three it took as long.
    assert verdict.figures == {
        "pass_count": 3,
        "seconds": pytest.approx(0.34),
        "convergence_ratio": pytest.approx(1),
    }


def test_watch_runs_nothing_after_a_converged_replay():
    clock = FakeClock()
    verdict = converged(slow_at_first(clock, 0.4, 0.1), clock, [1], iterations=3)
    assert verdict is not None
    assert (verdict.figures["pass_count"], verdict.figures["convergence_ratio"]) == (0, 1)


def test_watch_gives_up_on_ever_faster_version():
    clock = FakeClock()
    respond = slow_at_first(clock, *(60 * 0.7**run for run in range(100)))
    verdict = converged(respond, clock, [1], convergence_seconds=3600.0, convergence=ENFORCE)
    assert verdict is not None
    assert (verdict.mode, verdict.is_passed) == ("enforce", False)
    assert "after 33 runs of its records the version still gets faster" in verdict.reason
    assert verdict.figures["pass_count"] == CONVERGENCE_PASS_COUNT_MAX


def test_watch_does_not_judge_a_very_slow_version():
    clock = FakeClock()
    verdict = converged(slow_at_first(clock, 8, 4, 0.5, 0.4, 0.1), clock, [1, 2])
    assert verdict is not None
    assert verdict.is_passed
    assert verdict.reason.startswith("skipped: 7 runs")


def test_watch_stops_within_pass_at_time_limit():
    clock = FakeClock()
    numbers = [float(number) for number in range(100)]
    verdict = converged(slow_at_first(clock, 0.3), clock, numbers)
    assert verdict is not None
    assert verdict.figures["seconds"] == pytest.approx(1.2)


def test_watch_without_records_skips_convergence():
    clock = FakeClock()
    assert converged(answers(), clock, []) is None
    assert converged(refuses(3, "bad input"), clock, [1, 2]) is None


def test_watch_skips_record_that_fails_on_repeat():
    clock, numbers = FakeClock(), list[float]()

    def respond(serialized: bytes) -> bytes:
        numbers.append(number_of(serialized))
        clock.advance(0.01)
        if numbers.count(2) > 1:
            raise StatusError(3, "not twice")
        return response(1)

    verdict = converged(respond, clock, [2])
    assert verdict is not None
    assert (verdict.is_passed, numbers) == (True, [2, 2])


def test_watch_that_is_cancelled_runs_no_record_again():
    watched = watch(answers(), FakeClock(), is_tolerant=False)
    watched.run(partial(replay, [1], 1))
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(Cancelled):
        watched.converge(GateSettings(), cancellation)


def test_tolerant_watch_continues_and_names_record():
    numbers = []

    def respond(serialized: bytes) -> bytes:
        numbers.append(number_of(serialized))
        if numbers[-1] == 2:
            raise StatusError(3, "bad input")
        return response(1)

    watched = watch(respond, FakeClock(), is_tolerant=True)
    watched.run(partial(replay, [1, 2, 3], 1))
    verdict = watched.verdict(WARN)
    assert numbers == [1, 2, 3]
    assert (verdict.is_passed, verdict.reason) == (False, "record 2: bad input")


def test_strict_watch_raises_and_keeps_reason():
    watched = watch(refuses(3, "bad input"), FakeClock(), is_tolerant=False)
    with pytest.raises(InvalidArgument, match="bad input"):
        watched.run(partial(replay, [1, 2], 1))
    verdict = watched.verdict(ENFORCE)
    assert (verdict.is_passed, verdict.reason) == (False, "bad input")


@pytest.mark.parametrize("error", [DataLoss("damaged"), PermissionError("denied")])
def test_watch_that_is_tolerant_lets_a_bad_file_pass(error: Exception):
    def warm_up(ask: Ask) -> None:
        raise error

    watched = watch(answers(), FakeClock(), is_tolerant=True)
    watched.run(warm_up)
    assert watched.verdict(WARN).reason == str(error)


def test_tolerant_watch_passes_on_cancellation():
    def warm_up(ask: Ask) -> None:
        raise Cancelled("not wanted")

    with pytest.raises(Cancelled):
        watch(answers(), FakeClock(), is_tolerant=True).run(warm_up)
