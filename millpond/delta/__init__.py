"""Delta versions, on the trainer's side: `export_base`, and then `export_delta` for each later version.

A delta version is a complete SavedModel. Its tables are hard links to the base's file, and a small shard
has the rows that have changed since then, which the SavedModel's own init op writes. docs/delta.md is the
contract with a server. Importing this package imports TensorFlow (5 s).
"""

from millpond.delta.bases import Base, Table, export_base, open_base
from millpond.delta.delta_writing import Delta
from millpond.delta.deltas import export_delta
from millpond.delta.graph_check import check_graph
from millpond.delta.two_versions import delta_of_versions

__all__ = [
    "Base",
    "Delta",
    "Table",
    "check_graph",
    "delta_of_versions",
    "export_base",
    "export_delta",
    "open_base",
]
