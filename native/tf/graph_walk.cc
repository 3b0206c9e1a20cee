#include "native/tf/graph_walk.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "native/tf/graph_names.h"
#include "tensorflow/cc/saved_model/constants.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {

using tensorflow::FunctionDef;
using tensorflow::MetaGraphDef;
using tensorflow::NodeDef;

namespace {

constexpr char kAssert[] = "Assert";

bool MergesBranches(const NodeDef& node) { return node.op() == "Merge" || node.op() == "RefMerge"; }

}  // namespace

// One visit that follows only needed inputs.
class GraphWalk::BackWalk {
 public:
  enum class Kind { kNeeded, kBuilt, kSources };

  BackWalk(const GraphWalk& graph, Kind kind, const Look& look)
      : graph_(graph), kind_(kind), look_(look) {}

  void Graph(const Tensors& tensors) {
    std::vector<std::string_view> wanted;
    for (const std::string& tensor : tensors) wanted.push_back(NodeOf(tensor));
    Walk("", graph_.nodes_, {}, std::move(wanted));
  }

 private:
  using Arguments = std::unordered_map<std::string_view, size_t>;

  // Returns the arguments of `function` that are needed.
  std::set<size_t> Walk(const std::string& function, const Nodes& nodes, const Arguments& arguments,
                        std::vector<std::string_view> wanted) {
    std::set<size_t> used;
    // The nodes to be visited; true if the nodes that leave them out in a run count too.
    std::map<std::string_view, bool> seen;
    std::set<std::string_view> passed;
    std::set<std::string_view> visited;
    std::vector<std::string_view> left;
    const auto want = [&](std::string_view name, bool may_be_left_out) {
      const auto [found, is_new] = seen.emplace(name, may_be_left_out);
      if (!is_new && (found->second || !may_be_left_out)) return;
      found->second = may_be_left_out;
      left.push_back(name);
    };
    for (const std::string_view name : wanted) want(name, false);
    if (kind_ == Kind::kSources) WantAssertions(nodes, want);
    while (!left.empty()) {
      const std::string_view name = left.back();
      left.pop_back();
      if (const auto argument = arguments.find(name); argument != arguments.end()) {
        used.insert(argument->second);
      }
      const auto node = nodes.find(name);
      if (node == nodes.end()) continue;
      if (visited.insert(name).second && look_(*node->second, function)) passed.insert(name);
      if (passed.count(name) == 0) continue;
      const bool is_chosen =
          kind_ == Kind::kSources && (seen[name] || MergesBranches(*node->second));
      for (const std::string_view input : InputsNeeded(*node->second, is_chosen)) {
        want(NodeOf(input), is_chosen);
      }
    }
    return used;
  }

  // An assertion also depends on whether it runs.
  template <typename Want>
  static void WantAssertions(const Nodes& nodes, const Want& want) {
    const bool has_choices = std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
      return node.second->op() == "Switch" || node.second->op() == "RefSwitch";
    });
    for (const auto& [name, node] : nodes) {
      if (node->op() == kAssert) want(name, has_choices);
    }
  }

  bool EntersBranches(const NodeDef& node) const {
    if (kind_ != Kind::kBuilt) return kind_ == Kind::kSources;
    const auto lowers = node.attr().find("_lower_using_switch_merge");
    return lowers != node.attr().end() && lowers->second.b();
  }

  // Returns the inputs that computing `node` needs: all of them if it `is_chosen`, because in
  // TensorFlow 1's conditionals each input may leave the node out.
  std::vector<std::string_view> InputsNeeded(const NodeDef& node, bool is_chosen) {
    std::vector<Call> calls = graph_.CallsOf(node);
    if (!calls.empty() && calls.front().is_branch && !EntersBranches(node)) calls.clear();
    std::set<size_t> used;
    for (const Call& call : calls) {
      for (size_t i = 0; i < call.first_input; ++i) used.insert(i);
      for (const size_t argument : ArgumentsNeededBy(call.function)) {
        used.insert(call.first_input + argument);
      }
    }
    std::vector<std::string_view> inputs;
    for (int i = 0; i < node.input_size(); ++i) {
      const bool is_control = IsControl(node.input(i));
      const bool is_needed =
          is_chosen || (is_control ? kind_ != Kind::kSources : calls.empty() || used.count(i) > 0);
      if (is_needed) inputs.push_back(node.input(i));
    }
    return inputs;
  }

  const std::set<size_t>& ArgumentsNeededBy(const std::string& name) {
    const auto known = bodies_.find(name);
    if (known != bodies_.end()) return known->second;
    // Stops a recursion: for a function that calls itself, the inner calls add nothing.
    bodies_[name] = {};
    const FunctionDef* const function = graph_.FindFunction(name);
    if (function != nullptr) bodies_[name] = WalkBody(name, *function);
    return bodies_[name];
  }

  std::set<size_t> WalkBody(const std::string& name, const FunctionDef& function) {
    Arguments arguments;
    for (int i = 0; i < function.signature().input_arg_size(); ++i) {
      arguments[function.signature().input_arg(i).name()] = static_cast<size_t>(i);
    }
    std::vector<std::string_view> wanted;
    for (const auto& [output, tensor] : function.ret()) wanted.push_back(NodeOf(tensor));
    if (kind_ != Kind::kSources) {
      for (const auto& [output, node] : function.control_ret()) wanted.push_back(node);
    }
    return Walk(name, graph_.function_nodes_.at(name), arguments, std::move(wanted));
  }

  const GraphWalk& graph_;
  const Kind kind_;
  const Look& look_;
  std::map<std::string, std::set<size_t>> bodies_;  // of each function: the arguments it needs
};

GraphWalk::GraphWalk(const MetaGraphDef& meta_graph) {
  for (const NodeDef& node : meta_graph.graph_def().node()) nodes_[node.name()] = &node;
  for (const FunctionDef& function : meta_graph.graph_def().library().function()) {
    functions_[function.signature().name()] = &function;
    Nodes& nodes = function_nodes_[function.signature().name()];
    for (const NodeDef& node : function.node_def()) nodes[node.name()] = &node;
  }
}

const FunctionDef* GraphWalk::FindFunction(std::string_view name) const {
  const auto found = functions_.find(name);
  return found == functions_.end() ? nullptr : found->second;
}

const NodeDef* GraphWalk::FindNode(const std::string& function, std::string_view name) const {
  const auto body = function_nodes_.find(function);
  if (!function.empty() && body == function_nodes_.end()) return nullptr;
  const Nodes& nodes = function.empty() ? nodes_ : body->second;
  const auto found = nodes.find(name);
  return found == nodes.end() ? nullptr : found->second;
}

std::vector<Call> GraphWalk::CallsOf(const NodeDef& node) const {
  const std::string& op = node.op();
  if (FindFunction(op) != nullptr) return {{op}};
  const auto function_of = [&](const char* attribute) {
    const auto found = node.attr().find(attribute);
    return found == node.attr().end() ? std::string() : found->second.func().name();
  };
  if (op == "PartitionedCall" || op == "StatefulPartitionedCall") return {{function_of("f")}};
  if (op == "While" || op == "StatelessWhile")
    return {{function_of("cond")}, {function_of("body")}};
  if (op == "If" || op == "StatelessIf") {
    return {{function_of("then_branch"), 1, true}, {function_of("else_branch"), 1, true}};
  }
  std::vector<Call> calls;
  if (op == "Case" || op == "StatelessCase") {
    const auto branches = node.attr().find("branches");
    if (branches == node.attr().end()) return {};
    for (const auto& branch : branches->second.list().func()) {
      calls.push_back({branch.name(), 1, true});
    }
  }
  return calls;
}

std::vector<std::string> GraphWalk::FunctionsOf(const NodeDef& node) const {
  std::vector<std::string> functions;
  if (FindFunction(node.op()) != nullptr) functions.push_back(node.op());
  for (const auto& [name, value] : node.attr()) {
    if (value.has_func()) functions.push_back(value.func().name());
    for (const auto& function : value.list().func()) functions.push_back(function.name());
  }
  return functions;
}

void GraphWalk::VisitNeeded(const Tensors& tensors, const Look& look) const {
  BackWalk(*this, BackWalk::Kind::kNeeded, look).Graph(tensors);
}

void GraphWalk::VisitBuilt(const Tensors& tensors, const Look& look) const {
  BackWalk(*this, BackWalk::Kind::kBuilt, look).Graph(tensors);
}

void GraphWalk::VisitSources(const Tensors& tensors, const Look& look) const {
  BackWalk(*this, BackWalk::Kind::kSources, look).Graph(tensors);
}

void GraphWalk::VisitReachable(const Tensors& tensors, const Look& look) const {
  std::set<std::string_view> seen;
  std::set<std::string> called;
  std::vector<std::string_view> wanted;
  std::vector<std::string> bodies;  // of functions that are to be visited
  const auto want = [&](std::string_view tensor) {
    if (seen.insert(NodeOf(tensor)).second) wanted.push_back(NodeOf(tensor));
  };
  const auto visit = [&](const NodeDef& node, const std::string& function) {
    if (!look(node, function)) return false;
    for (const std::string& name : FunctionsOf(node)) {
      if (called.insert(name).second) bodies.push_back(name);
    }
    return true;
  };
  for (const std::string& tensor : tensors) want(tensor);
  while (!wanted.empty()) {
    const NodeDef* const node = FindNode("", wanted.back());
    wanted.pop_back();
    if (node == nullptr || !visit(*node, "")) continue;
    for (const std::string& input : node->input()) want(input);
  }
  while (!bodies.empty()) {
    const std::string name = std::move(bodies.back());
    bodies.pop_back();
    const FunctionDef* const function = FindFunction(name);
    if (function == nullptr) continue;
    for (const NodeDef& node : function->node_def()) visit(node, name);
  }
}

std::vector<std::string> SignatureOutputs(const MetaGraphDef& meta_graph) {
  std::vector<std::string> tensors;
  for (const auto& [name, signature] : meta_graph.signature_def()) {
    if (name == tensorflow::kSavedModelInitOpSignatureKey) continue;
    for (const auto& [output, info] : signature.outputs()) {
      if (!info.name().empty()) tensors.push_back(info.name());
    }
  }
  return tensors;
}

std::string TextOf(const NodeDef& node, const char* attribute) {
  const auto found = node.attr().find(attribute);
  return found == node.attr().end() ? std::string() : found->second.s();
}

}  // namespace millpond::tf
