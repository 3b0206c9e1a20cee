#include "native/tf/graph_cut.h"

#include <algorithm>
#include <map>
#include <set>

namespace millpond::tf {
namespace {

using Crossing = CutNode::Crossing;
using Nodes = std::vector<CutNode>;
using Flags = std::vector<bool>;

const CutNode::Output& OutputOf(const Nodes& nodes, const NodeOutput& tensor) {
  return nodes[tensor.node].outputs[tensor.output];
}

bool IsRows(const Nodes& nodes, const NodeOutput& tensor) {
  return OutputOf(nodes, tensor).crossing == Crossing::kAsRows;
}

// Returns which nodes can be on the device.
Flags FindPossible(const Nodes& nodes) {
  Flags is_possible(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    is_possible[i] =
        nodes[i].fits_device && !nodes[i].is_input &&
        std::all_of(nodes[i].inputs.begin(), nodes[i].inputs.end(), [&](const NodeOutput& input) {
          return is_possible[input.node] || OutputOf(nodes, input).crossing != Crossing::kNever;
        });
  }
  return is_possible;
}

// Marks `from` and all nodes that they need.
void MarkNeeded(const Nodes& nodes, std::vector<int> from, Flags* marked) {
  while (!from.empty()) {
    const int node = from.back();
    from.pop_back();
    if ((*marked)[node]) continue;
    (*marked)[node] = true;
    for (const NodeOutput& input : nodes[node].inputs) from.push_back(input.node);
  }
}

// The nodes of the device part, and the tensors that they take from elsewhere.
struct DevicePart {
  Flags is_in;
  std::set<NodeOutput> taken;
};

// Walks back from `from`. `takes` tells whether the device part takes a tensor from the host.
template <typename Takes>
DevicePart WalkDevicePart(const Nodes& nodes, std::vector<int> from, const Takes& takes) {
  DevicePart part{Flags(nodes.size()), {}};
  while (!from.empty()) {
    const int node = from.back();
    from.pop_back();
    if (part.is_in[node]) continue;
    part.is_in[node] = true;
    for (const NodeOutput& input : nodes[node].inputs) {
      if (takes(input)) {
        part.taken.insert(input);
      } else {
        from.push_back(input.node);
      }
    }
  }
  return part;
}

// A cheap node of the device part with the nodes between it and what crosses.
class Move {
 public:
  Move(const Nodes& nodes, const GraphCut& cut, int node)
      : nodes_(nodes), cut_(cut), is_possible_(Add(node)) {}

  // Returns the bytes a row by which fewer cross.
  int64_t SavedBytes(const std::map<NodeOutput, std::vector<int>>& readers) const {
    if (!is_possible_) return 0;
    int64_t saved = 0;
    for (const NodeOutput& tensor : taken_) {
      if (!IsReadBeside(readers.at(tensor))) saved += OutputOf(nodes_, tensor).row_bytes;
    }
    for (const auto& [tensor, its_readers] : readers) {
      if (moved_.count(tensor.node) > 0 && IsReadBeside(its_readers)) {
        saved -= OutputOf(nodes_, tensor).row_bytes;
      }
    }
    return saved;
  }

 private:
  bool Add(int node) {
    if (!nodes_[node].is_cheap || !cut_.is_on_device[node] || cut_.is_on_host[node]) return false;
    if (!moved_.insert(node).second) return true;
    return std::all_of(nodes_[node].inputs.begin(), nodes_[node].inputs.end(),
                       [this](const NodeOutput& input) { return Take(input); });
  }
  bool Take(const NodeOutput& input) {
    if (nodes_[input.node].is_fixed) return true;
    if (!std::binary_search(cut_.crossing.begin(), cut_.crossing.end(), input)) {
      return Add(input.node);
    }
    taken_.insert(input);
    return true;
  }
  bool IsReadBeside(const std::vector<int>& readers) const {
    return std::any_of(readers.begin(), readers.end(),
                       [this](int reader) { return moved_.count(reader) == 0; });
  }

  const Nodes& nodes_;
  const GraphCut& cut_;
  std::set<int> moved_;
  std::set<NodeOutput> taken_;  // of what crosses now
  const bool is_possible_;      // last, because the search fills the others
};

// Returns the nodes of the device part that read a tensor, by tensor. The signature is reader -1.
std::map<NodeOutput, std::vector<int>> ReadersOnDevice(const Nodes& nodes, const GraphCut& cut,
                                                       const std::vector<NodeOutput>& outputs) {
  std::map<NodeOutput, std::vector<int>> readers;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!cut.is_on_device[i]) continue;
    for (const NodeOutput& input : nodes[i].inputs) {
      readers[input].push_back(static_cast<int>(i));
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (cut.is_output_on_device[i]) readers[outputs[i]].push_back(-1);
  }
  return readers;
}

}  // namespace

bool GraphCut::HasDevicePart() const {
  return std::find(is_output_on_device.begin(), is_output_on_device.end(), true) !=
         is_output_on_device.end();
}

GraphCut CutGraph(const Nodes& nodes, const std::vector<NodeOutput>& outputs,
                  const std::vector<int>& effects) {
  const Flags is_possible = FindPossible(nodes);
  GraphCut cut;
  std::vector<int> of_host = effects;
  std::vector<int> of_device;
  for (const NodeOutput& output : outputs) {
    const bool is_on_device = is_possible[output.node] && IsRows(nodes, output);
    cut.is_output_on_device.push_back(is_on_device);
    (is_on_device ? of_device : of_host).push_back(output.node);
  }
  // A constant is computed on the device, and all else that the number of rows alone says is made
  // there of that number.
  const auto takes_always = [&](const NodeOutput& tensor) {
    return !is_possible[tensor.node] ||
           (OutputOf(nodes, tensor).crossing == Crossing::kAsCount && !nodes[tensor.node].is_fixed);
  };
  for (const NodeOutput& tensor : WalkDevicePart(nodes, of_device, takes_always).taken) {
    if (IsRows(nodes, tensor)) of_host.push_back(tensor.node);
  }
  cut.is_on_host.assign(nodes.size(), false);
  MarkNeeded(nodes, of_host, &cut.is_on_host);
  // Now that the host part is known, the device part computes nothing that the host has anyway and
  // that can cross.
  const DevicePart device = WalkDevicePart(nodes, of_device, [&](const NodeOutput& tensor) {
    return takes_always(tensor) || (cut.is_on_host[tensor.node] && IsRows(nodes, tensor));
  });
  cut.is_on_device = device.is_in;
  for (const NodeOutput& tensor : device.taken) {
    (IsRows(nodes, tensor) ? cut.crossing : cut.counts).push_back(tensor);
  }
  return cut;
}

int FindCheaperOnHost(const Nodes& nodes, const GraphCut& cut,
                      const std::vector<NodeOutput>& outputs) {
  const auto readers = ReadersOnDevice(nodes, cut, outputs);
  bool has_host_part = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    has_host_part = has_host_part || (cut.is_on_host[i] && !nodes[i].is_input);
  }
  for (size_t i = 0; has_host_part && i < nodes.size(); ++i) {
    const int node = static_cast<int>(i);
    const bool can_cross = nodes[i].outputs.size() == 1 && IsRows(nodes, {node, 0});
    if (can_cross && Move(nodes, cut, node).SavedBytes(readers) > 0) return node;
  }
  return -1;
}

}  // namespace millpond::tf
