"""Answers that are never meant: the rules on random answers of every dtype that can hold them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.protos import (
    classification_pb2,
    example_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)
from serving.base.tensor_proto import to_tensor_proto
from serving.gates.answer_checks import (
    CONSTANT_INPUT_COUNT_MIN,
    INPUT_COUNT_MAX,
    Compared,
    constant_faults,
    constant_suspects,
    distinct_input_count,
    missing_output_faults,
    non_finite_faults,
)
from serving.gates.answer_watch import (
    ANSWER_BYTES_MAX,
    ANSWER_COUNT_MAX,
    SUSPECT_COUNT_MAX,
    Answer,
    AnswerWatch,
)
from serving.gates.tensor_compare import has_non_finite, outputs_of

NAN, INF = math.nan, math.inf

FLOATS: list[Any] = [
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e5m2,
    np.float32,
    np.float64,
    np.complex64,
    np.complex128,
]

Arrays = Mapping[str, Any]


def protos(arrays: Arrays) -> dict[str, Any]:
    return {name: to_tensor_proto(array) for name, array in arrays.items()}


def request_of(signature: str = "", **inputs: Any) -> bytes:
    message = predict_pb2.PredictRequest()
    message.model_spec.signature_name = signature
    for name, array in inputs.items():
        message.inputs[name].CopyFrom(to_tensor_proto(array))
    serialized: bytes = message.SerializeToString()
    return serialized


def pair(now: Any, before: Any, request: bytes = b"") -> Compared:
    answer = Answer(method="Predict", request=request, outputs=protos({"y": now}))
    return Compared(answer=answer, before=None if before is None else protos({"y": before}))


def as_dtype(values: Sequence[float], dtype: Any) -> Any:
    return np.array(values, np.float64).astype(dtype)


# --- Outputs that are missing ---------------------------------------------------------------------


def test_missing_output_is_named_and_new_one_is_not():
    answer = Answer(method="Predict", request=b"", outputs=protos({"a": 1.0, "new": 1.0}))
    compared = [Compared(answer=answer, before=protos({"a": 1.0, "b": 1.0}))]
    assert missing_output_faults(compared) == ["output 'b' is missing"]


# --- NaN and infinity -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("now", "before", "fault"),
    [
        ([NAN, NAN], [1, 2], "NaN in 2 of 2 values"),
        ([1, NAN, 3], [1, 2, 3], "NaN in 1 of 3 values"),
        # Elsewhere than with the predecessor.
        ([NAN, 1], [1, NAN], "NaN in 1 of 2 values"),
        ([1, INF], [1, 2], "inf in 1 of 2 values"),
        ([NAN, 1], [NAN, 2], None),
        ([NAN, NAN], [NAN, 2], "NaN in 1 of 2 values"),
        ([1, 2], [NAN, INF], None),
        # Another shape: there is no same place, so that any NaN of the predecessor excuses it.
        ([NAN, 1], [1, 2, 3], "NaN in 1 of 2 values"),
        ([NAN, 1], [1, NAN, 3], None),
    ],
)
def test_non_finite_value_is_found_in_each_dtype(
    dtype: Any, now: list[float], before: list[float], fault: str | None
):
    faults = non_finite_faults([pair(as_dtype(now, dtype), as_dtype(before, dtype))])
    assert faults == ([f"output 'y' is {fault}"] if fault else [])


def test_infinity_of_the_other_sign_is_new():
    faults = non_finite_faults([pair(np.array([-INF]), np.array([INF]))])
    assert faults == ["output 'y' is -inf in 1 of 1 values"]


@pytest.mark.parametrize(("count", "is_fault"), [(1, False), (4, False), (5, True)])
def test_infinity_that_is_a_mask_may_move(count: int, is_fault: bool):
    before = np.array([-INF, -INF, *[0.0] * 6])
    now = np.array([*[0.0] * (8 - count), *[-INF] * count])
    assert bool(non_finite_faults([pair(now, before)])) == is_fault


def test_non_finite_value_without_predecessor_is_new():
    assert non_finite_faults([pair(np.array([NAN, 1]), None)]) == [
        "output 'y' is NaN in 1 of 2 values"
    ]


@given(
    st.lists(st.tuples(st.floats(width=32), st.booleans()), min_size=1, max_size=20),
    st.sampled_from(FLOATS),
)
def test_any_new_nan_is_a_fault(values: list[tuple[float, bool]], dtype: Any):
    with np.errstate(all="ignore"):
        before = as_dtype([value for value, _ in values], dtype)
        now = as_dtype([NAN if is_bad else value for value, is_bad in values], dtype)
    new_count = np.count_nonzero(np.isnan(now) & ~np.isnan(before))
    assert bool(non_finite_faults([pair(now, before)])) == bool(new_count)
    assert non_finite_faults([pair(before, before)]) == []
    assert has_non_finite(protos({"y": now})) == (not np.isfinite(now).all())


# --- Constant outputs -----------------------------------------------------------------------------

Model = Callable[[Any], Any]


def asked(model: Model, before: Model, xs: Sequence[Any]) -> list[Compared]:
    """Returns the answers of both models to one request for each of `xs`."""
    return [pair(model(x), before(x), request_of(x=x)) for x in xs]


def singles(count: int) -> list[Any]:
    return [np.array([[number, number + 1]], np.float32) for number in range(count)]


def linear(x: Any) -> Any:
    return x * 2


def constant(x: Any) -> Any:
    return np.full_like(x, 0.25)


@pytest.mark.parametrize(
    ("count", "is_fault"), [(CONSTANT_INPUT_COUNT_MIN - 1, False), (CONSTANT_INPUT_COUNT_MIN, True)]
)
def test_constant_needs_enough_distinct_inputs(count: int, is_fault: bool):
    xs = singles(count)
    assert bool(constant_faults(asked(constant, linear, xs))) == is_fault
    # The rows of one request are inputs, too.
    assert bool(constant_faults(asked(constant, linear, [np.concatenate(xs)]))) == is_fault
    # The same inputs again are no further ones.
    assert bool(constant_faults(asked(constant, linear, xs * 3))) == is_fault


def test_constant_names_output_signature_and_inputs():
    (fault,) = constant_faults(asked(constant, linear, singles(12)))
    assert fault == (
        "output 'y' of signature 'serving_default' is the same for 12 distinct inputs, and the "
        "predecessor's varies"
    )


def test_constant_predecessor_excuses_constant_output():
    assert constant_faults(asked(constant, constant, singles(20))) == []
    assert constant_suspects([pair.answer for pair in asked(constant, linear, singles(20))])


@pytest.mark.parametrize(("rare_count", "is_fault"), [(8, False), (10, True)])
def test_constant_class_is_a_fault_unless_it_was_usual(rare_count: int, is_fault: bool):
    def classify(x: Any) -> Any:
        return np.array([b"rare" if x[0, 0] < rare_count else b"common"], object)

    def always(x: Any) -> Any:
        return np.array([b"common"], object)

    assert bool(constant_faults(asked(always, classify, singles(20)))) == is_fault


@pytest.mark.parametrize("dtype", [item for item in FLOATS if item is not ml_dtypes.float8_e5m2])
def test_constant_up_to_rounding_is_constant(dtype: Any):
    def nearly(x: Any) -> Any:
        precision = float(ml_dtypes.finfo(np.zeros(1, dtype).real.dtype).eps)
        return np.array([0.5 * (1 + precision * (x[0, 0] % 2))]).astype(dtype)

    def varied(x: Any) -> Any:
        return np.array([2.0 ** (x[0, 0] % 8)]).astype(dtype)

    assert constant_faults(asked(nearly, varied, singles(20)))
    # Nor does rounding alone make a predecessor's output vary.
    assert constant_faults(asked(nearly, nearly, singles(20))) == []


def test_output_of_changing_shape_is_not_constant():
    def ragged(x: Any) -> Any:
        return np.zeros((1, int(x[0, 0]) + 1), np.float32)

    assert constant_faults(asked(ragged, linear, singles(20))) == []


def test_nan_everywhere_is_left_to_its_own_rule():
    assert constant_faults(asked(lambda x: x * NAN, linear, singles(20))) == []


def test_scalar_outputs_belong_to_whole_requests():
    xs = singles(20)
    assert constant_faults(asked(lambda x: np.float32(1), lambda x: x.sum(), xs))
    assert (
        constant_faults(asked(lambda x: np.float32(1), lambda x: x.sum(), [np.concatenate(xs)]))
        == []
    )


def test_empty_and_unreadable_answers_are_passed_over():
    empty = asked(lambda x: x[:, :0], lambda x: x[:, :0], singles(20))
    assert constant_faults(empty) == []
    unreadable = [pair(np.zeros(1), np.ones(1), b"\xff") for _ in range(20)]
    other = Answer(method="Classify", request=b"", outputs=protos({"scores": np.zeros(1)}))
    assert constant_faults([*unreadable, Compared(answer=other, before=other.outputs)]) == []


def test_distinct_inputs_of_a_huge_request_are_bounded():
    answers = [pair(np.arange(10_000), None, request_of(x=np.arange(10_000))).answer]
    assert distinct_input_count(answers) == INPUT_COUNT_MAX
    assert distinct_input_count([]) == 0


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=40),
    st.integers(1, 8),
    st.sampled_from([np.float32, np.int64, np.float16]),
)
def test_constant_fault_follows_the_stated_rule(inputs: list[int], rows: int, dtype: Any):
    chunks = [inputs[start : start + rows] for start in range(0, len(inputs), rows)]
    xs = [np.array(chunk, dtype)[:, None] for chunk in chunks]
    distinct = set(inputs)
    is_fault = len(distinct) >= CONSTANT_INPUT_COUNT_MIN
    assert bool(constant_faults(asked(lambda x: np.full_like(x, 3), linear, xs))) == is_fault
    # A version that gives another value for another input is never constant.
    if len(distinct) > 1:
        assert constant_faults(asked(linear, linear, xs)) == []


# --- The watch ------------------------------------------------------------------------------------


def response_of(**outputs: Any) -> bytes:
    message = predict_pb2.PredictResponse()
    for name, array in outputs.items():
        message.outputs[name].CopyFrom(to_tensor_proto(array))
    serialized: bytes = message.SerializeToString()
    return serialized


def test_watch_keeps_first_answer_to_each_request():
    watch = AnswerWatch()
    for y in (1.0, 2.0):
        watch.saw("Predict", b"one", response_of(y=y))
    (answer,) = watch.answers
    assert answer.outputs == protos({"y": 1.0})


def test_watch_keeps_a_bounded_number_of_answers():
    watch = AnswerWatch()
    for number in range(ANSWER_COUNT_MAX + 50):
        watch.saw("Predict", b"%d" % number, response_of(y=1.0))
    assert len(watch.answers) == ANSWER_COUNT_MAX


def test_watch_keeps_one_wrong_answer_of_any_size():
    watch = AnswerWatch()
    watch.saw("Predict", b"large", response_of(y=np.zeros(ANSWER_BYTES_MAX, np.uint8)))
    assert watch.answers == []
    large = np.full(ANSWER_BYTES_MAX, NAN, np.float16)
    for request in (b"large and wrong", b"another one"):
        watch.saw("Predict", request, response_of(y=large))
    assert [answer.request for answer in watch.answers] == [b"large and wrong"]


def test_watch_keeps_late_nan_and_not_too_many():
    watch = AnswerWatch()
    for number in range(ANSWER_COUNT_MAX):
        watch.saw("Predict", b"%d" % number, response_of(y=1.0))
    for number in range(SUSPECT_COUNT_MAX + 5):
        watch.saw("Predict", b"late %d" % number, response_of(y=NAN))
    assert len(watch.answers) == ANSWER_COUNT_MAX + SUSPECT_COUNT_MAX


def test_watch_reads_answers_of_other_methods():
    watch = AnswerWatch()
    response = classification_pb2.ClassificationResponse()
    response.result.classifications.add().classes.add(label="a", score=NAN)
    watch.saw("Classify", b"", response.SerializeToString())
    (answer,) = watch.answers
    assert has_non_finite(answer.outputs)


def test_watch_passes_over_answers_it_cannot_read():
    watch = AnswerWatch()
    watch.saw("Predict", b"", b"\xff")
    assert watch.answers == []


# --- Constant answers to Examples -----------------------------------------------------------------

Respond = Callable[[int], float]


def example(number: int) -> Any:
    message = example_pb2.Example()
    for name in ("x", "b", "a"):
        message.features.feature[name].float_list.value.append(number)
    return message


def fill(sent: Any, numbers: Sequence[int], *, context: int | None = None) -> None:
    if context is None:
        sent.example_list.examples.extend(map(example, numbers))
    else:
        sent.example_list_with_context.examples.extend(map(example, numbers))
        sent.example_list_with_context.context.CopyFrom(example(context))


def classified(result: Any, scores: Sequence[float]) -> None:
    """Both labels, always in the same order, with their scores."""
    for score in scores:
        classes = result.classifications.add().classes
        classes.add(label="no", score=1 - score)
        classes.add(label="yes", score=score)


def answered(method: str, numbers: Sequence[int], respond: Respond, **how: Any) -> Answer:
    """Returns the answer of a model to one request of Examples with these numbers."""
    values = [respond(number) for number in numbers]
    request: Any
    response: Any
    if method == "Classify":
        request = classification_pb2.ClassificationRequest()
        response = classification_pb2.ClassificationResponse()
        classified(response.result, values)
    elif method == "Regress":
        request, response = regression_pb2.RegressionRequest(), regression_pb2.RegressionResponse()
        for value in values:
            response.result.regressions.add(value=value)
    else:
        request, response = (
            inference_pb2.MultiInferenceRequest(),
            inference_pb2.MultiInferenceResponse(),
        )
        request.tasks.add().model_spec.signature_name = "c"
        request.tasks.add().model_spec.signature_name = "r"
        classified(response.results.add().classification_result, values)
        regressions = response.results.add().regression_result.regressions
        for number in numbers:
            regressions.add(value=number)
    fill(request.input, numbers, **how)
    return Answer(method=method, request=request.SerializeToString(), outputs=outputs_of(response))


def compared_of(
    method: str, requests: Sequence[Sequence[int]], now: Respond, before: Respond
) -> list[Compared]:
    return [
        Compared(
            answer=answered(method, numbers, now),
            before=answered(method, numbers, before).outputs,
        )
        for numbers in requests
    ]


EXAMPLE_METHODS = ["Classify", "Regress", "MultiInference"]


@pytest.mark.parametrize("method", EXAMPLE_METHODS)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6), min_size=1, max_size=8))
def test_constant_answer_to_examples_is_found(method: str, requests: list[list[int]]):
    compared = compared_of(method, requests, lambda number: 0.25, lambda number: number / 64)
    distinct = {number for numbers in requests for number in numbers}
    answers = [pair.answer for pair in compared]
    is_fault = len(distinct) >= CONSTANT_INPUT_COUNT_MIN
    assert distinct_input_count(answers) == len(distinct)
    assert bool(constant_suspects(answers)) == is_fault
    assert bool(constant_faults(compared)) == is_fault


@pytest.mark.parametrize("method", EXAMPLE_METHODS)
def test_answers_to_examples_that_vary_are_no_suspects(method: str):
    answers = [answered(method, [number, number + 50], lambda it: it / 128) for number in range(20)]
    assert constant_suspects(answers) == []


@pytest.mark.parametrize("method", EXAMPLE_METHODS)
def test_constant_predecessor_excuses_examples(method: str):
    compared = compared_of(method, [range(20)], lambda number: 0.25, lambda number: 0.5)
    assert constant_faults(compared) == []


def test_fault_of_a_task_names_it():
    compared = compared_of("MultiInference", [range(20)], lambda it: 0.5, lambda it: it / 32)
    assert constant_faults(compared) == [
        "output 'task 0 classes' of signature 'c, r' is the same for 20 distinct inputs, "
        "and the predecessor's varies"
    ]


@pytest.mark.parametrize("label", [None, "yes"])
def test_label_alone_is_an_answer(label: str | None):
    """A signature may have no scores, and one class for each Example."""

    def answer(number: int, label: str) -> Answer:
        found = answered("Classify", [number], lambda it: 0)
        response = classification_pb2.ClassificationResponse()
        response.result.classifications.add().classes.add(label=label)
        return Answer(method="Classify", request=found.request, outputs=outputs_of(response))

    compared = [
        Compared(
            answer=answer(number, label or f"{number}"), before=answer(number, f"{number}").outputs
        )
        for number in range(12)
    ]
    assert bool(constant_faults(compared)) == (label is not None)


def test_example_with_another_context_is_another_input():
    answers = [answered("Regress", [1], lambda it: 0, context=it) for it in (1, 2, 2)]
    assert distinct_input_count(answers) == 2


def test_examples_with_unlike_counts_are_compared():
    def answer(number: int, count: int) -> Answer:
        found = answered("Classify", [number, number + 100], lambda it: 0)
        response = classification_pb2.ClassificationResponse()
        for size in (count, 1):
            classes = response.result.classifications.add().classes
            for index in range(size):
                classes.add(label=f"{index}", score=0.5)
        return Answer(method="Classify", request=found.request, outputs=outputs_of(response))

    compared = [
        Compared(answer=answer(number, 1), before=answer(number, number).outputs)
        for number in range(2, 14)
    ]
    # Half of the predecessor's inputs have one class too.
    assert len(constant_faults(compared)) == 1
    before = [replace(pair.answer, outputs=pair.before or {}) for pair in compared]
    assert constant_suspects(before) == []
