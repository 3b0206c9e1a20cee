"""Tests of what a version may lack."""

import pytest

from serving.loading.load_checks import missing_kernels_fault, missing_kernels_message
from tests.unit.fakes.data_plane import FakeMissingKernel


@pytest.mark.parametrize(
    ("broken", "names", "is_refused"),
    [
        (["serving_default"], ["serving_default"], True),
        (["serving_default"], ["other", "serving_default"], True),
        (["other"], ["other", "serving_default"], False),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a", "b"], True),
        ([""], ["serving_default"], True),
        ([], ["serving_default"], False),
        ([], [], False),
    ],
)
def test_missing_kernel_refuses_what_cannot_answer(
    broken: list[str], names: list[str], is_refused: bool
):
    missing = [FakeMissingKernel(signature=name) for name in broken]
    assert bool(missing_kernels_fault(missing, names)) is is_refused


@pytest.mark.parametrize(
    ("op", "remedy"),
    [
        ("PyFunc", "tf.py_function"),
        ("PyFuncStateless", "tf.py_function"),
        ("CudnnRNNV3", "use_cudnn=False"),
        ("NcclAllReduce", "GPU only"),
        ("SomethingElse", "--op_library=PATH"),
    ],
)
def test_missing_kernel_message_has_the_remedy(op: str, remedy: str):
    message = missing_kernels_message([FakeMissingKernel(op=op)])
    assert f"op {op} (node 'call', run by signature 'serving_default')" in message
    assert remedy in message


def test_missing_kernel_message_names_each_op_once():
    missing = [FakeMissingKernel(node=f"call_{i}") for i in range(500)]
    message = missing_kernels_message([*missing, FakeMissingKernel(op="NcclAllReduce")])
    assert message.count("PyFunc (") == 1
    assert "NcclAllReduce (" in message


def test_missing_kernel_of_the_init_op_is_named_so():
    assert "run by the init op" in missing_kernels_message([FakeMissingKernel(signature="")])
