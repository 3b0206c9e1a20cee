from pathlib import Path

import pytest
from google.protobuf import text_format

from serving.base.errors import DataLoss, NotFound
from serving.base.protos import saved_model_pb2
from tests.unit.signatures import FLOAT, signature_def, write_saved_model
from warmup.signature_defs import read_signature_defs

DEFINITION = signature_def({"x": (FLOAT, (-1, 3))})


def test_signature_defs_of_tags_omit_init_op(tmp_path: Path):
    definitions = {"serving_default": DEFINITION, "__saved_model_init_op": DEFINITION}
    directory = write_saved_model(tmp_path / "1", definitions)
    assert read_signature_defs(directory) == {"serving_default": DEFINITION}


def test_read_signature_defs_reads_pbtxt_too(tmp_path: Path):
    directory = write_saved_model(tmp_path / "1", {"s": DEFINITION})
    binary = directory / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(binary.read_bytes())
    (directory / "saved_model.pbtxt").write_text(text_format.MessageToString(saved_model))
    binary.unlink()
    assert read_signature_defs(directory) == {"s": DEFINITION}


def test_signature_defs_without_tags_list_known_tags(tmp_path: Path):
    directory = write_saved_model(tmp_path / "1", {"s": DEFINITION}, tags=["serve", "gpu"])
    with pytest.raises(NotFound, match=r"tags \['serve'\]; there are \[\['gpu', 'serve'\]\]"):
        read_signature_defs(directory)


def test_signature_defs_of_base_path_list_versions(tmp_path: Path):
    for version in ("2", "10"):
        write_saved_model(tmp_path / version, {"s": DEFINITION})
    with pytest.raises(NotFound, match=f"neither .*; its versions are {tmp_path}/2, {tmp_path}/10"):
        read_signature_defs(tmp_path)


def test_signature_defs_of_missing_directory_not_found(tmp_path: Path):
    with pytest.raises(NotFound, match="is not a directory"):
        read_signature_defs(tmp_path / "nowhere")


def test_signature_defs_of_damaged_file_are_data_loss(tmp_path: Path):
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff")
    with pytest.raises(DataLoss, match="does not parse"):
        read_signature_defs(tmp_path)
