"""Requests of TensorFlow Serving's clients over REST, with the answers they must get, as a table.

The models are those of `export_models.py`. `mends` describes a defect of TensorFlow Serving that
Millpond does not copy.
"""

import base64
import json
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json"


@dataclass(frozen=True)
class RestRow:
    """One request.

    `body` is JSON or bytes. `answer` is the whole JSON, or fragments of it for an error.
    """

    name: str
    request: str
    """The request line, such as "GET /v1/models/m"."""
    body: Any = None
    status: int = 200
    answer: Any = None
    error: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    """Headers that the answer must have."""
    mends: str = ""

    @property
    def method(self) -> str:
        return self.request.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.request.partition(" ")[2]

    @property
    def content(self) -> bytes | None:
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode()


def b64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}


def _state(version: int) -> dict[str, Any]:
    return {
        "version": str(version),
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }


HALF = "/v1/models/half_plus_two"
THREE = "/v1/models/half_plus_three"
SUMS, TEXTS, KINDS, DTYPES = (f"/v1/models/{name}" for name in ("sums", "texts", "kinds", "dtypes"))
LABELLED = "/v1/models/labelled"
VERSION_HEADER = "x-millpond-model-version"

STATUS_ROWS = [
    RestRow("status", f"GET {HALF}", answer={"model_version_status": [_state(123)]}),
    RestRow(
        "status_of_a_version",
        f"GET {LABELLED}/versions/1",
        answer={"model_version_status": [_state(1)]},
    ),
    RestRow(
        "status_of_all_versions_newest_first",
        f"GET {LABELLED}",
        answer={"model_version_status": [_state(2), _state(1)]},
    ),
    RestRow(
        "status_of_a_label",
        f"GET {LABELLED}/labels/stable",
        answer={"model_version_status": [_state(1)]},
        mends="a label is ignored: all versions are returned",
    ),
    RestRow(
        "status_in_any_case",
        "GET /V1/MODELS/half_plus_two",
        answer={"model_version_status": [_state(123)]},
    ),
    RestRow(
        "status_of_a_name_in_percents",
        "GET /v1/models/half%5Fplus%5Ftwo",
        answer={"model_version_status": [_state(123)]},
    ),
    RestRow("status_of_nobody", "GET /v1/models/nobody", status=404, error=("nobody",)),
    RestRow("status_of_an_unknown_version", f"GET {HALF}/versions/5", status=404, error=("5",)),
    RestRow(
        "status_of_an_unknown_label",
        f"GET {LABELLED}/labels/gold",
        status=400,
        error=("gold",),
        mends="a label is ignored: all versions are returned",
    ),
    RestRow("metadata_of_nobody", "GET /v1/models/nobody/metadata", status=404, error=("nobody",)),
]

PREDICT_ROWS = [
    RestRow(
        "rows",
        f"POST {HALF}:predict",
        {"instances": [1.0, 2.0, 5.0]},
        answer={"predictions": [2.5, 3.0, 4.5]},
        headers={"content-type": JSON, VERSION_HEADER: "123"},
        mends="no answer says which version gave it",
    ),
    RestRow(
        "rows_of_the_documented_model",
        f"POST {THREE}:predict",
        {"instances": [1.0, 2.0, 5.0]},
        answer={"predictions": [3.5, 4.0, 5.5]},
    ),
    RestRow(
        "columns",
        f"POST {HALF}:predict",
        {"inputs": [1.0, 2.0, 5.0]},
        answer={"outputs": [2.5, 3.0, 4.5]},
    ),
    RestRow(
        "columns_by_name",
        f"POST {HALF}:predict",
        {"inputs": {"x": [1.0, 2.0]}},
        answer={"outputs": [2.5, 3.0]},
    ),
    RestRow(
        "rows_by_name_of_one_input",
        f"POST {HALF}:predict",
        {"instances": [{"x": 1.0}, {"x": 2.0}]},
        answer={"predictions": [2.5, 3.0]},
    ),
    RestRow(
        "rows_of_two_inputs_and_outputs",
        f"POST {SUMS}:predict",
        {"instances": [{"a": 3, "b": 1}, {"a": 5, "b": 2}]},
        answer={"predictions": [{"sum": 4.0, "difference": 2.0}, {"sum": 7.0, "difference": 3.0}]},
    ),
    RestRow(
        "columns_of_two_inputs_and_outputs",
        f"POST {SUMS}:predict",
        {"inputs": {"a": [3, 5], "b": [1, 2]}},
        answer={"outputs": {"sum": [4.0, 7.0], "difference": [2.0, 3.0]}},
    ),
    RestRow(
        "rows_of_lists",
        f"POST {SUMS}:predict",
        {"signature_name": "rows", "instances": [[1, 2, 3], [4, 5, 6]]},
        answer={"predictions": [6.0, 15.0]},
    ),
    RestRow(
        "columns_to_a_scalar",
        f"POST {SUMS}:predict",
        {"signature_name": "total", "inputs": [1, 2, 3.5]},
        answer={"outputs": 6.5},
    ),
    RestRow(
        "rows_to_a_scalar",
        f"POST {SUMS}:predict",
        {"signature_name": "total", "instances": [1, 2, 3.5]},
        status=400,
        error=("total",),
    ),
    RestRow(
        "version_by_number",
        f"POST {LABELLED}/versions/1:predict",
        {"instances": [1.0]},
        answer={"predictions": [1.5]},
        headers={VERSION_HEADER: "1"},
    ),
    RestRow(
        "version_by_label",
        f"POST {LABELLED}/labels/canary:predict",
        {"instances": [1.0]},
        answer={"predictions": [2.5]},
        headers={VERSION_HEADER: "2"},
    ),
    RestRow(
        "text",
        f"POST {TEXTS}:predict",
        {"signature_name": "lengths", "instances": ["ab", "ä"]},
        answer={"predictions": [2, 2]},
    ),
    RestRow(
        "binary_both_ways",
        f"POST {TEXTS}:predict",
        {"instances": [b64(b"\x00\xff"), b64(b"ab")]},
        answer={
            "predictions": [
                {"upper": b64(b"\x00\xff"), "raw_bytes": b64(b"\x00\xff")},
                {"upper": "AB", "raw_bytes": b64(b"ab")},
            ]
        },
        mends="bytes that are no UTF-8, of an output not called _bytes, make a document that is no JSON",
    ),
    RestRow(
        "binary_by_name",
        f"POST {TEXTS}:predict",
        {"inputs": {"text": [b64(b"ab")]}},
        answer={"outputs": {"upper": ["AB"], "raw_bytes": [b64(b"ab")]}},
    ),
    RestRow(
        "not_a_number_and_infinity",
        f"POST {HALF}:predict",
        b'{"instances": [NaN, Infinity, -Infinity]}',
        answer={"predictions": ["NaN", "Infinity", "-Infinity"]},
    ),
    *(
        RestRow(
            f"dtype_{name}",
            f"POST {DTYPES}:predict",
            {"signature_name": name, "instances": given},
            answer={"predictions": given},
        )
        for name, given in {
            "bool": [True, False],
            "int8": [-128, 127],
            "int16": [-32768, 32767],
            "int32": [-(2**31), 2**31 - 1],
            "int64": [-(2**63), 2**63 - 1],
            "uint8": [0, 255],
            "uint32": [0, 2**32 - 1],
            "uint64": [0, 2**64 - 1],
            "float32": [0.5, -0.1],
            "float64": [0.1, 1e300],
            "string": ["a", ""],
        }.items()
    ),
    RestRow(
        "unknown_model",
        "POST /v1/models/nobody:predict",
        {"instances": [1]},
        404,
        error=("nobody",),
    ),
    RestRow(
        "unknown_version", f"POST {HALF}/versions/5:predict", {"instances": [1]}, 404, error=("5",)
    ),
    RestRow(
        "unknown_label",
        f"POST {HALF}/labels/gold:predict",
        {"instances": [1]},
        400,
        error=("gold",),
    ),
    RestRow(
        "unknown_signature",
        f"POST {HALF}:predict",
        {"signature_name": "nothing", "instances": [1]},
        400,
        error=("nothing",),
    ),
    RestRow("no_json", f"POST {HALF}:predict", b"{", 400, error=("JSON",)),
    RestRow("empty_body", f"POST {HALF}:predict", b"", 400, error=("JSON",)),
    RestRow("no_object", f"POST {HALF}:predict", [1], 400, error=("object",)),
    RestRow(
        "neither_rows_nor_columns",
        f"POST {HALF}:predict",
        {"x": [1]},
        400,
        error=("Missing 'inputs' or 'instances' key",),
    ),
    RestRow(
        "rows_and_columns",
        f"POST {HALF}:predict",
        {"inputs": [1], "instances": [1]},
        400,
        error=("inputs", "instances"),
    ),
    RestRow("no_rows", f"POST {HALF}:predict", {"instances": []}, 400, error=("instances",)),
    RestRow(
        "rows_are_no_list", f"POST {HALF}:predict", {"instances": {"x": 1}}, 400, error=("list",)
    ),
    RestRow(
        "text_for_a_number",
        f"POST {HALF}:predict",
        {"instances": ["one"]},
        400,
        error=("float",),
    ),
    RestRow(
        "number_too_large_for_its_dtype",
        f"POST {DTYPES}:predict",
        {"signature_name": "int8", "instances": [128]},
        400,
        error=("int8",),
    ),
    RestRow(
        "ragged_lists",
        f"POST {SUMS}:predict",
        {"signature_name": "rows", "instances": [[1, 2, 3], [4, 5]]},
        400,
    ),
    RestRow(
        "input_of_another_name",
        f"POST {HALF}:predict",
        {"instances": [{"z": 1}]},
        400,
        error=("z",),
    ),
    RestRow(
        "input_missing_in_a_row",
        f"POST {SUMS}:predict",
        {"instances": [{"a": 1, "b": 1}, {"a": 1}]},
        400,
    ),
    RestRow(
        "signature_name_is_no_text",
        f"POST {HALF}:predict",
        {"signature_name": 1, "instances": [1]},
        400,
        error=("signature_name",),
    ),
]

CLASSIFY_REGRESS_ROWS = [
    RestRow(
        "regress",
        f"POST {THREE}:regress",
        {"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}, {"x": 2.0}]},
        answer={"results": [3.5, 4.0]},
        headers={VERSION_HEADER: "124"},
    ),
    RestRow(
        "regress_with_context",
        f"POST {HALF}:regress",
        {
            "signature_name": "regress_x2_to_y3",
            "context": {"x2": 4.0},
            "examples": [{"x": 1.0}, {"x": 2.0}],
        },
        answer={"results": [5.0, 5.0]},
    ),
    RestRow(
        "regress_feature_as_a_list",
        f"POST {HALF}:regress",
        {"signature_name": "regress_x_to_y", "examples": [{"x": [1.0]}]},
        answer={"results": [2.5]},
    ),
    RestRow(
        "classify_without_labels",
        f"POST {HALF}:classify",
        {"signature_name": "classify_x_to_y", "examples": [{"x": 1.0}, {"x": 2.0}]},
        answer={"results": [[["", 2.5]], [["", 3.0]]]},
    ),
    RestRow(
        "classify_with_labels",
        f"POST {KINDS}:classify",
        {"examples": [{"x": 0.5, "id": 2, "name": "cat"}, {"x": 0.25, "name": b64(b"dog")}]},
        answer={"results": [[["cat", 0.5], ["id", 2.0]], [["dog", 0.25], ["id", 0.0]]]},
    ),
    RestRow(
        "classify_version_by_number",
        f"POST {HALF}/versions/123:classify",
        {"signature_name": "classify_x_to_y", "examples": [{"x": 1.0}]},
        answer={"results": [[["", 2.5]]]},
    ),
    RestRow(
        "no_examples",
        f"POST {KINDS}:classify",
        {"signature_name": "serving_default"},
        400,
        error=("examples",),
    ),
    RestRow(
        "examples_are_empty", f"POST {KINDS}:classify", {"examples": []}, 400, error=("examples",)
    ),
    RestRow(
        "example_is_no_object", f"POST {KINDS}:classify", {"examples": [1]}, 400, error=("object",)
    ),
    RestRow(
        "regress_on_a_predict_signature",
        f"POST {HALF}:regress",
        {"examples": [{"x": 1.0}]},
        400,
        error=("serving_default",),
    ),
]

ROUTE_ROWS = [
    RestRow(
        "unknown_verb",
        f"POST {HALF}:multiply",
        {"instances": [1]},
        400,
        error=("Malformed request",),
    ),
    RestRow("predict_by_get", f"GET {HALF}:predict", status=400, error=("Malformed request",)),
    RestRow(
        "status_by_post", f"POST {HALF}", {"instances": [1]}, 400, error=("Malformed request",)
    ),
    RestRow(
        "version_is_no_number", f"GET {HALF}/versions/one", status=400, error=("Malformed request",)
    ),
    RestRow(
        "version_beyond_int64",
        f"POST {HALF}/versions/9223372036854775808:predict",
        {"instances": [1]},
        400,
    ),
    RestRow(
        "path_that_there_is_not",
        "GET /v2000/nothing",
        status=404,
        mends="an HTML page where a client expects JSON",
    ),
]

ROWS = [*STATUS_ROWS, *PREDICT_ROWS, *CLASSIFY_REGRESS_ROWS, *ROUTE_ROWS]
