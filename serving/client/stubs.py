"""The gRPC stubs of tensorflow-serving-api, without TensorFlow. For clients: the server has no grpcio."""

# First: its import of the messages keeps TensorFlow out of the stubs' own imports (see there).
import serving.base.protos  # noqa: F401  # isort: skip

from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

__all__ = ["ModelServiceStub", "PredictionServiceStub"]
