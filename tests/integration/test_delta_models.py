"""Kinds of models as base and deltas on a server: each answer has the bits of `tf.saved_model.load`."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.measure.server_pages import ServerPages
from serving.client import Client
from serving.core.servable import AVAILABLE, END
from tests.integration.clients import array, caller_to, predict_request, wait_until
from tests.integration.model_host import HostedModel, ModelHost
from warmup.prediction_log import read_logs

# 1.28 MB of float32: above the size from which a variable counts as a table.
ROWS, COLUMNS = 20_000, 16
IDS = np.array([[1, 2, ROWS - 1], [700, 2, 0]], np.int64)
CHANGED = [1, 2, 700, 1999]

Inputs = Mapping[str, Any]


@dataclass
class Kind:
    """A model, its tables, the inputs of a request, and the arguments of `export_base`.

    `step` trains the model; without it some rows of each table change. Deltas from version `in_full_from` on are
    read in full, and `in_full` is a part of the reason.
    """

    model: Any
    tables: list[Any]
    inputs: Inputs
    arguments: Mapping[str, Any] = field(default_factory=dict)
    step: Callable[[], object] | None = None
    changed_ratio_max: float = 0.2
    in_full: str = ""
    in_full_from: int = 99

    @property
    def table_bytes(self) -> int:
        return sum(ROWS * table.shape[1] * table.dtype.size for table in self.tables)

    def train(self, number: int) -> None:
        if self.step is not None:
            self.step()
            return
        for table in self.tables:
            change_rows(table, CHANGED, number)


def change_rows(table: Any, ids: Iterable[int], value: int) -> None:
    import tensorflow as tf

    ids = list(ids)
    rows = tf.cast(tf.fill([len(ids), table.shape[1]], value), table.dtype)
    table.assign(tf.tensor_scatter_nd_update(table, [[i] for i in ids], rows))


def whole_numbers(*shape: int) -> Any:
    """Small whole numbers, whose sums have the same bits in any order of adding."""
    return np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)


def module_of(
    table: Any, answer: Callable[[Any, Any], Any], **more: Callable[[Any, Any], Any]
) -> Kind:
    """A tf.Module with one table, whose signatures answer ids [None, 3]."""
    import tensorflow as tf

    module = tf.Module()
    module.table = tf.Variable(table)
    spec = tf.TensorSpec([None, 3], tf.int64, name="ids")

    def signature(compute: Callable[[Any, Any], Any]) -> Any:
        return tf.function(lambda ids: {"y": compute(module.table, ids)}, input_signature=[spec])

    signatures = {name: signature(each) for name, each in more.items()}
    signatures["serving_default"] = signature(answer)
    return Kind(module, [module.table], {"ids": IDS}, {"signatures": signatures})


def gathered(table: Any, ids: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_sum(tf.cast(tf.gather(table, ids), tf.float32), axis=1)


def keras_functional() -> Kind:
    import keras

    table = keras.layers.Embedding(ROWS, COLUMNS)
    ids = keras.Input((3,), dtype="int64", name="ids")
    flat = keras.layers.Flatten()(table(ids))
    model = keras.Model({"ids": ids}, keras.layers.Dense(2)(flat))
    model.set_weights([whole_numbers(*weight.shape) for weight in model.weights])
    return Kind(model, [table.embeddings.value], {"ids": IDS})


def plain_module() -> Kind:
    return module_of(whole_numbers(ROWS, COLUMNS), gathered)


def feature_columns() -> Kind:
    """A look-up by feature columns, which Grappler makes a SparseSegmentMean of the whole variable."""
    import tensorflow as tf

    columns = tf.compat.v1.feature_column
    category = tf.feature_column.categorical_column_with_identity("ids", ROWS)
    column = tf.feature_column.embedding_column(category, COLUMNS)

    def answer(examples: Any) -> Any:
        parsed = tf.io.parse_example(examples, tf.feature_column.make_parse_example_spec([column]))
        return columns.input_layer(parsed, [column])

    module = tf.Module()
    spec = tf.TensorSpec([None], tf.string, name="examples")
    module.wrapped = tf.compat.v1.wrap_function(answer, [spec])
    module.held = list(module.wrapped.variables)
    module.held[0].assign(whole_numbers(ROWS, COLUMNS))
    examples = []
    for ids in IDS:
        example = tf.train.Example()
        example.features.feature["ids"].int64_list.value.extend(ids)
        examples.append(example.SerializeToString())
    signature = tf.function(lambda examples: module.wrapped(examples), input_signature=[spec])
    inputs = {"examples": np.array(examples, object)}
    return Kind(module, module.held[:1], inputs, {"signatures": signature})


def tied() -> Kind:
    """The table is both the look-up of ids and, transposed, the output's matrix."""
    import tensorflow as tf

    def answer(table: Any, ids: Any) -> Any:
        return tf.matmul(gathered(table, ids), table, transpose_b=True)

    return module_of(whole_numbers(ROWS, COLUMNS), answer)


def keras_tied() -> Kind:
    """The same by Keras, whose layer has one matrix for both."""
    import keras

    table = keras.layers.ReversibleEmbedding(ROWS, COLUMNS)
    ids = keras.Input((3,), dtype="int64", name="ids")
    outputs = table(keras.ops.sum(table(ids), axis=1), reverse=True)
    model = keras.Model({"ids": ids}, outputs)
    model.set_weights([whole_numbers(*weight.shape) for weight in model.weights])
    return Kind(model, [table.embeddings.value], {"ids": IDS})


def lora() -> Kind:
    """A table that stays as it is, and two small matrices that are trained beside it."""
    import keras

    table = keras.layers.Embedding(ROWS, COLUMNS)
    model = keras.Sequential([keras.Input((3,), dtype="int64", name="ids"), table])
    table.enable_lora(2)
    model.set_weights([whole_numbers(*weight.shape) for weight in model.weights])

    def step() -> None:
        for matrix in (table.lora_embeddings_a, table.lora_embeddings_b):
            matrix.assign(matrix + 1)

    return Kind(model, [table._embeddings.value], {"ids": IDS}, step=step)


def merged_lora() -> Kind:
    """The small matrices are added to the table before the export, so that all of its rows change."""
    kind = plain_module()
    left, right = whole_numbers(ROWS, 2), whole_numbers(2, COLUMNS)
    kind.step = lambda: kind.tables[0].assign_add(left @ right)
    kind.changed_ratio_max = 1.0
    # Deltas 2 and 3 get the base's two copies. No row of these can be undone.
    kind.in_full, kind.in_full_from = "more than a quarter of the table's rows", 4
    return kind


def written_by_requests() -> Kind:
    def count(table: Any, ids: Any) -> Any:
        table.assign_add(table * 0 + 1)
        return gathered(table, ids)

    kind = module_of(whole_numbers(ROWS, COLUMNS), gathered, count=count)
    kind.in_full, kind.in_full_from = "requests may write to variables", 2
    return kind


def narrow(name: str) -> Callable[[], Kind]:
    """A table of numbers that are smaller than float32."""

    def make() -> Kind:
        import tensorflow as tf

        return module_of(tf.cast(whole_numbers(ROWS, 64), name), gathered)

    make.__name__ = name
    return make


def unchanged() -> Kind:
    """Deltas without a changed row."""
    kind = plain_module()
    kind.step = lambda: None
    return kind


KINDS = (
    *(keras_functional, plain_module, feature_columns, tied, keras_tied, lora, merged_lora),
    *(written_by_requests, unchanged, *map(narrow, ("int8", "bfloat16", "float16"))),
)


def bits_of(outputs: Mapping[str, Any]) -> list[bytes]:
    return [array(outputs[name]).tobytes() for name in sorted(outputs)]


class Served:
    """A model on the module's server: its exports, and the comparison of its answers."""

    def __init__(self, hosted: HostedModel, kind: Kind) -> None:
        self.hosted = hosted
        self.kind = kind
        self.base: Any = None
        self.answering = 0

    def export(self, version: int) -> Path:
        """Trains, and writes a delta, or the base as version 1."""
        from millpond.delta import export_base, export_delta

        path = self.hosted.base_path / str(version)
        if self.base is None:
            self.base = export_base(
                self.kind.model, path, tables=self.kind.tables, **self.kind.arguments
            )
        else:
            self.kind.train(version)
            export_delta(
                self.kind.model, self.base, path, changed_ratio_max=self.kind.changed_ratio_max
            )
        return path

    def answer(self, version: int | None = None) -> tuple[int, list[bytes]]:
        """The version that answers, which may be asked for, and the bits of its outputs."""
        request = predict_request(self.hosted.name, self.kind.inputs)
        if version is not None:
            request.model_spec.version.value = version
        with caller_to(self.hosted.server.target) as caller:
            response = caller.predict(request)
        return response.model_spec.version.value, bits_of(response.outputs)

    def expect(self, version: int) -> None:
        """Waits until the version answers, and compares it with `tf.saved_model.load`."""
        wait_until(lambda: self.answer()[0] == version, f"answers of version {version}")
        assert self.answer() == (version, self.loaded(version))
        # So that its copy of the tables is free for the next version.
        if self.answering not in (0, version):
            self.hosted.wait_for_states({self.answering: END})
        self.answering = version

    def bring_four_with_a_rollback(self) -> None:
        """Brings version 4 after a rollback from 3 to 2."""
        for version in (1, 2, 3):
            self.bring(version)
        with Client(self.hosted.server.admin_target) as client:
            client.rollback(self.hosted.name, is_cold_allowed=True)
        self.expect(2)
        self.bring(4)

    def loaded(self, version: int) -> list[bytes]:
        import tensorflow as tf

        path = str(self.hosted.base_path / str(version))
        inputs = {name: tf.constant(value) for name, value in self.kind.inputs.items()}
        found = tf.saved_model.load(path).signatures["serving_default"](**inputs)
        return [found[name].numpy().tobytes() for name in sorted(found)]

    def bring(self, version: int) -> None:
        self.export(version)
        self.hosted.wait_until_available(version)
        self.expect(version)

    def swap(self, version: int) -> Mapping[str, Any]:
        wanted = (version, "published")

        def swaps() -> list[Mapping[str, Any]]:
            known = ServerPages(self.hosted.server.url).swaps(self.hosted.name)
            return [swap for swap in known if (swap["version"], swap["result"]) == wanted]

        # The version's status may be AVAILABLE a moment before its swap is published.
        wait_until(swaps, f"the swap to version {version}")
        return swaps()[0]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_each_kind_of_model_is_served_as_deltas(make: Callable[[], Kind], host: ModelHost) -> None:
    kind = make()
    served = Served(host.model(prefix="kind"), kind)
    served.bring_four_with_a_rollback()
    for version in (2, 3, 4):
        swap = served.swap(version)
        if version < kind.in_full_from:
            assert swap["kept_bytes"] == kind.table_bytes
            assert not swap["delta_restored_in_full"]
        else:
            assert swap["kept_bytes"] == 0
            assert_said_in_full(served, version)


def assert_said_in_full(served: Served, version: int) -> None:
    """Asserts that the swap, the log and the metric say that a delta was read in full, and why."""
    swap = served.swap(version)
    assert served.kind.in_full in swap["delta_restored_in_full"]
    said = served.hosted.wait_for_log("delta_restored_in_full", version=version)
    assert said["reason"] == swap["delta_restored_in_full"]
    metrics = ServerPages(served.hosted.server.url).metrics()
    assert metrics.value("serving_swap_delta_restored_in_full", model=served.hosted.name) == 1


def test_two_models_over_one_base_have_own_tables(host: ModelHost) -> None:
    kind = plain_module()
    served = Served(host.model(prefix="first"), kind)
    served.bring(1)
    other = Served(host.model(prefix="second"), kind)
    for version in (1, 2, 3, 4):
        if version > 1:
            served.bring(version)
        source = served.hosted.base_path / str(version)
        beside = other.hosted.base_path.with_name(f"beside_{version}")
        shutil.copytree(source, beside, copy_function=os.link)
        beside.rename(other.hosted.base_path / str(version))
        other.hosted.wait_until_available(version)
        other.expect(version)
        served.expect(version)
    for each in (served, other):
        assert each.swap(4)["kept_bytes"] == kind.table_bytes


def test_delta_outlives_its_base(host: ModelHost) -> None:
    """A delta comes before its base, and the base is deleted while later deltas are made of it."""
    from millpond.delta import open_base

    kind = plain_module()
    trainer = Served(host.model(prefix="trainer"), kind)
    served = Served(host.model(prefix="late"), kind)
    for version in (1, 2):
        trainer.export(version)

    def bring(version: int) -> None:
        beside = served.hosted.base_path / f"beside_{version}"
        source = trainer.hosted.base_path / str(version)
        shutil.copytree(source, beside, copy_function=os.link)
        beside.rename(served.hosted.base_path / str(version))

    bring(2)
    served.hosted.wait_until_available(2)
    served.expect(2)
    bring(1)
    shutil.rmtree(trainer.hosted.base_path)
    for version, gone in ((3, (1,)), (4, (2,)), (5, (3, 4))):
        served.base = open_base(served.hosted.base_path / str(version - 1))
        served.bring(version)
        assert served.swap(version)["kept_bytes"] == kind.table_bytes
        for other in gone:
            shutil.rmtree(served.hosted.base_path / str(other))


def test_two_deltas_at_once_serve_side_by_side(host: ModelHost) -> None:
    kind = plain_module()
    config = "model_version_policy { latest { num_versions: 2 } }"
    served = Served(host.model(prefix="latest", config=config), kind)
    served.export(1)
    served.hosted.wait_until_available(1)
    for pair in ((2, 3), (4, 5), (6, 7)):
        beside = {version: served.hosted.base_path / f"beside_{version}" for version in pair}
        for version, path in beside.items():
            served.export(version).rename(path)
        for version, path in beside.items():
            path.rename(served.hosted.base_path / str(version))
        served.hosted.wait_for_states(dict.fromkeys(pair, AVAILABLE))
        for version in pair:
            assert served.answer(version) == (version, served.loaded(version))
            assert served.swap(version)["kept_bytes"] == kind.table_bytes


def test_table_replaced_during_the_load_answers_right(host: ModelHost) -> None:
    """The same bytes come as another file before, during or after the load."""
    served = Served(host.model(prefix="replaced"), plain_module())
    served.bring(1)
    for version in range(2, 8):
        shard = served.export(version) / "variables" / "variables.data-00000-of-00002"
        copy = Path(shutil.copy2(shard, shard.with_name("copy")))
        os.replace(copy, shard)
        served.hosted.wait_until_available(version)
        served.expect(version)


def test_delta_refused_by_a_gate_leaves_its_copy(host: ModelHost) -> None:
    kind = plain_module()
    gates = {"gates": {"finite": "enforce"}}
    served = Served(host.model(prefix="gated", settings=gates), kind)
    for version in (1, 2, 3):
        served.bring(version)
    change_rows(kind.tables[0], [2], 1)
    kind.step = lambda: kind.tables[0].scatter_nd_update([[2]], np.full((1, COLUMNS), np.nan))
    served.export(4)
    assert "finite" in served.hosted.wait_for_log("load_failed", version=4)["reason"]
    served.expect(3)
    kind.step = None
    served.bring(5)
    assert served.swap(5)["kept_bytes"] == kind.table_bytes
    assert served.swap(5)["figures"]["copied_bytes"] == 0


def test_log_has_the_version_of_each_answer(host: ModelHost, tmp_path: Path) -> None:
    kind = plain_module()
    config = (
        "logging_config { sampling_config { sampling_rate: 1 } "
        f'log_collector_config {{ filename_prefix: "{tmp_path}/log" }} }}'
    )
    served = Served(host.model(prefix="logged", config=config), kind)
    served.bring_four_with_a_rollback()
    served.hosted.configure()
    metrics = ServerPages(served.hosted.server.url).metrics
    pending = "serving_request_log_pending"
    wait_until(
        lambda: metrics().value(pending, model=served.hosted.name) == 0, "the end of the log"
    )
    logs = [log.predict_log for path in sorted(tmp_path.glob("log-*")) for log in read_logs(path)]
    answers = [
        (log.response.model_spec.version.value, bits_of(log.response.outputs)) for log in logs
    ]
    loaded = {version: served.loaded(version) for version in (1, 2, 3, 4)}
    assert all(bits == loaded[version] for version, bits in answers)
    order = [version for version, _ in answers]
    assert [version for version, _ in itertools.groupby(order)] == [1, 2, 3, 2, 4]


def with_ids(monkeypatch: pytest.MonkeyPatch, edit: Callable[[Any], None]) -> None:
    """Makes the next exports change the ids of table 0 before they are written."""
    import tensorflow as tf

    from millpond.delta.delta_writing import write_checkpoint

    def edited(index: Any, linked: Any, tensors: Any, partial: Any, **options: Any) -> Any:
        tensors = dict(tensors)
        (key,) = (key for key in tensors if key.startswith("ids/0"))
        ids = np.array(tensors[key])
        edit(ids)
        tensors[key] = tf.constant(ids)
        return write_checkpoint(index, linked, tensors, partial, **options)

    monkeypatch.setattr("millpond.delta.deltas.write_checkpoint", edited)


def test_id_out_of_range_fails_and_harms_nothing(
    host: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(host.model(prefix="range"), plain_module())
    for version in (1, 2, 3):
        served.bring(version)

    def beyond(ids: Any) -> None:
        ids[-1] = ROWS

    with monkeypatch.context() as patched:
        with_ids(patched, beyond)
        bad = served.export(4)
    failed = served.hosted.wait_for_log("load_failed", version=4)
    assert str(ROWS) in failed["reason"]
    served.expect(3)
    shutil.rmtree(bad)
    # The load had written to the copy. Its rows are undone, and nothing is copied or read.
    served.bring(5)
    assert served.swap(5)["kept_bytes"] == served.kind.table_bytes
    assert served.swap(5)["figures"]["copied_bytes"] == 0
    served.bring(6)


def test_id_that_comes_twice_is_undone_once(
    host: ModelHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(host.model(prefix="twice"), plain_module())

    # All changed rows are alike, so it does not count which of the two is written last.
    def double(ids: Any) -> None:
        ids[1] = ids[0]

    with monkeypatch.context() as patched:
        served.bring(1)
        with_ids(patched, double)
        served.bring(2)
        served.bring(3)
    for version in (4, 5):
        served.bring(version)
        assert served.swap(version)["kept_bytes"] == served.kind.table_bytes
