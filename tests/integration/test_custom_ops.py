"""Models with ops that TensorFlow lacks: those of tensorflow-text, from its wheel."""

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from serving.base.errors import StatusCode, Unavailable
from serving.client import Client
from serving.config.op_library_files import op_libraries_of
from serving.core.servable import END
from tests.integration.conftest import StartServer
from tests.integration.exports import let_settle
from tests.integration.logs import logged
from tests.integration.model_host import ModelHost
from tests.integration.processes import mapped_files

SENTENCES = np.array(
    ["the quick brown fox", "Größe ändern 漢字", "", "a  b\tc\n", "unaffable"], dtype=object
)
VOCABULARY = ["[UNK]", "the", "quick", "brown", "fox", "un", "##aff", "##able", "a", "b", "c"]


@pytest.fixture(scope="module")
def text_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports a model that splits sentences into words and looks them up: one kernel from each of
    the two libraries.
    """
    import tensorflow as tf
    import tensorflow_text as text

    class Tokenizer(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.split = text.WhitespaceTokenizer()
            self.pieces = text.FastWordpieceTokenizer(VOCABULARY, token_out_type=tf.int32)
            self.scale = tf.Variable(2)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "sentences")])
        def serve(self, sentences: Any) -> dict[str, Any]:
            clean = text.normalize_utf8(text.case_fold_utf8(sentences), "NFKC")
            words = self.split.tokenize(clean)
            pieces = self.pieces.tokenize(words).merge_dims(-2, -1)
            return {
                "words": words.to_tensor(default_value=""),
                "pieces": pieces.to_tensor(default_value=-1) * self.scale,
            }

    directory = tmp_path_factory.mktemp("text") / "1"
    module = Tokenizer()
    tf.saved_model.save(module, str(directory), signatures=module.serve)
    return let_settle(directory)


def python_answer(directory: Path) -> dict[str, np.ndarray[Any, Any]]:
    import tensorflow as tf

    signature = tf.saved_model.load(str(directory)).signatures["serving_default"]
    outputs = signature(sentences=tf.constant(SENTENCES))
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def text_libraries() -> tuple[str, ...]:
    return op_libraries_of("tensorflow-text", tensorflow_version=version("tensorflow"))


def check_answers(server: ModelServer, directory: Path, name: str = "text") -> None:
    server.wait_until_available(name, version=1)
    with Client(server.target) as client:
        answer = client.predict(name, {"sentences": SENTENCES})
    expected = python_answer(directory)
    assert set(answer.outputs) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(answer.outputs[name], values)


def test_tensorflow_text_model_answers_as_in_python(start_server: StartServer, text_export: Path):
    server = start_server(
        model_name="text", base_path=text_export.parent, op_package="tensorflow-text"
    )
    check_answers(server, text_export)
    loaded = logged(server, "op_library_loaded")
    assert [event["path"] for event in loaded] == list(text_libraries())
    assert "SentencepieceTokenizeOp" in {op for event in loaded for op in event["ops"]}
    # Nothing was imported, and all libraries are bound to the one TensorFlow.
    mapped = mapped_files(server.process_id)
    assert "_whitespace_tokenizer_v2.so" in mapped
    assert "_pywrap_tensorflow_internal.so" not in mapped
    assert [name for name in mapped if name.startswith("pywrap_")] == []


def test_op_library_can_be_named_one_by_one(start_server: StartServer, text_export: Path):
    needed = ("_whitespace_tokenizer_v2", "_fast_wordpiece", "_normalize_ops")
    libraries = [path for path in text_libraries() if any(name in path for name in needed)]
    assert len(libraries) == len(needed)
    server = start_server(
        model_name="text", base_path=text_export.parent, op_library=libraries, arena_seal=True
    )
    check_answers(server, text_export)


def test_installed_tensorflow_text_needs_no_flag(host: ModelHost, text_export: Path):
    """TensorFlow Serving has these ops built in; here they are loaded when a model needs them."""
    model = host.model(text_export.parent, prefix="text")
    check_answers(model.server, text_export, model.name)
    assert [event["path"] for event in logged(model.server, "op_library_loaded")] == list(
        text_libraries()
    )


def test_missing_ops_are_named_with_the_remedy(host: ModelHost, text_export: Path, base_path: Path):
    graph = shutil.copytree(text_export, base_path / "1") / "saved_model.pb"
    graph.write_bytes(graph.read_bytes().replace(b"CaseFoldUTF8", b"Addons>FoldX"))
    let_settle(base_path / "1")
    model = host.model(base_path, prefix="addons")
    model.wait_for_log("load_failed")
    with Client(model.server.target) as client:
        (status,) = client.model_status(model.name)
    assert status.state is END
    assert status.error_code == StatusCode.FAILED_PRECONDITION
    for words in ("Addons>FoldX", "--op_package=NAME", "--op_library=PATH"):
        assert words in status.error_message


def test_file_that_is_not_library_stops_start(tmp_path: Path, base_path: Path):
    library = tmp_path / "ops.so"
    library.write_text("not a library")
    server = ModelServer(base_path=base_path, op_library=library)
    with pytest.raises(Unavailable, match=r"ops\.so cannot be loaded: .*(invalid ELF|too short)"):
        server.start()
