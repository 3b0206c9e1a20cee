"""Partitioned variables of TensorFlow 1, which several restore ops read, as versions with linked tables."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.measure.server_pages import ServerPages
from serving.core.servable import END
from tests.integration.clients import array, caller_to, predict_request, wait_until
from tests.integration.model_host import HostedModel, ModelHost

# Each of three parts has 1.5 MB of float32: above the size from which a variable counts as a table.
ROWS, COLUMNS, PARTS = 9_000, 128, 3
TABLE_BYTES = ROWS * COLUMNS * 4
# These rows of each part change.
CHANGED = [0, 5, 5, 2_999]
# Half of the rows, because a reply may have 4 MB, and all that change.
IDS = np.array(
    [row for row in range(ROWS) if row % 2 == 0 or row % (ROWS // PARTS) in CHANGED], np.int64
)


def export(path: Path, value: float, part_count: int) -> None:
    """Writes a model whose init op sets the rows CHANGED of each part to `value`.

    Its parts are on two devices, so the saver has two shards, and an op for each restores its parts.
    """
    import tensorflow as tf

    v1 = tf.compat.v1

    def device(operation: Any) -> str:
        return "/cpu:1" if "part_1" in operation.name else "/cpu:0"

    config = v1.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), v1.device(device), v1.Session(config=config) as session:
        table = v1.get_variable(
            "table",
            [ROWS, COLUMNS],
            initializer=v1.random_normal_initializer(seed=1),
            partitioner=v1.fixed_size_partitioner(part_count),
            use_resource=True,
        )
        rows = tf.fill([len(CHANGED), COLUMNS], value)
        init = tf.group(*(part.scatter_update(tf.IndexedSlices(rows, CHANGED)) for part in table))
        ids = v1.placeholder(tf.int64, [None], name="ids")
        signature = v1.saved_model.predict_signature_def(
            {"ids": ids}, {"y": tf.gather(table.as_tensor(), ids)}
        )
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(path))
        signatures = {"serving_default": signature}
        builder.add_meta_graph_and_variables(
            session, ["serve"], signatures, main_op=init, clear_devices=True
        )
        builder.save()


class Served:
    """A model on the module's server, all versions of which link to the variables of the first."""

    def __init__(self, hosted: HostedModel, scratch: Path) -> None:
        self.hosted = hosted
        self.scratch = scratch

    def bring(self, version: int, part_count: int = PARTS) -> None:
        """Writes a version, waits until it answers, and compares rows with `tf.saved_model.load`."""
        written = self.scratch / str(version)
        export(written, float(version), part_count)
        if version > 1:
            base = self.hosted.base_path / "1" / "variables"
            shutil.rmtree(written / "variables")
            shutil.copytree(base, written / "variables", copy_function=_link)
        written.rename(self.hosted.base_path / str(version))
        self.hosted.wait_until_available(version)
        wait_until(lambda: self.answer()[0] == version, f"answers of version {version}")
        assert self.answer() == (version, self.loaded(version))
        if version > 1:
            self.hosted.wait_for_states({version - 1: END})

    def answer(self) -> tuple[int, bytes]:
        with caller_to(self.hosted.server.target) as caller:
            response = caller.predict(predict_request(self.hosted.name, {"ids": IDS}))
        return response.model_spec.version.value, array(response.outputs["y"]).tobytes()

    def loaded(self, version: int) -> bytes:
        import tensorflow as tf

        path = str(self.hosted.base_path / str(version))
        signature = tf.saved_model.load(path).signatures["serving_default"]
        bits: bytes = signature(ids=tf.constant(IDS))["y"].numpy().tobytes()
        return bits

    def swaps(self) -> Sequence[Mapping[str, Any]]:
        swaps = ServerPages(self.hosted.server.url).swaps(self.hosted.name)
        published = [swap for swap in swaps if swap["result"] == "published"]
        return sorted(published, key=lambda swap: int(swap["version"]))


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def test_parts_of_a_variable_are_kept_as_tables(host: ModelHost, tmp_path: Path) -> None:
    served = Served(host.model(prefix="parts"), tmp_path)
    served.bring(1)
    standby = "serving_table_standby_bytes"
    pages = ServerPages(served.hosted.server.url)
    wait_until(lambda: pages.metrics().value(standby) == TABLE_BYTES, "the copy ahead")
    for version in (2, 3, 4):
        served.bring(version)
    assert len(list((served.hosted.base_path / "1" / "variables").glob("*.data-*"))) == 2
    swaps = served.swaps()
    assert [swap["kept_bytes"] for swap in swaps] == [0, *[TABLE_BYTES] * 3]
    copied = [swap["figures"]["copied_bytes"] for swap in swaps]
    assert copied == [0, 0, 0, 0]
    assert not any(swap["delta_restored_in_full"] for swap in swaps[1:])


def test_variable_in_other_parts_is_said_in_full(host: ModelHost, tmp_path: Path) -> None:
    served = Served(host.model(prefix="others"), tmp_path)
    served.bring(1)
    served.bring(2, part_count=2)
    swap = served.swaps()[1]
    assert swap["kept_bytes"] == 0
    assert "in other pieces" in swap["delta_restored_in_full"]
    served.hosted.wait_for_log("delta_restored_in_full", version=2)
