"""Versions that lack an asset file, exported by TensorFlow."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.exports import drop, let_settle
from tests.integration.logs import wait_for_log
from tests.integration.model_host import HostedModel, ModelHost

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


@pytest.fixture(scope="module")
def host_flags() -> Mapping[str, object]:
    """A fresh version waits for its asset, but not for long."""
    return {"missing_asset_wait_seconds": 3}


def drop_without_asset(export: Path, model: HostedModel, version: int) -> Path:
    directory = drop(export, model.base_path, f"{version}.whole")
    (directory / WORDS).unlink()
    return let_settle(directory).rename(model.base_path / str(version))


def answer(model: HostedModel) -> list[float]:
    with Client(model.server.target) as client:
        return list(client.predict(model.name, {"x": X}).outputs["y"])


def test_old_version_without_an_unread_asset_serves(host: ModelHost, exports: Path):
    model = host.model(prefix="unread")
    drop_without_asset(exports / "unread", model, 1)
    model.wait_until_available(1)
    assert answer(model) == [2.0, 4.0]
    assert model.wait_for_log("asset_missing", version=1)["files"] == WORDS
    with Client(model.server.admin_target) as client:
        (note,) = client.describe_models()[model.name]["notes"]
    assert note["event"] == "asset_missing"


def test_fresh_version_waits_for_its_asset_then_serves(host: ModelHost, exports: Path):
    model = host.model(prefix="unread").serve(exports / "unread")
    directory = drop_without_asset(exports / "unread", model, 2)
    # The copy has just ended.
    os.utime(directory)
    incomplete = model.wait_for_log("version_incomplete", version=2)
    assert f"{WORDS} is missing" in incomplete["reason"]
    model.wait_until_available(2)
    model.wait_for_log("asset_missing", version=2)
    assert answer(model) == [2.0, 4.0]


def test_missing_asset_fails_load_until_it_comes(host: ModelHost, exports: Path):
    model = host.model(prefix="read")
    directory = drop_without_asset(exports / "read", model, 1)
    model.wait_for_states({1: END})
    with Client(model.server.target) as client:
        (status,) = client.model_status(model.name)
    assert "words.txt" in status.error_message
    shutil.copy2(exports / "read" / WORDS, directory / WORDS)
    let_settle(directory)
    model.wait_for_states({1: AVAILABLE})
    assert answer(model) == [2.0, 3.0]
    wait_for_log(model.server, "warning_over", warning="asset_missing")
