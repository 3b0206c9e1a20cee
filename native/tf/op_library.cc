#include "native/tf/op_library.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <unordered_map>

#include "tensorflow/c/c_api.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"

namespace millpond::tf {
namespace {

using tensorflow::FunctionDef;
using tensorflow::NodeDef;

struct DeleteHandle {
  // Deletes TensorFlow's record of the library's ops. The library stays loaded.
  void operator()(TF_Library* library) const { TF_DeleteLibraryHandle(library); }
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};

base::Status Refusal(const std::string& path, const std::string& reason) {
  const bool is_unbound = reason.find("undefined symbol") != std::string::npos;
  return base::FailedPrecondition(
      "op library " + path + " cannot be loaded: " + reason +
      (is_unbound ? std::string("; it was built for another TensorFlow than ") + TF_Version()
                  : ""));
}

std::vector<std::string> NamesOf(const TF_Buffer& serialized) {
  tensorflow::OpList ops;
  std::vector<std::string> names;
  if (!ops.ParseFromArray(serialized.data, static_cast<int>(serialized.length))) return names;
  for (const auto& op : ops.op()) names.push_back(op.name());
  std::sort(names.begin(), names.end());
  return names;
}

// Walks from the graph's nodes through the functions that they call.
class OpSearch {
 public:
  explicit OpSearch(const tensorflow::FunctionDefLibrary& library) {
    for (const auto& function : library.function()) {
      functions_.emplace(function.signature().name(), &function);
    }
    for (const auto& gradient : library.gradient()) {
      gradients_.emplace(gradient.function_name(), gradient.gradient_func());
    }
  }

  std::vector<std::string> Missing(const tensorflow::GraphDef& graph) {
    VisitAll(graph.node());
    while (!pending_.empty()) {
      const FunctionDef* const function = pending_.back();
      pending_.pop_back();
      VisitAll(function->node_def());
    }
    return {missing_.begin(), missing_.end()};
  }

 private:
  template <typename Nodes>
  void VisitAll(const Nodes& nodes) {
    for (const NodeDef& node : nodes) Visit(node);
  }

  void Visit(const NodeDef& node) {
    if (!VisitFunction(node.op()) &&
        tensorflow::OpRegistry::Global()->LookUp(node.op()) == nullptr) {
      missing_.insert(node.op());
    }
    for (const auto& [name, value] : node.attr()) {
      if (value.has_func()) VisitFunction(value.func().name());
      for (const auto& function : value.list().func()) VisitFunction(function.name());
    }
  }

  // Returns false if the graph has no function of that name.
  bool VisitFunction(const std::string& name) {
    const auto function = functions_.find(name);
    if (function == functions_.end()) return false;
    if (!visited_.insert(function->first).second) return true;
    pending_.push_back(function->second);
    const auto gradient = gradients_.find(name);
    if (gradient != gradients_.end()) VisitFunction(gradient->second);
    return true;
  }

  std::unordered_map<std::string_view, const FunctionDef*> functions_;
  std::unordered_map<std::string_view, std::string> gradients_;
  std::vector<const FunctionDef*> pending_;
  std::set<std::string_view> visited_;
  std::set<std::string> missing_;
};

}  // namespace

base::StatusOr<std::vector<std::string>> LoadOpLibrary(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) {
    return base::NotFound("op library " + path + " does not exist");
  }
  const std::unique_ptr<TF_Status, DeleteHandle> status(TF_NewStatus());
  const std::unique_ptr<TF_Library, DeleteHandle> library(
      TF_LoadLibrary(path.c_str(), status.get()));
  if (TF_GetCode(status.get()) != TF_OK) return Refusal(path, TF_Message(status.get()));
  return NamesOf(TF_GetOpList(library.get()));
}

std::vector<std::string> MissingOps(const tensorflow::GraphDef& graph) {
  return OpSearch(graph.library()).Missing(graph);
}

}  // namespace millpond::tf
