"""The messages of `tensorflow.ProfilerService`, as far as they are read or written here.

The TensorFlow wheel has no pb2 module of them. They live in a descriptor pool of their own, apart
from the wheel's modules of the messages that they refer to.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from serving.base.message_table import Fields, add_messages, add_service

PACKAGE = "tensorflow"
SERVICE = f"{PACKAGE}.ProfilerService"
FILE_NAME = "millpond/profiler_service.proto"

METHODS = ("Profile", "Terminate", "Monitor")
"""The methods that are answered. Continuous profiling is not: it is UNIMPLEMENTED."""

_MESSAGES: Mapping[str, Fields] = {
    "ProfileOptions": {
        1: ("include_dataset_ops", "bool"),
        2: ("host_tracer_level", "uint32"),
        5: ("version", "uint32"),
        8: ("start_timestamp_ns", "uint64"),
        9: ("duration_ms", "uint64"),
    },
    "ProfileRequest": {
        1: ("duration_ms", "uint64"),
        4: ("opts", "ProfileOptions"),
        5: ("repository_root", "string"),
        6: ("session_id", "string"),
        7: ("host_name", "string"),
        9: ("emit_xspace", "bool"),
    },
    "ProfileToolData": {1: ("name", "string"), 2: ("data", "bytes")},
    "ProfileResponse": {
        6: ("tool_data", "[ProfileToolData]"),
        7: ("empty_trace", "bool"),
        # A tensorflow.profiler.XSpace, whose bytes are handed on as they are.
        8: ("xspace", "bytes"),
    },
    "TerminateRequest": {1: ("session_id", "string")},
    "TerminateResponse": {},
    "MonitorRequest": {
        1: ("duration_ms", "uint64"),
        2: ("monitoring_level", "int32"),
        3: ("timestamp", "bool"),
    },
    "MonitorResponse": {1: ("data", "string")},
}


def file_descriptor_proto() -> bytes:
    """Returns the serialized FileDescriptorProto of all messages and the service."""
    file = descriptor_pb2.FileDescriptorProto(name=FILE_NAME, package=PACKAGE, syntax="proto3")
    add_messages(file, _MESSAGES)
    add_service(file, SERVICE, METHODS)
    serialized: bytes = file.SerializeToString(deterministic=True)
    return serialized


def message_class(name: str) -> Any:
    """Returns the class of a message, like `ProfileRequest`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(file_descriptor_proto())
