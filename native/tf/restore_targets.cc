#include "native/tf/restore_targets.h"

#include <cstdlib>
#include <optional>
#include <tuple>
#include <vector>

#include "native/tf/graph_names.h"
#include "native/tf/graph_walk.h"
#include "native/tf/handle_search.h"
#include "native/tf/variable_writes.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

using tensorflow::FunctionDef;
using tensorflow::MetaGraphDef;
using tensorflow::NodeDef;

constexpr char kRestoreOp[] = "RestoreV2";

// An output of a node of a function; "" is the graph itself.
struct Output {
  std::string function;
  std::string node;
  int index = 0;

  bool operator<(const Output& other) const {
    return std::tie(function, node, index) < std::tie(other.function, other.node, other.index);
  }
};

// A node that takes an output; null if a function returns it.
struct Consumer {
  const NodeDef* node = nullptr;
  int input = 0;
};

// Returns the output that an input like "node", "node:1" or, within a function, "node:tensors:1"
// names. All ops here have one output list, so the number behind the last colon is the index.
Output OutputOf(const std::string& function, const std::string& input) {
  const size_t colon = input.rfind(':');
  const int index = colon == std::string::npos ? 0 : std::atoi(input.c_str() + colon + 1);
  return {function, std::string(NodeOf(input)), index};
}

class RestoreSearch {
 public:
  explicit RestoreSearch(const MetaGraphDef& meta_graph)
      : graph_(meta_graph), handles_(graph_, meta_graph) {
    AddConsumers("", meta_graph.graph_def().node());
    for (const FunctionDef& function : meta_graph.graph_def().library().function()) {
      const std::string& name = function.signature().name();
      AddConsumers(name, function.node_def());
      for (const auto& [result, tensor] : function.ret()) {
        consumers_[OutputOf(name, tensor)].push_back({});
      }
    }
  }

  std::map<RestoredTensor, std::string> Find(const std::string& restore_op) {
    graph_.VisitReachable({restore_op}, [&](const NodeDef& node, const std::string& function) {
      if (node.op() == kRestoreOp) Look(node, function);
      if (node.op() == kAssignOp) CountAssigned(node, function);
      return true;
    });
    std::map<RestoredTensor, std::string> targets;
    for (const auto& [tensor, variables] : found_) {
      if (are_in_doubt_ || variables.size() != 1 || !variables.front()) continue;
      const std::string& key = *variables.front();
      if (assigned_counts_[key] != 1) continue;
      targets.emplace(tensor, HandleSearch::NameOf(key));
    }
    return targets;
  }

 private:
  template <typename Nodes>
  void AddConsumers(const std::string& function, const Nodes& nodes) {
    for (const NodeDef& node : nodes) {
      for (int i = 0; i < node.input_size(); ++i) {
        if (IsControl(node.input(i))) continue;
        consumers_[OutputOf(function, node.input(i))].push_back({&node, i});
      }
    }
  }

  // Adds the variable of each tensor that the node reads.
  void Look(const NodeDef& node, const std::string& function) {
    const auto names = TextsOf(node, function, 1);
    const auto slices = TextsOf(node, function, 2);
    if (!names || !slices || names->size() != slices->size()) {
      are_in_doubt_ = true;
      return;
    }
    for (size_t i = 0; i < names->size(); ++i) {
      const Output output{function, node.name(), static_cast<int>(i)};
      found_[{(*names)[i], (*slices)[i]}].push_back(VariableOf(output));
    }
  }

  // Returns the values of an input that is a constant; nullopt if it is none.
  std::optional<std::vector<std::string>> TextsOf(const NodeDef& node, const std::string& function,
                                                  int input) const {
    if (node.input_size() <= input) return std::nullopt;
    const NodeDef* const source = graph_.FindNode(function, NodeOf(node.input(input)));
    if (source == nullptr || source->op() != "Const") return std::nullopt;
    const auto value = source->attr().find("value");
    tensorflow::Tensor tensor;
    if (value == source->attr().end() || !tensor.FromProto(value->second.tensor()) ||
        tensor.dtype() != tensorflow::DT_STRING) {
      return std::nullopt;
    }
    const auto texts = tensor.flat<tensorflow::tstring>();
    return std::vector<std::string>(texts.data(), texts.data() + texts.size());
  }

  // Returns the key of the one variable that gets the output's memory.
  std::optional<std::string> VariableOf(Output output) {
    for (;;) {
      const auto consumers = consumers_.find(output);
      if (consumers == consumers_.end() || consumers->second.size() != 1) return std::nullopt;
      const Consumer& consumer = consumers->second.front();
      if (consumer.node == nullptr) return std::nullopt;
      if (consumer.node->op() == kAssignOp && consumer.input == 1) {
        return KeyOfHandle(*consumer.node, output.function);
      }
      if (consumer.node->op() != "Identity") return std::nullopt;
      output = {output.function, consumer.node->name(), 0};
    }
  }

  std::optional<std::string> KeyOfHandle(const NodeDef& assign, const std::string& function) {
    HandleSearch::Names keys;
    handles_.Forget();
    const bool is_known = handles_.AddSources(function, assign.input(0), &keys);
    if (!is_known || keys.size() != 1) return std::nullopt;
    const std::string name = HandleSearch::NameOf(*keys.begin());
    if (name.empty() || name == tensorflow::ResourceHandle::ANONYMOUS_NAME) return std::nullopt;
    return *keys.begin();
  }

  void CountAssigned(const NodeDef& assign, const std::string& function) {
    HandleSearch::Names keys;
    handles_.Forget();
    if (!handles_.AddSources(function, assign.input(0), &keys)) are_in_doubt_ = true;
    for (const std::string& key : keys) ++assigned_counts_[key];
  }

  const GraphWalk graph_;
  HandleSearch handles_;
  std::map<Output, std::vector<Consumer>> consumers_;
  // The key of the variable of each tensor, each time that the tensor is read.
  std::map<RestoredTensor, std::vector<std::optional<std::string>>> found_;
  std::map<std::string, int> assigned_counts_;
  bool are_in_doubt_ = false;
};

}  // namespace

std::map<RestoredTensor, std::string> FindRestoreTargets(const MetaGraphDef& meta_graph,
                                                         const std::string& restore_op) {
  return RestoreSearch(meta_graph).Find(restore_op);
}

}  // namespace millpond::tf
