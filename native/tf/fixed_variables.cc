#include "native/tf/fixed_variables.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/tf/fixed_value.h"
#include "native/tf/gather_kernel.h"
#include "native/tf/segment_kernel.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/public/session.h"

namespace millpond::tf {
namespace {

using tensorflow::DataType;
using tensorflow::Node;
using tensorflow::OpKernel;
using tensorflow::Tensor;

constexpr char kReadOp[] = "ReadVariableOp";

// The place of the mark in a device's resources.
constexpr char kContainer[] = "millpond";
constexpr char kMark[] = "fixed_variables";

// Marks a device whose variables keep their values from now on.
class FixedMark final : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return kMark; }
};

bool HasFixedVariables(tensorflow::Device* device) {
  FixedMark* found = nullptr;
  if (!device->resource_manager()->Lookup(kContainer, kMark, &found).ok()) return false;
  found->Unref();
  return true;
}

// A read of a variable that does not change.
class FixedRead final : public OpKernel {
 public:
  explicit FixedRead(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    absl::StatusOr<Tensor> value = FixedValue(context);
    OP_REQUIRES_OK(context, value.status());
    OP_REQUIRES(context, value->dtype() == output_type(0),
                absl::InvalidArgumentError("the variable has another dtype than the read"));
    value_ = std::move(*value);
  }

  void Compute(tensorflow::OpKernelContext* context) override { context->set_output(0, value_); }
  const Tensor* const_tensor() const override { return &value_; }

 private:
  Tensor value_;
};

// The source of an input, behind nodes that hand it on.
const Node* SourceOf(const Node& node, int input) {
  const Node* source = nullptr;
  if (!node.input_node(input, &source).ok()) return nullptr;
  while (source->IsIdentity() && source->input_node(0, &source).ok()) {
  }
  return source;
}

// Returns true if an input of the node is the constant 0.
bool IsZero(const Node& node, int input) {
  const Node* const source = SourceOf(node, input);
  const tensorflow::TensorProto* proto = nullptr;
  Tensor value;
  if (source == nullptr || !source->IsConstant() ||
      !tensorflow::GetNodeAttr(source->attrs(), "value", &proto).ok()) {
    return false;
  }
  if (!value.FromProto(*proto) || value.NumElements() != 1) return false;
  if (value.dtype() == tensorflow::DT_INT64) return value.flat<int64_t>()(0) == 0;
  return value.dtype() == tensorflow::DT_INT32 && value.flat<int32_t>()(0) == 0;
}

// The attributes that a node gets besides its own.
using Attributes = std::vector<std::pair<std::string, std::string>>;

// Adds the key of the variable that the node takes as its first input. Returns false if the graph
// does not show it.
bool AddVariable(const Node& node, Attributes* attributes) {
  const Node* const handle = SourceOf(node, 0);
  if (handle == nullptr || handle->type_string() != "VarHandleOp") return false;
  std::string container;
  std::string name;
  if (!tensorflow::GetNodeAttr(handle->attrs(), "container", &container).ok() ||
      !tensorflow::GetNodeAttr(handle->attrs(), "shared_name", &name).ok()) {
    return false;
  }
  if (name.empty() || name == tensorflow::ResourceHandle::ANONYMOUS_NAME) return false;
  attributes->emplace_back(kFixedContainer, std::move(container));
  attributes->emplace_back(kFixedVariable, std::move(name));
  return true;
}

bool IsByRows(const Node& node, const char* dtype_name) {
  int batch_dims = 0;
  DataType dtype = tensorflow::DT_INVALID;
  return tensorflow::GetNodeAttr(node.attrs(), "batch_dims", &batch_dims).ok() && batch_dims == 0 &&
         tensorflow::GetNodeAttr(node.attrs(), dtype_name, &dtype).ok() &&
         tensorflow::DataTypeCanUseMemcpy(dtype);
}

// Returns true if the node takes a whole variable as its first input. Then its rows lie apart.
bool TakesVariable(const Node& node) {
  const Node* const source = SourceOf(node, 0);
  Attributes variable;
  return source != nullptr && source->type_string() == kReadOp && AddVariable(*source, &variable);
}

// Returns the attributes of the node's fixed kernel; none if it has no such kernel.
Attributes FixedAttributes(const Node& node, bool is_fixed) {
  Attributes attributes;
  const std::string& op = node.type_string();
  const bool is_of_variable = op == "ResourceGather" && IsByRows(node, "dtype");
  const bool has_kernel =
      (is_fixed && (op == kReadOp || is_of_variable) && AddVariable(node, &attributes)) ||
      (op == "GatherV2" && IsByRows(node, "Tparams") && IsZero(node, 2)) ||
      (is_fixed && IsSegmentOp(op) && TakesVariable(node));
  if (!has_kernel && !is_of_variable) return {};
  attributes.emplace_back("_kernel", has_kernel ? kMillpondKernel : kVariableKernel);
  return attributes;
}

// The fixed kernels of one executor, which TensorFlow's cache of kernels does not have.
class FixedKernels {
 public:
  FixedKernels(const tensorflow::LocalExecutorParams& params, const tensorflow::Graph& graph,
               bool is_fixed)
      : create_(params.create_kernel), delete_(params.delete_kernel) {
    for (const Node* const node : graph.op_nodes()) {
      const Attributes attributes = FixedAttributes(*node, is_fixed);
      if (attributes.empty()) continue;
      auto kernel = Make(params.device, *node, attributes, graph.versions().producer());
      if (kernel != nullptr) kernels_.emplace(node->name(), std::move(kernel));
    }
  }

  absl::Status Create(const std::shared_ptr<const tensorflow::NodeProperties>& properties,
                      OpKernel** kernel) const {
    const auto found = kernels_.find(properties->node_def.name());
    if (found == kernels_.end()) return create_(properties, kernel);
    *kernel = found->second.get();
    return absl::OkStatus();
  }

  // `kernel` may be null.
  void Delete(OpKernel* kernel) const {
    if (kernel == nullptr) return delete_(kernel);
    const auto found = kernels_.find(kernel->name());
    if (found == kernels_.end() || found->second.get() != kernel) delete_(kernel);
  }

  // Copies the graph without the handles of the fixed reads.
  std::unique_ptr<tensorflow::Graph> CopyWithoutHandles(const tensorflow::Graph& graph) const {
    auto copy = std::make_unique<tensorflow::Graph>(graph.flib_def());
    copy->Copy(graph);
    for (Node* const node : copy->op_nodes()) {
      if (node->type_string() != kReadOp || kernels_.count(node->name()) == 0) continue;
      const tensorflow::Edge* handle = nullptr;
      if (node->input_edge(0, &handle).ok()) copy->RemoveEdge(handle);
    }
    tensorflow::FixupSourceAndSinkEdges(copy.get());
    return copy;
  }

 private:
  // Returns null if the kernel cannot be made, because the variable has no value, for example. The
  // node keeps its usual kernel then, which fails with the right error.
  static std::unique_ptr<OpKernel> Make(tensorflow::Device* device, const Node& node,
                                        const Attributes& attributes, int producer) {
    tensorflow::NodeDef definition = node.def();
    for (const auto& [name, value] : attributes) (*definition.mutable_attr())[name].set_s(value);
    const auto properties = std::make_shared<const tensorflow::NodeProperties>(
        &node.op_def(), std::move(definition), node.input_types(), node.output_types());
    OpKernel* kernel = nullptr;
    const absl::Status made = tensorflow::CreateOpKernel(
        tensorflow::DeviceType(tensorflow::DEVICE_CPU), device, device->GetAllocator({}),
        /*flib=*/nullptr, device->resource_manager(), properties, producer, &kernel);
    return std::unique_ptr<OpKernel>(made.ok() ? kernel : nullptr);
  }

  const decltype(tensorflow::LocalExecutorParams::create_kernel) create_;
  const decltype(tensorflow::LocalExecutorParams::delete_kernel) delete_;
  std::unordered_map<std::string, std::unique_ptr<OpKernel>> kernels_;
};

}  // namespace

void FixVariables(tensorflow::Session* session) {
  const tensorflow::DeviceMgr* manager = nullptr;
  if (!session->LocalDeviceManager(&manager).ok()) return;
  for (tensorflow::Device* const device : manager->ListDevices()) {
    FixedMark* mark = nullptr;
    const absl::Status marked = device->resource_manager()->LookupOrCreate<FixedMark>(
        kContainer, kMark, &mark, [](FixedMark** made) {
          *made = new FixedMark;
          return absl::OkStatus();
        });
    if (marked.ok()) mark->Unref();
  }
}

FixedExecutor WithFixedVariables(tensorflow::LocalExecutorParams params,
                                 const tensorflow::Graph& graph) {
  const auto kernels =
      std::make_shared<FixedKernels>(params, graph, HasFixedVariables(params.device));
  params.create_kernel = [kernels](const auto& properties, OpKernel** kernel) {
    return kernels->Create(properties, kernel);
  };
  params.delete_kernel = [kernels](OpKernel* kernel) { kernels->Delete(kernel); };
  return {std::move(params), kernels->CopyWithoutHandles(graph)};
}

void RegisterFixedKernels() {
  const tensorflow::kernel_factory::OpKernelRegistrar registrar(
      tensorflow::KernelDefBuilder(kReadOp)
          .Device(tensorflow::DEVICE_CPU)
          .Label(kMillpondKernel)
          .Build(),
      "FixedRead", [](tensorflow::OpKernelConstruction* context) -> OpKernel* {
        return new FixedRead(context);
      });
  RegisterGatherKernels();
  RegisterSegmentKernels();
}

}  // namespace millpond::tf
