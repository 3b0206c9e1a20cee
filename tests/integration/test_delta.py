"""Bases and deltas as a trainer writes them, loaded by TensorFlow, by a session, and by a server."""

import errno
import os
import re
import shutil
import tracemalloc
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.base.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    MillpondError,
    StatusCode,
)
from tests.integration.clients import caller_to, predict_request
from tests.integration.delta_exports import TrainedModel, loaded_answer, session_answer
from tests.integration.exports import flip_a_byte
from tests.integration.model_host import ModelHost

IDS = np.arange(0, 1000, 7)
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
# A number of each size, and those whose rows have an odd number of bytes.
DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "uint16", "int64", "bool")


@pytest.fixture
def model(tmp_path: Path) -> TrainedModel:
    """A model of which `1` is a base, and which was trained since."""
    made = TrainedModel(tmp_path / "model")
    made.export_base(1)
    made.train()
    return made


def variables(version: Path) -> Path:
    return version / "variables" / "variables"


def stored_tables(version: Path) -> list[Any]:
    """The tables of a version as its init op leaves them, computed from the checkpoint by NumPy."""
    import tensorflow as tf

    from millpond.delta import open_base

    reader = tf.train.load_checkpoint(str(variables(version)))
    tables = []
    for table in open_base(version).tables:
        rows = reader.get_tensor(table.key)
        rows[reader.get_tensor(table.ids_key)] = reader.get_tensor(table.rows_key)
        tables.append(rows)
    return tables


def test_every_loader_answers_a_delta_as_its_model(model: TrainedModel) -> None:
    wanted = {}
    for version in (2, 3):
        model.train()
        path = model.export_delta(version)
        wanted[path] = model.answer(IDS)
    for path, answer in wanted.items():
        assert loaded_answer(path, IDS).tobytes() == answer.tobytes()
        assert session_answer(path, IDS).tobytes() == answer.tobytes()


def test_base_answers_as_the_model_it_was_made_of(tmp_path: Path) -> None:
    model = TrainedModel(tmp_path)
    path = model.export_base(1)
    before = model.answer(IDS)
    model.train()
    model.export_delta(2)
    assert loaded_answer(path, IDS).tobytes() == before.tobytes()
    assert session_answer(path, IDS).tobytes() == before.tobytes()


def test_server_answers_base_and_delta(host: ModelHost) -> None:
    hosted = host.model(prefix="trained")
    model = TrainedModel(hosted.base_path)
    with caller_to(hosted.server.target) as caller:
        for version in (1, 2, 3):
            model.train()
            model.export_base(1) if version == 1 else model.export_delta(version)
            hosted.wait_until_available(version)
            response = caller.predict(predict_request(hosted.name, {"ids": IDS}))
            assert response.model_spec.version.value == version
            answer = np.array(response.outputs["y"].float_val, np.float32)
            if response.outputs["y"].tensor_content:
                answer = np.frombuffer(response.outputs["y"].tensor_content, np.float32)
            assert answer.tobytes() == model.answer(IDS).tobytes()


def test_delta_links_all_but_its_rows(tmp_path: Path) -> None:
    model = TrainedModel(tmp_path, rows=100_000, columns=16)
    base = model.export_base(1)
    (base / "assets.extra").mkdir()
    (base / "assets.extra" / "note").write_text("kept")
    model.train(1000)
    delta = model.export_delta(2)
    linked = ["saved_model.pb", "assets.extra/note", "variables/variables.data-00000-of-00002"]
    for name in linked:
        assert (delta / name).stat().st_ino == (base / name).stat().st_ino
    own = [path.stat() for path in delta.rglob("*") if path.is_file() and path.stat().st_nlink == 1]
    # An id of 8 bytes and a row of 64 bytes for each change of two tables, and 20 kB for all else.
    assert 2 * 1000 * 72 < sum(status.st_size for status in own) < 2 * 1000 * 72 + 20_000


def test_fingerprint_of_a_delta_is_its_own(model: TrainedModel) -> None:
    from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

    def computed(path: Path) -> Any:
        from tensorflow.core.protobuf import fingerprint_pb2

        return fingerprint_pb2.FingerprintDef.FromString(
            fingerprinting.CreateFingerprintDef(str(path))
        )

    import tensorflow as tf

    delta = model.export_delta(2)
    found = tf.saved_model.experimental.read_fingerprint(str(delta))
    assert found.checkpoint_hash == computed(delta).checkpoint_hash
    assert found.saved_model_checksum == computed(delta).saved_model_checksum


def test_deltas_are_cumulative(model: TrainedModel) -> None:
    from millpond.delta import export_delta, open_base

    base = open_base(model.base_path / "1")
    for version in range(2, 6):
        model.train()
        model.export_delta(version)
    # Written after the others: the same rows again, since each delta is of the base.
    delta = export_delta(model.module, base, model.base_path / "9")
    assert all(10 < count <= 50 for count in delta.changed_rows.values())
    for stored, table in zip(stored_tables(delta.path), model.module.tables):
        assert stored.tobytes() == table.numpy().tobytes()


def test_delta_may_be_opened_as_its_base(model: TrainedModel) -> None:
    from millpond.delta import export_delta

    former = model.export_delta(2)
    model.train()
    delta = export_delta(model.module, former, model.base_path / "3")
    assert loaded_answer(delta.path, IDS).tobytes() == model.answer(IDS).tobytes()


@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(1, 40),
    columns=st.integers(1, 9),
    changed_ratio=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_changes_come_back_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    rows: int,
    columns: int,
    changed_ratio: float,
    seed: int,
) -> None:
    import tensorflow as tf

    from millpond.delta import export_base, export_delta

    random = np.random.default_rng(seed)
    row_bytes = columns * tf.as_dtype(dtype).size
    # Few values, so that bytes are often equal. They make NaNs, infinities and both zeros too.
    values = [0, 1] if dtype == "bool" else [0, 1, 0x7F, 0x80, 0xF0, 0xFF]
    before, after = (random.choice(values, (rows, row_bytes)).astype(np.uint8) for _ in range(2))
    kept = random.random(rows) >= changed_ratio
    after[kept] = before[kept]

    def tensor(contents: Any) -> Any:
        return tf.reshape(tf.io.decode_raw(contents.tobytes(), dtype), [rows, columns])

    module = tf.Module()
    module.table = tf.Variable(tensor(before))
    module.other = tf.Variable(1.0)
    directory = tmp_path_factory.mktemp("random")
    # Signatures are not needed to compare checkpoints.
    base = export_base(module, directory / "1", signatures={}, tables=[module.table])
    module.table.assign(tensor(after))
    delta = export_delta(module, base, directory / "2", changed_ratio_max=1)
    (stored,) = stored_tables(delta.path)
    assert stored.tobytes() == after.tobytes()
    assert list(delta.changed_rows.values()) == [np.count_nonzero((before != after).any(1))]


def test_negative_zero_and_nan_are_compared_by_bits(tmp_path: Path) -> None:
    from millpond.checkpoint_index import read_index
    from millpond.delta.row_changes import LiveRows, StoredRows, changed_rows

    model = TrainedModel(tmp_path, rows=4, columns=2, table_count=1)
    (table,) = model.module.tables
    table.assign([[0.0, 1.0], [np.nan, 1.0], [2.0, 0.0], [3.0, 3.0]])
    index = read_index(variables(model.export_base(1)))
    table.assign([[-0.0, 1.0], [np.nan, 1.0], [2.0, 0.0], [3.0, 3.0]])
    entry = index.entries[f"tables/0{SUFFIX}"]
    with closing(StoredRows(index.shard(entry.shard_id), entry, (4, 2), 8)) as stored:
        assert changed_rows(stored, LiveRows(table)).tolist() == [0]


def test_rows_of_many_pieces_are_all_compared(tmp_path: Path) -> None:
    model = TrainedModel(tmp_path, rows=70_001, columns=16, table_count=1)
    model.export_base(1)
    (table,) = model.module.tables
    edges = np.array([0, 16_383, 16_384, 32_768, 70_000])
    table.scatter_nd_update(edges[:, np.newaxis], np.ones((5, 16), np.float32))
    delta = model.export_delta(2)
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(variables(delta)))
    assert reader.get_tensor(f"ids/0{SUFFIX}").tolist() == edges.tolist()


def test_comparison_takes_memory_for_pieces_only(tmp_path: Path) -> None:
    from millpond.checkpoint_index import read_index
    from millpond.delta import open_base
    from millpond.delta.row_changes import LiveRows, StoredRows, changed_rows

    # 32 MB.
    model = TrainedModel(tmp_path, rows=500_000, columns=16, table_count=1)
    base = model.export_base(1)
    model.train()
    index, (stored_table,) = read_index(variables(base)), open_base(base).tables
    entry = index.entries[stored_table.key]
    shard = index.shard(entry.shard_id)
    tracemalloc.start()
    with closing(StoredRows(shard, entry, stored_table.shape, 64)) as stored:
        changed = changed_rows(stored, LiveRows(model.module.tables[0]))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(changed) == 10
    assert peak_bytes < 5_000_000


# --- Named ids --------------------------------------------------------------------------------------------------


def test_named_ids_are_written_as_they_are(model: TrainedModel) -> None:
    first, second = model.module.tables
    changed = model.train()
    ids = [np.union1d(ids, np.arange(20, dtype=np.int64))[::-1] for ids in changed]
    path = model.export_delta(2, changed_ids=[(first, ids[0]), ("table_1", ids[1])])
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(variables(path)))
    for k, table in enumerate((first, second)):
        stored = reader.get_tensor(f"ids/{k}{SUFFIX}")
        assert stored.tolist() == sorted(ids[k].tolist())
        assert reader.get_tensor(f"rows/{k}{SUFFIX}").tobytes() == table.numpy()[stored].tobytes()


def test_ids_may_repeat_and_a_table_have_several(model: TrainedModel) -> None:
    import tensorflow as tf

    first, _ = model.module.tables
    pairs = [(first, [9, 3, 9]), ("table_1", []), ("table_0", [5, 3])]
    path = model.export_delta(2, changed_ids=pairs)
    reader = tf.train.load_checkpoint(str(variables(path)))
    assert reader.get_tensor(f"ids/0{SUFFIX}").tolist() == [3, 5, 9]
    assert reader.get_tensor(f"ids/1{SUFFIX}").tolist() == []


def test_table_without_named_ids_is_compared(tmp_path: Path) -> None:
    model = TrainedModel(tmp_path)
    model.export_base(1)
    first, _ = model.train()
    path = model.export_delta(2, changed_ids=[(model.module.tables[0], first)])
    assert loaded_answer(path, IDS).tobytes() == model.answer(IDS).tobytes()


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([1000], "there is no row 1000 of 1000"),
        ([-1], "there is no row -1"),
        ([0.5], "whole numbers"),
        ([[1]], "whole numbers"),
    ],
)
def test_wrong_ids_are_refused(model: TrainedModel, ids: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        model.export_delta(2, changed_ids={"table_0": ids})


def test_ids_of_an_unknown_table_are_refused(model: TrainedModel) -> None:
    with pytest.raises(InvalidArgument, match=r"dense is no table of the base: table_0, table_1"):
        model.export_delta(2, changed_ids=[(model.module.dense, [1])])


def test_verify_finds_a_row_that_was_left_out(tmp_path: Path) -> None:
    model = TrainedModel(tmp_path, table_count=1)
    model.export_base(1)
    (changed,) = model.train()
    with pytest.raises(InvalidArgument, match=f"the first one is {changed[3]}"):
        model.export_delta(2, changed_ids={"table_0": np.delete(changed, 3)}, verify=True)
    model.export_delta(2, changed_ids={"table_0": changed}, verify=True)


# --- Refusals ---------------------------------------------------------------------------------------------------


def test_replaced_base_is_refused(model: TrainedModel) -> None:
    from millpond.delta import export_base, export_delta, open_base

    base = open_base(model.base_path / "1")
    (model.base_path / "1").rename(model.base_path / "old")
    export_base(model.module, base.path, signatures=model._answer, tables=model.module.tables)
    with pytest.raises(FailedPrecondition, match="is not the base that this was"):
        export_delta(model.module, base, model.base_path / "2")


def test_base_that_is_gone_has_a_remedy(tmp_path: Path) -> None:
    model = TrainedModel(tmp_path)
    shutil.rmtree(model.export_base(1))
    with pytest.raises(
        FailedPrecondition, match="if it was deleted, give a delta of it in its place"
    ):
        model.export_delta(2)


def test_plain_model_is_no_base(tmp_path: Path) -> None:
    import tensorflow as tf

    from millpond.delta import export_delta

    model = TrainedModel(tmp_path)
    tf.saved_model.save(model.module, str(tmp_path / "1"), signatures=model._answer)
    with pytest.raises(FailedPrecondition, match="is no base"):
        export_delta(model.module, tmp_path / "1", tmp_path / "2")
    with pytest.raises(FailedPrecondition, match="there is no "):
        export_delta(model.module, tmp_path / "absent", tmp_path / "2")


@pytest.mark.parametrize(("rows", "columns", "dtype"), [(999, 8, "float32"), (1000, 8, "float64")])
def test_other_table_is_refused(model: TrainedModel, rows: int, columns: int, dtype: str) -> None:
    import tensorflow as tf

    changed = tf.Variable(tf.zeros([rows, columns], dtype))
    model.module.tables = [model.module.tables[0], changed]
    with pytest.raises(FailedPrecondition, match=f"is {dtype}.*{rows}, 8.* export a new base"):
        model.export_delta(2)


def test_missing_variable_is_refused(model: TrainedModel) -> None:
    del model.module.dense
    with pytest.raises(FailedPrecondition, match="the model has no model/dense"):
        model.export_delta(2)


def test_changed_code_is_another_graph(model: TrainedModel) -> None:
    import tensorflow as tf

    from millpond.delta import check_graph, open_base

    base = open_base(model.base_path / "1")
    check_graph(model.module, base, signatures=model._answer)
    spec = tf.TensorSpec([None], tf.int64, name="ids")

    def traced(answer: Callable[[Any], Any]) -> Any:
        return tf.function(answer, input_signature=[spec])

    # Traced anew, with other names of functions.
    same = traced(model._answer.python_function)
    check_graph(model.module, base, signatures=same)
    other = traced(lambda ids: {"y": tf.nn.relu(same(ids)["y"])})
    with pytest.raises(FailedPrecondition, match="has another graph than"):
        check_graph(model.module, base, signatures=other)
    with pytest.raises(FailedPrecondition, match="has another graph than"):
        check_graph(model.module, base, signatures={"other": same})


def test_check_of_a_graph_needs_the_tables(model: TrainedModel) -> None:
    from millpond.delta import check_graph, open_base

    model.module.tables = [model.module.tables[0]]
    with pytest.raises(FailedPrecondition, match="the model has no table_1"):
        check_graph(model.module, open_base(model.base_path / "1"), signatures=model._answer)


def test_too_many_rows_are_refused(model: TrainedModel) -> None:
    model.module.tables[0].assign_add(model.module.tables[0] * 0 + 1)
    with pytest.raises(FailedPrecondition, match=r"1,0\d\d of 2,000 rows.*table_0 100\.0%"):
        model.export_delta(2)
    path = model.export_delta(2, changed_ratio_max=0.6)
    assert loaded_answer(path, IDS).tobytes() == model.answer(IDS).tobytes()


def test_existing_target_is_refused(model: TrainedModel) -> None:
    (model.base_path / "2").mkdir()
    with pytest.raises(FailedPrecondition, match="exists already"):
        model.export_delta(2)
    with pytest.raises(FailedPrecondition, match="exists already"):
        model.export_base(1)


def test_delta_inside_its_base_is_refused(model: TrainedModel) -> None:
    from millpond.delta import export_delta

    before = sorted(model.base_path.rglob("*"))
    with pytest.raises(FailedPrecondition, match=r"lies inside .*/1, which is only read"):
        export_delta(model.module, model.base_path / "1", model.base_path / "1" / "new" / "2")
    assert sorted(model.base_path.rglob("*")) == before


def test_other_file_system_needs_a_copy(
    model: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(FailedPrecondition, match="to one file system that has hard links"):
        model.export_delta(2)
    path = model.export_delta(2, copy=True)
    assert loaded_answer(path, IDS).tobytes() == model.answer(IDS).tobytes()


@pytest.mark.parametrize(
    "step",
    ["os.link", "SaveV2", "MergeV2Checkpoints", "tf.fingerprint", "os.utime", "Path.rename"],
)
def test_failure_midway_leaves_nothing(
    model: TrainedModel, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    import tensorflow as tf

    rename: Any = Path.rename

    def fail(*arguments: object, **_: object) -> Any:
        if step == "Path.rename" and str(arguments[1]).endswith(".delta-partial"):
            # Only the last rename fails, which puts the version in place.
            return rename(*arguments)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    owners = {"os.link": os, "os.utime": os, "tf.fingerprint": tf, "Path.rename": Path}
    monkeypatch.setattr(owners.get(step, tf.raw_ops), step.rpartition(".")[2], fail)
    with pytest.raises(OSError, match="No space left"):
        model.export_delta(2)
    assert os.listdir(model.base_path) == ["1"]
    monkeypatch.undo()
    path = model.export_delta(2)
    assert loaded_answer(path, IDS).tobytes() == model.answer(IDS).tobytes()


def test_full_disk_is_an_error_with_its_reason(
    model: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    def fail(**_: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.raw_ops, "SaveV2", fail)
    with pytest.raises(MillpondError, match=r"/2: No space left on device") as raised:
        model.export_delta(2)
    assert raised.value.code == StatusCode.RESOURCE_EXHAUSTED
    assert os.listdir(model.base_path) == ["1"]


def test_killed_export_is_cleared_by_the_next(model: TrainedModel) -> None:
    from millpond.version_files import written_beside

    leftover = model.base_path / ".7.0123.delta-partial"
    leftover.mkdir()
    os.link(model.base_path / "1" / "saved_model.pb", leftover / "saved_model.pb")
    other_tool = model.base_path / ".8.partial"
    other_tool.mkdir()
    with written_beside(model.base_path / "5") as under_way:
        model.export_delta(2)
        assert under_way.is_dir()
    assert sorted(os.listdir(model.base_path)) == [".8.partial", "1", "2", "5"]


def test_new_version_is_old_enough_for_a_server(tmp_path: Path) -> None:
    from millpond.delta import export_base, export_delta
    from serving.base.fingerprint import fingerprint
    from serving.source.settling import SETTLE_NS

    made = TrainedModel(tmp_path)
    tables = made.module.tables
    base = export_base(made.module, tmp_path / "1", signatures=made._answer, tables=tables)
    made.train()
    delta = export_delta(made.module, base, tmp_path / "2")
    (tmp_path / "now").touch()
    now_ns = (tmp_path / "now").stat().st_mtime_ns
    for path in (base.path, delta.path):
        assert fingerprint(str(path)).mtime_ns_newest < now_ns - SETTLE_NS


# --- The index --------------------------------------------------------------------------------------------------


def test_written_index_is_read_by_tensorflow(model: TrainedModel, tmp_path: Path) -> None:
    import tensorflow as tf

    from millpond.checkpoint_index import index_path, read_index, shard_path, write_index

    index = read_index(variables(model.base_path / "1"))
    # Enough keys for several restart points, and one as long as any path.
    entries = dict(index.entries) | {
        f"{'k' * 300}{n}": index.entries[f"ids/0{SUFFIX}"] for n in range(99)
    }
    prefix = tmp_path / "copy"
    for number in range(index.shard_count):
        os.link(index.shard(number), shard_path(prefix, number, index.shard_count))
    write_index(prefix, index.shard_count, entries)
    reader = tf.train.load_checkpoint(str(prefix))
    assert reader.get_variable_to_shape_map().keys() == entries.keys()
    for k, table in enumerate(stored_tables(model.base_path / "1")):
        assert reader.get_tensor(f"tables/{k}{SUFFIX}").tobytes() == table.tobytes()
    assert read_index(prefix).entries == entries
    assert index_path(prefix).stat().st_size > 99 * 300


@settings(max_examples=40, deadline=None)
@given(offset=st.integers(-48, 400))
def test_damaged_index_is_read_as_no_other(
    tmp_path_factory: pytest.TempPathFactory, offset: int
) -> None:
    from millpond.checkpoint_index import index_path, read_index, write_index

    prefix = tmp_path_factory.mktemp("index") / "variables"
    write_index(prefix, 3, {})
    whole = read_index(prefix)
    path = index_path(prefix)
    flip_a_byte(path, offset % path.stat().st_size)
    # Some bytes mean nothing, such as those before the magic number.
    with suppress(DataLoss):
        assert read_index(prefix) == whole


def test_damaged_index_is_an_error(model: TrainedModel) -> None:
    from millpond.delta import open_base

    flip_a_byte(model.base_path / "1" / "variables" / "variables.index", 40)
    with pytest.raises(DataLoss, match="is no index of a checkpoint"):
        open_base(model.base_path / "1")


def test_damaged_base_is_an_error(model: TrainedModel) -> None:
    from millpond.delta import export_delta

    model.train()
    base = model.base_path / "1"
    flip_a_byte(base / "variables" / "variables.data-00000-of-00002", 31_000)
    with pytest.raises(DataLoss, match="the checksum of a table is wrong"):
        export_delta(model.module, base, model.base_path / "2")


def test_truncated_shard_is_an_error(model: TrainedModel) -> None:
    from millpond.delta.row_changes import LiveRows, StoredRows, changed_rows

    shard = model.base_path / "1" / "variables" / "variables.data-00000-of-00002"
    os.truncate(shard, 31_999)
    (table, _) = model.module.tables
    with (
        closing(StoredRows(shard, SimpleNamespace(offset=0, crc32c=0), (1000, 8), 32)) as stored,
        pytest.raises(DataLoss, match="it ends before"),
    ):
        changed_rows(stored, LiveRows(table))


# --- Kinds of models --------------------------------------------------------------------------------------------

ModelAndInputs = tuple[Any, list[Any], Mapping[str, Any], Mapping[str, Any]]
"""A model, its tables, the arguments of `export_base`, and inputs by name."""


def keras_functional() -> ModelAndInputs:
    import keras
    import tensorflow as tf

    words = keras.Input((3,), dtype="string", name="words")
    ids = keras.Input((2,), dtype="int64", name="ids")
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
    tables = [keras.layers.Embedding(50, 4), keras.layers.Embedding(60, 4)]
    found = [tables[0](lookup(words)), tables[1](ids)]
    flat = keras.layers.Flatten()(keras.layers.Concatenate(axis=1)(found))
    model = keras.Model({"words": words, "ids": ids}, keras.layers.Dense(1)(flat))
    model.compile("adam", "mse")
    inputs = {"words": tf.constant([["a", "z", "b"]]), "ids": tf.constant([[1, 59]], tf.int64)}
    return model, [table.embeddings for table in tables], {}, inputs


def keras_sequential() -> ModelAndInputs:
    import keras
    import tensorflow as tf

    table = keras.layers.Embedding(50, 4)
    layers = [keras.Input((3,), dtype="int64", name="ids"), table, keras.layers.Dense(2)]
    return (
        keras.Sequential(layers),
        [table.embeddings],
        {},
        {"ids": tf.constant([[1, 2, 49]], tf.int64)},
    )


def keras_subclassed() -> ModelAndInputs:
    import keras
    import tensorflow as tf

    class Tied(keras.Model):  # type: ignore[misc]
        """The table is both the look-up of words and, transposed, the output's matrix."""

        def __init__(self) -> None:
            super().__init__()
            self.table = keras.layers.Embedding(50, 4)
            self.norm = keras.layers.LayerNormalization()

        def call(self, ids: Any) -> Any:
            hidden = self.norm(self.table(ids))
            return keras.ops.matmul(hidden, keras.ops.transpose(self.table.embeddings))

    ids = tf.constant([[1, 2, 49]], tf.int64)
    model = Tied()
    model(ids)
    signature = [tf.TensorSpec([None, 3], tf.int64, name="ids")]
    return model, [model.table.embeddings] * 2, {"input_signature": signature}, {"ids": ids}


def keras_lora() -> ModelAndInputs:
    import keras
    import tensorflow as tf

    table = keras.layers.Embedding(50, 8)
    model = keras.Sequential([keras.Input((3,), dtype="int64", name="ids"), table])
    table.enable_lora(2)
    tables = [table._embeddings, table.lora_embeddings_a]
    return model, tables, {}, {"ids": tf.constant([[1, 2, 49]], tf.int64)}


def feature_columns() -> ModelAndInputs:
    """A look-up by feature columns of TensorFlow 1: weights of ragged features, combined by their mean."""
    import tensorflow as tf

    columns = tf.compat.v1.feature_column
    column = tf.feature_column.embedding_column(
        tf.feature_column.categorical_column_with_identity("ids", 50), 4
    )

    def answer(examples: Any) -> Any:
        parsed = tf.io.parse_example(examples, tf.feature_column.make_parse_example_spec([column]))
        return columns.input_layer(parsed, [column])

    module = tf.Module()
    spec = tf.TensorSpec([None], tf.string, name="examples")
    module.wrapped = tf.compat.v1.wrap_function(answer, [spec])
    module.held = list(module.wrapped.variables)
    example = tf.train.Example()
    example.features.feature["ids"].int64_list.value.extend([1, 2, 49])
    inputs = {"examples": tf.constant([example.SerializeToString()])}
    # The wrapped function itself has no names of its arguments.
    signature = tf.function(lambda examples: module.wrapped(examples), input_signature=[spec])
    return module, module.held[:1], {"signatures": signature}, inputs


def module_of_keras_layer() -> ModelAndInputs:
    """A module that tracks a variable of Keras, and not the variable of TensorFlow in it."""
    import keras
    import tensorflow as tf

    module = tf.Module()
    module.layer = keras.layers.Embedding(50, 4)
    ids = tf.constant([[1, 2, 49]], tf.int64)
    module.layer(ids)
    spec = tf.TensorSpec([None, 3], tf.int64, name="ids")
    signature = tf.function(lambda ids: module.layer(ids), input_signature=[spec])
    return module, [module.layer.embeddings], {"signatures": signature}, {"ids": ids}


def assert_each_table_is_stored_once(path: Path) -> None:
    import tensorflow as tf

    from millpond.delta import open_base

    shapes = tf.train.load_checkpoint(str(variables(path))).get_variable_to_shape_map().values()
    for table in open_base(path).tables:
        assert list(shapes).count(list(table.shape)) == 1


KINDS = (
    *(keras_functional, keras_sequential, keras_subclassed, keras_lora),
    *(module_of_keras_layer, feature_columns),
)


@pytest.mark.parametrize("make", KINDS)
def test_each_kind_of_model_has_deltas(make: Callable[[], ModelAndInputs], tmp_path: Path) -> None:
    import tensorflow as tf

    from millpond.delta import check_graph, export_base, export_delta

    model, tables, arguments, inputs = make()

    def answered(path: Path) -> bytes:
        loaded = tf.saved_model.load(str(path)).signatures["serving_default"](**inputs)
        return b"".join(loaded[name].numpy().tobytes() for name in sorted(loaded))

    base = export_base(model, tmp_path / "1", tables=tables, **arguments)
    check_graph(model, base, **arguments)
    assert len(base.tables) == len({id(table) for table in tables})
    assert_each_table_is_stored_once(base.path)
    before = answered(base.path)
    for table in tables:
        table.assign(tf.tensor_scatter_nd_add(table, [[1], [2]], tf.ones([2, table.shape[1]])))
    delta = export_delta(model, base, tmp_path / "2")
    assert all(count == 2 for count in delta.changed_rows.values())
    assert answered(base.path) == before
    # A plain export of the same model is what the delta must be like.
    plain = export_base(model, tmp_path / "3", tables=tables, **arguments)
    assert answered(delta.path) == answered(plain.path) != before


def test_base_has_the_functions_of_its_module(tmp_path: Path) -> None:
    import tensorflow as tf

    from millpond.delta import export_base

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(np.eye(40, 4, dtype=np.float32))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def __call__(self, ids: Any) -> Any:
            return tf.gather(self.table, ids)

        @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
        def count(self, number: Any) -> Any:
            return number + 40

    base = export_base(Model(), tmp_path / "1", table_bytes_min=0)
    loaded = tf.saved_model.load(str(base.path))
    assert loaded(tf.constant([1], tf.int64)).numpy().tolist() == [[0, 1, 0, 0]]
    assert loaded.count(tf.constant(2, tf.int64)) == 42


def test_optimizer_is_not_saved(tmp_path: Path) -> None:
    import tensorflow as tf

    from millpond.delta import export_base

    model, tables, _, inputs = keras_functional()
    model.fit(inputs, np.ones((1, 1)), verbose=0)
    export_base(model, tmp_path / "1", tables=tables)
    keys = tf.train.load_checkpoint(str(variables(tmp_path / "1"))).get_variable_to_shape_map()
    table_shapes = [shape for shape in keys.values() if shape in ([5, 4], [50, 4], [60, 4])]
    assert sorted(table_shapes) == [[50, 4], [60, 4]]


def test_large_tall_matrices_are_tables(tmp_path: Path) -> None:
    import tensorflow as tf

    from millpond.delta import export_base

    module = tf.Module()
    module.table = tf.Variable(tf.zeros([40_000, 8]), name="table")
    module.kernel = tf.Variable(tf.zeros([1000, 1000]), name="kernel")
    module.small = tf.Variable(tf.zeros([1000, 8]), name="small")
    base = export_base(module, tmp_path / "1", signatures={})
    assert [table.name for table in base.tables] == ["table"]
    base = export_base(module, tmp_path / "2", signatures={}, table_bytes_min=30_000)
    assert sorted(table.name for table in base.tables) == ["small", "table"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda tf: tf.Variable(tf.zeros([3])), "and not rows and columns"),
        (lambda tf: tf.Variable(tf.zeros([0, 3])), "it is empty"),
        (lambda tf: tf.Variable([["a"]]), "writes no rows of string"),
        (lambda tf: tf.zeros([3, 3]), "it is no variable of TensorFlow"),
    ],
)
def test_what_cannot_be_a_table_is_refused(
    tmp_path: Path, make: Callable[[Any], Any], text: str
) -> None:
    import tensorflow as tf

    from millpond.delta import export_base

    module = tf.Module()
    module.table = make(tf)
    with pytest.raises(InvalidArgument, match=text):
        export_base(module, tmp_path / "1", signatures={}, tables=[module.table])
    assert os.listdir(tmp_path) == []


def test_untracked_table_is_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    from millpond.delta import export_base

    with pytest.raises(InvalidArgument, match="the model does not track it"):
        export_base(tf.Module(), tmp_path / "1", signatures={}, tables=[tf.Variable([[1.0]])])


def test_model_with_other_state_is_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    from millpond.delta import export_base

    module = tf.Module()
    module.table = tf.Variable([[1.0]])
    module.counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    with pytest.raises(InvalidArgument, match="MutableHashTable and no variable"):
        export_base(module, tmp_path / "1", signatures={}, tables=[module.table])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda tf: tf.Module(), "give signatures="),
        (lambda tf: object(), "a object cannot be exported"),
    ],
)
def test_model_without_signature_is_refused(
    tmp_path: Path, make: Callable[[Any], Any], text: str
) -> None:
    import tensorflow as tf

    from millpond.delta import export_base

    model = make(tf)
    if isinstance(model, tf.Module):
        model.table = tf.Variable(tf.zeros([4, 1]))
    with pytest.raises(MillpondError, match=text):
        export_base(model, tmp_path / "1", table_bytes_min=0)


# --- Two versions -----------------------------------------------------------------------------------------------


class PlainModel(TrainedModel):
    """A model whose versions are ordinary ones, and whose function is traced for each of them.

    So functions and captures have other names in each export, as after more steps of training.
    """

    scale = 1.0
    order = (0, 1)

    def export(self, version: int) -> Path:
        import tensorflow as tf

        def answer(ids: Any) -> dict[str, Any]:
            tables = [self.module.tables[number] for number in self.order]
            found = [tf.nn.embedding_lookup(table, ids) for table in tables]
            return {"y": tf.matmul(tf.concat(found, 1), self.module.dense) * self.scale}

        path = self.base_path / str(version)
        spec = tf.TensorSpec([None], tf.int64, name="ids")
        signature = tf.function(answer, input_signature=[spec])
        tf.saved_model.save(self.module, str(path), signatures=signature)
        return path


@pytest.fixture
def plain(tmp_path: Path) -> PlainModel:
    return PlainModel(tmp_path / "model", rows=4000)


NAMES = ("tables/0", "tables/1")


def test_delta_of_two_plain_versions_is_the_new_one(plain: PlainModel) -> None:
    from millpond.delta import delta_of_versions

    old = plain.export(1)
    before = plain.answer(IDS)
    plain.train()
    new = plain.export(2)
    delta = delta_of_versions(old, new, plain.base_path / "3", table_names=NAMES)
    assert dict(delta.changed_rows) == {"tables/0": 10, "tables/1": 10}
    for answer in (loaded_answer, session_answer):
        assert answer(delta.path, IDS).tobytes() == plain.answer(IDS).tobytes()
        assert answer(old, IDS).tobytes() == before.tobytes()
    assert signatures_of(delta.path) == signatures_of(new)
    (linked,) = (path for path in delta.path.rglob("*.data-*") if path.stat().st_nlink > 1)
    shard = variables(old).with_name("variables.data-00000-of-00001")
    assert linked.stat().st_ino == shard.stat().st_ino


def signatures_of(version: Path) -> Any:
    """The signatures of a version: of each the names, types and shapes, without the names of nodes."""
    graph = meta_graph_of(version)
    return {
        key: [
            {name: (info.dtype, str(info.tensor_shape)) for name, info in tensors.items()}
            for tensors in (signature.inputs, signature.outputs)
        ]
        for key, signature in graph.signature_def.items()
    }


def test_delta_of_two_versions_may_be_a_base_of_more(plain: PlainModel) -> None:
    from millpond.delta import delta_of_versions, export_delta, open_base

    old = plain.export(1)
    plain.train()
    first = delta_of_versions(old, plain.export(2), plain.base_path / "3", table_names=NAMES)
    assert [table.name for table in open_base(first.path).tables] == ["table_0", "table_1"]
    plain.train()
    second = export_delta(plain.module, first.path, plain.base_path / "4")
    assert loaded_answer(second.path, IDS).tobytes() == plain.answer(IDS).tobytes()
    third = delta_of_versions(first.path, second.path, plain.base_path / "5")
    assert loaded_answer(third.path, IDS).tobytes() == plain.answer(IDS).tobytes()
    assert third.changed_rows == second.changed_rows


def test_deltas_go_on_without_the_ordinary_version(plain: PlainModel) -> None:
    from millpond.delta import delta_of_versions

    plain.train()
    old = plain.export(1)
    first = delta_of_versions(old, old, plain.base_path / "2", table_names=NAMES)
    shutil.rmtree(old)
    plain.train()
    second = delta_of_versions(first.path, plain.export(3), plain.base_path / "new" / "4")
    assert dict(second.changed_rows) == {"table_0": 10, "table_1": 10}
    assert loaded_answer(second.path, IDS).tobytes() == plain.answer(IDS).tobytes()
    plain.scale = 2.0
    with pytest.raises(FailedPrecondition, match="different graphs"):
        delta_of_versions(first.path, plain.export(5), plain.base_path / "6")


@pytest.mark.parametrize("is_missing", [False, True])
def test_new_version_without_its_data_is_an_error(plain: PlainModel, is_missing: bool) -> None:
    from millpond.delta import delta_of_versions

    old, new = plain.export(1), plain.export(2)
    shard = variables(new).with_name("variables.data-00000-of-00001")
    os.truncate(shard, 100) if not is_missing else shard.unlink()
    with pytest.raises(DataLoss, match=re.escape(f"{variables(new)}: ")):
        delta_of_versions(old, new, plain.base_path / "3", table_names=NAMES)


@pytest.mark.parametrize("damaged", [1, 2])
def test_damaged_versions_are_an_error(plain: PlainModel, damaged: int) -> None:
    from millpond.delta import delta_of_versions

    plain.export(1)
    plain.train()
    plain.export(2)
    data = variables(plain.base_path / str(damaged)).with_name("variables.data-00000-of-00001")
    flip_a_byte(data, 100_000)
    with pytest.raises(DataLoss, match=re.escape(f"{data}: the checksum of a table is wrong")):
        delta_of_versions(
            plain.base_path / "1", plain.base_path / "2", plain.base_path / "3", table_names=NAMES
        )


@pytest.mark.parametrize("damage", [b"\xff" * 200, b""], ids=["other bytes", "empty"])
@pytest.mark.parametrize("damaged", [1, 2])
def test_damaged_graph_is_an_error_of_one_line(
    plain: PlainModel, damaged: int, damage: bytes
) -> None:
    from millpond.delta import delta_of_versions

    for version in (1, 2):
        plain.export(version)
    path = plain.base_path / str(damaged) / "saved_model.pb"
    path.write_bytes(damage)
    with pytest.raises(DataLoss, match=re.escape(f"{path}: it ")):
        delta_of_versions(
            plain.base_path / "1", plain.base_path / "2", plain.base_path / "3", table_names=NAMES
        )
    assert sorted(path.name for path in plain.base_path.iterdir()) == ["1", "2"]


def test_damaged_fingerprint_is_an_error(model: TrainedModel) -> None:
    path = model.base_path / "1" / "fingerprint.pb"
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(DataLoss, match=re.escape(f"{path}: it is damaged")):
        model.export_delta(2)
    assert [path.name for path in model.base_path.iterdir()] == ["1"]


def test_delta_of_two_bases_is_of_the_first(tmp_path: Path) -> None:
    from millpond.delta import delta_of_versions

    model = TrainedModel(tmp_path)
    old = model.export_base(1)
    model.train()
    new = model.export_base(2)
    (new / "assets.extra").mkdir()
    (new / "assets.extra" / "note").write_text("new")
    delta = delta_of_versions(old, new, tmp_path / "3")
    assert loaded_answer(delta.path, IDS).tobytes() == model.answer(IDS).tobytes()
    assert set(delta.changed_rows.values()) == {10}
    assert (delta.path / "assets.extra" / "note").read_text() == "new"
    graph = "saved_model.pb"
    assert (delta.path / graph).stat().st_ino == (old / graph).stat().st_ino


def test_delta_of_keras_exports_keeps_vocabularies(tmp_path: Path) -> None:
    import tensorflow as tf

    from millpond.delta import delta_of_versions

    model, tables, _, inputs = keras_functional()
    model.export(tmp_path / "1", verbose=False)
    for table in tables:
        table.assign(tf.tensor_scatter_nd_add(table, [[1], [2]], tf.ones([2, 4])))
    model.export(tmp_path / "2", verbose=False)
    delta = delta_of_versions(tmp_path / "1", tmp_path / "2", tmp_path / "3", table_bytes_min=100)
    new, found = (tf.saved_model.load(str(path)) for path in (tmp_path / "2", delta.path))
    expected = new.serve(inputs).numpy().tobytes()
    assert found.serve(inputs).numpy().tobytes() == expected
    answer = found.signatures["serving_default"](**inputs)["output_0"]
    assert answer.numpy().tobytes() == expected
    # Keras writes each variable twice: its own, and that of TensorFlow in it.
    assert list(delta.changed_rows.values()) == [2, 2, 2, 2]
    again = delta_of_versions(delta.path, tmp_path / "2", tmp_path / "4")
    assert list(again.changed_rows.values()) == [2, 2, 2, 2]


def test_other_graph_is_refused(plain: PlainModel) -> None:
    from millpond.delta import delta_of_versions

    old = plain.export(1)
    plain.scale = 2.0
    with pytest.raises(FailedPrecondition, match="have different graphs"):
        delta_of_versions(old, plain.export(2), plain.base_path / "3", table_names=NAMES)
    assert sorted(os.listdir(plain.base_path)) == ["1", "2"]


def test_names_of_a_graph_do_not_count(plain: PlainModel) -> None:
    from millpond.delta.graph_digest import meta_graph_digest

    graph = meta_graph_of(plain.export(1))
    renamed = type(graph).FromString(graph.SerializeToString())
    for function in renamed.graph_def.library.function:
        function.signature.name += "_1"
        for node in function.node_def:
            node.name = f"other_{node.name}"
            node.input[:] = [renamed_input(item, function) for item in node.input]
            rename_functions(node)
        for results in (function.ret, function.control_ret):
            for key, item in list(results.items()):
                results[key] = renamed_input(item, function)
    for node in renamed.graph_def.node:
        rename_functions(node)
    assert meta_graph_digest(renamed) == meta_graph_digest(graph)


def renamed_input(item: str, function: Any) -> str:
    name = item.removeprefix("^").partition(":")[0]
    is_argument = any(name == argument.name for argument in function.signature.input_arg)
    return item if is_argument else item.replace(name, f"other_{name}", 1)


def rename_functions(node: Any) -> None:
    for value in node.attr.values():
        if value.HasField("func"):
            value.func.name += "_1"


def test_each_node_of_a_graph_counts(plain: PlainModel) -> None:
    from millpond.delta.graph_digest import meta_graph_digest

    graph = meta_graph_of(plain.export(1))
    whole = meta_graph_digest(graph)
    counted = 0
    for function in graph.graph_def.library.function:
        # Nothing that a server runs calls it.
        if "traced_save" in function.signature.name:
            continue
        for node in function.node_def:
            node.op += "Changed"
            assert meta_graph_digest(graph) != whole, f"{function.signature.name} {node.name}"
            node.op = node.op.removesuffix("Changed")
            counted += 1
    assert meta_graph_digest(graph) == whole
    assert counted > 20


def meta_graph_of(version: Path) -> Any:
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    return saved.meta_graphs[0]


def test_swapped_variables_are_another_graph(plain: PlainModel) -> None:
    from millpond.delta import delta_of_versions

    old = plain.export(1)
    plain.module.tables = list(plain.module.tables)[::-1]
    # The function still asks for the same two variables in the same order.
    plain.order = (1, 0)
    with pytest.raises(FailedPrecondition, match="have different graphs"):
        delta_of_versions(old, plain.export(2), plain.base_path / "3", table_names=NAMES)


def test_version_of_tensorflow_1_is_refused(plain: PlainModel) -> None:
    import tensorflow as tf

    from millpond.delta import delta_of_versions

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("table", [1000, 8], use_resource=True)
        ids = v1.placeholder(tf.int64, [None])
        session.run(v1.global_variables_initializer())
        found = tf.nn.embedding_lookup(table, ids)
        old = plain.base_path / "1"
        v1.saved_model.simple_save(session, str(old), {"ids": ids}, {"y": found})
    with pytest.raises(FailedPrecondition, match=r"was not written by tf\.saved_model\.save"):
        delta_of_versions(old, old, plain.base_path / "3", table_names=["table"])


def test_other_asset_is_refused(plain: PlainModel) -> None:
    from millpond.delta import delta_of_versions

    versions = plain.export(1), plain.export(2)
    for number, version in enumerate(versions):
        (version / "assets").mkdir(exist_ok=True)
        (version / "assets" / "words").write_text(f"{number}")
    with pytest.raises(FailedPrecondition, match="the asset words differs"):
        delta_of_versions(*versions, plain.base_path / "3", table_names=NAMES)


def test_unknown_name_of_a_table_is_refused(plain: PlainModel) -> None:
    from millpond.delta import delta_of_versions

    versions = plain.export(1), plain.export(2)
    with pytest.raises(
        InvalidArgument, match=r"x is no table: there are dense, tables/0, tables/1"
    ):
        delta_of_versions(*versions, plain.base_path / "3", table_names=["x"])
    with pytest.raises(InvalidArgument, match="has no table of 1048576 bytes"):
        delta_of_versions(*versions, plain.base_path / "3")


def test_delta_command_prints_what_it_wrote(
    plain: PlainModel, capfd: pytest.CaptureFixture[str]
) -> None:
    from serving.commands.cli import main

    plain.export(1)
    plain.train()
    plain.export(2)
    words = [str(plain.base_path / name) for name in ("1", "2", "3")]
    assert main(["delta", *words, *(f"--table={name}" for name in NAMES)]) == 0
    out = capfd.readouterr().out
    assert out.startswith("tables/0: 10 rows\ntables/1: 10 rows\n")
    assert f"{words[2]}: 0.25% of the rows, " in out
    assert main(["delta", *words]) == 1
    assert "exists already" in capfd.readouterr().err


# --- The measurement --------------------------------------------------------------------------------------------


def test_measured_shares_are_those_of_the_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadtest.measure import delta_costs

    monkeypatch.setattr(delta_costs, "TABLE_ROWS", 400)
    monkeypatch.setattr(delta_costs, "IDS_PER_STEP", 4)
    monkeypatch.setattr(delta_costs, "STEP_COUNTS", (1, 10))
    asked = delta_costs.asked_shares(seed=1)
    optimizers = delta_costs.keras_optimizers()
    assert delta_costs.changed_shares(optimizers["SGD"](), 1).from_start == asked
    adam = delta_costs.changed_shares(optimizers["Adam"](), 1)
    assert adam.from_start == asked
    # Each row that was asked for before the base changes on.
    assert adam.from_trained[1] > asked[10]
    assert delta_costs.changed_shares(optimizers["AdamW"](), 1).from_trained[1] == 1.0


def test_measured_delta_is_smaller_than_its_base(tmp_path: Path) -> None:
    from loadtest.measure.delta_costs import writing_costs
    from serving.base.clock import SystemClock

    costs = writing_costs(tmp_path, SystemClock(), rows=20_000, runs=1)
    # 200 rows of each of two tables, with an id each.
    assert 2 * 200 * 72 < costs.delta_bytes < 2 * 200 * 72 + 20_000
    assert costs.base_bytes > 2 * 20_000 * 64
