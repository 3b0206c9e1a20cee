"""The models that scripts/fetch_models.py unpacks, and the answers of TensorFlow to them."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import REPOSITORY

MODELS = Path(REPOSITORY, "build", "models")
TOLERANCE = 1e-5
SOURCES = [
    "def main():\n    import sys\n    print('hello', file=sys.stderr)\n",
    "#include <vector>\nint main() { std::vector<int> v; return v.size(); }\n",
    'fn main() { let x: Vec<u8> = vec![]; println!("{:?}", x); }\n',
    "SELECT name, COUNT(*) FROM people GROUP BY name HAVING COUNT(*) > 1;\n",
    "",
    "\x00 Größe 漢字 \x7f",
    "x" * 50_000,
]


def fetched(name: str) -> Path:
    base_path = MODELS / name
    if not (base_path / "1" / "saved_model.pb").exists():
        pytest.fail(f"{base_path} is not there: run `python scripts/fetch_models.py {MODELS}`")
    return base_path


def python_answer(directory: Path, signature_name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer of tf.saved_model, run eagerly beside the server on the same machine."""
    import tensorflow as tf

    signature = tf.saved_model.load(str(directory)).signatures[signature_name]
    outputs = signature(**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: tensor.numpy() for name, tensor in outputs.items()}
