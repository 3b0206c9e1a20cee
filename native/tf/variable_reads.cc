#include "native/tf/variable_reads.h"

#include <cstddef>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "native/tf/graph_names.h"
#include "tensorflow/cc/saved_model/constants.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {
namespace {

using tensorflow::FunctionDef;
using tensorflow::MetaGraphDef;
using tensorflow::NodeDef;

std::string TextOf(const NodeDef& node, const char* attribute) {
  const auto found = node.attr().find(attribute);
  return found == node.attr().end() ? std::string() : found->second.s();
}

// Returns true if a request may skip the inputs of `op` (branches), or if `op` does not read the
// variable that it takes.
bool MayNotRead(const std::string& op) {
  return op == "If" || op == "StatelessIf" || op == "Case" || op == "StatelessCase" ||
         op == "Switch" || op == "RefSwitch" || op == "VarIsInitializedOp" ||
         op == "AssignVariableOp";
}

// The result of a walk over one graph or function body.
struct Needed {
  std::set<VariableKey> variables;
  std::set<size_t> arguments;  // the function's
};

class Walker {
 public:
  explicit Walker(const MetaGraphDef& meta_graph) : meta_graph_(meta_graph) {
    for (const FunctionDef& function : meta_graph.graph_def().library().function()) {
      functions_[function.signature().name()] = &function;
    }
  }

  std::set<VariableKey> Walk() {
    Nodes nodes;
    for (const NodeDef& node : meta_graph_.graph_def().node()) nodes[node.name()] = &node;
    std::vector<std::string_view> wanted;
    for (const auto& [name, signature] : meta_graph_.signature_def()) {
      // The init op runs before the version serves.
      if (name == tensorflow::kSavedModelInitOpSignatureKey) continue;
      for (const auto& [output, info] : signature.outputs()) wanted.push_back(NodeOf(info.name()));
    }
    return WalkBack(nodes, {}, std::move(wanted)).variables;
  }

 private:
  using Nodes = std::unordered_map<std::string_view, const NodeDef*>;
  using Arguments = std::unordered_map<std::string_view, size_t>;

  Needed WalkBack(const Nodes& nodes, const Arguments& arguments,
                  std::vector<std::string_view> wanted) {
    Needed needed;
    std::set<std::string_view> seen(wanted.begin(), wanted.end());
    while (!wanted.empty()) {
      const std::string_view name = wanted.back();
      wanted.pop_back();
      if (const auto argument = arguments.find(name); argument != arguments.end()) {
        needed.arguments.insert(argument->second);
      }
      const auto node = nodes.find(name);
      if (node == nodes.end()) continue;
      for (const std::string_view input : InputsNeeded(*node->second, &needed.variables)) {
        if (seen.insert(NodeOf(input)).second) wanted.push_back(NodeOf(input));
      }
    }
    return needed;
  }

  // Returns the inputs that computing `node` needs. Adds the variables that `node` reads itself.
  std::vector<std::string_view> InputsNeeded(const NodeDef& node,
                                             std::set<VariableKey>* variables) {
    if (MayNotRead(node.op())) return {};
    if (node.op() == "VarHandleOp") {
      const std::string name = TextOf(node, "shared_name");
      if (name != tensorflow::ResourceHandle::ANONYMOUS_NAME) {
        variables->insert({TextOf(node, "container"), name});
      }
      return {};
    }
    const std::vector<std::string> called = CalledBy(node);
    if (called.empty()) return {node.input().begin(), node.input().end()};
    std::set<size_t> used;
    for (const std::string& function : called) {
      const Needed& body = NeededBy(function);
      variables->insert(body.variables.begin(), body.variables.end());
      used.insert(body.arguments.begin(), body.arguments.end());
    }
    std::vector<std::string_view> inputs;
    for (int i = 0; i < node.input_size(); ++i) {
      if (used.count(i) > 0 || node.input(i).front() == '^') inputs.push_back(node.input(i));
    }
    return inputs;
  }

  // Returns the functions that each run of `node` calls with its inputs as their arguments.
  std::vector<std::string> CalledBy(const NodeDef& node) const {
    if (functions_.count(node.op()) > 0) return {node.op()};
    const auto function_of = [&](const char* attribute) {
      const auto found = node.attr().find(attribute);
      return found == node.attr().end() ? std::string() : found->second.func().name();
    };
    std::vector<std::string> called;
    if (node.op() == "PartitionedCall" || node.op() == "StatefulPartitionedCall") {
      called = {function_of("f")};
    } else if (node.op() == "While" || node.op() == "StatelessWhile") {
      called = {function_of("cond"), function_of("body")};
    }
    return called;
  }

  const Needed& NeededBy(const std::string& name) {
    const auto known = bodies_.find(name);
    if (known != bodies_.end()) return known->second;
    // Stops a recursion: the inner calls of a function that calls itself add nothing.
    bodies_[name] = {};
    const auto function = functions_.find(name);
    if (function != functions_.end()) bodies_[name] = WalkBody(*function->second);
    return bodies_[name];
  }

  Needed WalkBody(const FunctionDef& function) {
    Nodes nodes;
    for (const NodeDef& node : function.node_def()) nodes[node.name()] = &node;
    Arguments arguments;
    for (int i = 0; i < function.signature().input_arg_size(); ++i) {
      arguments[function.signature().input_arg(i).name()] = static_cast<size_t>(i);
    }
    std::vector<std::string_view> wanted;
    for (const auto& [output, tensor] : function.ret()) wanted.push_back(NodeOf(tensor));
    for (const auto& [output, node] : function.control_ret()) wanted.push_back(node);
    return WalkBack(nodes, arguments, std::move(wanted));
  }

  const MetaGraphDef& meta_graph_;
  std::unordered_map<std::string, const FunctionDef*> functions_;
  std::map<std::string, Needed> bodies_;
};

bool HoldsValue(tensorflow::Device* device, const VariableKey& key) {
  tensorflow::ResourceMgr* const resources = device->resource_manager();
  if (resources == nullptr) return false;
  const std::string container =
      key.container.empty() ? resources->default_container() : key.container;
  tensorflow::Var* found = nullptr;
  if (!resources->Lookup(container, key.name, &found).ok()) return false;
  const tensorflow::core::RefCountPtr<tensorflow::Var> variable(found);
  const tensorflow::tf_shared_lock lock(*variable->mu());
  return variable->tensor()->IsInitialized();
}

}  // namespace

std::set<VariableKey> ReadVariables(const MetaGraphDef& meta_graph) {
  return Walker(meta_graph).Walk();
}

std::set<std::string> VariablesWithoutValue(const std::set<VariableKey>& variables,
                                            tensorflow::Session* session) {
  const tensorflow::DeviceMgr* manager = nullptr;
  // If the devices of the session are not accessible, all variables count as present.
  if (!session->LocalDeviceManager(&manager).ok()) return {};
  std::set<std::string> names;
  for (const VariableKey& key : variables) {
    bool is_held = false;
    for (tensorflow::Device* const device : manager->ListDevices()) {
      is_held = is_held || HoldsValue(device, key);
    }
    if (!is_held) names.insert(key.name);
  }
  return names;
}

}  // namespace millpond::tf
