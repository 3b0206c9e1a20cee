"""TensorFlow Serving's REST API, case by case. The cases are in `rest_rows.py`.

Requests go through httpx, and some through `curl` and `h2load`, which are independent of this
project.
"""

import gzip
import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving import ModelServer
from tests.integration.clients import TIMEOUT_SECONDS
from tests.integration.drop_in.rest_rows import HALF, JSON, PREDICT_ROWS, ROWS, TEXTS, RestRow

METADATA_OF_X = {
    "dtype": "DT_FLOAT",
    "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
}


@pytest.fixture(scope="module")
def http(drop_in_server: ModelServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=drop_in_server.url, timeout=TIMEOUT_SECONDS) as client:
        yield client


def _parsed(text: str) -> Any:
    """Returns JSON with NaN and the infinities replaced by their names: they are not valid JSON,
    and NaN equals nothing.
    """
    return _named(json.loads(text))


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(item) for item in value]
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rest_request_is_answered_as_documented(row: RestRow, http: httpx.Client):
    response = http.request(row.method, row.path, content=row.content)
    assert response.status_code == row.status, response.text
    if row.status == 200:
        assert _parsed(response.text) == row.answer
    else:
        assert response.headers["content-type"].partition(";")[0] == JSON
        assert list(response.json()) == ["error"]
        message = response.json()["error"]
        assert not [part for part in row.error if part not in message], message
    wrong = {name: response.headers.get(name) for name in row.headers}
    assert wrong == row.headers


def test_rows_have_names_of_their_own():
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_metadata_is_as_documented(http: httpx.Client):
    document = http.get(f"{HALF}/metadata").json()
    assert document["model_spec"] == {
        "name": "half_plus_two",
        "signature_name": "",
        "version": "123",
    }
    signatures = document["metadata"]["signature_def"]["signature_def"]
    names = {"serving_default", "regress_x_to_y", "regress_x_to_y2", "regress_x2_to_y3"}
    assert names | {"classify_x_to_y"} <= set(signatures)
    serving_default = signatures["serving_default"]
    assert serving_default["method_name"] == "tensorflow/serving/predict"
    x = serving_default["inputs"]["x"]
    assert {key: x[key] for key in METADATA_OF_X} == METADATA_OF_X
    assert isinstance(x["name"], str)
    assert signatures["regress_x_to_y"]["method_name"] == "tensorflow/serving/regress"


def test_list_of_models_has_each_with_its_versions(http: httpx.Client):
    """Mends: TensorFlow Serving answers 400 "Missing model name in request."."""
    response = http.get("/v1/models")
    assert response.status_code == 200
    text = response.text
    assert all(name in text for name in ("half_plus_two", "labelled", "dtypes"))


@pytest.mark.parametrize("coding", ["gzip"])
def test_compressed_body_is_read(coding: str, http: httpx.Client):
    body = gzip.compress(json.dumps({"instances": [1.0] * 1_000}).encode())
    response = http.post(f"{HALF}:predict", content=body, headers={"content-encoding": coding})
    assert response.json() == {"predictions": [2.5] * 1_000}


def test_body_falsely_marked_gzip_is_refused(http: httpx.Client):
    response = http.post(f"{HALF}:predict", content=b"{}", headers={"content-encoding": "gzip"})
    assert response.status_code == 400
    assert list(response.json()) == ["error"]


def test_error_of_a_long_request_is_short(http: httpx.Client):
    response = http.post(f"{HALF}:predict", json={"instances": ["x" * 100_000]})
    assert response.status_code == 400
    assert len(response.text) < 10_000


def test_options_without_origin_is_refused(http: httpx.Client):
    response = http.options(f"{HALF}:predict")
    assert response.status_code == 400


def test_binary_outside_base64_is_refused(http: httpx.Client):
    response = http.post(f"{TEXTS}:predict", json={"instances": [{"b64": "*"}]})
    assert response.status_code == 400
    assert "b64" in response.json()["error"] or "base64" in response.json()["error"]


# --- Other people's programs ------------------------------------------------------------------------


@pytest.mark.parametrize("row", [*PREDICT_ROWS[:4], ROWS[0]], ids=lambda row: row.name)
def test_curl_gets_the_documented_answer(row: RestRow, drop_in_server: ModelServer):
    arguments = ["curl", "-sS", "--max-time", "30", "-X", row.method]
    if row.content is not None:
        # This is the form in documents, for which curl sends the content type of a form.
        arguments += ["-d", row.content.decode()]
    result = subprocess.run(
        [*arguments, drop_in_server.url + row.path],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert json.loads(result.stdout) == row.answer


def test_curl_with_large_chunked_body_is_answered(drop_in_server: ModelServer, tmp_path: Path):
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"instances": [1.0] * 100_000}))
    result = subprocess.run(
        [
            *("curl", "-sS", "--max-time", "60", "-H", "Transfer-Encoding: chunked"),
            *("-H", "Expect: 100-continue", "--data-binary", f"@{body}"),
            f"{drop_in_server.url}{HALF}:predict",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert json.loads(result.stdout) == {"predictions": [2.5] * 100_000}


def test_h2load_has_every_request_answered(drop_in_server: ModelServer, tmp_path: Path):
    body = tmp_path / "body.json"
    body.write_text('{"instances": [1.0, 2.0, 5.0]}')
    result = subprocess.run(
        [
            *("h2load", "--h1", "-n", "2000", "-c", "10", "-d", str(body)),
            f"{drop_in_server.url}{HALF}:predict",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert "2000 succeeded, 0 failed, 0 errored, 0 timeout" in result.stdout
    assert "2000 2xx, 0 3xx, 0 4xx, 0 5xx" in result.stdout
