"""The messages and a real `import tensorflow` in one process, in both orders."""

import subprocess
import sys

import pytest

USE_BOTH = """
array = tf.constant([1.0, 2.0])
request = predict_pb2.PredictRequest()
request.inputs["x"].CopyFrom(tf.make_tensor_proto(array))
assert isinstance(tf.make_tensor_proto(array), tensor_pb2.TensorProto)
assert tf.make_ndarray(request.inputs["x"]).tolist() == [1.0, 2.0]
assert tf.function(lambda x: x + 1)(array).numpy().tolist() == [2.0, 3.0]
assert tf.__version__
"""


@pytest.mark.parametrize(
    "imports",
    [
        "from serving.base.protos import predict_pb2, tensor_pb2\nimport tensorflow as tf\n",
        "import tensorflow as tf\nfrom serving.base.protos import predict_pb2, tensor_pb2\n",
    ],
    ids=["protos_first", "tensorflow_first"],
)
def test_protos_share_classes_with_tensorflow(imports: str):
    result = subprocess.run(
        [sys.executable, "-c", imports + USE_BOTH],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
