"""Each test runs in a process of its own: the subject is the order of imports."""

from tests.unit.fresh_python import run_python


def test_protos_import_leaves_no_tensorflow_behind():
    loaded = run_python(
        "import sys, serving.base.protos\n"
        "print([m for m in sys.modules if m == 'tensorflow' or m.startswith('tensorflow.')])"
    )
    assert loaded == "[]"


def test_protos_import_takes_no_grpc():
    assert run_python("import sys, serving.base.protos; print('grpc' in sys.modules)") == "False"


def test_protos_text_and_bytes_survive_a_round_trip():
    code = (
        "from serving.base.protos import predict_pb2, types_pb2\n"
        "request = predict_pb2.PredictRequest()\n"
        "request.model_spec.name = 'm'\n"
        "request.inputs['x'].dtype = types_pb2.DT_FLOAT\n"
        "again = predict_pb2.PredictRequest.FromString(request.SerializeToString())\n"
        "print(again == request, again.model_spec.name)"
    )
    assert run_python(code) == "True m"


def test_stubs_import_takes_no_tensorflow():
    loaded = run_python("import sys, serving.client.stubs; print('tensorflow' in sys.modules)")
    assert loaded == "False"


def test_stock_stub_after_protos_loads_no_tensorflow():
    code = (
        "import sys, serving.base.protos\n"
        "from tensorflow_serving.apis import prediction_service_pb2_grpc\n"
        "print('tensorflow' in sys.modules)"
    )
    assert run_python(code) == "False"
