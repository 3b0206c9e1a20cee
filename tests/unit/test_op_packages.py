from pathlib import Path

import pytest
import tomli

from serving.loading.op_packages import OP_PACKAGES, TENSORFLOW, missing_ops_message, package_of

PYPROJECT = tomli.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


@pytest.mark.parametrize(
    ("op", "package"),
    [
        ("SentencepieceTokenizeOp", "tensorflow-text"),
        ("TFText>WhitespaceTokenizeWithOffsetsV2", "tensorflow-text"),
        ("CaseFoldUTF8", "tensorflow-text"),
        ("RougeL", "tensorflow-text"),
        ("SimpleMLInferenceOpWithHandle", "tensorflow-decision-forests"),
        ("IO>BigQueryReadSession", "tensorflow-io"),
        ("TFRA>CuckooHashTableFind", "tensorflow-recommenders-addons"),
        ("Addons>ImageProjectiveTransformV3", "tensorflow-addons"),
        ("EntropyEncodeIndex", "tensorflow-compression-ops"),
        ("TfqSimulateExpectation", "tensorflow-quantum"),
        ("DecodeProtoSparseV4", "struct2tensor"),
    ],
)
def test_package_of_op_is_the_one_that_registers_it(op: str, package: str):
    found = package_of(op)
    assert found is not None
    assert found.name == package


def test_package_of_unknown_op_is_none():
    assert package_of("MatMulish") is None


def test_missing_op_message_names_package_and_flag():
    assert missing_ops_message(["SentencepieceTokenizeOp"]) == (
        "op SentencepieceTokenizeOp is not registered: pip install tensorflow-text==2.21.* and "
        "use --op_package=tensorflow-text"
    )


def test_missing_ops_message_names_each_package_once():
    message = missing_ops_message(["Addons>A", "CaseFoldUTF8", "Mine", "RougeL"])
    first, second, third = message.split("; ")
    assert first.startswith("op Addons>A is not registered: it belongs to tensorflow-addons")
    assert "for TensorFlow 2.15" in first
    assert second.startswith("ops CaseFoldUTF8, RougeL are not registered: pip install")
    assert third.startswith("op Mine is not registered: ")
    assert "--op_library=PATH" in third


def test_missing_ops_message_of_many_ops_stays_short():
    message = missing_ops_message([f"Op{number}" for number in range(500)])
    assert "Op9 and 490 more are not registered" in message
    assert len(message) < 300


def test_op_packages_match_pyproject():
    (requirement,) = (
        r for r in PYPROJECT["project"]["dependencies"] if r.startswith("tensorflow>")
    )
    assert requirement.startswith(f"tensorflow>={TENSORFLOW},<")
    for package in OP_PACKAGES:
        if package.newest_is_for:
            assert package.newest_is_for != TENSORFLOW
        else:
            assert package.requirement == f"{package.name}=={TENSORFLOW}.*"
