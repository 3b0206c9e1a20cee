#include "native/tf/restore_targets.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "native/tf/variable_writes.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tests/native/delta_files.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

using tensorflow::DT_FLOAT;
using tensorflow::DT_RESOURCE;
using tensorflow::FunctionDef;
using tensorflow::NodeDef;
using testing::SavedModelFiles;
using testing::Vector;
using Targets = std::map<RestoredTensor, std::string>;

const RestoredTensor kV{"v", ""};

void OfFloat(NodeDef* node) { (*node->mutable_attr())["dtype"].set_type(DT_FLOAT); }

SavedModelFiles Model() { return testing::VariableModel(Vector<float>({1, 2})); }

Targets TargetsOf(SavedModelFiles& files) {
  return FindRestoreTargets(files.meta_graph(), files.meta_graph().saver_def().restore_op_name());
}

// Adds a node that the restore runs too.
void AlsoRestore(SavedModelFiles* files, const std::string& node) {
  files->AddNode("save/more", "NoOp",
                 {"^" + files->meta_graph().saver_def().restore_op_name(), "^" + node});
  files->meta_graph().mutable_saver_def()->set_restore_op_name("save/more");
}

NodeDef* AddTo(FunctionDef* function, const std::string& name, const std::string& op,
               const std::vector<std::string>& inputs) {
  NodeDef* const node = function->add_node_def();
  node->set_name(name);
  node->set_op(op);
  for (const std::string& input : inputs) node->add_input(input);
  return node;
}

void AddTexts(FunctionDef* function, const std::string& name, const std::string& text) {
  NodeDef* const node = AddTo(function, name, "Const", {});
  (*node->mutable_attr())["dtype"].set_type(tensorflow::DT_STRING);
  Vector<tensorflow::tstring>({text}).AsProtoField(
      (*node->mutable_attr())["value"].mutable_tensor());
}

// A model whose restore is a function, as in TensorFlow 2.
SavedModelFiles FunctionModel() {
  SavedModelFiles files;
  files.AddNode("v", "VarHandleOp", {}, [](NodeDef* node) {
    OfFloat(node);
    (*node->mutable_attr())["shared_name"].set_s("variable");
  });
  FunctionDef* const body =
      files.meta_graph().mutable_graph_def()->mutable_library()->add_function();
  body->mutable_signature()->set_name("restore");
  body->mutable_signature()->add_input_arg()->set_name("prefix");
  body->mutable_signature()->add_input_arg()->set_name("handle");
  AddTexts(body, "names", "v");
  AddTexts(body, "slices", "");
  AddTo(body, "RestoreV2", "RestoreV2", {"prefix", "names:output:0", "slices:output:0"});
  AddTo(body, "Identity", "Identity", {"RestoreV2:tensors:0"});
  AddTo(body, "Assign", "AssignVariableOp", {"handle", "Identity:output:0"});
  files.AddConst("prefix", testing::Scalar<tensorflow::tstring>("model"));
  files.AddNode("call", "StatefulPartitionedCall", {"prefix", "v"}, [](NodeDef* node) {
    (*node->mutable_attr())["f"].mutable_func()->set_name("restore");
  });
  files.meta_graph().mutable_saver_def()->set_restore_op_name("call");
  return files;
}

TEST(FindRestoreTargets, FindsTheVariableOfATensor) {
  SavedModelFiles files = Model();
  EXPECT_EQ(TargetsOf(files), (Targets{{kV, "v"}}));
}

TEST(FindRestoreTargets, FollowsTheRestoreOfTensorFlow2) {
  SavedModelFiles files = FunctionModel();
  EXPECT_EQ(TargetsOf(files), (Targets{{kV, "variable"}}));
}

TEST(FindRestoreTargets, LeavesOutATensorWithTwoUses) {
  SavedModelFiles files = Model();
  files.AddNode("again", "Identity", {"save/v/restore"}, testing::SetFloat);
  EXPECT_EQ(TargetsOf(files), Targets());
}

TEST(FindRestoreTargets, LeavesOutATensorThatIsComputedWith) {
  SavedModelFiles files = FunctionModel();
  files.meta_graph()
      .mutable_graph_def()
      ->mutable_library()
      ->mutable_function(0)
      ->mutable_node_def(3)
      ->set_op("Neg");
  EXPECT_EQ(TargetsOf(files), Targets());
}

TEST(FindRestoreTargets, LeavesOutAVariableWithTwoValues) {
  SavedModelFiles files = Model();
  files.AddConst("other", Vector<float>({3, 4}));
  files.AddNode("assign_other", "AssignVariableOp", {"v", "other"}, OfFloat);
  AlsoRestore(&files, "assign_other");
  EXPECT_EQ(TargetsOf(files), Targets());
}

TEST(FindRestoreTargets, LeavesOutATensorThatIsReadTwice) {
  SavedModelFiles files = Model();
  files.AddNode("w", "VarHandleOp", {}, [](NodeDef* node) {
    OfFloat(node);
    (*node->mutable_attr())["shared_name"].set_s("w");
  });
  files.AddNode("restore_again", "RestoreV2", {"save/filename", "save/v/names", "save/slices"});
  files.AddNode("assign_again", "AssignVariableOp", {"w", "restore_again"}, OfFloat);
  AlsoRestore(&files, "assign_again");
  EXPECT_EQ(TargetsOf(files), Targets());
}

TEST(FindRestoreTargets, FindsNothingIfAnAssignmentIsInDoubt) {
  SavedModelFiles files = Model();
  files.AddPlaceholder("unknown", DT_RESOURCE, {});
  files.AddConst("other", Vector<float>({3, 4}));
  files.AddNode("assign_other", "AssignVariableOp", {"unknown", "other"}, OfFloat);
  AlsoRestore(&files, "assign_other");
  EXPECT_EQ(TargetsOf(files), Targets());
}

TEST(FindRestoreTargets, FindsNothingIfTheNamesAreComputed) {
  SavedModelFiles files = Model();
  files.AddPlaceholder("names", tensorflow::DT_STRING, {1});
  files.AddNode("restore_more", "RestoreV2", {"save/filename", "names", "save/slices"});
  AlsoRestore(&files, "restore_more");
  EXPECT_EQ(TargetsOf(files), Targets());
}

using Names = std::set<std::string>;

TEST(InitWrites, WithoutAnInitOpThereAreNone) {
  SavedModelFiles files = Model();
  const InitWrites writes = AnalyzeInitWrites(files.meta_graph(), "");
  EXPECT_TRUE(writes.are_known);
  EXPECT_EQ(writes.scattered, Names());
}

TEST(InitWrites, FillingALookUpTableIsNoWriteToAVariable) {
  SavedModelFiles files = testing::TableModel();
  const InitWrites writes = AnalyzeInitWrites(files.meta_graph(), "init");
  EXPECT_TRUE(writes.are_known);
  EXPECT_EQ(writes.otherwise, Names());
}

// A model whose init op replaces rows of v by `op`.
SavedModelFiles InitModel(const std::string& op) {
  SavedModelFiles files = Model();
  files.AddConst("rows", Vector<float>({1}));
  files.AddConst("row_ids", Vector<int64_t>({0}));
  files.AddNode("apply", op, {"v", "row_ids", "rows"}, OfFloat);
  return files;
}

TEST(InitWrites, TellsAScatterFromOtherWrites) {
  SavedModelFiles scatter = InitModel("ResourceScatterUpdate");
  const InitWrites scattered = AnalyzeInitWrites(scatter.meta_graph(), "apply");
  EXPECT_TRUE(scattered.are_known);
  EXPECT_EQ(scattered.scattered, Names{"v"});
  EXPECT_EQ(scattered.otherwise, Names());
  SavedModelFiles add = InitModel("ResourceScatterAdd");
  const InitWrites added = AnalyzeInitWrites(add.meta_graph(), "apply");
  EXPECT_EQ(added.scattered, Names());
  EXPECT_EQ(added.otherwise, Names{"v"});
}

TEST(InitWrites, AreNotKnownIfAHandleComesFromElsewhere) {
  SavedModelFiles files = Model();
  files.AddPlaceholder("unknown", DT_RESOURCE, {});
  files.AddConst("value", Vector<float>({1}));
  files.AddNode("write", "AssignVariableOp", {"unknown", "value"}, OfFloat);
  EXPECT_FALSE(AnalyzeInitWrites(files.meta_graph(), "write").are_known);
  EXPECT_FALSE(AnalyzeInitWrites(files.meta_graph(), "no_such_node").are_known);
}

}  // namespace
}  // namespace millpond::tf
