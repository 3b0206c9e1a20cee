#include "native/tf/variable_writes.h"

#include <gtest/gtest.h>

#include "tensorflow/core/framework/function.pb.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

using tensorflow::DT_FLOAT;
using tensorflow::DT_RESOURCE;
using testing::SavedModelFiles;

SavedModelFiles VariableModel() { return testing::VariableModel(testing::Vector<float>({1, 2})); }

bool WritesVariables(const tensorflow::MetaGraphDef& meta_graph) {
  return AnalyzeWrites(meta_graph).has_writer;
}
bool CanBeSealed(const tensorflow::MetaGraphDef& meta_graph) {
  return AnalyzeWrites(meta_graph).can_be_sealed;
}

void SetDtypeFloat(tensorflow::NodeDef* node) {
  (*node->mutable_attr())["dtype"].set_type(DT_FLOAT);
}

TEST(Writes, AModelWithoutVariablesDoesNot) {
  EXPECT_FALSE(WritesVariables(testing::DoublingModel().meta_graph()));
}

TEST(Writes, ReadingOneDoesNot) { EXPECT_FALSE(WritesVariables(VariableModel().meta_graph())); }

TEST(Writes, LookingUpATableDoesNot) {
  EXPECT_FALSE(WritesVariables(testing::TableModel().meta_graph()));
}

TEST(Writes, AnAssignmentThatAnOutputWaitsForDoes) {
  SavedModelFiles files = VariableModel();
  files.AddNode("grow", "AssignAddVariableOp", {"v", "x"}, SetDtypeFloat);
  files.AddNode("after", "Identity", {"x", "^grow"},
                [](tensorflow::NodeDef* node) { (*node->mutable_attr())["T"].set_type(DT_FLOAT); });
  files.AddSignature("count", {{"x", "x:0", DT_FLOAT}}, {{"y", "after:0", DT_FLOAT}});
  EXPECT_TRUE(WritesVariables(files.meta_graph()));
}

TEST(Writes, AnAssignmentThatNoSignatureReachesDoesNot) {
  SavedModelFiles files = VariableModel();
  files.AddNode("train", "AssignAddVariableOp", {"v", "x"}, SetDtypeFloat);
  EXPECT_FALSE(WritesVariables(files.meta_graph()));
}

// A signature that calls the function `body` with the variable.
SavedModelFiles CallingModel(const std::string& op_in_body) {
  SavedModelFiles files = VariableModel();
  tensorflow::FunctionDef* body =
      files.meta_graph().mutable_graph_def()->mutable_library()->add_function();
  body->mutable_signature()->set_name("body");
  tensorflow::NodeDef* node = body->add_node_def();
  node->set_name("inside");
  node->set_op(op_in_body);
  node->add_input("v");
  files.AddNode("call", "StatefulPartitionedCall", {"v"}, [](tensorflow::NodeDef* call) {
    (*call->mutable_attr())["f"].mutable_func()->set_name("body");
    (*call->mutable_attr())["Tin"].mutable_list()->add_type(DT_RESOURCE);
  });
  files.AddSignature("called", {}, {{"y", "call:0", DT_FLOAT}});
  return files;
}

TEST(Writes, AFunctionThatReadsDoesNot) {
  EXPECT_FALSE(WritesVariables(CallingModel("ReadVariableOp").meta_graph()));
}

TEST(Writes, AFunctionThatWritesDoes) {
  EXPECT_TRUE(WritesVariables(CallingModel("ResourceScatterAdd").meta_graph()));
}

TEST(Writes, UnknownOperationsCountAsWriters) {
  EXPECT_TRUE(WritesVariables(CallingModel("MillpondNeverHeardOfIt").meta_graph()));
}

TEST(Writes, AFunctionThatIsNotThereMight) {
  SavedModelFiles files = CallingModel("ReadVariableOp");
  files.meta_graph().mutable_graph_def()->mutable_library()->clear_function();
  EXPECT_TRUE(WritesVariables(files.meta_graph()));
}

TEST(Writes, InPlaceOperationCountsAsAVariableWrite) {
  SavedModelFiles files = VariableModel();
  files.AddNode("over", "InplaceAdd", {"v/read", "x", "x"},
                [](tensorflow::NodeDef* node) { (*node->mutable_attr())["T"].set_type(DT_FLOAT); });
  files.AddSignature("over", {{"x", "x:0", DT_FLOAT}}, {{"y", "over:0", DT_FLOAT}});
  EXPECT_TRUE(WritesVariables(files.meta_graph()));
}

// VariableModel, with an output `y` of signature "s" that waits for `op`, which gets `inputs`.
SavedModelFiles WaitingModel(const std::string& op, const std::vector<std::string>& inputs) {
  SavedModelFiles files = VariableModel();
  files.AddNode("counter", "VarHandleOp", {}, [](tensorflow::NodeDef* node) {
    SetDtypeFloat(node);
    (*node->mutable_attr())["shared_name"].set_s("counter");
  });
  files.AddNode("write", op, inputs, SetDtypeFloat);
  files.AddNode("after", "Identity", {"x", "^write"}, testing::SetFloat);
  files.AddSignature("s", {{"x", "x:0", DT_FLOAT}}, {{"y", "after:0", DT_FLOAT}});
  return files;
}

Writing WritingOf(const SavedModelFiles& files) {
  SavedModelFiles copy = files;
  return AnalyzeWrites(copy.meta_graph()).writing;
}

TEST(Writing, AValueThatNoOutputReadsChangesNoAnswer) {
  EXPECT_EQ(WritingOf(WaitingModel("AssignAddVariableOp", {"counter", "x"})), Writing::kNone);
  EXPECT_EQ(WritingOf(WaitingModel("AssignVariableOp", {"counter", "x"})), Writing::kNone);
}

TEST(Writing, AnAssignmentOfAValueThatAnOutputReadsIsWatched) {
  EXPECT_EQ(WritingOf(WaitingModel("AssignVariableOp", {"v", "x"})), Writing::kAssigns);
}

TEST(Writing, AnotherWriteOfAValueThatIsReadChangesAnswers) {
  EXPECT_EQ(WritingOf(WaitingModel("AssignAddVariableOp", {"v", "x"})), Writing::kChanges);
}

TEST(Writing, AValueThatAnOtherSignatureReadsCounts) {
  SavedModelFiles files = WaitingModel("AssignAddVariableOp", {"counter", "x"});
  files.AddNode("counter/read", "ReadVariableOp", {"counter"}, SetDtypeFloat);
  files.AddSignature("count", {}, {{"n", "counter/read:0", DT_FLOAT}});
  EXPECT_EQ(WritingOf(files), Writing::kChanges);
}

TEST(Writing, AValueThatAnAssertionReadsCounts) {
  SavedModelFiles files = WaitingModel("AssignAddVariableOp", {"counter", "x"});
  files.AddNode("counter/read", "ReadVariableOp", {"counter"}, SetDtypeFloat);
  files.AddNode("few", "Assert", {"counter/read", "x"});
  EXPECT_EQ(WritingOf(files), Writing::kChanges);
}

// In TensorFlow 1 the branches may be constants that only wait for the predicate.
TEST(Writing, AValueThatChoosesABranchCounts) {
  SavedModelFiles files = WaitingModel("AssignAddVariableOp", {"counter", "x"});
  files.AddNode("counter/read", "ReadVariableOp", {"counter"}, SetDtypeFloat);
  files.AddNode("choice", "Switch", {"counter/read", "counter/read"});
  files.AddNode("no", "Identity", {"choice"});
  files.AddNode("yes", "Identity", {"choice:1"});
  files.AddConst("one", testing::Vector<float>({1}), {"^no"});
  files.AddConst("two", testing::Vector<float>({2}), {"^yes"});
  files.AddSignature("one", {}, {{"y", "one:0", DT_FLOAT}});
  EXPECT_EQ(WritingOf(files), Writing::kNone);
  files.AddNode("chosen", "Merge", {"one", "two"});
  files.AddSignature("chosen", {}, {{"y", "chosen:0", DT_FLOAT}});
  EXPECT_EQ(WritingOf(files), Writing::kChanges);
}

TEST(Writing, AValueThatChoosesAnAssertionCounts) {
  SavedModelFiles files = WaitingModel("AssignAddVariableOp", {"counter", "x"});
  files.AddNode("counter/read", "ReadVariableOp", {"counter"}, SetDtypeFloat);
  files.AddNode("choice", "Switch", {"counter/read", "counter/read"});
  files.AddNode("no", "Identity", {"choice"});
  files.AddNode("fails", "Assert", {"x", "x", "^no"});
  EXPECT_EQ(WritingOf(files), Writing::kChanges);
}

// A model whose function "body" adds to its first argument, and returns its second one. The first
// call hands it `handle`.
SavedModelFiles ModelThatCallsAWriter(const std::string& handle) {
  SavedModelFiles files = WaitingModel("NoOp", {});
  auto* const body = files.meta_graph().mutable_graph_def()->mutable_library()->add_function();
  body->mutable_signature()->set_name("body");
  body->mutable_signature()->add_input_arg()->set_name("handle");
  body->mutable_signature()->add_input_arg()->set_name("value");
  tensorflow::NodeDef* const node = body->add_node_def();
  node->set_name("grow");
  node->set_op("AssignAddVariableOp");
  node->add_input("handle");
  node->add_input("value");
  (*body->mutable_ret())["result"] = "value";
  (*body->mutable_control_ret())["grow"] = "grow";
  files.AddNode("call", "StatefulPartitionedCall", {handle, "x"}, [](tensorflow::NodeDef* call) {
    (*call->mutable_attr())["f"].mutable_func()->set_name("body");
    (*call->mutable_attr())["Tin"].mutable_list()->add_type(DT_RESOURCE);
  });
  files.AddSignature("called", {{"x", "x:0", DT_FLOAT}}, {{"y", "call:0", DT_FLOAT}});
  return files;
}

TEST(Writing, AHandleIsFollowedThroughCalls) {
  EXPECT_EQ(WritingOf(ModelThatCallsAWriter("counter")), Writing::kNone);
  EXPECT_EQ(WritingOf(ModelThatCallsAWriter("v")), Writing::kChanges);
}

TEST(Writing, AHandleOfAnUnknownOriginChangesAnswers) {
  EXPECT_EQ(WritingOf(ModelThatCallsAWriter("nowhere")), Writing::kChanges);
}

TEST(Writes, WrittenVariablesAreNamedThroughCalls) {
  const auto written_by = [](const std::string& handle) {
    return AnalyzeWrites(ModelThatCallsAWriter(handle).meta_graph()).written;
  };
  EXPECT_EQ(written_by("v"), std::set<std::string>{"v"});
  EXPECT_EQ(written_by("counter"), std::set<std::string>{"counter"});
  EXPECT_EQ(written_by("nowhere"), std::nullopt);
  EXPECT_EQ(AnalyzeWrites(VariableModel().meta_graph()).written, std::set<std::string>());
}

TEST(Writes, VariableWithoutANameOfItsOwnMayBeAnyOfThem) {
  for (const char* name : {"", "cd2c89b7-88b7-44c8-ad83-06c2a9158347"}) {
    SavedModelFiles files = ModelThatCallsAWriter("v");
    for (auto& node : *files.meta_graph().mutable_graph_def()->mutable_node()) {
      if (node.op() == "VarHandleOp") (*node.mutable_attr())["shared_name"].set_s(name);
    }
    EXPECT_EQ(AnalyzeWrites(files.meta_graph()).written, std::nullopt) << name;
  }
}

TEST(Writing, ACompiledFunctionThatAssignsChangesAnswers) {
  SavedModelFiles files = WaitingModel("AssignVariableOp", {"v", "x"});
  files.AddNode("compiled", "PartitionedCall", {"v"}, [](tensorflow::NodeDef* call) {
    (*call->mutable_attr())["f"].mutable_func()->set_name("body");
    (*call->mutable_attr())["_XlaMustCompile"].set_b(true);
    (*call->mutable_attr())["Tin"].mutable_list()->add_type(DT_RESOURCE);
  });
  auto* const body = files.meta_graph().mutable_graph_def()->mutable_library()->add_function();
  body->mutable_signature()->set_name("body");
  files.AddSignature("compiled", {}, {{"y", "compiled:0", DT_FLOAT}});
  EXPECT_EQ(WritingOf(files), Writing::kChanges);
  EXPECT_TRUE(AnalyzeWrites(files.meta_graph()).compiles_each_shape);
}

TEST(Writing, AModelOfTensorFlowsKernelsIsNotCompiled) {
  EXPECT_FALSE(AnalyzeWrites(VariableModel().meta_graph()).compiles_each_shape);
}

TEST(Writes, TensorArrayOfOneRunIsNotAVariable) {
  EXPECT_FALSE(WritesVariables(CallingModel("TensorArrayReadV3").meta_graph()));
}

TEST(Writes, AModelThatOnlyReadsVariablesCanBeSealed) {
  EXPECT_TRUE(CanBeSealed(VariableModel().meta_graph()));
  EXPECT_TRUE(CanBeSealed(testing::DoublingModel().meta_graph()));
}

TEST(Writes, ModelThatGathersStringsCannotBeSealed) {
  EXPECT_FALSE(CanBeSealed(CallingModel("ResourceGather").meta_graph()));
  EXPECT_FALSE(WritesVariables(CallingModel("ResourceGather").meta_graph()));
}

TEST(Writes, AModelThatWritesThemCannot) {
  EXPECT_FALSE(CanBeSealed(CallingModel("ResourceScatterAdd").meta_graph()));
}

TEST(Writes, ModelWithATableCannotBeSealed) {
  EXPECT_FALSE(CanBeSealed(testing::TableModel().meta_graph()));
}

}  // namespace
}  // namespace millpond::tf
