"""Real models served, compared with the answers of TensorFlow's Python from the same files, to
1e-5.

basic-pitch (TensorFlow 2, audio) and guesslang (a TensorFlow 1 estimator export: strings, tables,
classify signatures) come from their wheels: run `python scripts/fetch_models.py` once. The CTR
model is the project's own.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.client import Client
from serving.commands.ctr_export import export_ctr_model
from serving.commands.ctr_model import reference_answer, request_inputs
from tests.integration.exports import let_settle
from tests.integration.model_host import HostedModel, ModelHost
from tests.integration.real_models import SOURCES, TOLERANCE, fetched, python_answer

TABLE_ROWS = 1_000


def python_session_answer(
    directory: Path, signature_name: str, inputs: dict[str, Any]
) -> dict[str, Any]:
    """Returns the same through tf.compat.v1.saved_model, for a model that tf.saved_model cannot
    load.

    basic-pitch was saved together with its optimizer by Keras 2, and today's TensorFlow gives up on
    that ("'_UserObject' object has no attribute 'add_slot'").
    """
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(directory))
        signature = meta_graph.signature_def[signature_name]
        feeds = {signature.inputs[name].name: value for name, value in inputs.items()}
        fetches = {name: info.name for name, info in signature.outputs.items()}
        answer: dict[str, Any] = session.run(fetches, feeds)
    return answer


def assert_same(served: Any, expected: dict[str, Any]) -> None:
    assert sorted(served) == sorted(expected)
    for name, wanted in expected.items():
        assert served[name].shape == wanted.shape, name
        if wanted.dtype == object:
            assert served[name].tolist() == wanted.tolist(), name
        else:
            assert served[name].dtype == wanted.dtype, name
            np.testing.assert_allclose(
                served[name], wanted, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
            )


def test_ctr_model_served_answers_as_python_does(host: ModelHost, base_path: Path):
    let_settle(export_ctr_model(base_path, 3, table_rows=TABLE_ROWS))
    model = host.model(base_path, prefix="ctr")
    model.wait_until_available(3)
    with Client(model.server.target) as client:
        for rows in (0, 1, 7, 100):
            inputs = request_inputs(rows, rows, TABLE_ROWS)
            served = client.predict(model.name, inputs).outputs
            assert_same(served, python_answer(base_path / "3", "serving_default", inputs))
            expected = reference_answer(3, inputs, TABLE_ROWS)
            np.testing.assert_allclose(served["ctr"], expected, atol=TOLERANCE)


@pytest.mark.real_model
def test_basic_pitch_served_answers_as_python_does(host: ModelHost):
    base_path = fetched("basic_pitch")
    model = host.model(base_path, prefix="basic_pitch")
    model.wait_until_available(1)
    # Two windows of two seconds at 22,050 Hz: a chord, and a gliding tone in noise.
    seconds = np.arange(43_844) / 22_050
    chord = sum(np.sin(2 * np.pi * pitch * seconds) for pitch in (220.0, 277.2, 329.6)) / 3
    glide = np.sin(2 * np.pi * (200 + 150 * seconds) * seconds)
    glide += np.random.default_rng(1).normal(0, 0.05, seconds.size)
    audio = np.stack([chord, glide]).astype(np.float32)[:, :, np.newaxis]
    with Client(model.server.target) as client:
        served = client.predict(model.name, {"input_2": audio}).outputs
    expected = python_session_answer(base_path / "1", "serving_default", {"input_2": audio})
    # The model detects the chord: the comparison below is not one of silences.
    assert expected["note"].max() > 0.3
    assert_same(served, expected)


@pytest.fixture(scope="module")
def guesslang(module_host: ModelHost) -> HostedModel:
    model = module_host.model(fetched("guesslang"), prefix="guesslang")
    model.wait_until_available(1)
    return model


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("signature_name", "input_name"),
    [("predict", "content"), ("serving_default", "inputs"), ("classification", "inputs")],
)
def test_guesslang_served_answers_as_python_does(
    guesslang: HostedModel, signature_name: str, input_name: str
):
    inputs = {input_name: np.array([source.encode() for source in SOURCES], object)}
    with Client(guesslang.server.target) as client:
        served = client.predict(guesslang.name, inputs, signature_name=signature_name).outputs
    expected = python_answer(guesslang.base_path / "1", signature_name, inputs)
    assert_same(served, expected)
    if signature_name == "predict":
        # The tables were initialized: each language has its name.
        assert served["classes"][0, 0] == b"py"
