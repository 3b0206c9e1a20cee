#include "native/tf/missing_kernels.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "native/tf/graph_names.h"
#include "native/tf/graph_walk.h"
#include "tensorflow/cc/saved_model/constants.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

using tensorflow::AttrValue;
using tensorflow::FunctionDef;
using tensorflow::MetaGraphDef;
using tensorflow::NodeDef;

// TensorFlow's implementation selector takes another function if a call prefers another device.
constexpr char kPreferredDevice[] = "api_preferred_device";
constexpr char kCpu[] = "CPU";
// Chooses among the kernels of an op.
constexpr char kKernelLabel[] = "_kernel";

bool HasSomeCpuKernel(const std::string& op) {
  const tensorflow::KernelList kernels = tensorflow::GetRegisteredKernelsForOp(op);
  return std::any_of(kernels.kernel().begin(), kernels.kernel().end(),
                     [](const auto& kernel) { return kernel.device_type() == kCpu; });
}

// Finds out if nodes have a kernel. Looks each kind of node up once, because large graphs have few
// kinds.
class Kernels {
 public:
  // Returns false only if no kernel computes the node. True for an op that is not registered:
  // MissingOps finds it.
  bool Has(const NodeDef& node) {
    const std::map<std::string_view, const AttrValue*> attributes = AttributesOf(node);
    std::string key = node.op();
    for (const auto& [name, value] : attributes) {
      key.append(1, '\0').append(name).append(1, '=').append(value->SerializeAsString());
    }
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    return known_[key] = LookUp(node.op(), attributes);
  }

 private:
  // Returns the attributes by which a kernel may be chosen. The value of a constant may be large,
  // and the names of functions differ, but neither chooses a kernel.
  static std::map<std::string_view, const AttrValue*> AttributesOf(const NodeDef& node) {
    std::map<std::string_view, const AttrValue*> attributes;
    for (const auto& [name, value] : node.attr()) {
      const bool is_internal = name.front() == '_' && name != kKernelLabel;
      const bool has_functions = value.has_func() || value.list().func_size() > 0;
      if (!is_internal && !has_functions && !value.has_tensor()) attributes[name] = &value;
    }
    return attributes;
  }

  static bool LookUp(const std::string& op,
                     const std::map<std::string_view, const AttrValue*>& attributes) {
    const tensorflow::OpDef* definition = nullptr;
    if (!tensorflow::OpRegistry::Global()->LookUpOpDef(op, &definition).ok()) return true;
    NodeDef node;
    node.set_op(op);
    for (const auto& [name, value] : attributes) {
      // The caller of the node's function sets the attribute.
      if (!value->placeholder().empty()) return HasSomeCpuKernel(op);
      (*node.mutable_attr())[std::string(name)] = *value;
    }
    tensorflow::AddDefaultsToNodeDef(*definition, &node);
    const absl::Status found =
        tensorflow::FindKernelDef(tensorflow::DEVICE_CPU, node, nullptr, nullptr);
    return !absl::IsNotFound(found);
  }

  std::unordered_map<std::string, bool> known_;
};

// The search of one model.
class Search {
 public:
  explicit Search(const MetaGraphDef& meta_graph) : graph_(meta_graph) {}

  // Appends the nodes without a kernel that a run reaches, the certain ones first. The run fetches
  // `tensors`, and does not compute the nodes of `fed`.
  void Append(const std::string& signature, const std::vector<std::string>& tensors,
              const std::set<std::string_view>& fed, std::vector<MissingKernel>* missing) {
    std::set<std::pair<std::string, std::string>> noted;  // function and node
    const auto note = [&](const NodeDef& node, const std::string& function, bool is_certain,
                          bool is_built) {
      const bool is_fed = function.empty() && fed.count(node.name()) > 0;
      if (is_fed || IsReplaced(node) || IsReplaced(graph_.FindFunction(function))) return false;
      if (graph_.FindFunction(node.op()) != nullptr || kernels_.Has(node)) return true;
      if (!noted.insert({function, node.name()}).second) return true;
      missing->push_back({signature, node.op(), node.name(), function, is_certain, is_built});
      return true;
    };
    graph_.VisitNeeded(tensors, [&](const NodeDef& node, const std::string& function) {
      // Nodes behind a Merge belong to either branch, so they are not certain.
      return note(node, function, /*is_certain=*/true, /*is_built=*/true) && node.op() != "Merge" &&
             node.op() != "RefMerge";
    });
    graph_.VisitBuilt(tensors, [&](const NodeDef& node, const std::string& function) {
      return note(node, function, /*is_certain=*/false, /*is_built=*/true);
    });
    graph_.VisitReachable(tensors, [&](const NodeDef& node, const std::string& function) {
      return note(node, function, /*is_certain=*/false, /*is_built=*/false);
    });
  }

 private:
  // Returns true if a call of the function may compute other nodes than the function has.
  static bool IsReplaced(const FunctionDef* function) {
    if (function == nullptr) return false;
    const auto preferred = function->attr().find(kPreferredDevice);
    const bool prefers_another =
        preferred != function->attr().end() && preferred->second.s() != kCpu;
    return prefers_another || IsCompiledByXla(function->attr());
  }

  // Returns true if computing the node computes other nodes than its functions have.
  bool IsReplaced(const NodeDef& node) const {
    if (IsCompiledByXla(node.attr())) return true;
    const std::vector<Call> calls = graph_.CallsOf(node);
    return std::any_of(calls.begin(), calls.end(), [&](const Call& call) {
      return !call.is_branch && IsReplaced(graph_.FindFunction(call.function));
    });
  }

  const GraphWalk graph_;
  Kernels kernels_;
};

}  // namespace

std::vector<MissingKernel> FindMissingKernels(const MetaGraphDef& meta_graph,
                                              const std::string& init_op) {
  Search search(meta_graph);
  std::vector<MissingKernel> missing;
  if (!init_op.empty()) search.Append("", {init_op}, {}, &missing);
  for (const auto& [name, signature] : meta_graph.signature_def()) {
    if (name == tensorflow::kSavedModelInitOpSignatureKey) continue;
    std::vector<std::string> outputs;
    for (const auto& [output, info] : signature.outputs()) outputs.push_back(info.name());
    std::set<std::string_view> fed;
    for (const auto& [input, info] : signature.inputs()) fed.insert(NodeOf(info.name()));
    search.Append(name, outputs, fed, &missing);
  }
  std::stable_sort(missing.begin(), missing.end(), [](const auto& a, const auto& b) {
    return std::tie(a.signature, b.is_certain) < std::tie(b.signature, a.is_certain);
  });
  return missing;
}

}  // namespace millpond::tf
