from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection_pb2

from serving.base.compiled_protos import INFERENCE_SERVICE, file_of, load_pool, message_class


def test_missing_descriptor_set_names_its_remedy(tmp_path: Path):
    with pytest.raises(ImportError, match=r"messages\.binpb is missing.*cmake -P cmake/protos"):
        load_pool(tmp_path / "messages.binpb")


def test_messages_are_apart_from_the_default_pool():
    found = descriptor_pool.Default()
    with pytest.raises(KeyError):
        found.FindFileByName(file_of(INFERENCE_SERVICE).name)


@pytest.mark.parametrize("name", reflection_pb2.DESCRIPTOR.message_types_by_name)
@pytest.mark.parametrize("edition", ["v1", "v1alpha"])
def test_reflection_has_fields_of_grpcio(edition: str, name: str):
    ours = message_class(f"grpc.reflection.{edition}.{name}").DESCRIPTOR
    known = reflection_pb2.DESCRIPTOR.message_types_by_name[name]
    assert [(f.number, f.name, f.type, f.is_repeated) for f in ours.fields] == [
        (f.number, f.name, f.type, f.is_repeated) for f in known.fields
    ]
    assert list(ours.oneofs_by_name) == list(known.oneofs_by_name)


def test_message_of_an_unknown_name_is_a_key_error():
    with pytest.raises(KeyError):
        message_class("inference.NoSuchMessage")
