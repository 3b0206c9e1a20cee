import numpy as np
import pytest

from serving.commands.ctr_model import (
    layer_weights,
    reference_answer,
    reference_answers,
    request_inputs,
    table_weights,
)

ROWS = 50


def test_table_weights_are_float32_in_range_and_spread():
    weights = table_weights(1, 0, 10_000)
    assert weights.shape == (10_000, 16)
    assert weights.dtype == np.float32
    assert weights.min() >= -1
    assert weights.max() < 1
    assert abs(weights.mean()) < 0.01
    assert weights.std() == pytest.approx(1 / np.sqrt(3), abs=0.01)


def test_table_weights_differ_by_version_and_by_table():
    same = table_weights(1, 0, ROWS)
    assert np.array_equal(same, table_weights(1, 0, ROWS))
    assert not np.isclose(same, table_weights(2, 0, ROWS)).any(axis=1).all()
    assert not np.isclose(same, table_weights(1, 1, ROWS)).any(axis=1).all()


def test_layer_weights_have_the_shapes_of_the_model():
    shapes = [tuple(array.shape for array in layer_weights(1, layer)) for layer in range(3)]
    assert shapes == [((429, 256), (256,)), ((256, 128), (128,)), ((128, 1), (1,))]


def test_request_inputs_of_one_seed_are_the_same():
    first, second = request_inputs(7, 3, ROWS), request_inputs(7, 3, ROWS)
    assert first["dense"].shape == (3, 13)
    assert first["sparse"].shape == (3, 26)
    assert all(np.array_equal(first[name], second[name]) for name in ("dense", "sparse"))


def test_reference_depends_on_version_and_request():
    inputs = request_inputs(1, 20, ROWS)
    first, second = (reference_answer(version, inputs, ROWS) for version in (1, 2))
    assert first.shape == (20, 1)
    assert ((first > 0) & (first < 1)).all()
    assert np.abs(first - second).max() > 0.01
    assert first.std() > 0.01


def test_reference_takes_ids_modulo_table_size():
    inputs = request_inputs(1, 5, ROWS)
    beyond = {**inputs, "sparse": inputs["sparse"] + 3 * ROWS}
    below = {**inputs, "sparse": inputs["sparse"] - ROWS}
    expected = reference_answer(1, inputs, ROWS)
    assert np.array_equal(reference_answer(1, beyond, ROWS), expected)
    assert np.array_equal(reference_answer(1, below, ROWS), expected)


def test_reference_answers_are_by_version_and_request():
    requests = [request_inputs(seed, 1, ROWS) for seed in range(3)]
    answers = reference_answers([1, 2], requests, ROWS)
    assert np.array_equal(answers[2][1], reference_answer(2, requests[1], ROWS))


def test_table_weights_accept_every_server_version():
    assert table_weights(2**63 - 1, 25, 3).shape == (3, 16)
