#pragma once

#include <cstdint>
#include <vector>

namespace millpond::tf {

// An output of a node of a graph, both by their number.
struct NodeOutput {
  int node = 0;
  int output = 0;

  friend bool operator==(const NodeOutput& a, const NodeOutput& b) {
    return a.node == b.node && a.output == b.output;
  }
  friend bool operator<(const NodeOutput& a, const NodeOutput& b) {
    return a.node != b.node ? a.node < b.node : a.output < b.output;
  }
};

// A node as far as a cut needs to know it.
struct CutNode {
  // How an output of the host part gets to the device part.
  enum class Crossing {
    kNever,
    kAsRows,   // a copy of its rows, `row_bytes` each
    kAsCount,  // not at all, because the number of rows alone tells its value
  };
  struct Output {
    Crossing crossing = Crossing::kNever;
    int64_t row_bytes = 0;
  };

  std::vector<NodeOutput> inputs;
  std::vector<Output> outputs;
  bool fits_device = false;
  bool is_input = false;  // of the signature, so it is there before a run
  bool is_fixed = false;  // the same in every run, from nodes that are so too
  bool is_cheap = false;  // copies or adds integers
};

// A graph in two parts. A node may be in both, like a constant.
struct GraphCut {
  std::vector<bool> is_on_host;
  std::vector<bool> is_on_device;
  std::vector<NodeOutput> crossing;       // in order; inputs of the signature too
  std::vector<NodeOutput> counts;         // which the device part computes from its rows; in order
  std::vector<bool> is_output_on_device;  // for each output of the signature

  bool HasDevicePart() const;
};

// Cuts a graph into a host part and a device part behind it.
//
// Theory. A node can be on the device if it fits, and if each of its inputs can be there or can
// cross. All other nodes are on the host, and so is all that they need: nothing crosses back. So
// the device part is the largest that no node of the host part waits for. A node of the host part
// that the device needs too is computed twice if its value cannot cross.
//
// `nodes` come after their inputs. `outputs` are the signature's. `effects` are nodes that each
// request runs although no output needs their values, such as assertions: the host part has them.
GraphCut CutGraph(const std::vector<CutNode>& nodes, const std::vector<NodeOutput>& outputs,
                  const std::vector<int>& effects);

// Returns the first node that belongs on the host although it fits the device, because fewer bytes
// cross behind it; -1 if there is none, or if the cut has no host part that runs anyway. The node
// is cheap, and so are all nodes between it and what crosses now. It moves if the bytes a row that
// need not cross any more are more than the bytes a row that cross instead.
int FindCheaperOnHost(const std::vector<CutNode>& nodes, const GraphCut& cut,
                      const std::vector<NodeOutput>& outputs);

}  // namespace millpond::tf
