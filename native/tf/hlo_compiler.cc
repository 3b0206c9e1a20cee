#include "native/tf/hlo_compiler.h"

#include <map>
#include <unordered_set>
#include <utility>

#include "native/tensor/dtype.h"
#include "native/tf/buffer_type.h"
#include "native/tf/graph_source.h"
#include "native/tf/handle_search.h"
#include "native/tf/status.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/framework/graph_to_functiondef.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tsl/platform/tensor_float_32_utils.h"
#include "xla/client/client_library.h"
#include "xla/stream_executor/platform_manager.h"

namespace millpond::tf {
namespace {

using base::Status;
using base::StatusOr;
using tensorflow::Graph;
using tensorflow::Node;

constexpr char kFunction[] = "millpond_signature";
// The backend whose translations are used. The backend for GPUs gives the same programs, but in the
// package tensorflow-cpu it lacks some dtypes, such as FloorMod's int64.
constexpr char kDeviceType[] = "XLA_CPU_JIT";

bool IsTranslatable(int dtype) { return BufferType(dtype) != PJRT_Buffer_Type_INVALID; }

Status CheckSpec(const tensor::TensorSpec& spec, const char* what) {
  const std::string described =
      std::string(what) + " '" + spec.name + "' is " + tensor::DescribeTensor(spec);
  if (!IsTranslatable(spec.dtype)) {
    return {base::Code::kUnimplemented, described + ", and XLA has no such dtype"};
  }
  if (!spec.is_rank_known || spec.dims.empty() ||
      spec.dims[0] != tensor::TensorSpec::kUnknownSize) {
    return {base::Code::kUnimplemented, described + ", whose first dimension is not the rows"};
  }
  for (size_t i = 1; i < spec.dims.size(); ++i) {
    if (spec.dims[i] == tensor::TensorSpec::kUnknownSize) {
      return {base::Code::kUnimplemented,
              described + ": dimension " + std::to_string(i) + " is open, and XLA needs it"};
    }
  }
  return {};
}

// The argument that a variable becomes. Its shape is the one that the graph declares.
StatusOr<tensorflow::XlaArgument> VariableArgument(const Node& handle) {
  tensorflow::XlaArgument argument;
  argument.kind = tensorflow::XlaArgument::kResource;
  argument.resource_kind = tensorflow::XlaResource::kVariable;
  argument.initialized = true;
  tensorflow::PartialTensorShape declared;
  argument.name = handle.name();
  MILLPOND_RETURN_IF_TF_ERROR(GetNodeAttr(handle.attrs(), "dtype", &argument.type), handle.name());
  MILLPOND_RETURN_IF_TF_ERROR(GetNodeAttr(handle.attrs(), "shape", &declared), handle.name());
  tensorflow::TensorShape shape;
  if (!declared.AsTensorShape(&shape)) {
    return Status(base::Code::kUnimplemented,
                  "variable '" + handle.name() + "' has an open shape, and XLA needs it");
  }
  if (!IsTranslatable(argument.type)) {
    return Status(base::Code::kUnimplemented,
                  "variable '" + handle.name() + "' has a dtype that XLA lacks");
  }
  argument.shape = shape;
  return argument;
}

// Turns the part of a graph that computes a signature into a function of the signature's inputs,
// and of the variables behind them.
class SignatureFunction {
 public:
  explicit SignatureFunction(Graph* graph) : graph_(*graph), nodes_(NodesOf(*graph)) {}

  Status AddOutputs(const std::vector<tensor::TensorSpec>& outputs) {
    for (const tensor::TensorSpec& output : outputs) {
      const StatusOr<Source> source = FindSource(nodes_, output.tensor_name);
      if (!source.ok()) return source.status();
      const StatusOr<Node*> result =
          AddEnd("_Retval", static_cast<tensorflow::DataType>(output.dtype), results_.size());
      if (!result.ok()) return result.status();
      graph_.AddEdge(source.value().node, source.value().output, result.value(), 0);
      results_.insert(result.value());
    }
    return {};
  }

  Status ReplaceInputs(const std::vector<tensor::TensorSpec>& inputs) {
    for (const tensor::TensorSpec& input : inputs) {
      const StatusOr<Source> source = FindSource(nodes_, input.tensor_name);
      if (!source.ok()) return source.status();
      tensorflow::XlaArgument argument;
      argument.kind = tensorflow::XlaArgument::kParameter;
      argument.type = static_cast<tensorflow::DataType>(input.dtype);
      argument.name = input.name;
      MILLPOND_RETURN_IF_ERROR(Replace(source.value(), std::move(argument)));
    }
    return {};
  }

  Status ReplaceVariables() {
    // Only now are the nodes gone that nothing needs once the inputs are arguments.
    PruneForReverseReachability(&graph_, results_);
    std::map<std::string, Node*> handles;  // in an order that two versions of a graph share
    for (Node* const node : graph_.op_nodes()) {
      if (node->type_string() == kHandleOp) handles[node->name()] = node;
    }
    for (const auto& [name, handle] : handles) {
      StatusOr<tensorflow::XlaArgument> argument = VariableArgument(*handle);
      if (!argument.ok()) return argument.status();
      ResourceKey& key = variables_.emplace_back();
      MILLPOND_RETURN_IF_TF_ERROR(GetNodeAttr(handle->attrs(), "container", &key.container), name);
      MILLPOND_RETURN_IF_TF_ERROR(GetNodeAttr(handle->attrs(), "shared_name", &key.name), name);
      MILLPOND_RETURN_IF_ERROR(Replace({handle, 0}, std::move(argument.value())));
    }
    PruneForReverseReachability(&graph_, results_);
    return {};
  }

  // The inputs, without their shapes, and the variables.
  std::vector<tensorflow::XlaArgument> TakeArguments() { return std::move(arguments_); }
  std::vector<ResourceKey> TakeVariables() { return std::move(variables_); }

 private:
  // Adds a node that is the argument or the result `index` of the function.
  StatusOr<Node*> AddEnd(const char* op, tensorflow::DataType dtype, size_t index) {
    tensorflow::NodeDef definition;
    definition.set_name("millpond" + std::string(op) + "_" + std::to_string(index));
    definition.set_op(op);
    (*definition.mutable_attr())["T"].set_type(dtype);
    (*definition.mutable_attr())["index"].set_i(static_cast<int64_t>(index));
    absl::Status added;
    Node* const node = graph_.AddNode(definition, &added);
    MILLPOND_RETURN_IF_TF_ERROR(added, "translating the graph");
    return node;
  }

  // Makes all that reads `source` read the next argument instead.
  Status Replace(const Source& source, tensorflow::XlaArgument argument) {
    const StatusOr<Node*> added =
        AddEnd("_Arg", source.node->output_type(source.output), arguments_.size());
    if (!added.ok()) return added.status();
    arguments_.push_back(std::move(argument));
    RedirectReaders(source, added.value(), &graph_);
    return {};
  }

  Graph& graph_;
  const NodesByName nodes_;  // of the model
  std::unordered_set<const Node*> results_;
  std::vector<tensorflow::XlaArgument> arguments_;
  std::vector<ResourceKey> variables_;
};

tensorflow::TensorShape ShapeFor(const tensor::TensorSpec& spec, int64_t rows) {
  tensorflow::TensorShape shape({rows});
  for (size_t i = 1; i < spec.dims.size(); ++i) shape.AddDim(spec.dims[i]);
  return shape;
}

// The client that XlaCompiler asks about layouts; it runs nothing.
StatusOr<xla::LocalClient*> HostClient() {
  static auto* const made = new absl::StatusOr<xla::LocalClient*>([] {
    tensorflow::XlaOpRegistry::RegisterCompilationKernels();
    // Products of float32 are float32 on a GPU too, as they are on the CPU, and not TensorFloat-32.
    tsl::enable_tensor_float_32_execution(false);
    const auto platform = stream_executor::PlatformManager::PlatformWithName("Host");
    return platform.ok() ? xla::ClientLibrary::GetOrCreateLocalClient(*platform)
                         : absl::StatusOr<xla::LocalClient*>(platform.status());
  }());
  MILLPOND_RETURN_IF_TF_ERROR(made->status(), "making XLA's client");
  return **made;
}

}  // namespace

struct HloCompiler::State {
  tensor::Signature signature;
  tensorflow::FunctionLibraryDefinition functions{tensorflow::OpRegistry::Global(),
                                                  tensorflow::FunctionDefLibrary()};
  int producer = 0;
  std::vector<tensorflow::XlaArgument> arguments;  // the inputs without their shapes, and variables
  std::vector<ResourceKey> variables;
};

HloCompiler::HloCompiler(std::unique_ptr<State> state) : state_(std::move(state)) {}
HloCompiler::~HloCompiler() = default;

const std::vector<ResourceKey>& HloCompiler::variables() const { return state_->variables; }

StatusOr<std::unique_ptr<HloCompiler>> HloCompiler::Make(const tensorflow::MetaGraphDef& meta_graph,
                                                         const tensor::Signature& signature) {
  for (const auto& input : signature.inputs) MILLPOND_RETURN_IF_ERROR(CheckSpec(input, "input"));
  for (const auto& output : signature.outputs) {
    MILLPOND_RETURN_IF_ERROR(CheckSpec(output, "output"));
  }
  auto state = std::make_unique<State>();
  state->signature = signature;
  state->producer = meta_graph.graph_def().versions().producer();
  MILLPOND_RETURN_IF_TF_ERROR(state->functions.AddLibrary(meta_graph.graph_def().library()),
                              "reading the graph's functions");
  Graph graph(state->functions);
  tensorflow::GraphConstructorOptions options;
  options.allow_internal_ops = true;
  MILLPOND_RETURN_IF_TF_ERROR(ConvertGraphDefToGraph(options, meta_graph.graph_def(), &graph),
                              "reading the graph");
  SignatureFunction parts(&graph);
  MILLPOND_RETURN_IF_ERROR(parts.AddOutputs(signature.outputs));
  MILLPOND_RETURN_IF_ERROR(parts.ReplaceInputs(signature.inputs));
  MILLPOND_RETURN_IF_ERROR(parts.ReplaceVariables());
  state->arguments = parts.TakeArguments();
  state->variables = parts.TakeVariables();
  tensorflow::FunctionDef function;
  MILLPOND_RETURN_IF_TF_ERROR(GraphToFunctionDef(graph, kFunction, &function),
                              "translating the graph");
  MILLPOND_RETURN_IF_TF_ERROR(state->functions.AddFunctionDef(function), "translating the graph");
  return std::unique_ptr<HloCompiler>(new HloCompiler(std::move(state)));
}

StatusOr<HloProgram> HloCompiler::Translate(int64_t rows) const {
  const StatusOr<xla::LocalClient*> client = HostClient();
  if (!client.ok()) return client.status();
  std::vector<tensorflow::XlaArgument> arguments = state_->arguments;
  for (size_t i = 0; i < state_->signature.inputs.size(); ++i) {
    arguments[i].shape = ShapeFor(state_->signature.inputs[i], rows);
  }
  tensorflow::XlaCompiler::Options options;
  options.device_type = tensorflow::DeviceType(kDeviceType);
  options.client = client.value();
  options.flib_def = &state_->functions;
  options.graph_def_version = state_->producer;
  tensorflow::XlaCompiler compiler(options);
  tensorflow::XlaCompiler::CompileOptions compile_options;
  compile_options.always_return_tuple = false;
  tensorflow::NameAttrList function;
  function.set_name(kFunction);
  tensorflow::XlaCompilationResult result;
  MILLPOND_RETURN_IF_TF_ERROR(
      compiler.CompileFunction(compile_options, function, arguments, &result),
      "translating signature '" + state_->signature.name + "'");
  if (!result.resource_updates.empty()) {
    return Status(base::Code::kUnimplemented,
                  "signature '" + state_->signature.name + "' writes to a variable");
  }
  HloProgram program;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i >= result.input_mapping.size() || result.input_mapping[i] != static_cast<int>(i)) {
      return base::Internal("XLA has left out argument " + std::to_string(i) + ", '" +
                            arguments[i].name + "'");
    }
  }
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    const auto sizes = result.outputs[i].shape.dim_sizes();
    program.output_dims.emplace_back(sizes.begin(), sizes.end());
    const tensor::TensorSpec& output = state_->signature.outputs[i];
    if (result.outputs[i].is_constant || sizes.empty() || sizes[0] != rows) {
      return Status(base::Code::kUnimplemented,
                    "output '" + output.name + "' has not as many rows as the inputs");
    }
    // A run makes its outputs by the signature, which may say something else than the graph.
    if (result.outputs[i].shape != ShapeFor(output, rows)) {
      return Status(base::Code::kUnimplemented,
                    "output '" + output.name + "' is " + tensor::DescribeTensor(output) +
                        " by the signature, and has the shape " +
                        result.outputs[i].shape.DebugString() + " by the graph");
    }
  }
  // Equal programs have equal bytes, because an executable is found by them.
  if (!tensorflow::SerializeToStringDeterministic(result.computation->proto(), &program.hlo)) {
    return base::Internal("a program of XLA cannot be serialized");
  }
  return program;
}

}  // namespace millpond::tf
