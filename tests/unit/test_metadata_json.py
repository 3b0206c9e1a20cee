import json

from serving.base.protos import get_model_metadata_pb2
from serving.core.servable import ServableId
from serving.loading.metadata_json import metadata_json


def test_metadata_json_is_tensorflow_servings() -> None:
    signatures = get_model_metadata_pb2.SignatureDefMap()
    signature = signatures.signature_def["serving_default"]
    signature.inputs["x"].name = "x:0"
    signature.inputs["x"].dtype = 1
    signature.inputs["x"].tensor_shape.dim.add().size = -1
    x = {
        "name": "x:0",
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
    }
    made = metadata_json(ServableId("m", 3), signatures.SerializeToString())
    assert json.loads(made) == {
        "model_spec": {"name": "m", "signature_name": "", "version": "3"},
        "metadata": {
            "signature_def": {
                "signature_def": {
                    "serving_default": {
                        "inputs": {"x": x},
                        "outputs": {},
                        "method_name": "",
                        "defaults": {},
                    }
                }
            }
        },
    }
