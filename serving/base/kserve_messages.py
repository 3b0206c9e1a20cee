"""The messages of `inference.GRPCInferenceService`, built from a table of field numbers.

They are in a descriptor pool of their own. So they do not clash with a client's generated modules,
which register the same names in the default pool.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

from serving.base.message_table import Fields, add_messages, add_service

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
FILE_NAME = "millpond/grpc_inference_service.proto"

_File = descriptor_pb2.FileDescriptorProto

_CHOICE = "parameter_choice"

_NAMED: Fields = {1: ("name", "string"), 2: ("version", "string")}
_MESSAGES: Mapping[str, Fields] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {1: ("live", "bool")},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {1: ("ready", "bool")},
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": {1: ("ready", "bool")},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {**_NAMED, 3: ("extensions", "[string]")},
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse": {
        1: ("name", "string"),
        2: ("versions", "[string]"),
        3: ("platform", "string"),
        4: ("inputs", "[ModelMetadataResponse.TensorMetadata]"),
        5: ("outputs", "[ModelMetadataResponse.TensorMetadata]"),
    },
    "ModelMetadataResponse.TensorMetadata": {
        1: ("name", "string"),
        2: ("datatype", "string"),
        3: ("shape", "[int64]"),
    },
    "InferParameter": {
        1: ("bool_param", "?bool"),
        2: ("int64_param", "?int64"),
        3: ("string_param", "?string"),
        4: ("double_param", "?double"),
        5: ("uint64_param", "?uint64"),
    },
    "InferTensorContents": {
        1: ("bool_contents", "[bool]"),
        2: ("int_contents", "[int32]"),
        3: ("int64_contents", "[int64]"),
        4: ("uint_contents", "[uint32]"),
        5: ("uint64_contents", "[uint64]"),
        6: ("fp32_contents", "[float]"),
        7: ("fp64_contents", "[double]"),
        8: ("bytes_contents", "[bytes]"),
    },
    "ModelInferRequest": {
        1: ("model_name", "string"),
        2: ("model_version", "string"),
        3: ("id", "string"),
        4: ("parameters", "{InferParameter}"),
        5: ("inputs", "[ModelInferRequest.InferInputTensor]"),
        6: ("outputs", "[ModelInferRequest.InferRequestedOutputTensor]"),
        7: ("raw_input_contents", "[bytes]"),
    },
    "ModelInferRequest.InferInputTensor": {
        1: ("name", "string"),
        2: ("datatype", "string"),
        3: ("shape", "[int64]"),
        4: ("parameters", "{InferParameter}"),
        5: ("contents", "InferTensorContents"),
    },
    "ModelInferRequest.InferRequestedOutputTensor": {
        1: ("name", "string"),
        2: ("parameters", "{InferParameter}"),
    },
    "ModelInferResponse": {
        1: ("model_name", "string"),
        2: ("model_version", "string"),
        3: ("id", "string"),
        4: ("parameters", "{InferParameter}"),
        5: ("outputs", "[ModelInferResponse.InferOutputTensor]"),
        6: ("raw_output_contents", "[bytes]"),
    },
    "ModelInferResponse.InferOutputTensor": {
        1: ("name", "string"),
        2: ("datatype", "string"),
        3: ("shape", "[int64]"),
        4: ("parameters", "{InferParameter}"),
        5: ("contents", "InferTensorContents"),
    },
    "ModelConfigRequest": _NAMED,
    "ModelConfigResponse": {1: ("config", "ModelConfig")},
    # These three messages, and the enum, have only the fields that this server fills in.
    "ModelConfig": {
        1: ("name", "string"),
        2: ("platform", "string"),
        4: ("max_batch_size", "int32"),
        5: ("input", "[ModelInput]"),
        6: ("output", "[ModelOutput]"),
        17: ("backend", "string"),
    },
    "ModelInput": {1: ("name", "string"), 2: ("data_type", "#DataType"), 4: ("dims", "[int64]")},
    "ModelOutput": {1: ("name", "string"), 2: ("data_type", "#DataType"), 3: ("dims", "[int64]")},
    "ModelStatisticsRequest": _NAMED,
    "ModelStatisticsResponse": {1: ("model_stats", "[ModelStatistics]")},
    "StatisticDuration": {1: ("count", "uint64"), 2: ("ns", "uint64")},
    "InferStatistics": {
        1: ("success", "StatisticDuration"),
        2: ("fail", "StatisticDuration"),
        3: ("queue", "StatisticDuration"),
        4: ("compute_input", "StatisticDuration"),
        5: ("compute_infer", "StatisticDuration"),
        6: ("compute_output", "StatisticDuration"),
    },
    "ModelStatistics": {
        **_NAMED,
        3: ("last_inference", "uint64"),
        4: ("inference_count", "uint64"),
        5: ("execution_count", "uint64"),
        6: ("inference_stats", "InferStatistics"),
    },
    "ModelRepositoryParameter": {
        1: ("bool_param", "?bool"),
        2: ("int64_param", "?int64"),
        3: ("string_param", "?string"),
        4: ("bytes_param", "?bytes"),
    },
    "RepositoryIndexRequest": {1: ("repository_name", "string"), 2: ("ready", "bool")},
    "RepositoryIndexResponse": {1: ("models", "[RepositoryIndexResponse.ModelIndex]")},
    "RepositoryIndexResponse.ModelIndex": {
        **_NAMED,
        3: ("state", "string"),
        4: ("reason", "string"),
    },
    "RepositoryModelLoadRequest": {
        1: ("repository_name", "string"),
        2: ("model_name", "string"),
        3: ("parameters", "{ModelRepositoryParameter}"),
    },
    "RepositoryModelLoadResponse": {},
    "RepositoryModelUnloadRequest": {
        1: ("repository_name", "string"),
        2: ("model_name", "string"),
        3: ("parameters", "{ModelRepositoryParameter}"),
    },
    "RepositoryModelUnloadResponse": {},
}

DATA_TYPES = (
    *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
    *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32"),
    *("TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
)

METHODS = (
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"),
    *("ModelConfig", "ModelStatistics"),
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
)
"""The methods of the service that this server answers. ModelStreamInfer, shared memory, tracing and log
settings are UNIMPLEMENTED."""


def file_descriptor_proto() -> bytes:
    """Returns the serialized FileDescriptorProto of the service; it imports no other file."""
    file = _File(name=FILE_NAME, package=PACKAGE, syntax="proto3")
    add_messages(file, _MESSAGES, choice=_CHOICE)
    enum = file.enum_type.add(name="DataType")
    for number, value in enumerate(DATA_TYPES):
        enum.value.add(name=value, number=number)
    add_service(file, SERVICE, METHODS)
    serialized: bytes = file.SerializeToString(deterministic=True)
    return serialized


def file_descriptor() -> FileDescriptor:
    """Returns the descriptor of the service's file, which gRPC's reflection describes to clients."""
    return _POOL.FindFileByName(FILE_NAME)


def message_class(name: str) -> Any:
    """Returns the class of a message, like `ModelReadyRequest`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def message_names() -> Iterator[str]:
    """Yields the names of all messages, without the package."""
    yield from _MESSAGES


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(file_descriptor_proto())
