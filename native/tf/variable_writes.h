#pragma once

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// The memory that running the signatures of a model could write to, as far as the graph shows.
// Covers the nodes that the signatures' outputs depend on, and all nodes of the functions that
// these nodes call.
struct Writes {
  // True if a node takes a variable (a resource handle or a reference) and is not known to only
  // read it, or writes in place. The answers of later requests could then change. True in doubt.
  bool may_write_variables = true;
  // True if may_write_variables is false, and no kernel keeps memory of its own from the load on
  // and writes to it later. The kernels of tables and queues write at their first run. False in
  // doubt.
  bool can_be_sealed = false;
};

Writes AnalyzeWrites(const tensorflow::MetaGraphDef& meta_graph);

}  // namespace millpond::tf
