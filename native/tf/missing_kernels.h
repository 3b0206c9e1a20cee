#pragma once

#include <string>
#include <vector>

namespace tensorflow {
class MetaGraphDef;
}  // namespace tensorflow

namespace millpond::tf {

// A node that the CPU has no kernel for, because its op computes only on another device, in
// Python's process, or for other dtypes.
struct MissingKernel {
  std::string signature;  // that runs the node; "" for the init op
  std::string op;
  std::string node;
  std::string function;  // "" for the graph itself
  // True if every request on the signature needs the node.
  bool is_certain = false;
  // True if every request needs the node's kernel, although the node is in a branch: TensorFlow
  // then fails requests that take the other branch too. It may leave the branch out if it finds
  // that no request can take it, which only a run shows.
  bool is_built = false;
};

// Returns the nodes without a kernel that the signatures and the init op `init_op` ("": none) run,
// each node once for each of them.
//
// Nodes that XLA compiles are not looked at, because they need no kernel of the CPU.
std::vector<MissingKernel> FindMissingKernels(const tensorflow::MetaGraphDef& meta_graph,
                                              const std::string& init_op);

}  // namespace millpond::tf
