"""The messages and services of `protos/`, for which no installed package has a pb2 module.

cmake/protos.cmake compiles `protos/` to a descriptor set beside this module. The set has a descriptor
pool of its own. So its messages do not clash with generated modules of other packages, which register
the same names in protobuf's default pool.
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

INFERENCE_SERVICE = "inference.GRPCInferenceService"
PROFILER_SERVICE = "tensorflow.ProfilerService"

DESCRIPTOR_SET = Path(__file__).with_name("messages.binpb")


def load_pool(path: Path) -> Any:
    """A pool of the files in a serialized FileDescriptorSet.

    Raises ImportError, with the remedy, if there is no such file.
    """
    try:
        serialized = path.read_bytes()
    except FileNotFoundError:
        raise ImportError(
            f"{path} is missing: build Millpond with `make install`, or compile only this file with "
            "`cmake -P cmake/protos.cmake`"
        ) from None
    pool: Any = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(serialized).file:
        pool.Add(file)
    return pool


_pool = load_pool(DESCRIPTOR_SET)


def file_of(service: str) -> FileDescriptor:
    """The file that declares a service, by the service's full name."""
    file: FileDescriptor = _pool.FindServiceByName(service).file
    return file


def message_class(name: str) -> Any:
    """The class of a message by its full name, like `inference.ModelReadyRequest`."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(name))
