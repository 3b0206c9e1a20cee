#pragma once

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// What running the signatures of a model could write to, as far as the graph tells: the nodes that
// their outputs depend on, all nodes of the functions that they call included.
struct Writes {
  // Some node takes a variable (a resource handle or a reference) and is not known to only read it,
  // or writes in place: what later requests are answered from could change. True on doubt.
  bool may_write_variables = true;
  // Neither that, nor is there a kernel that keeps memory of its own from the load on and writes to
  // it later (those of tables and queues do at their first run). False on doubt.
  bool can_be_sealed = false;
};

Writes AnalyzeWrites(const tensorflow::MetaGraphDef& meta_graph);

}  // namespace millpond::tf
