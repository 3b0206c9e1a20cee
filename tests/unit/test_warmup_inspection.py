import numpy as np
import pytest

from serving.base.protos import prediction_log_pb2
from serving.base.tensor_proto import to_tensor_proto
from tests.unit.fakes.terminals import Terminal
from tests.unit.signatures import FLOAT
from warmup.inspection import RecordSummary, Totals, describe_tensor, summary_of, totals_of
from warmup.record_table import print_records


def predict_summary() -> RecordSummary:
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.name = "m"
    request.model_spec.signature_name = "s"
    request.inputs["x"].CopyFrom(to_tensor_proto(np.ones((8, 2), np.float32)))
    request.inputs["ids"].CopyFrom(to_tensor_proto(np.array(b"a", object)))
    request.output_filter.extend(["z", "y"])
    log.predict_log.response.SetInParent()
    return summary_of(3, log, 99)


def test_summary_of_a_predict():
    assert predict_summary() == RecordSummary(
        number=3,
        kind="predict_log",
        model="m",
        signature="s",
        inputs=["ids string[]", "x float32[8,2]"],
        output_filter=["y", "z"],
        size_bytes=99,
        has_response=True,
    )


@pytest.mark.parametrize("kind", ["classify_log", "regress_log"])
def test_summary_of_examples_counts_them(kind: str):
    log = prediction_log_pb2.PredictionLog()
    request = getattr(log, kind).request
    request.model_spec.name = "m"
    request.input.example_list_with_context.examples.add()
    summary = summary_of(1, log, 9)
    assert (summary.kind, summary.model, summary.inputs) == (kind, "m", ["examples[1]"])
    assert not summary.has_response


def test_summary_of_multi_inference_names_signatures():
    log = prediction_log_pb2.PredictionLog()
    for name in ("a", "b"):
        spec = log.multi_inference_log.request.tasks.add().model_spec
        spec.name, spec.signature_name = "m", name
    summary = summary_of(1, log, 9)
    assert (summary.model, summary.signature, summary.inputs) == ("m", "a,b", ["examples[0]"])


@pytest.mark.parametrize("kind", ["", "session_run_log", "predict_streamed_log"])
def test_summary_of_unreplayed_record_has_its_kind(kind: str):
    log = prediction_log_pb2.PredictionLog()
    if kind:
        getattr(log, kind).SetInParent()
    summary = summary_of(1, log, 0)
    assert (summary.kind, summary.model, summary.inputs) == (kind, "", [])


def test_totals_add_up():
    empty = summary_of(1, prediction_log_pb2.PredictionLog(), 1)
    assert totals_of([empty, predict_summary(), predict_summary()]) == Totals(
        record_count=3, size_bytes=199, response_count=2, kinds={"": 1, "predict_log": 2}
    )


@pytest.mark.parametrize(
    ("shape", "text"),
    [(None, "float32[...]"), ((), "float32[]"), ((None, 3), "float32[?,3]")],
)
def test_describe_tensor(shape: tuple[int | None, ...] | None, text: str):
    assert describe_tensor(FLOAT, shape) == text


def test_table_on_terminal_brackets_shapes():
    terminal = Terminal()
    print_records([predict_summary()], totals_of([predict_summary()]), terminal)
    assert "─" in terminal.getvalue()
    assert "[8,2]" in terminal.getvalue()
