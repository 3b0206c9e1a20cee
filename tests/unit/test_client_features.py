from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.errors import InvalidArgument
from serving.client.features import example, examples_input

FLOATS, INTEGERS, BYTES = "float_list", "int64_list", "bytes_list"


def feature(values: Any) -> tuple[str | None, list[Any]]:
    """Returns the kind and the values of the feature that is made from `values`."""
    message = example({"f": values}).features.feature["f"]
    kind = message.WhichOneof("kind")
    return kind, list(getattr(message, kind).value) if kind else []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (1, (INTEGERS, [1])),
        (1.5, (FLOATS, [1.5])),
        ("ä", (BYTES, ["ä".encode()])),
        (b"\x00a\x00", (BYTES, [b"\x00a\x00"])),
        ([b"a\x00", b""], (BYTES, [b"a\x00", b""])),
        (np.array([b"a", b"b"]), (BYTES, [b"a", b"b"])),
        ([True, False], (INTEGERS, [1, 0])),
        ([1, 2.5], (FLOATS, [1.0, 2.5])),
        ([[1, 2], [3, 4]], (INTEGERS, [1, 2, 3, 4])),
        (np.array([[1, 2]], np.uint8), (INTEGERS, [1, 2])),
        (np.array([0.5], np.float16), (FLOATS, [0.5])),
        (np.array([0.5], ml_dtypes.bfloat16), (FLOATS, [0.5])),
        (float("nan"), (FLOATS, [pytest.approx(float("nan"), nan_ok=True)])),
        ([], (None, [])),
        (np.zeros((0, 3), np.int64), (None, [])),
    ],
    ids=repr,
)
def test_feature_is_of_the_values_kind(values: Any, expected: tuple[str | None, list[Any]]):
    assert feature(values) == expected


@given(st.lists(st.binary(), min_size=1))
def test_feature_of_bytes_keeps_each_byte(values: list[bytes]):
    assert feature(values) == (BYTES, values)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_feature_of_whole_numbers_keeps_each(values: list[int]):
    assert feature(values) == (INTEGERS, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "a"], "feature 'f': 1 is neither text nor bytes"),
        (None, "feature 'f': None"),
        ([[1], [2, 3]], "feature 'f': its lists differ in length"),
        (1j, "feature 'f': a tf.Example cannot hold complex128"),
        (2**63, "feature 'f': 9223372036854775808 does not fit int64"),
        ({"a": 1}, "feature 'f'"),
    ],
)
def test_feature_absent_from_all_examples_is_refused(values: Any, message: str):
    with pytest.raises(InvalidArgument, match=message):
        example({"f": values})


def test_examples_without_context_are_plain_list():
    message = examples_input([{"x": 1.0}, {"x": 2.0}])
    assert message.WhichOneof("kind") == "example_list"
    assert len(message.example_list.examples) == 2


def test_examples_input_with_context_sends_it_once():
    message = examples_input([{"x": 1.0}], {"user": b"u"})
    assert message.WhichOneof("kind") == "example_list_with_context"
    context = message.example_list_with_context.context
    assert context.features.feature["user"].bytes_list.value == [b"u"]
    assert len(message.example_list_with_context.examples) == 1
