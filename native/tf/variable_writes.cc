#include "native/tf/variable_writes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "native/tf/graph_names.h"
#include "native/tf/graph_walk.h"
#include "native/tf/handle_search.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/resource_handle.h"
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
      "Identity", "IdentityN", "NoOp", "_Arg", "_Retval", "_DeviceArg", "_DeviceRetval",
      "ReadVariableOp", "_ReadVariablesOp", "ResourceGather", "ResourceGatherNd",
      "VarIsInitializedOp", "VariableShape", "IsVariableInitialized",
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

constexpr char kCompiledModule[] = "XlaCallModule";

// Returns the indices of a node's inputs that are resource handles. Returns nullopt if the op does
// not show them, because it takes a reference or a list.
std::optional<std::vector<int>> HandleInputs(const NodeDef& node) {
  const tensorflow::OpDef* const op = FindOp(node);
  if (op == nullptr) return std::nullopt;
  std::vector<int> inputs;
  for (int i = 0; i < op->input_arg_size(); ++i) {
    const auto& argument = op->input_arg(i);
    const bool is_list = !argument.number_attr().empty() || !argument.type_list_attr().empty();
    if (is_list || argument.is_ref()) return std::nullopt;
    if (argument.type() == tensorflow::DT_RESOURCE) inputs.push_back(i);
  }
  if (inputs.empty()) return std::nullopt;
  return inputs;
}

// The analysis of one model.
class WriteSearch {
 public:
  explicit WriteSearch(const MetaGraphDef& meta_graph,
                       HandleSearch::LookUpTables tables = HandleSearch::LookUpTables::kAreDoubts)
      : graph_(meta_graph), handles_(graph_, meta_graph, tables) {}

  Writes Analyze(const MetaGraphDef& meta_graph) {
    const std::vector<std::string> outputs = SignatureOutputs(meta_graph);
    for (const std::string& output : outputs) {
      if (graph_.FindNode("", NodeOf(output)) == nullptr) return {};
    }
    graph_.VisitReachable(outputs, [&](const NodeDef& node, const std::string& function) {
      Look(node, function);
      return true;
    });
    Writes writes;
    writes.has_writer = is_in_doubt_ || !writers_.empty();
    writes.can_be_sealed = !writes.has_writer && !keeps_memory_;
    writes.compiles_each_shape = compiles_;
    writes.written = Written();
    writes.writing = is_in_doubt_ ? Writing::kChanges : WritingOf(outputs);
    return writes;
  }

  InitWrites AnalyzeInit(const std::string& init_op) {
    if (graph_.FindNode("", NodeOf(init_op)) == nullptr) return {};
    graph_.VisitReachable({init_op}, [&](const NodeDef& node, const std::string& function) {
      Look(node, function);
      return true;
    });
    if (is_in_doubt_ || has_compiled_variables_ || !are_variables_named_) return {};
    InitWrites writes;
    for (const Writer& writer : writers_) {
      const std::optional<Names> written = WrittenBy(writer);
      if (!written) return {};
      const bool scatters = writer.node->op() == kScatterOp;
      for (const std::string& key : *written) {
        (scatters ? writes.scattered : writes.otherwise).insert(HandleSearch::NameOf(key));
      }
    }
    writes.are_known = true;
    return writes;
  }

 private:
  struct Writer {
    const NodeDef* node;
    std::string function;
  };

  void Look(const NodeDef& node, const std::string& function) {
    const bool is_compiled = IsCompiled(node);
    compiles_ = compiles_ || is_compiled || node.op() == kCompiledModule;
    for (const std::string& called : graph_.FunctionsOf(node)) {
      if (graph_.FindFunction(called) == nullptr) is_in_doubt_ = true;
    }
    // A compiled function writes without the kernels of its nodes.
    if (is_compiled && TakesVariable(node)) has_compiled_variables_ = true;
    if (graph_.FindFunction(node.op()) != nullptr) return;
    if (KeepsMemory(node) || MayFreeStrings(node)) keeps_memory_ = true;
    if (node.op() == kHandleOp) {
      // Otherwise the handle has another name than the graph.
      const std::string name = TextOf(node, "shared_name");
      are_variables_named_ &= !name.empty() && name != tensorflow::ResourceHandle::ANONYMOUS_NAME;
    }
    if (WritesAnything(node)) writers_.push_back({&node, function});
  }

  static bool WritesAnything(const NodeDef& node) {
    return WritesInPlace(node) || (TakesVariable(node) && ReadingOps().count(node.op()) == 0);
  }

  bool IsCompiled(const NodeDef& node) const {
    if (IsCompiledByXla(node.attr())) return true;
    const std::vector<std::string> functions = graph_.FunctionsOf(node);
    return std::any_of(functions.begin(), functions.end(), [&](const std::string& name) {
      const FunctionDef* const function = graph_.FindFunction(name);
      return function != nullptr && IsCompiledByXla(function->attr());
    });
  }

  Writing WritingOf(const std::vector<std::string>& outputs) {
    if (writers_.empty()) return Writing::kNone;
    Names read;
    graph_.VisitSources(outputs, [&](const NodeDef& node, const std::string&) {
      if (node.op() == kHandleOp) read.insert(HandleSearch::KeyOf(node));
      return true;
    });
    Writing writing = Writing::kNone;
    for (const Writer& writer : writers_) {
      if (IsUnread(writer, read)) continue;
      const bool is_seen = writer.node->op() == kAssignOp && !has_compiled_variables_;
      if (!is_seen) return Writing::kChanges;
      writing = Writing::kAssigns;
    }
    return writing;
  }

  // Returns the keys of the variables that a node may write; nullopt if they are not known.
  std::optional<Names> WrittenBy(const Writer& writer) {
    const auto inputs = HandleInputs(*writer.node);
    if (WritesInPlace(*writer.node) || !inputs) return std::nullopt;
    Names written;
    handles_.Forget();
    for (const int input : *inputs) {
      const bool is_known =
          input < writer.node->input_size() &&
          handles_.AddSources(writer.function, writer.node->input(input), &written);
      if (!is_known) return std::nullopt;
    }
    return written;
  }

  // Returns true if no output depends on the values of the variables that a node writes.
  bool IsUnread(const Writer& writer, const Names& read) {
    const std::optional<Names> written = WrittenBy(writer);
    return written && std::none_of(written->begin(), written->end(),
                                   [&](const std::string& key) { return read.count(key) > 0; });
  }

  std::optional<std::set<std::string>> Written() {
    if (is_in_doubt_ || !are_variables_named_) return std::nullopt;
    std::set<std::string> names;
    for (const Writer& writer : writers_) {
      const std::optional<Names> written = WrittenBy(writer);
      if (!written) return std::nullopt;
      for (const std::string& key : *written) names.insert(HandleSearch::NameOf(key));
    }
    return names;
  }

  const GraphWalk graph_;
  HandleSearch handles_;
  std::vector<Writer> writers_;
  bool is_in_doubt_ = false;
  bool has_compiled_variables_ = false;
  bool compiles_ = false;
  bool are_variables_named_ = true;
  bool keeps_memory_ = false;  // true if a node keeps memory to which it may write while serving
};

}  // namespace

bool WritesInPlace(const NodeDef& node) {
  return node.op() == "InplaceUpdate" || node.op() == "InplaceAdd" || node.op() == "InplaceSub";
}

Writes AnalyzeWrites(const MetaGraphDef& meta_graph) {
  return WriteSearch(meta_graph).Analyze(meta_graph);
}

InitWrites AnalyzeInitWrites(const MetaGraphDef& meta_graph, const std::string& init_op) {
  if (init_op.empty()) {
    InitWrites none;
    none.are_known = true;
    return none;
  }
  return WriteSearch(meta_graph, HandleSearch::LookUpTables::kAreLeftOut).AnalyzeInit(init_op);
}

bool MayWrite(const NodeDef& node) {
  if (WritesInPlace(node)) return true;
  const bool is_reading = ReadingOps().count(node.op()) > 0 && !IsCompiledByXla(node.attr());
  return TakesVariable(node) && !is_reading;
}

}  // namespace millpond::tf
