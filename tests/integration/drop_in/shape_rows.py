"""Inputs of shapes that a signature does not name, and the answers of TensorFlow Serving to them.

TensorFlow Serving checks the names and dtypes of inputs and leaves their shapes to the graph. The
signature of `half_plus_two` names float32[-1,1]. `dense` multiplies float32[-1,3] by a matrix.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RestShapeRow:
    """A REST body for half_plus_two and the whole of its answer."""

    name: str
    body: dict[str, Any]
    answer: dict[str, Any]


REST_ROWS = [
    RestShapeRow(
        "rows_as_documented", {"instances": [1.0, 2.0, 5.0]}, {"predictions": [2.5, 3.0, 4.5]}
    ),
    RestShapeRow(
        "rows_of_the_signature", {"instances": [[1.0], [2.0]]}, {"predictions": [[2.5], [3.0]]}
    ),
    RestShapeRow("rows_of_two_values", {"instances": [[1.0, 2.0]]}, {"predictions": [[2.5, 3.0]]}),
    RestShapeRow("rows_by_name", {"instances": [{"x": 1.0}]}, {"predictions": [2.5]}),
    RestShapeRow("scalar", {"inputs": 1.0}, {"outputs": 2.5}),
    RestShapeRow("scalar_by_name", {"inputs": {"x": 1.0}}, {"outputs": 2.5}),
    RestShapeRow("column", {"inputs": [1.0, 2.0, 5.0]}, {"outputs": [2.5, 3.0, 4.5]}),
    RestShapeRow("cube", {"inputs": [[[1.0], [2.0]]]}, {"outputs": [[[2.5], [3.0]]]}),
]

ARRAYS = {
    "vector": np.array([1.0, 2.0, 5.0], np.float32),
    "scalar": np.array(1.0, np.float32),
    "empty_vector": np.zeros([0], np.float32),
    "cube": np.ones([2, 3, 1], np.float32),
}
"""Arrays that half_plus_two takes, by name."""
