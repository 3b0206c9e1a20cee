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
  return AnalyzeWrites(meta_graph).may_write_variables;
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
