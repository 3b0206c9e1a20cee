#include "native/tf/run_executor.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "native/tf/fixed_variables.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/executor_factory.h"
#include "tensorflow/core/common_runtime/single_threaded_executor.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/denormal.h"

namespace millpond::tf {
namespace {

using tensorflow::Executor;
using tensorflow::LocalExecutorParams;
using tensorflow::Node;

constexpr char kUsualExecutor[] = "";

bool CallsFunction(const Node& node) {
  if (node.IsFunctionCall() || node.IsPartitionedCall()) return true;
  for (const auto& [name, value] : node.attrs()) {
    if (value.has_func() || value.list().func_size() > 0) return true;
  }
  return false;
}

// Returns true if the kernel uses TensorFlow's cache of checkpoints of the first format, which only
// its usual executor has.
bool UsesSliceReaderCache(const Node& node) {
  return node.type_string() == "Restore" || node.type_string() == "RestoreSlice";
}

bool MayRunInOrder(const tensorflow::Graph& graph) {
  for (const Node* const node : graph.op_nodes()) {
    if (CallsFunction(*node) || UsesSliceReaderCache(*node)) return false;
    if (!tensorflow::ValidateOpIsSafeForSyncExecution(*node, /*allow_control_flow=*/false).ok()) {
      return false;
    }
  }
  return true;
}

// The fed tensors that a graph expects, by their index.
std::vector<tensorflow::DataType> ArgumentTypes(const tensorflow::Graph& graph) {
  std::vector<tensorflow::DataType> types;
  for (const Node* const node : graph.op_nodes()) {
    int index = 0;
    if (!node->IsArg() || !tensorflow::GetNodeAttr(node->attrs(), "index", &index).ok()) continue;
    types.resize(std::max<size_t>(types.size(), index + 1), tensorflow::DT_INVALID);
    types[index] = node->output_type(0);
  }
  return types;
}

TakenOutputs NodesWithUnusedOutputs(const tensorflow::Graph& graph) {
  TakenOutputs nodes;
  for (const Node* const node : graph.op_nodes()) {
    std::vector<bool> is_taken(node->num_outputs());
    for (const tensorflow::Edge* const edge : node->out_edges()) {
      if (!edge->IsControlEdge()) is_taken[edge->src_output()] = true;
    }
    if (absl::c_linear_search(is_taken, false)) nodes[node->name()] = std::move(is_taken);
  }
  return nodes;
}

// The nodes that the node waits for, beside those whose output it takes.
std::vector<Node*> Awaited(const Node& node) {
  std::vector<Node*> awaited;
  for (const tensorflow::Edge* const edge : node.in_edges()) {
    if (edge->IsControlEdge() && !edge->src()->IsSource()) awaited.push_back(edge->src());
  }
  return awaited;
}

// Lets the nodes that take the output of `node` take its input instead, and wait for what it waits
// for. Does nothing if the graph would get many more edges.
void Bypass(Node* node, tensorflow::Graph* graph) {
  constexpr size_t kNewEdgesMax = 256;
  const tensorflow::Edge* input = nullptr;
  if (!node->input_edge(0, &input).ok()) return;
  Node* const source = input->src();
  const int output = input->src_output();
  const std::vector<Node*> awaited = Awaited(*node);
  const std::vector<const tensorflow::Edge*> edges(node->out_edges().begin(),
                                                   node->out_edges().end());
  if (awaited.size() * edges.size() > kNewEdgesMax) return;
  for (const tensorflow::Edge* const edge : edges) {
    Node* const taker = edge->dst();
    const int taker_input = edge->dst_input();
    const bool is_control = edge->IsControlEdge();
    graph->RemoveEdge(edge);
    for (Node* const other : awaited) graph->AddControlEdge(other, taker);
    if (is_control) {
      graph->AddControlEdge(source, taker);
    } else {
      graph->AddEdge(source, output, taker, taker_input);
    }
  }
  graph->RemoveNode(node);
}

// Takes the nodes that only hand on out of a graph. A run of one costs as much as a small sum. If
// it hands on a variable or its handle, it also counts a reference to a buffer that all runs share,
// twice.
void BypassIdentities(tensorflow::Graph* graph) {
  std::vector<Node*> nodes;
  for (Node* const node : graph->op_nodes()) {
    if (node->type_string() == "Identity") nodes.push_back(node);
  }
  for (Node* const node : nodes) Bypass(node, graph);
  tensorflow::FixupSourceAndSinkEdges(graph);
}

absl::Status FedWithAnotherType(int index, tensorflow::DataType fed,
                                tensorflow::DataType expected) {
  return absl::InvalidArgumentError("the graph's argument " + std::to_string(index) +
                                    " has the dtype " + tensorflow::DataTypeString(expected) +
                                    ", but was fed with " + tensorflow::DataTypeString(fed));
}

}  // namespace

// A run in a fixed order.
struct InOrderRun {
  const TakenOutputs* taken_outputs = nullptr;
  const tensorflow::OpKernel* failed = nullptr;  // the kernel that ended the run
};

namespace {

thread_local InOrderRun* current_run = nullptr;

thread_local MadeExecutors* made_executors = nullptr;

bool IsTaken(const TakenOutputs& taken_outputs, const std::string& node, int output) {
  const auto found = taken_outputs.find(node);
  return found == taken_outputs.end() || found->second[output];
}

// Fails the run if the kernel left out an output that another kernel takes.
void CheckOutputs(const TakenOutputs& taken_outputs, const tensorflow::OpKernel& kernel,
                  tensorflow::OpKernelContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) {
    if (context->mutable_output(i) != nullptr) continue;
    if (!IsTaken(taken_outputs, kernel.name(), i)) continue;
    context->SetStatus(absl::InternalError("the kernel did not set its output " +
                                           std::to_string(i) + "; mend the op's Compute"));
    return;
  }
}

// Notes of the kernels of an executor, while they are made.
struct MadeKernels {
  absl::Status failure;
  bool has_asynchronous = false;
};

// TensorFlow's usual executor, which may run kernels on the calling thread.
class UsualExecutor final : public tensorflow::Executor {
 public:
  explicit UsualExecutor(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}

 private:
  void RunAsyncInternal(const Args& args, DoneCallback done) override {
    const tsl::port::ScopedFlushDenormal as_on_threads_of_a_pool;
    executor_->RunAsync(args, std::move(done));
  }

  const std::unique_ptr<Executor> executor_;
};

class RunExecutorFactory final : public tensorflow::ExecutorFactory {
 public:
  absl::Status NewExecutor(const LocalExecutorParams& params, const tensorflow::Graph& graph,
                           std::unique_ptr<Executor>* made) override {
    const FixedExecutor fixed = WithFixedVariables(params, graph);
    std::unique_ptr<InOrderExecutor> in_order;
    if (MayRunInOrder(graph)) {
      BypassIdentities(fixed.graph.get());
      const absl::Status status = MakeInOrder(fixed.params, *fixed.graph, &in_order);
      if (!status.ok()) return status;
    }
    if (made_executors != nullptr) made_executors->Add(in_order.get());
    *made = std::move(in_order);
    if (*made != nullptr) return absl::OkStatus();
    std::unique_ptr<Executor> usual;
    const absl::Status status =
        tensorflow::NewExecutor(kUsualExecutor, fixed.params, *fixed.graph, &usual);
    if (status.ok()) *made = std::make_unique<UsualExecutor>(std::move(usual));
    return status;
  }

 private:
  // Makes an executor in a fixed order, or none if the graph has no fixed order: an asynchronous
  // kernel may wait for a later kernel, as a queue's does. Returns the error of a kernel that
  // cannot be made: the usual executor would try once more, and hide it.
  static absl::Status MakeInOrder(LocalExecutorParams params, const tensorflow::Graph& graph,
                                  std::unique_ptr<InOrderExecutor>* made) {
    const auto kernels = std::make_shared<MadeKernels>();
    params.create_kernel = [create = params.create_kernel, kernels](const auto& properties,
                                                                    tensorflow::OpKernel** kernel) {
      const absl::Status created = create(properties, kernel);
      kernels->failure.Update(created);
      if (created.ok() && (*kernel)->AsAsync() != nullptr) kernels->has_asynchronous = true;
      return created;
    };
    Executor* executor = nullptr;
    const absl::Status status = tensorflow::NewSingleThreadedExecutor(params, graph, &executor);
    if (!status.ok()) return kernels->failure;
    auto in_order = std::make_unique<InOrderExecutor>(std::unique_ptr<Executor>(executor), graph);
    if (!kernels->has_asynchronous) *made = std::move(in_order);
    return absl::OkStatus();
  }
};

}  // namespace

InOrderExecutor::InOrderExecutor(std::unique_ptr<Executor> executor, const tensorflow::Graph& graph)
    : executor_(std::move(executor)),
      argument_types_(ArgumentTypes(graph)),
      taken_outputs_(NodesWithUnusedOutputs(graph)) {}

absl::Status InOrderExecutor::Run(const Args& args) {
  if (session_parts() == nullptr) KeepSessionParts(args);
  const absl::Status fed = CheckFed(args.call_frame);
  if (!fed.ok()) return fed;
  const tsl::port::ScopedFlushDenormal as_on_threads_of_a_pool;
  InOrderRun run{&taken_outputs_};
  InOrderRun* const outer = std::exchange(current_run, &run);
  const absl::Status ran = executor_->Run(args);
  current_run = outer;
  if (ran.ok() || run.failed == nullptr) return ran;
  return tensorflow::AttachDef(ran, run.failed->def());
}

bool InOrderExecutor::IsFedWithResource() const {
  return absl::c_linear_search(argument_types_, tensorflow::DT_RESOURCE);
}

// A kernel relies on the dtypes of its inputs, and ends the process if they differ.
absl::Status InOrderExecutor::CheckFed(tensorflow::CallFrameInterface* frame) const {
  const size_t fed_count = frame == nullptr ? 0 : frame->num_args();
  for (size_t i = 0; i < std::min(argument_types_.size(), fed_count); ++i) {
    const tensorflow::Tensor* fed = nullptr;
    const absl::Status found = frame->GetArg(static_cast<int>(i), &fed);
    if (!found.ok()) return found;
    if (argument_types_[i] != tensorflow::DT_INVALID && fed->dtype() != argument_types_[i]) {
      return FedWithAnotherType(static_cast<int>(i), fed->dtype(), argument_types_[i]);
    }
  }
  return absl::OkStatus();
}

void InOrderExecutor::KeepSessionParts(const Args& args) {
  std::call_once(is_kept_, [&] {
    kept_parts_ = {args.session_state, args.session_config, args.session_handle};
    session_parts_.store(&kept_parts_, std::memory_order_release);
  });
}

MadeExecutors::MadeExecutors() : outer_(std::exchange(made_executors, this)) {}

MadeExecutors::~MadeExecutors() { made_executors = outer_; }

void MadeExecutors::Add(InOrderExecutor* executor) {
  ++count_;
  last_ = executor;
}

KernelInOrder::KernelInOrder(const tensorflow::OpKernel& kernel,
                             tensorflow::OpKernelContext* context)
    : run_(current_run), kernel_(kernel), context_(context) {
  if (run_ == nullptr || !tsl::profiler::TraceMe::Active()) return;
  span_.emplace([&] { return kernel.TraceString(*context, /*verbose=*/false); });
}

KernelInOrder::~KernelInOrder() {
  if (run_ == nullptr) return;
  if (context_->status().ok()) CheckOutputs(*run_->taken_outputs, kernel_, context_);
  if (!context_->status().ok()) run_->failed = &kernel_;
}

void RegisterRunExecutor() {
  // Never freed: TensorFlow's registry keeps it.
  tensorflow::ExecutorFactory::Register(kRunExecutor, new RunExecutorFactory);
}

}  // namespace millpond::tf
