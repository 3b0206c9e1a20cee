#include "native/tf/missing_kernels.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

using tensorflow::DT_FLOAT;
using tensorflow::NodeDef;
using testing::SavedModelFiles;

// An op that nothing computes here, as NcclAllReduce is in TensorFlow's wheel for CPUs.
REGISTER_OP("OnlyElsewhere").Input("x: float").Output("y: float");

std::vector<MissingKernel> FindIn(const SavedModelFiles& files, const std::string& init_op = "") {
  SavedModelFiles copy = files;
  return FindMissingKernels(copy.meta_graph(), init_op);
}

// DoublingModel, with a node "elsewhere" that computes x, and no signature that needs it.
SavedModelFiles ElsewhereModel() {
  SavedModelFiles files = testing::DoublingModel();
  files.AddNode("elsewhere", "OnlyElsewhere", {"x"});
  return files;
}

// Adds the function `name`, whose only node "inside" is of `op`, and returns it.
tensorflow::FunctionDef* AddFunction(const std::string& name, const std::string& op,
                                     SavedModelFiles* files) {
  auto* const body = files->meta_graph().mutable_graph_def()->mutable_library()->add_function();
  body->mutable_signature()->set_name(name);
  body->mutable_signature()->add_input_arg()->set_name("x");
  NodeDef* const node = body->add_node_def();
  node->set_name("inside");
  node->set_op(op);
  node->add_input("x");
  (*body->mutable_ret())["y"] = "inside:y:0";
  return body;
}

// Adds a call of the function "body" and a signature "called" that needs it.
void AddCall(SavedModelFiles* files, bool is_compiled = false) {
  files->AddNode("call", "StatefulPartitionedCall", {"x"}, [&](NodeDef* call) {
    (*call->mutable_attr())["f"].mutable_func()->set_name("body");
    (*call->mutable_attr())["Tin"].mutable_list()->add_type(DT_FLOAT);
    (*call->mutable_attr())["Tout"].mutable_list()->add_type(DT_FLOAT);
    if (is_compiled) (*call->mutable_attr())["_XlaMustCompile"].set_b(true);
  });
  files->AddSignature("called", {{"x", "x:0", DT_FLOAT}}, {{"y", "call:0", DT_FLOAT}});
}

TEST(MissingKernels, AModelOfTheCpuLacksNone) {
  EXPECT_TRUE(FindIn(testing::DoublingModel()).empty());
  EXPECT_TRUE(FindIn(testing::TableModel(), "init").empty());
  EXPECT_TRUE(FindIn(testing::CountingModel()).empty());
  EXPECT_TRUE(FindIn(testing::VariableModel(testing::Vector<float>({1})), "save/v/all").empty());
}

TEST(MissingKernels, ANodeThatNoSignatureNeedsIsNotNamed) {
  EXPECT_TRUE(FindIn(ElsewhereModel()).empty());
}

TEST(MissingKernels, ANodeOfTheGraphIsNamed) {
  SavedModelFiles files = ElsewhereModel();
  files.AddSignature("s", {{"x", "x:0", DT_FLOAT}}, {{"y", "elsewhere:0", DT_FLOAT}});
  const auto missing = FindIn(files);
  ASSERT_EQ(missing.size(), 1);
  EXPECT_EQ(missing[0].signature, "s");
  EXPECT_EQ(missing[0].op, "OnlyElsewhere");
  EXPECT_EQ(missing[0].node, "elsewhere");
  EXPECT_EQ(missing[0].function, "");
  EXPECT_TRUE(missing[0].is_certain);
}

TEST(MissingKernels, ANodeInAFunctionIsNamed) {
  SavedModelFiles files = testing::DoublingModel();
  AddFunction("body", "OnlyElsewhere", &files);
  AddCall(&files);
  const auto missing = FindIn(files);
  ASSERT_EQ(missing.size(), 1);
  EXPECT_EQ(missing[0].node, "inside");
  EXPECT_EQ(missing[0].function, "body");
  EXPECT_TRUE(missing[0].is_certain);
}

TEST(MissingKernels, ANodeOfTheInitOpIsNamed) {
  SavedModelFiles files = ElsewhereModel();
  files.AddNode("init", "NoOp", {"^elsewhere"});
  const auto missing = FindIn(files, "init");
  ASSERT_EQ(missing.size(), 1);
  EXPECT_EQ(missing[0].signature, "");
}

TEST(MissingKernels, AnotherDtypeOfAnOpIsNamed) {
  SavedModelFiles files = testing::DoublingModel();
  files.AddNode("bools", "AddV2", {"x", "x"},
                [](NodeDef* node) { (*node->mutable_attr())["T"].set_type(tensorflow::DT_BOOL); });
  files.AddSignature("s", {}, {{"y", "bools:0", DT_FLOAT}});
  ASSERT_EQ(FindIn(files).size(), 1);
}

TEST(MissingKernels, ABranchIsInDoubt) {
  SavedModelFiles files = testing::DoublingModel();
  AddFunction("body", "OnlyElsewhere", &files);
  AddFunction("other", "Neg", &files);
  files.AddNode("branch", "StatelessIf", {"x", "x"}, [](NodeDef* node) {
    (*node->mutable_attr())["then_branch"].mutable_func()->set_name("body");
    (*node->mutable_attr())["else_branch"].mutable_func()->set_name("other");
    (*node->mutable_attr())["Tcond"].set_type(DT_FLOAT);
  });
  files.AddSignature("s", {{"x", "x:0", DT_FLOAT}}, {{"y", "branch:0", DT_FLOAT}});
  const auto missing = FindIn(files);
  ASSERT_EQ(missing.size(), 1);
  EXPECT_FALSE(missing[0].is_certain);
  EXPECT_FALSE(missing[0].is_built);
  for (NodeDef& node : *files.meta_graph().mutable_graph_def()->mutable_node()) {
    if (node.op() == "StatelessIf") (*node.mutable_attr())["_lower_using_switch_merge"].set_b(true);
  }
  const auto lowered = FindIn(files);
  ASSERT_EQ(lowered.size(), 1);
  EXPECT_FALSE(lowered[0].is_certain);
  EXPECT_TRUE(lowered[0].is_built);
}

TEST(MissingKernels, AFunctionThatXlaCompilesNeedsNone) {
  SavedModelFiles files = testing::DoublingModel();
  AddFunction("body", "OnlyElsewhere", &files);
  AddCall(&files, /*is_compiled=*/true);
  EXPECT_TRUE(FindIn(files).empty());
}

TEST(MissingKernels, AFunctionForAnotherDeviceIsReplaced) {
  SavedModelFiles files = testing::DoublingModel();
  (*AddFunction("body", "OnlyElsewhere", &files)->mutable_attr())["api_preferred_device"].set_s(
      "GPU");
  AddCall(&files);
  EXPECT_TRUE(FindIn(files).empty());
}

TEST(MissingKernels, ANodeThatIsFedIsNotComputed) {
  SavedModelFiles files = ElsewhereModel();
  files.AddNode("after", "Neg", {"elsewhere"}, testing::SetFloat);
  files.AddSignature("s", {{"in", "elsewhere:0", DT_FLOAT}}, {{"y", "after:0", DT_FLOAT}});
  EXPECT_TRUE(FindIn(files).empty());
}

TEST(MissingKernels, AnAttributeOfTheCallerIsInDoubt) {
  SavedModelFiles files = testing::DoublingModel();
  auto* const body = AddFunction("body", "Neg", &files);
  (*body->mutable_node_def(0)->mutable_attr())["T"].set_placeholder("T");
  AddCall(&files);
  EXPECT_TRUE(FindIn(files).empty());
}

}  // namespace
}  // namespace millpond::tf
