#include "native/tf/xla_capability.h"

#include <map>
#include <utility>
#include <vector>

#include "native/tf/buffer_type.h"
#include "native/tf/failing_ops.h"
#include "native/tf/handle_search.h"
#include "tensorflow/compiler/jit/compilability_check_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/common_runtime/process_function_library_runtime.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/public/version.h"

namespace millpond::tf {
namespace {

using tensorflow::DataType;
using tensorflow::Node;
using tensorflow::RecursiveCompilabilityChecker;

// The backend of hlo_compiler.cc.
constexpr char kDeviceType[] = "XLA_CPU_JIT";

// All that XLA computes as TensorFlow does. It computes assertions as nothing, and draws other
// random numbers. The ops whose output has a size that only a run shows have none in a program.
RecursiveCompilabilityChecker::OperationFilter Filter() {
  RecursiveCompilabilityChecker::OperationFilter filter;
  filter.allow_resource_ops_in_called_functions = true;
  filter.allow_stack_ops = true;
  filter.allow_tensor_array_ops = true;
  filter.allow_control_trigger = true;
  filter.allow_ops_producing_or_consuming_variant = true;
  filter.allow_slow_ops = true;
  filter.allow_inaccurate_ops = true;
  filter.allow_string_consts = false;
  filter.allow_collective_reduce_v2 = false;
  filter.allow_where_op = false;
  filter.allow_unique_op = false;
  return filter;
}

// Returns true for types of data that programs take, and for those that stay within a program.
bool IsCompiled(DataType dtype) {
  return BufferType(dtype) != PJRT_Buffer_Type_INVALID || dtype == tensorflow::DT_RESOURCE ||
         dtype == tensorflow::DT_VARIANT || dtype == tensorflow::DT_COMPLEX64 ||
         dtype == tensorflow::DT_COMPLEX128;
}

constexpr char kMayFail[] = "may fail requests, and XLA does not";
constexpr char kDrawsOthers[] = "draws other numbers in XLA";
constexpr char kLosesBits[] = "computes other integers in XLA";

// Returns why XLA does not compute what a node of a function does, "" if it does.
std::string WhyNotInFunction(const tensorflow::NodeDef& node) {
  if (DrawsOtherNumbers(node.op())) return kDrawsOthers;
  if (LosesBits(node) || Shifts(node.op())) return kLosesBits;
  const bool may_fail = ChecksValues(node.op()) || LooksUp(node.op()) || ChecksSecondOperand(node);
  return may_fail ? kMayFail : "";
}

std::string WhyNotVariable(const Node& handle) {
  DataType dtype;
  tensorflow::PartialTensorShape shape;
  const bool is_declared = GetNodeAttr(handle.attrs(), "dtype", &dtype).ok() &&
                           GetNodeAttr(handle.attrs(), "shape", &shape).ok();
  if (!is_declared || !shape.IsFullyDefined()) return "is a variable of an open shape";
  if (BufferType(dtype) == PJRT_Buffer_Type_INVALID) {
    return "is a variable of " + tensorflow::DataTypeString(dtype);
  }
  return "";
}

}  // namespace

struct XlaCapability::Checker {
  explicit Checker(const tensorflow::FunctionLibraryDefinition& functions)
      : functions(functions),
        runtime(nullptr, tensorflow::Env::Default(), nullptr, TF_GRAPH_DEF_VERSION, &functions,
                tensorflow::OptimizerOptions()),
        checker(Filter(), tensorflow::DeviceType(kDeviceType)) {}

  bool IsCompilable(const Node& node) {
    return checker.IsCompilableNode(
        node, runtime.GetFLR(tensorflow::ProcessFunctionLibraryRuntime::kDefaultFLRDevice));
  }

  // Returns the op in the functions of a node that XLA does not compute as TensorFlow does, with
  // the reason; "" if there is none.
  std::string FindCheckIn(const tensorflow::NodeDef& node) {
    std::vector<std::string> called;
    for (const auto& [name, attribute] : node.attr()) {
      if (attribute.has_func()) called.push_back(attribute.func().name());
      for (const auto& function : attribute.list().func()) called.push_back(function.name());
    }
    for (const std::string& function : called) {
      const std::string check = FindCheck(function);
      if (!check.empty()) return check;
    }
    return "";
  }

  std::string FindCheck(const std::string& name) {
    const auto [known, is_new] = checks.emplace(name, "");
    const tensorflow::FunctionDef* const function = is_new ? functions.Find(name) : nullptr;
    if (function == nullptr) return known->second;
    std::string check;
    for (const tensorflow::NodeDef& node : function->node_def()) {
      const std::string why_not = WhyNotInFunction(node);
      check = why_not.empty() ? FindCheckIn(node) : node.op() + ", which " + why_not;
      if (!check.empty()) break;
    }
    return checks[name] = check;
  }

  const tensorflow::FunctionLibraryDefinition& functions;
  std::map<std::string, std::string> checks;  // by the name of the function
  tensorflow::ProcessFunctionLibraryRuntime runtime;
  const RecursiveCompilabilityChecker checker;
};

XlaCapability::XlaCapability(const tensorflow::FunctionLibraryDefinition& functions)
    : checker_(std::make_unique<Checker>(functions)) {
  tensorflow::XlaOpRegistry::RegisterCompilationKernels();
}
XlaCapability::~XlaCapability() = default;

std::string XlaCapability::WhyNot(const Node& node) const {
  if (node.type_string() == kHandleOp) return WhyNotVariable(node);
  if (ChecksValues(node.type_string())) return kMayFail;
  if (DrawsOtherNumbers(node.type_string())) return kDrawsOthers;
  if (LosesBits(node.def())) return kLosesBits;
  for (const auto* types : {&node.input_types(), &node.output_types()}) {
    for (const DataType dtype : *types) {
      if (!IsCompiled(dtype)) return "has values of " + tensorflow::DataTypeString(dtype);
    }
  }
  if (node.type_string() == "NoOp") return "";
  if (!checker_->IsCompilable(node)) return "XLA cannot compile";
  const std::string check = checker_->FindCheckIn(node.def());
  return check.empty() ? "" : "calls a function with " + check;
}

}  // namespace millpond::tf
