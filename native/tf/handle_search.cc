#include "native/tf/handle_search.h"

#include <algorithm>
#include <set>

#include "native/tf/graph_names.h"
#include "native/tf/graph_walk.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {

using tensorflow::FunctionDef;
using tensorflow::NodeDef;

namespace {

bool MakesLookUpTable(const NodeDef& node) {
  static const auto* const kOps = new std::set<std::string>{"HashTableV2",
                                                            "MutableHashTableV2",
                                                            "MutableHashTableOfTensorsV2",
                                                            "MutableDenseHashTableV2",
                                                            "AnonymousHashTable",
                                                            "AnonymousMutableHashTable",
                                                            "AnonymousMutableHashTableOfTensors",
                                                            "AnonymousMutableDenseHashTable"};
  return kOps->count(node.op()) > 0;
}

}  // namespace

HandleSearch::HandleSearch(const GraphWalk& graph, const tensorflow::MetaGraphDef& meta_graph,
                           LookUpTables tables)
    : graph_(graph), tables_(tables) {
  for (const NodeDef& node : meta_graph.graph_def().node()) AddCalls("", node);
  for (const FunctionDef& function : meta_graph.graph_def().library().function()) {
    for (const NodeDef& node : function.node_def()) AddCalls(function.signature().name(), node);
  }
}

bool HandleSearch::AddSources(const std::string& function, const std::string& input,
                              Names* sources) {
  if (!seen_.insert(function + '\n' + input).second) return true;
  const std::string name(NodeOf(input));
  const NodeDef* const node = graph_.FindNode(function, name);
  if (node == nullptr) return AddSourcesOfArgument(function, name, sources);
  if (node->op() == kHandleOp) {
    sources->insert(KeyOf(*node));
    return true;
  }
  if (tables_ == LookUpTables::kAreLeftOut && MakesLookUpTable(*node)) return true;
  const bool hands_on = node->op() == "Identity" || node->op() == "Switch" ||
                        node->op() == "Merge" || node->op() == "Enter";
  if (!hands_on) return false;
  return std::all_of(node->input().begin(), node->input().end(), [&](const auto& each) {
    return each.front() == '^' || AddSources(function, each, sources);
  });
}

std::string HandleSearch::KeyOf(const NodeDef& node) {
  const std::string name = TextOf(node, "shared_name");
  return TextOf(node, "container") + '\n' + (name.empty() ? node.name() : name);
}

void HandleSearch::AddCalls(const std::string& function, const NodeDef& node) {
  std::set<std::string> called;
  for (const Call& call : graph_.CallsOf(node)) {
    callers_[call.function].push_back({function, &node, call.first_input});
    called.insert(call.function);
  }
  for (const std::string& other : graph_.FunctionsOf(node)) {
    // The arguments that it gets are not known.
    if (called.count(other) == 0) callers_[other].push_back({function, nullptr, 0});
  }
}

bool HandleSearch::AddSourcesOfArgument(const std::string& function, const std::string& name,
                                        Names* sources) {
  const FunctionDef* const definition = graph_.FindFunction(function);
  if (definition == nullptr) return false;
  for (int i = 0; i < definition->signature().input_arg_size(); ++i) {
    if (definition->signature().input_arg(i).name() != name) continue;
    const std::vector<Caller>& callers = callers_[function];
    return std::all_of(callers.begin(), callers.end(), [&](const Caller& caller) {
      const size_t input = caller.first_input + static_cast<size_t>(i);
      return caller.node != nullptr && input < static_cast<size_t>(caller.node->input_size()) &&
             AddSources(caller.function, caller.node->input(static_cast<int>(input)), sources);
    });
  }
  return false;
}

}  // namespace millpond::tf
