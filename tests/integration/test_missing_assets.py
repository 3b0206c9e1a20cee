"""Versions that lack an asset file, exported by TensorFlow."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import ModelServer
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import wait_for_states
from tests.integration.conftest import StartServer
from tests.integration.exports import drop, let_settle
from tests.integration.logs import logged, wait_for_log

WORDS = "assets/words.txt"
X = np.array([1.0, 2.0], np.float32)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports a model: `unread` names an asset that nothing reads, `read` one that fills a table at
    load.
    """
    import tensorflow as tf

    directory = tmp_path_factory.mktemp("exports")
    words = directory / "words.txt"
    words.write_text("a\nb\n")
    x_spec = tf.TensorSpec([None], tf.float32)

    unread = tf.Module()
    unread.words = tf.saved_model.Asset(str(words))
    unread.answer = tf.function(lambda x: {"y": x * 2}, input_signature=[x_spec])
    tf.saved_model.save(unread, str(directory / "unread"), signatures=unread.answer)

    read = tf.Module()
    initializer = tf.lookup.TextFileInitializer(
        str(words),
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
    )
    read.table = tf.lookup.StaticHashTable(initializer, -1)

    def look_up(x: Any) -> dict[str, Any]:
        return {"y": x + tf.cast(read.table.lookup(tf.constant("b")), tf.float32)}

    read.answer = tf.function(look_up, input_signature=[x_spec])
    tf.saved_model.save(read, str(directory / "read"), signatures=read.answer)
    return directory


def drop_without_asset(export: Path, base_path: Path, version: int) -> Path:
    directory = drop(export, base_path.parent, f"whole_{version}")
    (directory / WORDS).unlink()
    return let_settle(directory).rename(base_path / str(version))


def answer(server: ModelServer) -> list[float]:
    with Client(server.target) as client:
        return list(client.predict("m", {"x": X}).outputs["y"])


def test_old_version_without_an_unread_asset_serves(
    start_server: StartServer, exports: Path, base_path: Path
):
    drop_without_asset(exports / "unread", base_path, 1)
    server = start_server(model_name="m", base_path=base_path)
    server.wait_until_available("m", 1)
    assert answer(server) == [2.0, 4.0]
    assert wait_for_log(server, "asset_missing", version=1)["files"] == WORDS
    with Client(server.admin_target) as client:
        (note,) = client.describe_models()["m"]["notes"]
    assert note["event"] == "asset_missing"


def test_fresh_version_waits_for_its_asset_then_serves(
    start_server: StartServer, exports: Path, base_path: Path
):
    drop(exports / "unread", base_path, 1)
    server = start_server(model_name="m", base_path=base_path, missing_asset_wait_seconds=3)
    server.wait_until_available("m", 1)
    directory = drop_without_asset(exports / "unread", base_path, 2)
    # The copy has just ended.
    os.utime(directory)
    incomplete = wait_for_log(server, "version_incomplete", version=2)
    assert f"{WORDS} is missing" in incomplete["reason"]
    with Client(server.target) as client:
        wait_for_states(client, "m", {2: AVAILABLE})
    wait_for_log(server, "asset_missing", version=2)
    assert answer(server) == [2.0, 4.0]


def test_missing_asset_fails_load_until_it_comes(
    start_server: StartServer, exports: Path, base_path: Path
):
    directory = drop_without_asset(exports / "read", base_path, 1)
    server = start_server(model_name="m", base_path=base_path)
    with Client(server.target) as client:
        wait_for_states(client, "m", {1: END})
        (status,) = client.model_status("m")
        assert "words.txt" in status.error_message
        shutil.copy2(exports / "read" / WORDS, directory / WORDS)
        let_settle(directory)
        wait_for_states(client, "m", {1: AVAILABLE})
    assert answer(server) == [2.0, 3.0]
    assert logged(server, "warning_over", warning="asset_missing")
