#include "native/tf/session_options.h"

#include <gtest/gtest.h>

#include <string>

#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace millpond::tf {
namespace {

bool DisablesTfg(const tensorflow::MetaGraphDef& meta_graph) {
  const tensorflow::SessionOptions options = MakeSessionOptions(meta_graph);
  return options.config.graph_options().rewrite_options().disable_tfg_optimizer();
}

TEST(SessionOptionsTest, AGraphWithoutBranchesIsNotCopiedIntoMlir) {
  tensorflow::MetaGraphDef meta_graph;
  for (const std::string op : {"Placeholder", "StatefulPartitionedCall", "Switch", "Merge"}) {
    meta_graph.mutable_graph_def()->add_node()->set_op(op);
  }
  meta_graph.mutable_graph_def()->mutable_library()->add_function()->add_node_def()->set_op("Mul");
  EXPECT_TRUE(DisablesTfg(meta_graph));
}

TEST(SessionOptionsTest, AnExecutorsGraphIsNotKept) {
  EXPECT_TRUE(MakeSessionOptions({}).config.experimental().disable_output_partition_graphs());
}

TEST(SessionOptionsTest, NoTensorIsSoughtThatAGpuCouldSwap) {
  const tensorflow::SessionOptions options = MakeSessionOptions({});
  EXPECT_EQ(options.config.graph_options().rewrite_options().memory_optimization(),
            tensorflow::RewriterConfig::NO_MEM_OPT);
}

TEST(SessionOptionsTest, BranchesAndLoopsAreOptimizedAsInTensorFlow) {
  for (const std::string op :
       {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "For"}) {
    tensorflow::MetaGraphDef graph;
    graph.mutable_graph_def()->add_node()->set_op(op);
    EXPECT_FALSE(DisablesTfg(graph)) << op;
    tensorflow::MetaGraphDef function;
    function.mutable_graph_def()->mutable_library()->add_function()->add_node_def()->set_op(op);
    EXPECT_FALSE(DisablesTfg(function)) << op << " in a function";
  }
}

}  // namespace
}  // namespace millpond::tf
