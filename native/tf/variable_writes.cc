#include "native/tf/variable_writes.h"

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "native/tf/graph_names.h"
#include "tensorflow/cc/saved_model/constants.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace millpond::tf {
namespace {

using tensorflow::FunctionDef;
using tensorflow::MetaGraphDef;
using tensorflow::NodeDef;
using Names = std::unordered_set<std::string>;

// The operations that take a handle or a reference and leave variables unchanged. Operations with
// functions (calls, branches, loops) are in the list, because their functions are analyzed. Stacks
// and tensor arrays live for one run.
const Names& ReadingOps() {
  static const auto* const kOps = new Names{
      "Identity", "IdentityN", "NoOp", "ReadVariableOp", "_ReadVariablesOp", "ResourceGather",
      "ResourceGatherNd", "VarIsInitializedOp", "VariableShape", "IsVariableInitialized",
      // The control flow of TensorFlow 1.
      "Switch", "Merge", "RefSwitch", "RefMerge", "RefIdentity", "RefSelect", "Enter", "RefEnter",
      "Exit", "RefExit", "NextIteration", "RefNextIteration",
      // Operations with functions, tensor arrays, stacks, and look-ups in tables.
      "PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase",
      "While", "StatelessWhile", "TensorArrayReadV3", "TensorArrayWriteV3", "TensorArrayGatherV3",
      "TensorArrayScatterV3", "TensorArrayConcatV3", "TensorArraySplitV3", "TensorArraySizeV3",
      "TensorArrayCloseV3", "StackPushV2", "StackPopV2", "StackCloseV2", "LookupTableFind",
      "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2", "LookupTableExport",
      "LookupTableExportV2"};
  return *kOps;
}

// Returns true if the operation writes into the buffer of an input, which other nodes may hold too.
bool WritesInPlace(const NodeDef& node) {
  return node.op() == "InplaceUpdate" || node.op() == "InplaceAdd" || node.op() == "InplaceSub";
}

// Returns true if a gather may free strings of the parameters. A gather replaces the memory of a
// variable that others read with a copy, and frees the old memory (EnsureSparseVariableAccess in
// TensorFlow's training_op_helpers.h). Freed strings write to themselves; numbers do not.
bool MayFreeStrings(const NodeDef& node) {
  if (node.op().rfind("ResourceGather", 0) != 0) return false;
  const auto dtype = node.attr().find("dtype");
  return dtype == node.attr().end() || tensorflow::DataTypeSize(dtype->second.type()) == 0;
}

const tensorflow::OpDef* FindOp(const NodeDef& node) {
  const tensorflow::OpDef* op = nullptr;
  return tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok() ? op : nullptr;
}

// Returns true if the kernel makes an object that outlives a run and is not a variable, like a
// table, a queue or an iterator. These objects allocate a tensor when they are made, and write to
// it at their first run.
bool KeepsMemory(const NodeDef& node) {
  static const auto* const kVariables =
      new Names{"VarHandleOp", "_VarHandlesOp", "Variable", "VariableV2"};
  const tensorflow::OpDef* const op = FindOp(node);
  if (op == nullptr) return true;
  if (kVariables->count(node.op()) > 0 || op->input_arg_size() > 0) return false;
  for (const auto& output : op->output_arg()) {
    if (output.is_ref() || output.type() == tensorflow::DT_RESOURCE) return true;
  }
  return false;
}

bool TakesVariable(const NodeDef& node) {
  const tensorflow::OpDef* const op = FindOp(node);
  if (op == nullptr) return true;
  for (const auto& argument : op->input_arg()) {
    if (argument.is_ref() || argument.type() == tensorflow::DT_RESOURCE) return true;
  }
  // An operation whose input type is an attribute (Identity, Switch, calls) takes a handle if the
  // attribute, or an element of its list, is DT_RESOURCE.
  for (const auto& [name, value] : node.attr()) {
    if (value.type() == tensorflow::DT_RESOURCE) return true;
    for (const int type : value.list().type()) {
      if (type == tensorflow::DT_RESOURCE) return true;
    }
  }
  return false;
}

// The nodes and functions that the signatures' outputs depend on.
class Reached {
 public:
  explicit Reached(const MetaGraphDef& meta_graph) {
    for (const NodeDef& node : meta_graph.graph_def().node()) nodes_[node.name()] = &node;
    for (const FunctionDef& function : meta_graph.graph_def().library().function()) {
      functions_[function.signature().name()] = &function;
    }
  }

  Writes Analyze(const MetaGraphDef& meta_graph) {
    const bool may_write_variables = AnyWrites(meta_graph);
    return {may_write_variables, !may_write_variables && !keeps_memory_};
  }

 private:
  bool AnyWrites(const MetaGraphDef& meta_graph) {
    for (const auto& [name, signature] : meta_graph.signature_def()) {
      // The init op runs before the version serves.
      if (name == tensorflow::kSavedModelInitOpSignatureKey) continue;
      for (const auto& [output, info] : signature.outputs()) Want(std::string(NodeOf(info.name())));
    }
    while (!wanted_.empty()) {
      const auto node = nodes_.find(wanted_.back());
      wanted_.pop_back();
      // A name that is not a node belongs to a composite output, which no signature of a servable
      // has.
      if (node == nodes_.end() || NodeWrites(*node->second)) return true;
      for (const std::string& input : node->second->input()) Want(std::string(NodeOf(input)));
    }
    return false;
  }

  void Want(std::string node) {
    if (seen_nodes_.insert(node).second) wanted_.push_back(std::move(node));
  }

  bool NodeWrites(const NodeDef& node) {
    const bool is_call = functions_.count(node.op()) > 0;
    if (is_call) return FunctionWrites(node.op());
    if (WritesInPlace(node)) return true;
    if (KeepsMemory(node) || MayFreeStrings(node)) keeps_memory_ = true;
    if (TakesVariable(node) && ReadingOps().count(node.op()) == 0) return true;
    for (const auto& [name, value] : node.attr()) {
      if (value.has_func() && FunctionWrites(value.func().name())) return true;
      for (const auto& function : value.list().func()) {
        if (FunctionWrites(function.name())) return true;
      }
    }
    return false;
  }

  // Checks all nodes of a function: a node without outputs runs too if it has effects.
  bool FunctionWrites(const std::string& name) {
    if (!seen_functions_.insert(name).second) return false;
    const auto function = functions_.find(name);
    if (function == functions_.end()) return true;
    for (const NodeDef& node : function->second->node_def()) {
      if (NodeWrites(node)) return true;
    }
    return false;
  }

  std::unordered_map<std::string, const NodeDef*> nodes_;
  std::unordered_map<std::string, const FunctionDef*> functions_;
  Names seen_nodes_;
  Names seen_functions_;
  std::vector<std::string> wanted_;
  bool keeps_memory_ = false;  // true if a node has memory that it may write to while serving
};

}  // namespace

Writes AnalyzeWrites(const MetaGraphDef& meta_graph) {
  return Reached(meta_graph).Analyze(meta_graph);
}

}  // namespace millpond::tf
