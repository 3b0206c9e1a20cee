from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.base.protos import prediction_log_pb2, types_pb2
from serving.base.signatures import signature_of
from serving.base.tensor_proto import to_tensor_proto
from tests.unit.signatures import FLOAT, INT64, STRING, signature_def
from warmup.faults import find_faults, log_faults
from warmup.prediction_log import RECORD_COUNT_MAX, Log
from warmup.records import write_records

SIGNATURES = {
    "serving_default": signature_of(
        signature_def(
            {"x": (FLOAT, (-1, 2)), "any": (INT64, None)},
            {"y": (FLOAT, (-1,)), "z": (INT64, ())},
        )
    )
}


def sound_log() -> Log:
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.inputs["x"].CopyFrom(to_tensor_proto(np.ones((3, 2), np.float32)))
    request.inputs["any"].CopyFrom(to_tensor_proto(np.ones((1, 1, 1), np.int64)))
    request.output_filter.append("y")
    log.predict_log.response.outputs["y"].CopyFrom(to_tensor_proto(np.ones(3, np.float32)))
    return log


def changed(**tensors: Any) -> Log:
    """Returns the sound log with other inputs; None removes one."""
    log = sound_log()
    for name, tensor in tensors.items():
        if tensor is None:
            del log.predict_log.request.inputs[name]
        else:
            log.predict_log.request.inputs[name].CopyFrom(tensor)
    return log


def faults(log: Log) -> list[str]:
    return list(log_faults(log, SIGNATURES))


def test_sound_log_has_no_fault():
    assert faults(sound_log()) == []


@pytest.mark.parametrize(
    ("inputs", "fault"),
    [
        ({"x": None}, "input 'x' is missing"),
        (
            {"w": to_tensor_proto(0)},
            "input 'w' is not in signature 'serving_default', which has ['any', 'x']",
        ),
        (
            {"x": to_tensor_proto(np.ones((3, 2), np.float64))},
            "input 'x': expected float32[?,2], got float64[3,2]",
        ),
        (
            {"x": to_tensor_proto(np.ones((3, 4), np.float32))},
            "input 'x': expected float32[?,2], got float32[3,4]",
        ),
        (
            {"x": to_tensor_proto(np.ones(2, np.float32))},
            "input 'x': expected float32[?,2], got float32[2]",
        ),
        (
            {"any": to_tensor_proto(np.array(b"1", object))},
            "input 'any': expected int64[...], got string[]",
        ),
    ],
)
def test_log_with_unfit_input_names_it(inputs: dict[str, Any], fault: str):
    assert faults(changed(**inputs)) == [fault]


def test_log_with_damaged_tensor_names_it():
    tensor = to_tensor_proto(np.ones((1, 2), np.float32))
    tensor.tensor_content = b"abc"
    (fault,) = faults(changed(x=tensor))
    assert fault.startswith("input 'x': tensor_content has 3 bytes")


def test_log_with_a_huge_tensor_is_a_fault():
    tensor = to_tensor_proto(np.ones((1, 2), np.float32))
    tensor.ClearField("tensor_content")
    tensor.float_val.append(1)
    tensor.tensor_shape.dim[0].size = 2**40
    assert faults(changed(x=tensor)) == [f"input 'x': takes {2**43} bytes, above {2**31}"]


def test_log_with_an_unknown_dtype_names_it():
    tensor = to_tensor_proto(np.ones((1, 2), np.float32))
    tensor.dtype = types_pb2.DT_QINT8
    assert faults(changed(x=tensor)) == ["input 'x': expected float32[?,2], got DT_QINT8[1,2]"]


def test_log_of_unknown_signature_lists_known():
    log = sound_log()
    log.predict_log.request.model_spec.signature_name = "s"
    assert faults(log) == ["no signature 's'; the version has ['serving_default']"]


def test_log_with_bad_output_filter_lists_names():
    log = sound_log()
    log.predict_log.request.output_filter.extend(["y", "w"])
    assert faults(log) == [
        "output_filter 'w' is not an output; outputs are ['y', 'z']",
        "output_filter 'y' is named twice",
    ]


def test_log_with_impossible_response_is_fault():
    log = sound_log()
    log.predict_log.response.outputs["z"].CopyFrom(to_tensor_proto(np.ones(1, np.int64)))
    assert faults(log) == ["output 'z': expected int64[], got int64[1]"]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("", "is empty, which no server replays; write a predict_log"),
        ("session_run_log", "is session_run_log, which no server replays; write a predict_log"),
    ],
)
def test_log_of_another_kind_is_a_fault(kind: str, fault: str):
    log = prediction_log_pb2.PredictionLog()
    if kind:
        getattr(log, kind).SetInParent()
    assert faults(log) == [fault]


CLASSIFY, REGRESS = "tensorflow/serving/classify", "tensorflow/serving/regress"

EXAMPLE_SIGNATURES = {
    name: signature_of(
        signature_def({input_name: (STRING, (-1,))}, dict.fromkeys(outputs, (FLOAT, (-1, -1))))
    )
    for name, input_name, outputs in (
        ("serving_default", "inputs", ("scores",)),
        ("regress", "inputs", ("outputs",)),
        ("three", "inputs", ("classes", "scores", "more")),
        ("text", "text", ("scores",)),
    )
}


def example_log(kind: str, *tasks: tuple[str, str], example_count: int = 1) -> Log:
    """Returns a request of one signature, or of tasks of (signature, method_name)."""
    log = prediction_log_pb2.PredictionLog()
    request = getattr(log, kind).request
    if kind == "multi_inference_log":
        for name, method_name in tasks:
            request.tasks.add(method_name=method_name).model_spec.signature_name = name
    else:
        request.model_spec.signature_name = tasks[0][0]
    for _ in range(example_count):
        request.input.example_list_with_context.examples.add()
    return log


@pytest.mark.parametrize(
    "log",
    [
        example_log("classify_log", ("", "")),
        example_log("regress_log", ("regress", "")),
        example_log("multi_inference_log", ("regress", REGRESS), ("", CLASSIFY)),
    ],
)
def test_sound_log_of_examples_has_no_fault(log: Log):
    assert list(log_faults(log, EXAMPLE_SIGNATURES)) == []


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        (example_log("classify_log", ("nobody", "")), "no signature 'nobody'; the version has"),
        (example_log("classify_log", ("regress", "")), "returns ['outputs'], not 'classes'"),
        (example_log("classify_log", ("three", "")), "signature 'three' returns"),
        (example_log("regress_log", ("", "")), "returns ['scores'], not 'outputs'"),
        (example_log("regress_log", ("text", "")), "takes ['text'], not Examples"),
        (example_log("regress_log", ("regress", ""), example_count=0), "its input is empty"),
        (example_log("multi_inference_log"), "has no tasks"),
        (example_log("multi_inference_log", ("", REGRESS)), "not 'outputs'"),
        (example_log("multi_inference_log", ("", "predict")), "method_name 'predict' is unknown"),
    ],
)
def test_log_with_unanswerable_examples_is_fault(log: Log, fault: str):
    (found,) = log_faults(log, EXAMPLE_SIGNATURES)
    assert fault in found


def file_faults(path: Path, records: list[bytes]) -> list[str]:
    write_records(path, records)
    return list(find_faults(path, SIGNATURES))


def test_file_of_sound_records_has_no_fault(tmp_path: Path):
    assert file_faults(tmp_path / "f", [sound_log().SerializeToString()] * 2) == []


def test_file_lists_faults_by_record_number(tmp_path: Path):
    records = [b"", sound_log().SerializeToString(), b"\xff\xff"]
    assert file_faults(tmp_path / "f", records) == [
        "record 1: is empty, which no server replays; write a predict_log",
        "record 3: is not a PredictionLog; write it again",
    ]


def test_file_above_the_limit_is_a_fault(tmp_path: Path):
    path = tmp_path / "f"
    sound = sound_log().SerializeToString()
    assert file_faults(path, [sound] * RECORD_COUNT_MAX) == []
    (fault,) = file_faults(path, [sound] * (RECORD_COUNT_MAX + 1))
    assert "1001 records, but a server accepts 1000" in fault


def test_file_without_records_is_a_fault(tmp_path: Path):
    (fault,) = file_faults(tmp_path / "f", [])
    assert "no sound record" in fault


def test_damaged_file_lists_records_before_damage(tmp_path: Path):
    path = tmp_path / "f"
    write_records(path, [b"", b"abc"])
    path.write_bytes(path.read_bytes()[:-1])
    empty, damage = find_faults(path, SIGNATURES)
    assert empty.startswith("record 1: is empty")
    assert damage.startswith(f"{path}: record at byte 16 of 3 bytes is cut short")
