"""The signature and shape gates: the changes of signatures that break a predecessor's clients."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.base.protos import get_model_metadata_pb2, meta_graph_pb2, types_pb2
from serving.gates.signature_gate import shape_faults, signature_faults

FLOAT, INT64 = types_pb2.DT_FLOAT, types_pb2.DT_INT64

Shape = tuple[int, ...] | None
Tensor = tuple[int, Shape]
Tensors = Mapping[str, Tensor]


def signature_map(**signatures: tuple[Tensors, Tensors]) -> bytes:
    """Returns inputs or outputs. In a shape -1 is an open dimension; None is an unknown rank."""
    definitions = get_model_metadata_pb2.SignatureDefMap()
    for name, (inputs, outputs) in signatures.items():
        signature = definitions.signature_def[name]
        for tensors, into in ((inputs, signature.inputs), (outputs, signature.outputs)):
            for tensor_name, (dtype, shape) in tensors.items():
                _fill(into[tensor_name], dtype, shape)
    serialized: bytes = definitions.SerializeToString()
    return serialized


def _fill(tensor: meta_graph_pb2.TensorInfo, dtype: int, shape: Shape) -> None:
    tensor.dtype = dtype
    tensor.tensor_shape.unknown_rank = shape is None
    for size in shape or ():
        tensor.tensor_shape.dim.add(size=size)


def faults_of_input(was: Tensors, now: Tensors) -> list[str]:
    return signature_faults(signature_map(s=(was, {})), signature_map(s=(now, {})))


def shape_faults_of_input(was: Tensors, now: Tensors) -> list[str]:
    return shape_faults(signature_map(s=(was, {})), signature_map(s=(now, {})))


def faults_of_output(was: Tensors, now: Tensors) -> list[str]:
    return signature_faults(signature_map(s=({}, was)), signature_map(s=({}, now)))


def shape_faults_of_output(was: Tensors, now: Tensors) -> list[str]:
    return shape_faults(signature_map(s=({}, was)), signature_map(s=({}, now)))


def listed(difference: str) -> list[str]:
    return [f"signature 's': {difference}"] if difference else []


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        ({"x": (FLOAT, (-1, 3))}, ""),
        ({"x": (INT64, (-1, 3))}, "input 'x' is int64[?,3], was float[?,3]"),
        ({}, "input 'x' is gone"),
        ({"x": (FLOAT, (-1, 3)), "z": (FLOAT, ())}, "input 'z' is new, and has no default"),
    ],
)
def test_signature_inputs_keep_names_and_dtypes(now: Tensors, difference: str):
    assert faults_of_input({"x": (FLOAT, (-1, 3))}, now) == listed(difference)


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        ({"y": (FLOAT, (3,))}, ""),
        ({"y": (FLOAT, (3,)), "more": (INT64, ())}, ""),
        ({"y": (INT64, (3,))}, "output 'y' is int64[3], was float[3]"),
        ({}, "output 'y' is gone"),
    ],
)
def test_signature_outputs_keep_names_and_dtypes(now: Tensors, difference: str):
    assert faults_of_output({"y": (FLOAT, (3,))}, now) == listed(difference)


@pytest.mark.parametrize("now", [None, (), (3,), (-1, 1), (-1, 4), (2, 3)])
def test_signature_of_any_shape_passes(now: Shape):
    was, tensors = {"t": (FLOAT, (-1, 3))}, {"t": (FLOAT, now)}
    assert faults_of_input(was, tensors) == faults_of_output(was, tensors) == []


@pytest.mark.parametrize(
    ("was", "now", "difference"),
    [
        ((-1, 3), (-1, 3), ""),
        ((2, 3), (-1, 3), ""),
        ((2, 3), None, ""),
        (None, None, ""),
        ((-1, 3), (2, 3), "input 'x' is float[2,3], was float[?,3]"),
        ((-1, 3), (-1, 4), "input 'x' is float[?,4], was float[?,3]"),
        ((3,), (-1, 3), "input 'x' is float[?,3], was float[3]"),
        (None, (3,), "input 'x' is float[3], was float[…]"),
    ],
)
def test_shapes_of_inputs_may_only_widen(was: Shape, now: Shape, difference: str):
    assert shape_faults_of_input({"x": (FLOAT, was)}, {"x": (FLOAT, now)}) == listed(difference)


@pytest.mark.parametrize(
    ("was", "now", "difference"),
    [
        ((2, 3), (-1, 4), ""),
        ((2, 3), None, ""),
        ((3,), (3, 1), "output 'y' is float[3,1], was float[3]"),
    ],
)
def test_shapes_of_outputs_keep_their_rank(was: Shape, now: Shape, difference: str):
    assert shape_faults_of_output({"y": (FLOAT, was)}, {"y": (FLOAT, now)}) == listed(difference)


@pytest.mark.parametrize("now", [{}, {"x": (INT64, (4,))}])
def test_shapes_omit_faults_of_signature(now: Tensors):
    assert shape_faults_of_input({"x": (FLOAT, (3,))}, now) == []


def test_signature_faults_list_every_difference():
    was = signature_map(
        a=({"x": (FLOAT, ())}, {"y": (FLOAT, ())}), b=({}, {}), c=({"x": (FLOAT, ())}, {})
    )
    now = signature_map(a=({"z": (FLOAT, ())}, {}), c=({}, {}))
    assert signature_faults(was, now) == [
        "signature 'a': input 'x' is gone, input 'z' is new, and has no default, output 'y' is gone",
        "signature 'b' is gone",
        "signature 'c': input 'x' is gone",
    ]


def with_default(serialized: bytes, name: str) -> bytes:
    """Returns the signature map with a default for the input `name` of signature "s"."""
    definitions = get_model_metadata_pb2.SignatureDefMap.FromString(serialized)
    definitions.signature_def["s"].defaults[name].dtype = FLOAT
    return bytes(definitions.SerializeToString())


def test_signature_new_input_with_default_passes():
    was = signature_map(s=({"x": (FLOAT, ())}, {}))
    now = signature_map(s=({"x": (FLOAT, ()), "z": (FLOAT, ())}, {}))
    assert signature_faults(was, with_default(now, "z")) == []


def test_signature_input_that_loses_its_default_fails():
    both = signature_map(s=({"x": (FLOAT, ()), "z": (FLOAT, ())}, {}))
    expected = ["signature 's': input 'z' has no default any more"]
    assert signature_faults(with_default(both, "z"), both) == expected
    assert signature_faults(both, with_default(both, "z")) == []


def ragged(serialized: bytes, name: str) -> bytes:
    """Returns the signature map with output `name` of signature "s" as a RaggedTensor."""
    definitions = get_model_metadata_pb2.SignatureDefMap.FromString(serialized)
    definitions.signature_def["s"].outputs[name].composite_tensor.components.add(name="a:0")
    return bytes(definitions.SerializeToString())


def test_signature_output_that_becomes_ragged_fails():
    dense = signature_map(s=({}, {"y": (FLOAT, (-1,))}))
    expected = ["signature 's': output 'y' is composite float[?], was float[?]"]
    assert signature_faults(dense, ragged(dense, "y")) == expected


def test_signature_ragged_output_that_goes_passes():
    was = ragged(signature_map(s=({}, {"y": (FLOAT, (-1,))})), "y")
    assert signature_faults(was, signature_map(s=({}, {}))) == []


def test_signature_of_tensorflows_own_is_not_looked_at():
    was = signature_map(__saved_model_init_op=({}, {"op": (FLOAT, ())}))
    assert signature_faults(was, signature_map()) == []


SHAPES = st.none() | st.lists(st.integers(-1, 3), max_size=3).map(tuple)
TENSORS = st.dictionaries(
    st.sampled_from("abc"), st.tuples(st.sampled_from([FLOAT, INT64]), SHAPES), max_size=3
)
SIGNATURES = st.dictionaries(st.sampled_from("st"), st.tuples(TENSORS, TENSORS)).map(
    lambda signatures: signature_map(**signatures)
)


@given(SIGNATURES)
def test_signature_accepts_clients_of_own_version(signatures: bytes):
    assert signature_faults(signatures, signatures) == []


@given(SIGNATURES, SIGNATURES)
def test_signature_extension_passes(one: bytes, other: bytes):
    both = get_model_metadata_pb2.SignatureDefMap.FromString(other)
    both.MergeFrom(get_model_metadata_pb2.SignatureDefMap.FromString(one))
    for name, signature in get_model_metadata_pb2.SignatureDefMap.FromString(
        one
    ).signature_def.items():
        both.signature_def[name].CopyFrom(signature)
    assert signature_faults(one, both.SerializeToString()) == []


@given(SIGNATURES)
def test_shapes_accept_clients_of_own_version(signatures: bytes):
    assert shape_faults(signatures, signatures) == []


@given(TENSORS, TENSORS, TENSORS)
def test_signature_acceptance_of_inputs_is_transitive(
    first: Tensors, second: Tensors, third: Tensors
):
    swaps = faults_of_input(first, second) + faults_of_input(second, third)
    assert swaps or not faults_of_input(first, third)


@given(SHAPES, SHAPES, SHAPES)
def test_shape_acceptance_is_transitive(first: Shape, second: Shape, third: Shape):
    def faults(was: Shape, now: Shape) -> list[str]:
        return shape_faults_of_input({"x": (FLOAT, was)}, {"x": (FLOAT, now)})

    assert faults(first, second) + faults(second, third) or not faults(first, third)
