"""The gRPC stubs of tensorflow-serving-api, without TensorFlow. The server does not use grpcio."""

# This import comes first, because it keeps the imports of the stubs from importing TensorFlow.
import serving.base.protos  # noqa: F401  # isort: skip

from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

__all__ = ["ModelServiceStub", "PredictionServiceStub"]
