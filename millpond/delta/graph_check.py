"""Checks that a model has the graph of a base."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow.python.saved_model.save import export_meta_graph

from millpond.delta.bases import Base
from millpond.delta.graph_digest import meta_graph_digest
from millpond.delta.model_root import add_changes, signatures_of, tracked_model
from millpond.delta.object_graph import read_object_graph
from millpond.delta.saved_files import read_saved_model
from serving.base.errors import FailedPrecondition


def check_graph(
    model: Any,
    base: Base,
    *,
    signatures: Any = None,
    input_signature: Sequence[Any] | None = None,
) -> None:
    """Raises FailedPrecondition if `model` computes its answers in another way than `base`.

    Call it after a restart of the trainer, whose code may have changed: a delta has the base's graph. The
    arguments are those of `export_base`. Traces the signatures, and writes no variables. Raises
    InvalidArgument as `export_base` does, DataLoss, and OSError.
    """
    root = tracked_model(model)
    values = read_object_graph(base.path).values(root)
    if missing := [table.name for table in base.tables if table.key not in values]:
        raise FailedPrecondition(
            f"the model has no {missing[0]}, which the base has: export a new base"
        )
    add_changes(root, [values[table.key] for table in base.tables])
    served = signatures_of(model, root, signatures, input_signature)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "graph.pb")
        export_meta_graph(root, str(path), served)
        now = meta_graph_pb2.MetaGraphDef.FromString(path.read_bytes())
    saved = read_saved_model(base.path)
    if meta_graph_digest(now) != meta_graph_digest(saved.meta_graphs[0]):
        raise FailedPrecondition(
            f"the model has another graph than {base.path}, whose graph a delta would have: export a new base"
        )
