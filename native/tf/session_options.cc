#include "native/tf/session_options.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "native/tf/run_executor.h"
#include "native/tf/runtime.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace millpond::tf {
namespace {

constexpr std::array<std::string_view, 7> kControlFlowOps = {
    "If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "For"};

template <typename Nodes>
bool HasControlFlow(const Nodes& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
    return std::find(kControlFlowOps.begin(), kControlFlowOps.end(), node.op()) !=
           kControlFlowOps.end();
  });
}

}  // namespace

bool HasFunctionalControlFlow(const tensorflow::GraphDef& graph) {
  const auto& functions = graph.library().function();
  return HasControlFlow(graph.node()) ||
         std::any_of(functions.begin(), functions.end(),
                     [](const auto& function) { return HasControlFlow(function.node_def()); });
}

tensorflow::SessionOptions MakeSessionOptions(const tensorflow::MetaGraphDef& meta_graph) {
  const RuntimeOptions runtime = CurrentRuntimeOptions();
  tensorflow::SessionOptions options;
  options.config.set_intra_op_parallelism_threads(runtime.intra_op_thread_count);
  options.config.set_inter_op_parallelism_threads(runtime.inter_op_thread_count);
  // Serves a graph with a GPU's name in it on the CPU, as tf.saved_model.load does.
  options.config.set_allow_soft_placement(true);
  options.config.mutable_experimental()->set_disable_optimize_for_static_graph(
      runtime.keeps_graphs);
  if (!runtime.is_stock) {
    options.config.mutable_experimental()->set_executor_type(kRunExecutor);
    // An executor does not need its graph once it is made.
    options.config.mutable_experimental()->set_disable_output_partition_graphs(true);
    // It looks for tensors of a GPU that could be swapped out, by a simulation of the run.
    options.config.mutable_graph_options()->mutable_rewrite_options()->set_memory_optimization(
        tensorflow::RewriterConfig::NO_MEM_OPT);
    // It moves nodes into branches, over a copy of the graph in MLIR. That is a sixth of the time
    // of a small model's load, also if there is no branch.
    if (!HasFunctionalControlFlow(meta_graph.graph_def())) {
      options.config.mutable_graph_options()->mutable_rewrite_options()->set_disable_tfg_optimizer(
          true);
    }
  }
  if (runtime.has_load_pool) {
    // The second pool is kLoadPool.
    options.config.add_session_inter_op_thread_pool();
    options.config.add_session_inter_op_thread_pool();
  }
  return options;
}

}  // namespace millpond::tf
