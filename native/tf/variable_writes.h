#pragma once

#include <optional>
#include <set>
#include <string>

namespace tensorflow {
class MetaGraphDef;
class NodeDef;
}  // namespace tensorflow

namespace millpond::tf {

// The op that gives a variable a value. What it assigns may be what was read.
inline constexpr char kAssignOp[] = "AssignVariableOp";

// The effect of what the signatures of a model write to its variables, as far as the graph shows.
enum class Writing {
  // no answer can change, because nothing is written, or only variables that no output reads
  kNone,
  kAssigns,  // assignments of whole variables, whose values show only in a run (WriteWatch)
  kChanges,  // anything else; also if there is a doubt
};

// The memory that running the signatures of a model could write to, as far as the graph shows.
// Covers the nodes that the signatures' outputs depend on, and all nodes of the functions that
// these nodes call.
struct Writes {
  // A node writes if it takes a variable (a resource handle or a reference) and is not known to
  // only read it, or if it writes in place. Its write counts if an output of some signature may
  // depend on the variable's value.
  Writing writing = Writing::kChanges;
  // True if a node writes, also if no output depends on it.
  bool has_writer = true;
  // True if there is no writer, and no kernel keeps memory of its own from the load on and writes
  // to it later. The kernels of tables and queues write at their first run. False in doubt.
  bool can_be_sealed = false;
  // The names of the variables that a node may write, as their handles have them; nullopt if the
  // graph does not show them.
  std::optional<std::set<std::string>> written;
  // True if a part of the model is compiled by XLA in the first run of each shape.
  bool compiles_each_shape = false;
};

Writes AnalyzeWrites(const tensorflow::MetaGraphDef& meta_graph);

// The variables that the init op of a model writes to, by the names that their handles have.
struct InitWrites {
  bool are_known = false;           // false: it may write to any variable
  std::set<std::string> scattered;  // by ResourceScatterUpdate: rows are replaced
  std::set<std::string> otherwise;  // by anything else
};

// `init_op` is the name of a node, or "" if there is none.
InitWrites AnalyzeInitWrites(const tensorflow::MetaGraphDef& meta_graph,
                             const std::string& init_op);

// The op that replaces rows of a variable.
inline constexpr char kScatterOp[] = "ResourceScatterUpdate";

// Returns true if the operation writes into the buffer of an input, which other nodes may hold too.
bool WritesInPlace(const tensorflow::NodeDef& node);

// Returns true if computing the node may change a variable. A node that calls functions counts only
// if XLA compiles them, because otherwise the functions' own nodes are computed one by one.
bool MayWrite(const tensorflow::NodeDef& node);

}  // namespace millpond::tf
