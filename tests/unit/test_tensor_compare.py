import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from serving.base.protos import predict_pb2, tensor_pb2, types_pb2
from serving.base.tensor_proto import to_tensor_proto
from serving.gates.tensor_compare import Comparison, Tolerance, compare_outputs, compare_responses

EXACT = Tolerance(relative=0, absolute=0)
TENTH = Tolerance(relative=0.1, absolute=0)
FOUR_UNITS = Tolerance(relative=0.001, absolute=0, small_units=4)
NAN, INF = math.nan, math.inf


def outputs(arrays: Mapping[str, Any]) -> dict[str, tensor_pb2.TensorProto]:
    return {name: to_tensor_proto(array) for name, array in arrays.items()}


def compare(was: Any, now: Any, tolerance: Tolerance = EXACT) -> Comparison:
    return compare_outputs(outputs({"y": was}), outputs({"y": now}), tolerance)


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("was", "now", "tolerance", "changed_count"),
    [
        (floats(1, 2), floats(1, 2), EXACT, 0),
        (floats(1, 2), floats(1, 2.5), EXACT, 1),
        (floats(10, 10), floats(10.9, 12), TENTH, 1),
        # The tolerance is relative to the larger value, whichever answer has it.
        (floats(9), floats(10), TENTH, 0),
        (floats(10), floats(9), TENTH, 0),
        (floats(0), floats(1e-7), Tolerance(relative=0.1, absolute=1e-6), 0),
        (floats(0), floats(1e-7), TENTH, 1),
        (floats(INF, -INF), floats(INF, -INF), EXACT, 0),
        (floats(INF, INF, 1), floats(-INF, 1, INF), TENTH, 3),
        (floats(NAN), floats(NAN), EXACT, 0),
        (floats(NAN), floats(1), TENTH, 1),
        (np.array([10]), np.array([11]), TENTH, 1),
        (np.array([2**62 + 1]), np.array([2**62]), TENTH, 1),
        (np.array([True, False]), np.array([True, True]), TENTH, 1),
        (np.array(["a", "b"]), np.array(["a", "c"]), TENTH, 1),
        (np.array([1 + 1j]), np.array([1 + 1.05j]), TENTH, 0),
        (np.array([1 + 1j]), np.array([1 + 2j]), TENTH, 1),
        (np.zeros((0, 3)), np.zeros((0, 3)), EXACT, 0),
        (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 4], ml_dtypes.bfloat16), TENTH, 1),
        (np.array([1, 2], np.float16), np.array([1, 4], np.float16), TENTH, 1),
        # The values between 1 and 2 are 2**-7 apart in bfloat16, and 2**-10 in float16.
        (
            np.array([1, 1], ml_dtypes.bfloat16),
            np.array([1.03125, 1.0625], ml_dtypes.bfloat16),
            FOUR_UNITS,
            1,
        ),
        (
            np.array([1, 1], np.float16),
            np.array([1.00390625, 1.0078125], np.float16),
            FOUR_UNITS,
            1,
        ),
        (floats(1, 1), floats(1.0001, 1.01), FOUR_UNITS, 1),
    ],
)
def test_compare_counts_values_beyond_tolerance(
    was: Any, now: Any, tolerance: Tolerance, changed_count: int
):
    comparison = compare(was, now, tolerance)
    assert comparison.faults == ()
    assert (comparison.changed_count, comparison.value_count) == (changed_count, was.size)
    assert bool(comparison.first_change) == bool(changed_count)


def test_compare_reports_new_nan():
    comparison = compare(floats(1, NAN, 3), floats(NAN, NAN, NAN), TENTH)
    assert comparison.faults == ("output 'y' is NaN in 2 of 3 values",)


def test_compare_shows_the_first_value_that_changed():
    comparison = compare(floats(1, 2, 3), floats(1, 2.5, 4))
    assert comparison.first_change == "output 'y' value 1 is 2.5, was 2"


def test_compare_shows_the_beginning_of_a_long_string():
    comparison = compare(np.array(["x" * 500]), np.array(["y" * 500]))
    assert len(comparison.first_change) < 150


# --- Outputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("was", "now", "fault"),
    [
        ({"y": floats(1)}, {"z": floats(1)}, "output 'y' is missing"),
        ({"y": floats(1)}, {"y": np.array([1])}, "output 'y' is DT_INT64, was DT_FLOAT"),
        ({"y": floats(1)}, {"y": floats(1, 2)}, "output 'y' has shape [2], had [1]"),
        ({"y": floats(1)}, {"y": np.float32(1)}, "output 'y' has shape [], had [1]"),
    ],
)
def test_compare_reports_faults_beyond_any_tolerance(was: Any, now: Any, fault: str):
    assert compare_outputs(outputs(was), outputs(now), TENTH).faults == (fault,)


def test_compare_reports_extra_output_without_fault():
    comparison = compare_outputs(
        outputs({"y": floats(1)}), outputs({"y": floats(1), "z": 2}), EXACT
    )
    assert comparison == Comparison(added_outputs=("z",), value_count=1)


def test_compare_sums_over_all_outputs():
    was = outputs({"a": floats(1, 2), "b": floats(1, 2)})
    now = outputs({"a": floats(1, 3), "b": floats(5, 6)})
    comparison = compare_outputs(was, now, EXACT)
    assert (comparison.changed_count, comparison.value_count) == (3, 4)


def test_compare_reads_quantised_values_as_plain_ones():
    was = tensor_pb2.TensorProto(dtype=types_pb2.DT_QINT8, tensor_content=b"\x01\xff")
    was.tensor_shape.dim.add(size=2)
    now = tensor_pb2.TensorProto(dtype=types_pb2.DT_QINT8, int_val=[1, 2])
    now.tensor_shape.dim.add(size=2)
    comparison = compare_outputs({"y": was}, {"y": now}, EXACT)
    assert comparison.first_change == "output 'y' value 1 is 2, was -1"


def test_compare_skips_dtypes_outside_numpy():
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_VARIANT)
    assert compare_outputs({"y": tensor}, {"y": tensor}, EXACT) == Comparison()


def test_compare_reports_contradictory_tensor():
    broken = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[1, 2])
    (fault,) = compare_outputs({"y": broken}, {"y": broken}, EXACT).faults
    assert "2 values for a tensor of shape []" in fault


def test_compare_responses_reads_their_outputs():
    was, now = predict_pb2.PredictResponse(), predict_pb2.PredictResponse()
    was.outputs["y"].CopyFrom(to_tensor_proto(floats(1)))
    now.outputs["y"].CopyFrom(to_tensor_proto(floats(2)))
    comparison = compare_responses(was.SerializeToString(), now.SerializeToString(), EXACT)
    assert comparison.changed_count == 1


# --- Any answer -----------------------------------------------------------------------------------

ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64]),
    hnp.array_shapes(min_dims=0, max_dims=3, max_side=4),
)
TOLERANCES = st.builds(Tolerance, relative=st.floats(0, 1), absolute=st.floats(0, 1))


@given(array=ARRAYS, tolerance=TOLERANCES)
def test_compare_of_answer_with_itself_is_empty(array: Any, tolerance: Tolerance):
    assert compare(array, array, tolerance) == Comparison(value_count=array.size)


@given(data=st.data(), tolerance=TOLERANCES)
def test_compare_counts_as_many_changes_both_ways(data: st.DataObject, tolerance: Tolerance):
    was = data.draw(ARRAYS)
    now = data.draw(hnp.arrays(was.dtype, was.shape))
    there, back = compare(was, now, tolerance), compare(now, was, tolerance)
    assert there.changed_count == back.changed_count
