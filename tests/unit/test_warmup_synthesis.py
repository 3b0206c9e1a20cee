from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from serving.base.errors import InvalidArgument, InvalidConfig, NotFound
from serving.base.protos import types_pb2
from serving.base.signatures import signature_of
from serving.base.tensor_proto import from_tensor_proto
from tests.unit.signatures import FLOAT, INT64, STRING, signature_def
from warmup.faults import log_faults
from warmup.prediction_log import Log
from warmup.synthesis import SynthesisSettings, synthesize

DTYPES = [
    getattr(types_pb2, f"DT_{name}")
    for name in (
        *("FLOAT", "DOUBLE", "HALF", "BFLOAT16", "FLOAT8_E5M2", "FLOAT8_E4M3FN", "BOOL", "STRING"),
        *("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
        *("COMPLEX64", "COMPLEX128"),
    )
]
SHAPES = st.none() | st.lists(st.integers(-1, 3), max_size=3)
TENSORS = st.dictionaries(
    st.text("abc", min_size=1), st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=3
)
SETTINGS = st.builds(
    SynthesisSettings,
    batch_sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    open_size=st.integers(1, 3),
    int_max=st.integers(0, 2**63),
    count=st.integers(1, 3),
    seed=st.integers(0, 9),
)


def arrays(log: Log) -> dict[str, Any]:
    return {
        name: from_tensor_proto(tensor) for name, tensor in log.predict_log.request.inputs.items()
    }


def shapes(logs: Sequence[Log], name: str) -> list[tuple[int, ...]]:
    return [arrays(log)[name].shape for log in logs]


@hypothesis_settings(deadline=None)
@given(inputs=st.dictionaries(st.text("st", min_size=1), TENSORS, min_size=1), settings=SETTINGS)
def test_synthesized_requests_fit_any_signature(
    inputs: dict[str, dict[str, Any]], settings: SynthesisSettings
):
    definitions = {name: signature_def(tensors) for name, tensors in inputs.items()}
    signatures = {name: signature_of(definition) for name, definition in definitions.items()}
    synthesis = synthesize(definitions, "m", settings)
    assert [fault for log in synthesis.logs for fault in log_faults(log, signatures)] == []
    asked = {log.predict_log.request.model_spec.signature_name for log in synthesis.logs}
    assert asked == set(definitions)


def test_synthesize_has_a_request_for_each_batch_size():
    definitions = {"s": signature_def({"x": (FLOAT, (-1, -1, 3)), "k": (INT64, (2,))})}
    settings = SynthesisSettings(batch_sizes=[1, 8], open_size=5, count=2)
    logs = synthesize(definitions, "m", settings).logs
    assert shapes(logs, "x") == [(1, 5, 3), (1, 5, 3), (8, 5, 3), (8, 5, 3)]
    assert set(shapes(logs, "k")) == {(2,)}
    assert not np.array_equal(arrays(logs[0])["x"], arrays(logs[1])["x"])


def test_fixed_batch_ignores_batch_sizes():
    definitions = {"s": signature_def({"x": (FLOAT, ())})}
    logs = synthesize(definitions, "m", SynthesisSettings(batch_sizes=[1, 8])).logs
    assert shapes(logs, "x") == [()]


def test_synthesize_for_no_inputs_is_one_request():
    logs = synthesize({"s": signature_def({})}, "m", SynthesisSettings(count=9)).logs
    assert [arrays(log) for log in logs] == [{}]


def test_synthesized_values_are_small():
    definitions = {
        "s": signature_def({"f": (FLOAT, (-1,)), "i": (INT64, (-1,)), "t": (STRING, (-1,))})
    }
    settings = SynthesisSettings(batch_sizes=[200], int_max=3)
    (log,) = synthesize(definitions, "m", settings).logs
    values = arrays(log)
    assert 0 <= values["f"].min() < values["f"].max() < 1
    assert set(values["i"].tolist()) == {0, 1, 2, 3}
    assert set(values["t"].tolist()) == {b"a"}


def test_synthesize_is_the_same_for_the_same_seed_only():
    definitions = {"s": signature_def({"x": (FLOAT, (-1,))})}
    first, again, other = (
        synthesize(definitions, "m", SynthesisSettings(seed=seed)).logs for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_unmakeable_signature_is_skipped_with_reason():
    sparse = signature_def({})
    sparse.inputs["x"].coo_sparse.SetInParent()
    definitions = {
        "classify": signature_def(
            {"in": (STRING, (-1,))}, method_name="tensorflow/serving/classify"
        ),
        "resource": signature_def({"r": (types_pb2.DT_RESOURCE, ())}),
        "sparse": sparse,
        "good": signature_def({"x": (FLOAT, (-1,))}),
    }
    synthesis = synthesize(definitions, "m", SynthesisSettings())
    assert [log.predict_log.request.model_spec.signature_name for log in synthesis.logs] == ["good"]
    assert {name: reason[:25] for name, reason in synthesis.left_out.items()} == {
        "classify": "takes serialized Examples",
        "resource": "input 'r': no numpy dtype"[:25],
        "sparse": "input 'x' is not a dense ",
    }


def test_named_signatures_alone_are_synthesized():
    definitions = {name: signature_def({"x": (FLOAT, (-1,))}) for name in "abc"}
    logs = synthesize(definitions, "m", SynthesisSettings(), ["c", "a"]).logs
    assert [log.predict_log.request.model_spec.signature_name for log in logs] == ["c", "a"]


def test_missing_signature_lists_known():
    with pytest.raises(NotFound, match=r"no signature 't'; there are \['s'\]"):
        synthesize({"s": signature_def({})}, "m", SynthesisSettings(), ["t"])


def test_unmakeable_named_signature_raises():
    definitions = {"s": signature_def({"r": (types_pb2.DT_RESOURCE, ())})}
    with pytest.raises(InvalidArgument, match="signature 's': input 'r': no numpy dtype"):
        synthesize(definitions, "m", SynthesisSettings(), ["s"])


def test_synthesize_of_nothing_raises():
    with pytest.raises(InvalidConfig, match="any signature"):
        synthesize({}, "m", SynthesisSettings())
