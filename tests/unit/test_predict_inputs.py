from typing import Any

import numpy as np
import pytest

from serving.base.errors import InvalidArgument
from serving.base.protos import types_pb2
from serving.base.signatures import Signature, TensorSpec
from serving.commands.predict_inputs import inputs_from_json, random_inputs

FLOATS = TensorSpec(types_pb2.DT_FLOAT, (None, 2))
TEXT = TensorSpec(types_pb2.DT_STRING, (None,))
ONE = Signature({"x": FLOATS}, {})
TWO = Signature({"x": FLOATS, "text": TEXT}, {})


@pytest.mark.parametrize(
    ("document", "signature", "expected"),
    [
        ({"inputs": {"x": [[1, 2]]}}, ONE, {"x": [[1, 2]]}),
        ({"inputs": [[1, 2]]}, ONE, {"x": [[1, 2]]}),
        ({"instances": [[1, 2], [3, 4]]}, ONE, {"x": [[1, 2], [3, 4]]}),
        ({"instances": [{"x": [1, 2]}]}, ONE, {"x": [[1, 2]]}),
        (
            {"instances": [{"x": [1, 2], "text": "a"}, {"text": "b", "x": [3, 4]}]},
            TWO,
            {"x": [[1, 2], [3, 4]], "text": ["a", "b"]},
        ),
        (
            {"inputs": {"x": [[1, 2]], "text": [{"b64": "AP8="}]}, "signature_name": "s"},
            TWO,
            {"x": [[1, 2]], "text": [b"\x00\xff"]},
        ),
        ({"instances": [{"b64": "YQ=="}]}, Signature({"text": TEXT}, {}), {"text": [b"a"]}),
    ],
)
def test_inputs_from_json_reads_both_shapes(
    document: Any, signature: Signature, expected: dict[str, Any]
):
    inputs = inputs_from_json(document, signature)
    assert {name: array.tolist() for name, array in inputs.items()} == expected


def test_inputs_from_json_takes_the_signatures_dtype():
    assert inputs_from_json({"inputs": [[1, 2]]}, ONE)["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("document", "signature", "message"),
    [
        ([], ONE, 'either "inputs" or "instances"'),
        ({}, ONE, 'either "inputs" or "instances"'),
        ({"inputs": [], "instances": []}, ONE, 'either "inputs" or "instances"'),
        ({"instances": []}, ONE, "at least one row"),
        ({"instances": {"x": 1}}, ONE, "at least one row"),
        ({"instances": [{"x": [1, 2]}, {"y": 1}]}, ONE, "row 2 of instances names"),
        ({"inputs": {"y": [[1, 2]]}}, ONE, r"missing \['x'\], extra \['y'\]"),
        ({"inputs": [[1, 2]]}, TWO, "name the inputs"),
        ({"inputs": {"x": [["a", 2]]}}, ONE, "input 'x': cannot be read as DT_FLOAT"),
        ({"inputs": {"x": [[1, 2], [3]]}}, ONE, "input 'x'"),
        ({"inputs": {"x": [[None, 2]]}}, ONE, "input 'x'"),
        ({"inputs": {"x": [[1, 2]], "text": [["a"], ["b", "c"]]}}, TWO, "input 'text'"),
        ({"inputs": {"x": [[1, 2]], "text": [{"b64": "?"}]}}, TWO, "input 'text'"),
        ({"inputs": {"x": [[1, 2]], "text": [{"c": "?"}]}}, TWO, "input 'text'"),
    ],
)
def test_bad_json_inputs_are_invalid_argument(document: Any, signature: Signature, message: str):
    with pytest.raises(InvalidArgument, match=message):
        inputs_from_json(document, signature)


def test_random_inputs_repeat_by_seed_with_rows():
    first, second = random_inputs(TWO, 3, seed=1), random_inputs(TWO, 3, seed=1)
    assert first["x"].shape == (3, 2)
    assert first["x"].dtype == np.float32
    assert first["text"].shape == (3,)
    assert all(isinstance(value, str) for value in first["text"])
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [(None, (4,)), ((), ()), ((2,), (2,)), ((None, None, 3), (4, 1, 3)), ((8, None), (8, 1))],
)
def test_random_inputs_fill_open_dimensions(
    shape: tuple[int | None, ...] | None, expected: tuple[int, ...]
):
    signature = Signature({"x": TensorSpec(types_pb2.DT_INT64, shape)}, {})
    assert random_inputs(signature, 4, seed=0)["x"].shape == expected


@pytest.mark.parametrize(
    "data_type",
    [types_pb2.DT_BOOL, types_pb2.DT_UINT8, types_pb2.DT_HALF, types_pb2.DT_COMPLEX64],
)
def test_random_inputs_fit_the_dtype(data_type: int):
    signature = Signature({"x": TensorSpec(data_type, (None,))}, {})
    assert random_inputs(signature, 2, seed=0)["x"].shape == (2,)


def test_oversized_random_inputs_are_never_made():
    with pytest.raises(InvalidArgument, match=r"1000000000 rows are .* ask for fewer rows"):
        random_inputs(TWO, 10**9, seed=1)
