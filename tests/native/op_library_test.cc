#include "native/tf/op_library.h"

#include <gtest/gtest.h>

#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tests/native/saved_model_files.h"

namespace millpond::tf {
namespace {

using base::Code;
using tensorflow::GraphDef;
using Ops = std::vector<std::string>;

constexpr char kOpOfThePackage[] = "MillpondTestOfAPackage";

tensorflow::NodeDef* AddNode(GraphDef* graph, const std::string& op) {
  tensorflow::NodeDef* const node = graph->add_node();
  node->set_name("node" + std::to_string(graph->node_size()));
  node->set_op(op);
  return node;
}

void AddFunction(GraphDef* graph, const std::string& name, const std::string& op) {
  tensorflow::FunctionDef* const function = graph->mutable_library()->add_function();
  function->mutable_signature()->set_name(name);
  function->add_node_def()->set_op(op);
}

TEST(MissingOps, OfAGraphOfTensorFlowsOwnOpsAreNone) {
  EXPECT_EQ(MissingOps(testing::DoublingModel().meta_graph().graph_def()), Ops());
}

TEST(MissingOps, AreSortedAndEachIsThereOnce) {
  GraphDef graph;
  for (const char* const op : {"NoSuchB", "NoSuchA", "NoOp", "NoSuchB"}) AddNode(&graph, op);
  EXPECT_EQ(MissingOps(graph), (Ops{"NoSuchA", "NoSuchB"}));
}

TEST(MissingOps, OfAFunctionThatANodeCallsByItsNameAreFound) {
  GraphDef graph;
  AddFunction(&graph, "called", "NoSuchOp");
  AddNode(&graph, "called");
  EXPECT_EQ(MissingOps(graph), Ops{"NoSuchOp"});
}

TEST(MissingOps, OfFunctionsThatAttributesNameAreFound) {
  GraphDef graph;
  AddFunction(&graph, "body", "NoSuchInBody");
  AddFunction(&graph, "branch", "NoSuchInBranch");
  (*AddNode(&graph, "PartitionedCall")->mutable_attr())["f"].mutable_func()->set_name("body");
  (*AddNode(&graph, "Case")->mutable_attr())["branches"].mutable_list()->add_func()->set_name(
      "branch");
  EXPECT_EQ(MissingOps(graph), (Ops{"NoSuchInBody", "NoSuchInBranch"}));
}

TEST(MissingOps, OfFunctionsThatCallEachOtherAreFound) {
  GraphDef graph;
  AddFunction(&graph, "outer", "inner");
  AddFunction(&graph, "inner", "outer");
  graph.mutable_library()->mutable_function(1)->add_node_def()->set_op("NoSuchOp");
  AddNode(&graph, "outer");
  EXPECT_EQ(MissingOps(graph), Ops{"NoSuchOp"});
}

TEST(MissingOps, OfAGradientFunctionAreFound) {
  GraphDef graph;
  AddFunction(&graph, "forward", "NoOp");
  AddFunction(&graph, "backward", "NoSuchOp");
  auto* const gradient = graph.mutable_library()->add_gradient();
  gradient->set_function_name("forward");
  gradient->set_gradient_func("backward");
  AddNode(&graph, "forward");
  EXPECT_EQ(MissingOps(graph), Ops{"NoSuchOp"});
}

TEST(MissingOps, OfAFunctionThatNothingLeadsToAreLeftAside) {
  GraphDef graph;
  AddFunction(&graph, "train_step", "NoSuchOp");
  AddNode(&graph, "NoOp");
  EXPECT_EQ(MissingOps(graph), Ops());
}

TEST(LoadOpLibrary, BringsOpsThatWereMissingAndASecondTimeDoesNothing) {
  GraphDef graph;
  AddNode(&graph, kOpOfThePackage);
  EXPECT_EQ(MissingOps(graph), Ops{kOpOfThePackage});
  for (int time = 0; time < 2; ++time) {
    const auto ops = LoadOpLibrary(OP_LIBRARY);
    ASSERT_TRUE(ops.ok()) << ops.status().message();
    EXPECT_EQ(ops.value(), Ops{kOpOfThePackage});
    EXPECT_EQ(MissingOps(graph), Ops());
  }
}

TEST(LoadOpLibrary, WithAMissingSymbolIsOfAnotherTensorFlow) {
  const base::Status status = LoadOpLibrary(OP_LIBRARY_OF_ANOTHER_TENSORFLOW).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  for (const std::string& words :
       {std::string(OP_LIBRARY_OF_ANOTHER_TENSORFLOW),
        std::string("undefined symbol: millpond_test_symbol_of_another_tensorflow"),
        std::string("built for another TensorFlow than 2.")}) {
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
}

TEST(LoadOpLibrary, ThatIsMissingIsNotFound) {
  EXPECT_EQ(LoadOpLibrary("/no/such/library.so").status().code(), Code::kNotFound);
}

TEST(LoadOpLibrary, InAnotherFormatIsRefusedByTheLinker) {
  const testing::TemporaryDirectory directory;
  testing::WriteFile(directory.File("ops.so"), "text");
  const base::Status status = LoadOpLibrary(directory.File("ops.so")).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message().find("another TensorFlow"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace millpond::tf
