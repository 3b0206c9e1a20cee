#include "native/tf/state_keeper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "native/tf/run_memory_limits.h"
#include "native/tf/saved_model.h"
#include "native/tf/servable_device.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

using base::Code;
using base::Status;
using tensorflow::DT_FLOAT;
using tensorflow::DT_INT32;
using tensorflow::DT_INT64;
using tensorflow::DT_STRING;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using tensorflow::tstring;
using testing::SavedModelFiles;
using testing::Scalar;
using testing::Values;
using testing::Vector;

constexpr size_t kEnoughBytes = 1 << 20;
const std::vector<float> kFirst = {1, 2};
const std::vector<float> kSecond = {3, 4};

Tensor Of(const std::vector<float>& values) {
  Tensor tensor(DT_FLOAT, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.flat<float>().data());
  return tensor;
}

void SetTypes(NodeDef* node) {
  (*node->mutable_attr())["dtype"].set_type(DT_FLOAT);
  (*node->mutable_attr())["Tindices"].set_type(DT_INT32);
}

// Adds a signature `name` that answers x once `node` has run.
void AddSignatureAfter(const std::string& node, const std::string& name, SavedModelFiles* files) {
  const std::string after = name + "/after";
  files->AddNode(after, "Identity", {"x", "^" + node}, testing::SetFloat);
  files->AddSignature(name, {{"x", "x:0", DT_FLOAT}}, {{"y", after + ":0", DT_FLOAT}});
}

// Adds a signature `name` that writes x to the variable `v`, by `op`.
void AddWriter(const std::string& name, const std::string& op, const std::string& v,
               const std::vector<std::string>& inputs, SavedModelFiles* files) {
  std::vector<std::string> all = {v};
  all.insert(all.end(), inputs.begin(), inputs.end());
  files->AddNode(name + "/write", op, all, SetTypes);
  AddSignatureAfter(name + "/write", name, files);
}

// Two variables, each written by several signatures and read by "first" and "second".
SavedModelFiles WritingModel() {
  SavedModelFiles files = testing::VariableModel(Of(kFirst));
  files.AddVariable("w", Of(kSecond));
  files.AddConst("row", Scalar<int32_t>(1));
  files.AddConst("one", Scalar<float>(1));
  files.AddSignature("first", {}, {{"y", "v/read:0", DT_FLOAT}});
  files.AddSignature("second", {}, {{"y", "w/read:0", DT_FLOAT}});
  for (const std::string v : {"v", "w"}) {
    AddWriter(v + "_assign", "AssignVariableOp", v, {"x"}, &files);
    AddWriter(v + "_add", "AssignAddVariableOp", v, {"x"}, &files);
    AddWriter(v + "_scatter", "ResourceScatterUpdate", v, {"row", "one"}, &files);
    AddWriter(v + "_scatter_add", "ResourceScatterAdd", v, {"row", "one"}, &files);
  }
  return files;
}

const std::vector<std::string>& Writers() {
  static const auto* const kWriters =
      new std::vector<std::string>{"v_assign", "v_add", "v_scatter", "v_scatter_add",
                                   "w_assign", "w_add", "w_scatter", "w_scatter_add"};
  return *kWriters;
}

// WritingModel with a table that the signature "remember" writes, after the variable `v`.
SavedModelFiles RememberingModel() {
  SavedModelFiles files = WritingModel();
  files.AddNode("table", "MutableHashTableV2", {}, [](NodeDef* node) {
    (*node->mutable_attr())["key_dtype"].set_type(DT_STRING);
    (*node->mutable_attr())["value_dtype"].set_type(DT_INT64);
    (*node->mutable_attr())["shared_name"].set_s("words");
  });
  files.AddConst("key", Vector<tstring>({"mill"}));
  files.AddConst("value", Vector<int64_t>({1}));
  files.AddNode("remember/write", "LookupTableInsertV2", {"table", "key", "value", "^v_add/write"},
                [](NodeDef* node) {
                  (*node->mutable_attr())["Tin"].set_type(DT_STRING);
                  (*node->mutable_attr())["Tout"].set_type(DT_INT64);
                });
  AddSignatureAfter("remember/write", "remember", &files);
  return files;
}

// Adds the signature "compiled", which adds x to `v`, and answers x + w.
void AddCompiledCall(SavedModelFiles* files) {
  auto* const body = files->meta_graph().mutable_graph_def()->mutable_library()->add_function();
  body->mutable_signature()->set_name("body");
  const auto add_argument = [](const std::string& name, tensorflow::DataType type, auto* argument) {
    argument->set_name(name);
    argument->set_type(type);
  };
  for (const std::string handle : {"v", "w"}) {
    add_argument(handle, tensorflow::DT_RESOURCE, body->mutable_signature()->add_input_arg());
  }
  add_argument("x", DT_FLOAT, body->mutable_signature()->add_input_arg());
  add_argument("y", DT_FLOAT, body->mutable_signature()->add_output_arg());
  const auto add_node = [&](const std::string& op, const std::vector<std::string>& inputs,
                            const std::string& type) {
    NodeDef* const node = body->add_node_def();
    node->set_name(op);
    node->set_op(op);
    for (const std::string& input : inputs) node->add_input(input);
    (*node->mutable_attr())[type].set_type(DT_FLOAT);
  };
  add_node("AssignAddVariableOp", {"v", "x"}, "dtype");
  add_node("ReadVariableOp", {"w", "^AssignAddVariableOp"}, "dtype");
  add_node("AddV2", {"x", "ReadVariableOp:value:0"}, "T");
  (*body->mutable_ret())["y"] = "AddV2:z:0";
  body->mutable_signature()->set_is_stateful(true);
  files->AddNode("compiled", "StatefulPartitionedCall", {"v", "w", "x"}, [](NodeDef* call) {
    auto& attributes = *call->mutable_attr();
    attributes["f"].mutable_func()->set_name("body");
    attributes["_XlaMustCompile"].set_b(true);
    for (const auto type : {tensorflow::DT_RESOURCE, tensorflow::DT_RESOURCE, DT_FLOAT}) {
      attributes["Tin"].mutable_list()->add_type(type);
    }
    attributes["Tout"].mutable_list()->add_type(DT_FLOAT);
  });
  files->AddSignature("compiled", {{"x", "x:0", DT_FLOAT}}, {{"y", "compiled:0", DT_FLOAT}});
}

class StateKeeperTest : public ::testing::Test {
 protected:
  void Load(const SavedModelFiles& files) {
    files.Write(directory_.path());
    model_ = std::make_unique<SavedModel>(directory_.path(), std::vector<std::string>{"serve"});
    Status loaded = model_->ReadGraph();
    if (loaded.ok()) loaded = model_->CreateSession();
    if (loaded.ok()) loaded = model_->Restore();
    if (loaded.ok()) loaded = model_->RunInit();
    if (loaded.ok()) loaded = model_->MakeCallables();
    ASSERT_TRUE(loaded.ok()) << loaded.message();
  }

  // Runs a signature on x; none for one that only reads.
  Status Run(const std::string& name, const std::vector<float>& x, Tensor* result,
             bool may_write = false) const {
    const tensor::Signature& signature = model_->signatures().at(name);
    tensor::TensorList inputs;
    tensor::TensorList outputs;
    if (!signature.inputs.empty()) inputs.storage().tensors = {Of(x)};
    tensor::RunContext run;
    run.may_write = may_write;
    const Status ran = model_->Run(signature, tensor::OutputSet::All(1), run, inputs, &outputs);
    if (ran.ok()) *result = outputs.storage().tensors[0];
    return ran;
  }
  Status Write(const std::string& name, const std::vector<float>& x, bool may_write = false) const {
    Tensor result;
    return Run(name, x, &result, may_write);
  }
  Tensor Read(const std::string& name) const {
    Tensor result;
    const Status ran = Run(name, {}, &result);
    EXPECT_TRUE(ran.ok()) << ran.message();
    return result;
  }
  std::vector<float> ValuesOf(const std::string& name) const { return Values<float>(Read(name)); }

  const testing::TemporaryDirectory directory_;
  std::unique_ptr<SavedModel> model_;
};

TEST_F(StateKeeperTest, AReplayWritesWhatIsPutBack) {
  Load(WritingModel());
  for (const std::string& writer : Writers()) {
    model_->KeepState(kEnoughBytes);
    const Status ran = Write(writer, {5, 6});
    ASSERT_TRUE(ran.ok()) << ran.message();
    const std::string reader = writer.front() == 'v' ? "first" : "second";
    EXPECT_NE(ValuesOf(reader), writer.front() == 'v' ? kFirst : kSecond) << writer;
    EXPECT_EQ(model_->PutBackState(), 1) << writer;
    EXPECT_EQ(ValuesOf("first"), kFirst) << writer;
    EXPECT_EQ(ValuesOf("second"), kSecond) << writer;
  }
}

// The promise itself: whatever the warm-up runs, records or replays, the first client finds the
// values of the checkpoint.
TEST_F(StateKeeperTest, AnyRunsLeaveTheValuesOfTheCheckpoint) {
  Load(WritingModel());
  std::minstd_rand random(27);
  const auto draw = [&](size_t count) { return static_cast<size_t>(random()) % count; };
  for (int sequence = 0; sequence < 200; ++sequence) {
    model_->KeepState(kEnoughBytes);
    std::string runs;
    for (size_t left = draw(6); left > 0; --left) {
      const std::string& writer = Writers()[draw(Writers().size())];
      const bool is_record = draw(2) == 0;
      runs += writer + (is_record ? " (record) " : " ");
      ASSERT_TRUE(Write(writer, {static_cast<float>(draw(9)), 7}, is_record).ok()) << runs;
      if (draw(2) == 0) Read("first");
    }
    model_->PutBackState();
    ASSERT_EQ(ValuesOf("first"), kFirst) << runs;
    ASSERT_EQ(ValuesOf("second"), kSecond) << runs;
  }
}

// So the parameters lie in the version's own memory after the warm-up, as without one.
TEST_F(StateKeeperTest, VariablesKeepTheirMemory) {
  Load(WritingModel());
  const void* const before = Read("first").data();
  model_->KeepState(kEnoughBytes);
  ASSERT_TRUE(Write("v_add", {5, 6}).ok());
  EXPECT_NE(Read("first").data(), before);
  EXPECT_EQ(model_->KeptStateBytes(), 2 * sizeof(float));
  model_->PutBackState();
  EXPECT_EQ(model_->KeptStateBytes(), 0);
  EXPECT_EQ(Read("first").data(), before);
}

TEST_F(StateKeeperTest, RunsAreRefusedAgainOnceTheStateIsPutBack) {
  Load(WritingModel());
  model_->KeepState(kEnoughBytes);
  model_->PutBackState();
  EXPECT_EQ(Write("v_add", {5, 6}).code(), Code::kPermissionDenied);
  ASSERT_TRUE(Write("v_add", {5, 6}, /*may_write=*/true).ok());
  EXPECT_EQ(ValuesOf("first"), (std::vector<float>{6, 8}));
  EXPECT_EQ(model_->PutBackState(), 0);
  EXPECT_EQ(ValuesOf("first"), (std::vector<float>{6, 8}));
}

TEST_F(StateKeeperTest, AReplayThatWouldWriteATableEndsBeforeItAndSaysWhy) {
  Load(RememberingModel());
  model_->KeepState(kEnoughBytes);
  const Status refused = Write("remember", {5, 6});
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  for (const char* part : {"node 'remember/write' (LookupTableInsertV2)", "not a variable"}) {
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message();
  }
  EXPECT_EQ(model_->PutBackState(), 1);
  EXPECT_EQ(ValuesOf("first"), kFirst);
}

// As in TensorFlow Serving: a record may be what fills a table that later requests need. Half of
// its state would be worse than all of it.
TEST_F(StateKeeperTest, ARecordThatWritesATableKeepsAllThatRunsWrote) {
  Load(RememberingModel());
  model_->KeepState(kEnoughBytes);
  ASSERT_TRUE(Write("remember", {5, 6}, /*may_write=*/true).ok());
  const Status refused = Write("w_add", {5, 6});
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_NE(refused.message().find("not a variable"), std::string::npos) << refused.message();
  EXPECT_EQ(model_->PutBackState(), 0);
  EXPECT_EQ(ValuesOf("first"), (std::vector<float>{6, 8}));
  EXPECT_EQ(ValuesOf("second"), kSecond);
}

TEST_F(StateKeeperTest, VariablesWithoutRoomAreNotWritten) {
  Load(WritingModel());
  model_->KeepState(2 * sizeof(float));
  ASSERT_TRUE(Write("v_add", {5, 6}).ok());
  const Status refused = Write("w_add", {5, 6});
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_NE(refused.message().find("variable 'w' has 8 bytes"), std::string::npos)
      << refused.message();
  EXPECT_EQ(model_->PutBackState(), 1);
  EXPECT_EQ(ValuesOf("first"), kFirst);
}

// A compiled call takes all variables at once: the kernel of the call is all that the keeper sees.
TEST_F(StateKeeperTest, CompiledCallKeepsOnlyWhatItWrites) {
  SavedModelFiles files = testing::VariableModel(Of(kFirst));
  files.AddVariable("w", Of(kSecond));
  files.AddSignature("first", {}, {{"y", "v/read:0", DT_FLOAT}});
  files.AddSignature("second", {}, {{"y", "w/read:0", DT_FLOAT}});
  AddCompiledCall(&files);
  Load(files);
  const void* const before = Read("second").data();
  // There is room for one of them.
  model_->KeepState(2 * sizeof(float));
  Tensor sum;
  const Status ran = Run("compiled", {5, 6}, &sum);
  ASSERT_TRUE(ran.ok()) << ran.message();
  EXPECT_EQ(Values<float>(sum), (std::vector<float>{8, 10}));
  EXPECT_EQ(ValuesOf("first"), (std::vector<float>{6, 8}));
  EXPECT_EQ(model_->KeptStateBytes(), 2 * sizeof(float));
  EXPECT_EQ(Read("second").data(), before);
  EXPECT_EQ(model_->PutBackState(), 1);
  EXPECT_EQ(ValuesOf("first"), kFirst);
}

// The values that are kept are not the memory of the run, which may have less.
TEST_F(StateKeeperTest, ARunsLimitOfMemoryDoesNotCountWhatIsKept) {
  const Tensor large = Of(std::vector<float>(1 << 20));
  SavedModelFiles files = testing::VariableModel(large);
  files.AddConst("row", Scalar<int32_t>(1));
  files.AddConst("one", Scalar<float>(1));
  AddWriter("set", "ResourceScatterUpdate", "v", {"row", "one"}, &files);
  Load(files);
  SetRunMemoryBytesMax(int64_t{1} << 20, int64_t{8} << 20);
  model_->KeepState(large.TotalBytes());
  const Status ran = Write("set", {1});
  SetRunMemoryBytesMax(RunScope::kNoLimit, RunScope::kNoLimit);
  EXPECT_TRUE(ran.ok()) << ran.message();
  EXPECT_EQ(model_->PutBackState(), 1);
}

TEST_F(StateKeeperTest, AVariableWithoutAValueIsNotWritten) {
  SavedModelFiles files = testing::VariableModel(Of(kFirst));
  files.AddNode("empty", "VarHandleOp", {}, [](NodeDef* node) {
    (*node->mutable_attr())["dtype"].set_type(DT_FLOAT);
    (*node->mutable_attr())["shared_name"].set_s("empty");
    (*node->mutable_attr())["shape"].mutable_shape()->set_unknown_rank(true);
  });
  files.AddNode("empty/read", "ReadVariableOp", {"empty"}, SetTypes);
  files.AddSignature("read", {}, {{"y", "empty/read:0", DT_FLOAT}});
  AddWriter("set", "AssignVariableOp", "empty", {"x"}, &files);
  Load(files);
  model_->KeepState(kEnoughBytes);
  const Status refused = Write("set", {5, 6});
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_NE(refused.message().find("variable 'empty' has no value"), std::string::npos)
      << refused.message();
  // A record may be what sets it.
  ASSERT_TRUE(Write("set", {5, 6}, /*may_write=*/true).ok());
  EXPECT_EQ(model_->PutBackState(), 0);
  EXPECT_EQ(ValuesOf("read"), (std::vector<float>{5, 6}));
}

// A function that is not inlined hands the handle on through its argument.
TEST_F(StateKeeperTest, AFunctionThatWritesIsPutBack) {
  SavedModelFiles files = testing::VariableModel(Of(kFirst));
  tensorflow::FunctionDef* const body =
      files.meta_graph().mutable_graph_def()->mutable_library()->add_function();
  body->mutable_signature()->set_name("body");
  body->mutable_signature()->set_is_stateful(true);
  (*body->mutable_attr())["_noinline"].set_b(true);
  const auto add_argument = [&](const char* name, tensorflow::DataType dtype) {
    auto* const argument = body->mutable_signature()->add_input_arg();
    argument->set_name(name);
    argument->set_type(dtype);
  };
  add_argument("handle", tensorflow::DT_RESOURCE);
  add_argument("by", DT_FLOAT);
  auto* const output = body->mutable_signature()->add_output_arg();
  output->set_name("out");
  output->set_type(DT_FLOAT);
  NodeDef* const write = body->add_node_def();
  write->set_name("write");
  write->set_op("AssignAddVariableOp");
  write->add_input("handle");
  write->add_input("by");
  (*write->mutable_attr())["dtype"].set_type(DT_FLOAT);
  NodeDef* const read = body->add_node_def();
  read->set_name("read");
  read->set_op("ReadVariableOp");
  read->add_input("handle");
  read->add_input("^write");
  (*read->mutable_attr())["dtype"].set_type(DT_FLOAT);
  (*body->mutable_ret())["out"] = "read:value:0";
  files.AddNode("call", "StatefulPartitionedCall", {"v", "x"}, [](NodeDef* call) {
    (*call->mutable_attr())["f"].mutable_func()->set_name("body");
    auto* const inputs = (*call->mutable_attr())["Tin"].mutable_list();
    inputs->add_type(tensorflow::DT_RESOURCE);
    inputs->add_type(DT_FLOAT);
    (*call->mutable_attr())["Tout"].mutable_list()->add_type(DT_FLOAT);
  });
  files.AddSignature("called", {{"x", "x:0", DT_FLOAT}}, {{"y", "call:0", DT_FLOAT}});
  files.AddSignature("first", {}, {{"y", "v/read:0", DT_FLOAT}});
  Load(files);
  model_->KeepState(kEnoughBytes);
  Tensor result;
  const Status ran = Run("called", {5, 6}, &result);
  ASSERT_TRUE(ran.ok()) << ran.message();
  EXPECT_EQ(Values<float>(result), (std::vector<float>{6, 8}));
  EXPECT_EQ(model_->PutBackState(), 1);
  EXPECT_EQ(ValuesOf("first"), kFirst);
}

}  // namespace
}  // namespace millpond::tf
