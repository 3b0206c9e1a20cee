import pytest

from serving.base.errors import FailedPrecondition, StatusCode
from serving.core.servable import (
    AVAILABLE,
    END,
    HEALTHY,
    LOADING,
    START,
    UNLOADING,
    Health,
    ServableId,
    ServableState,
    ServableStatus,
)
from serving.kserve import documents
from tests.unit.signatures import mixed_signatures

BAD = Health(StatusCode.DATA_LOSS, "bad checksum")


def status(version: int, state: ServableState, health: Health = HEALTHY) -> ServableStatus:
    return ServableStatus(id=ServableId("m", version), state=state, health=health)


def test_metadata_describes_default_signature() -> None:
    assert documents.model_metadata("m", [3, 1], mixed_signatures()) == {
        "name": "m",
        "versions": ["1", "3"],
        "platform": "tensorflow_savedmodel",
        "inputs": [
            {"name": "any", "datatype": "INT64", "shape": [-1]},
            {"name": "one", "datatype": "FP32", "shape": []},
            {"name": "words", "datatype": "BYTES", "shape": [-1]},
        ],
        "outputs": [
            {"name": "y", "datatype": "COMPLEX64", "shape": [-1, 3]},
            {"name": "z", "datatype": "BF16", "shape": [2]},
        ],
    }


def test_config_has_whole_shapes_and_tritons_types() -> None:
    config = documents.model_config("m", mixed_signatures())
    assert (config["platform"], config["max_batch_size"]) == ("tensorflow_savedmodel", 0)
    assert [item["data_type"] for item in config["input"]] == [
        *("TYPE_INT64", "TYPE_FP32", "TYPE_STRING")
    ]
    assert [item["data_type"] for item in config["output"]] == ["TYPE_INVALID", "TYPE_BF16"]


def test_metadata_without_default_signature_lists_all() -> None:
    with pytest.raises(FailedPrecondition, match="signature_name: other"):
        documents.model_metadata("m", [1], mixed_signatures("other"))
    with pytest.raises(FailedPrecondition, match="signature_name: other"):
        documents.model_config("m", mixed_signatures("other"))


def index(*versions: ServableStatus, unloaded: str = "", is_ready_only: bool = False):
    rows = documents.repository_index(
        ["m"], {"m": versions} if versions else {}, unloaded.split(), is_ready_only=is_ready_only
    )
    return [(row["version"], row["state"], row["reason"]) for row in rows]


def test_index_has_row_per_version_with_failures() -> None:
    states = (START, LOADING, AVAILABLE, UNLOADING, END)
    versions = [status(number, state) for number, state in enumerate(states)]
    assert index(*versions, status(9, END, BAD)) == [
        ("0", "LOADING", ""),
        ("1", "LOADING", ""),
        ("2", "READY", ""),
        ("3", "UNLOADING", ""),
        ("4", "UNAVAILABLE", "unloaded"),
        ("9", "UNAVAILABLE", "bad checksum"),
    ]


def test_index_of_those_that_are_ready_has_no_others() -> None:
    rows = index(status(1, END), status(2, AVAILABLE), is_ready_only=True)
    assert rows == [("2", "READY", "")]


def test_index_of_empty_model_has_reason() -> None:
    assert index() == [("", "UNAVAILABLE", "no version has been found in its base path")]
    ((_, _, reason),) = index(unloaded="m")
    assert "RepositoryModelLoad" in reason
    ((_, _, reason),) = index(status(1, END), unloaded="m")
    assert "RepositoryModelLoad" in reason
