"""TensorFlow Serving's messages of models, in a form that loses nothing of what was sent."""

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

from serving.base.protos import model_management_pb2


def encode_reload_request(config: bytes) -> bytes:
    """Encodes the ReloadConfigRequest of a serialized ModelServerConfig."""
    request = reload_request()
    request.config.ParseFromString(config)
    serialized: bytes = request.SerializeToString()
    return serialized


def config_message() -> Any:
    """A ModelServerConfig whose `version_labels` are a list of pairs, as on the wire, and whose
    `base_path` is bytes.

    A map would silently keep the last of two entries for one label, so a duplicate label would not be
    reported. A path need not be UTF-8, which protobuf wants of a string.
    """
    return message_factory.GetMessageClass(
        _own_pool().FindMessageTypeByName("tensorflow.serving.ModelServerConfig")
    )()


def reload_request() -> Any:
    """A ReloadConfigRequest of such a ModelServerConfig."""
    return message_factory.GetMessageClass(
        _own_pool().FindMessageTypeByName("tensorflow.serving.ReloadConfigRequest")
    )()


@cache
def _own_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        for message in proto.message_type:
            for nested in message.nested_type:
                if nested.name == "VersionLabelsEntry":
                    nested.options.ClearField("map_entry")
            if message.name == "ModelConfig":
                _field(message, "base_path").type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
        pool.Add(proto)

    add(model_management_pb2.DESCRIPTOR)
    return pool


def _field(message: Any, name: str) -> Any:
    return next(field for field in message.field if field.name == name)
