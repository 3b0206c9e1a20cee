#include "native/tf/saved_model.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/tf/callable.h"
#include "native/tf/servable_device.h"
#include "native/tf/signature_def.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"
#include "tests/native/threads.h"

namespace millpond::tf {
namespace {

using base::Code;
using base::Status;
using tensorflow::Tensor;
using tensorflow::tstring;
using testing::ReadFile;
using testing::RuntimeMemory;
using testing::SavedModelFiles;
using testing::Scalar;
using testing::TemporaryDirectory;
using testing::Values;
using testing::Vector;
using testing::WriteFile;

constexpr char kShard[] = "variables/variables.data-00000-of-00001";
constexpr float kWithoutEnd = 1e30F;  // for CountingModel

Status LoadAll(SavedModel& model) {
  MILLPOND_RETURN_IF_ERROR(model.ReadGraph());
  MILLPOND_RETURN_IF_ERROR(model.CreateSession());
  MILLPOND_RETURN_IF_ERROR(model.Restore());
  MILLPOND_RETURN_IF_ERROR(model.RunInit());
  return model.MakeCallables();
}

// A SavedModel from files of its own, in place of an exporter's.
class SavedModelTest : public ::testing::Test {
 protected:
  void Load(const SavedModelFiles& files) {
    files.Write(directory_.path());
    model_ = std::make_unique<SavedModel>(directory_.path(), std::vector<std::string>{"serve"});
    const Status loaded = LoadAll(*model_);
    ASSERT_TRUE(loaded.ok()) << loaded.message();
  }

  // `inputs` are in the order of the signature.
  Status Run(const std::string& signature, std::vector<Tensor> inputs, tensor::TensorList* outputs,
             const tensor::RunContext& run = {}) const {
    tensor::TensorList list;
    list.storage().tensors = std::move(inputs);
    const tensor::Signature& run_signature = model_->signatures().at(signature);
    const tensor::OutputSet all = tensor::OutputSet::All(run_signature.outputs.size());
    return model_->Run(run_signature, all, run, list, outputs);
  }
  Status Count(float x, float limit, const tensor::RunContext& run, float* result) const {
    tensor::TensorList outputs;
    const Status ran =
        Run("serving_default", {Scalar<float>(limit), Scalar<float>(x)}, &outputs, run);
    if (ran.ok()) *result = outputs.storage().tensors[0].scalar<float>()();
    return ran;
  }

  const TemporaryDirectory directory_;
  std::unique_ptr<SavedModel> model_;
};

TEST_F(SavedModelTest, WithoutVariablesLoadsAndAnswers) {
  Load(testing::DoublingModel());
  EXPECT_TRUE(model_->IsReady());
  tensor::TensorList outputs;
  const Status ran = Run("serving_default", {Vector<float>({1, 2.5})}, &outputs);
  ASSERT_TRUE(ran.ok()) << ran.message();
  ASSERT_EQ(outputs.size(), 1);
  EXPECT_EQ(Values<float>(outputs.storage().tensors[0]), (std::vector<float>{2, 5}));
}

TEST_F(SavedModelTest, ErrorOfAKernelNamesItsNodeOnce) {
  SavedModelFiles files;
  files.AddPlaceholder("x", tensorflow::DT_FLOAT, {-1});
  files.AddNode("check", "CheckNumerics", {"x"}, [](tensorflow::NodeDef* node) {
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
    (*node->mutable_attr())["message"].set_s("x is checked");
  });
  files.AddSignature("s", {{"x", "x:0", tensorflow::DT_FLOAT}},
                     {{"y", "check:0", tensorflow::DT_FLOAT}});
  Load(files);
  tensor::TensorList outputs;
  const Status ran = Run("s", {Vector<float>({std::nanf("")})}, &outputs);
  EXPECT_EQ(ran.code(), Code::kInvalidArgument);
  EXPECT_EQ(ran.message(), "x is checked : Tensor had NaN values [node check]");
}

TEST_F(SavedModelTest, AnInputOfAnotherTypeIsInvalid) {
  Load(testing::DoublingModel());
  tensor::TensorList outputs;
  const Status ran = Run("serving_default", {Vector<int32_t>({1})}, &outputs);
  EXPECT_EQ(ran.code(), Code::kInvalidArgument);
  EXPECT_EQ(ran.message(), "the graph's argument 0 has the dtype float, but was fed with int32");
}

// A signature "s" that assigns `value` to the variable of VariableModel, and then answers x * v.
SavedModelFiles AssigningModel(const std::string& value) {
  SavedModelFiles files = testing::VariableModel(Vector<float>({1, 2}));
  files.AddNode("assign", "AssignVariableOp", {"v", value}, [](tensorflow::NodeDef* node) {
    (*node->mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  });
  files.AddNode("after", "Identity", {"product", "^assign"}, testing::SetFloat);
  files.AddSignature("s", {{"x", "x:0", tensorflow::DT_FLOAT}},
                     {{"y", "after:0", tensorflow::DT_FLOAT}});
  return files;
}

TEST_F(SavedModelTest, ARunThatMayNotWriteChangesNoVariable) {
  Load(AssigningModel("x"));
  EXPECT_FALSE(model_->MayChangeAnswers());
  tensor::RunContext replay;
  replay.may_write = false;
  tensor::TensorList outputs;
  const Status refused = Run("s", {Vector<float>({3, 4})}, &outputs, replay);
  EXPECT_EQ(refused.code(), Code::kPermissionDenied);
  EXPECT_NE(refused.message().find("node 'assign'"), std::string::npos) << refused.message();
  EXPECT_TRUE(model_->MayChangeAnswers());
  ASSERT_TRUE(Run("serving_default", {Vector<float>({1, 1})}, &outputs).ok());
  EXPECT_EQ(Values<float>(outputs.storage().tensors[0]), (std::vector<float>{1, 2}));
}

TEST_F(SavedModelTest, AnAssignmentOfWhatWasReadMayBeRepeated) {
  Load(AssigningModel("v/read"));
  EXPECT_TRUE(model_->MayWriteVariables());
  tensor::RunContext replay;
  replay.may_write = false;
  tensor::TensorList outputs;
  const Status ran = Run("s", {Vector<float>({3, 4})}, &outputs, replay);
  ASSERT_TRUE(ran.ok()) << ran.message();
  EXPECT_EQ(Values<float>(outputs.storage().tensors[0]), (std::vector<float>{3, 8}));
  EXPECT_FALSE(model_->MayChangeAnswers());
}

TEST_F(SavedModelTest, ARequestThatAssignsAnotherValueWritesIt) {
  Load(AssigningModel("x"));
  tensor::TensorList outputs;
  ASSERT_TRUE(Run("s", {Vector<float>({1, 2})}, &outputs).ok());  // what the variable has
  EXPECT_FALSE(model_->MayChangeAnswers());
  ASSERT_TRUE(Run("s", {Vector<float>({3, 4})}, &outputs).ok());
  EXPECT_TRUE(model_->MayChangeAnswers());
  ASSERT_TRUE(Run("serving_default", {Vector<float>({1, 1})}, &outputs).ok());
  EXPECT_EQ(Values<float>(outputs.storage().tensors[0]), (std::vector<float>{3, 4}));
}

TEST_F(SavedModelTest, AnyOtherWriteIsRefusedToARepeatedRun) {
  SavedModelFiles files = testing::VariableModel(Vector<float>({1, 2}));
  files.AddNode("grow", "AssignAddVariableOp", {"v", "x"}, [](tensorflow::NodeDef* node) {
    (*node->mutable_attr())["dtype"].set_type(tensorflow::DT_FLOAT);
  });
  files.AddNode("after", "Identity", {"product", "^grow"}, testing::SetFloat);
  files.AddSignature("s", {{"x", "x:0", tensorflow::DT_FLOAT}},
                     {{"y", "after:0", tensorflow::DT_FLOAT}});
  Load(files);
  EXPECT_TRUE(model_->MayChangeAnswers());
  tensor::RunContext replay;
  replay.may_write = false;
  tensor::TensorList outputs;
  EXPECT_EQ(Run("s", {Vector<float>({3, 4})}, &outputs, replay).code(), Code::kPermissionDenied);
  const Status reads = Run("serving_default", {Vector<float>({1, 1})}, &outputs, replay);
  ASSERT_TRUE(reads.ok()) << reads.message();
  EXPECT_EQ(Values<float>(outputs.storage().tensors[0]), (std::vector<float>{1, 2}));
}

TEST_F(SavedModelTest, ATableThatNoInitOpFillsIsNamed) {
  SavedModelFiles files = testing::TableModel();
  files.meta_graph().mutable_signature_def()->erase("__saved_model_init_op");
  files.Write(directory_.path());
  SavedModel model(directory_.path(), {"serve"});
  ASSERT_TRUE(model.ReadGraph().ok());
  ASSERT_TRUE(model.CreateSession().ok());
  ASSERT_TRUE(model.Restore().ok());
  ASSERT_TRUE(model.RunInit().ok());
  EXPECT_EQ(model.TablesWithoutValue(), std::vector<std::string>{"words"});
}

TEST_F(SavedModelTest, ATableThatTheInitOpFillsIsNotNamed) {
  testing::TableModel().Write(directory_.path());
  SavedModel model(directory_.path(), {"serve"});
  ASSERT_TRUE(model.ReadGraph().ok());
  ASSERT_TRUE(model.CreateSession().ok());
  ASSERT_TRUE(model.Restore().ok());
  ASSERT_TRUE(model.RunInit().ok());
  EXPECT_EQ(model.TablesWithoutValue(), std::vector<std::string>());
}

// DoublingModel, and a signature `name` whose only output is a SparseTensor.
SavedModelFiles SparseModel(const std::string& name) {
  SavedModelFiles files = testing::DoublingModel();
  auto& signature = (*files.meta_graph().mutable_signature_def())[name];
  signature.mutable_outputs()->clear();
  (*signature.mutable_outputs())["sparse"].mutable_coo_sparse()->set_values_tensor_name("sum:0");
  return files;
}

TEST_F(SavedModelTest, CompositeOutputsAreLeftOut) {
  SavedModelFiles files = testing::DoublingModel();
  auto& signature = (*files.meta_graph().mutable_signature_def())["serving_default"];
  (*signature.mutable_outputs())["sparse"].mutable_coo_sparse()->set_values_tensor_name("sum:0");
  Load(files);
  tensor::TensorList outputs;
  ASSERT_TRUE(Run("serving_default", {Vector<float>({1})}, &outputs).ok());
  ASSERT_EQ(outputs.size(), 1);
  EXPECT_EQ(Values<float>(outputs.storage().tensors[0]), std::vector<float>{2});
}

TEST_F(SavedModelTest, ASignatureOfCompositeTensorsKeepsNoOtherOut) {
  Load(SparseModel("serving_default"));
  tensor::TensorList outputs;
  EXPECT_TRUE(Run("names", {Vector<float>({1})}, &outputs).ok());
}

TEST_F(SavedModelTest, AModelOfCompositeTensorsAloneIsRefused) {
  SavedModelFiles files = SparseModel("serving_default");
  files.meta_graph().mutable_signature_def()->erase("names");
  files.Write(directory_.path());
  SavedModel model(directory_.path(), {"serve"});
  const Status refused = LoadAll(model);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.message().find("'sparse'"), std::string::npos) << refused.message();
}

// An op of which nothing is computed, as a faulty custom op leaves its outputs.
REGISTER_OP("SetsNoOutput").Output("y: float").Output("z: float");
class SetsNoOutput final : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tensorflow::OpKernelContext*) override {}
};
REGISTER_KERNEL_BUILDER(Name("SetsNoOutput").Device(tensorflow::DEVICE_CPU), SetsNoOutput);

TEST_F(SavedModelTest, AKernelThatSetsNoOutputIsInternal) {
  SavedModelFiles files = testing::DoublingModel();
  files.AddNode("nothing", "SetsNoOutput", {});
  files.AddSignature("s", {{"x", "x:0", tensorflow::DT_FLOAT}},
                     {{"y", "nothing:1", tensorflow::DT_FLOAT}});
  Load(files);
  tensor::TensorList outputs;
  const Status ran = Run("s", {Vector<float>({1})}, &outputs);
  EXPECT_EQ(ran.code(), Code::kInternal);
  EXPECT_NE(ran.message().find("output 1"), std::string::npos) << ran.message();
}

TEST_F(SavedModelTest, VariablesAreRestoredFromTheCheckpoint) {
  Load(testing::VariableModel(Vector<float>({10, 100})));
  tensor::TensorList outputs;
  ASSERT_TRUE(Run("serving_default", {Vector<float>({1, 2})}, &outputs).ok());
  EXPECT_EQ(Values<float>(outputs.storage().tensors[0]), (std::vector<float>{10, 200}));
}

TEST_F(SavedModelTest, InitOpFillsTableFromAssetOfMovedModel) {
  Load(testing::TableModel());
  tensor::TensorList outputs;
  const Status ran = Run("serving_default", {Vector<tstring>({"pond", "lake", "mill"})}, &outputs);
  ASSERT_TRUE(ran.ok()) << ran.message();
  EXPECT_EQ(Values<int64_t>(outputs.storage().tensors[0]), (std::vector<int64_t>{1, -1, 0}));
}

TEST_F(SavedModelTest, InitOpIsHiddenFromClients) {
  Load(testing::TableModel());
  EXPECT_EQ(model_->signatures().size(), 1);
  EXPECT_EQ(model_->signatures().count("serving_default"), 1);
}

TEST_F(SavedModelTest, SharedTensorAndPassedInputAreOutputs) {
  Load(testing::DoublingModel());
  tensor::TensorList outputs;
  ASSERT_TRUE(Run("names", {Vector<float>({3})}, &outputs).ok());
  ASSERT_EQ(outputs.size(), 3);
  EXPECT_EQ(Values<float>(outputs.storage().tensors[0]), std::vector<float>{3});  // x_back
  EXPECT_EQ(Values<float>(outputs.storage().tensors[1]), std::vector<float>{6});  // y
  EXPECT_EQ(Values<float>(outputs.storage().tensors[2]), std::vector<float>{6});  // y_again
}

TEST_F(SavedModelTest, SomeOutputsAreAnsweredAlikeByTheirCallable) {
  Load(testing::DoublingModel());
  const tensor::Signature& names = model_->signatures().at("names");
  tensor::OutputSet outputs(3);
  outputs.Add(tensor::FindTensorSpec(names.outputs, "x_back"));
  outputs.Add(tensor::FindTensorSpec(names.outputs, "y_again"));
  tensor::TensorList inputs;
  inputs.storage().tensors = {Vector<float>({3})};
  for (int run = 0; run < 2; ++run) {
    tensor::TensorList result;
    ASSERT_TRUE(model_->Run(names, outputs, {}, inputs, &result).ok());
    ASSERT_EQ(result.size(), 2);
    EXPECT_EQ(Values<float>(result.storage().tensors[0]), std::vector<float>{3});
    EXPECT_EQ(Values<float>(result.storage().tensors[1]), std::vector<float>{6});
    ASSERT_TRUE(model_->MakeCallable(names, outputs).ok());
  }
}

TEST_F(SavedModelTest, UnrunnableSignatureFailsRequestsNotTheLoad) {
  SavedModelFiles files = testing::DoublingModel();
  files.AddSignature("broken", {{"x", "x:0", tensorflow::DT_FLOAT}},
                     {{"y", "nowhere:0", tensorflow::DT_FLOAT}});
  Load(files);
  tensor::TensorList outputs;
  const Status refused = Run("broken", {Vector<float>({1})}, &outputs);
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("signature 'broken'"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("nowhere"), std::string::npos) << refused.message();
  EXPECT_TRUE(Run("serving_default", {Vector<float>({1})}, &outputs).ok());
}

TEST_F(SavedModelTest, ASignatureOfAnotherModelCannotBeRun) {
  Load(testing::DoublingModel());
  tensor::Signature other;
  other.name = "other";
  tensor::TensorList inputs;
  tensor::TensorList outputs;
  EXPECT_EQ(model_->Run(other, {}, {}, inputs, &outputs).code(), Code::kFailedPrecondition);
  EXPECT_EQ(model_->MakeCallable(other, {}).code(), Code::kFailedPrecondition);
}

TEST_F(SavedModelTest, AShapeThatAnOpRefusesIsTheRequestsStatus) {
  Load(testing::VariableModel(Vector<float>({10, 100})));
  tensor::TensorList outputs;
  const Status refused = Run("serving_default", {Vector<float>({1, 2, 3})}, &outputs);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  // The message is from the op's shape function, which runs before the kernel.
  EXPECT_NE(refused.message().find("must be equal, but are 2 and 3"), std::string::npos)
      << refused.message();
}

TEST_F(SavedModelTest, AShapeIsRefusedAgainAndAgainBesideOneThatPasses) {
  Load(testing::VariableModel(Vector<float>({10, 100})));
  tensor::TensorList outputs;
  // [1,2] differs from the signature's [2], but the graph accepts it.
  tensorflow::Tensor row(tensorflow::DT_FLOAT, {1, 2});
  row.flat<float>().setConstant(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Run("serving_default", {row}, &outputs).ok());
    EXPECT_EQ(Run("serving_default", {Vector<float>({1, 2, 3})}, &outputs).code(),
              Code::kInvalidArgument);
    tensorflow::Tensor column(tensorflow::DT_FLOAT, {3, 1});
    column.flat<float>().setConstant(1);
    EXPECT_TRUE(Run("serving_default", {column}, &outputs).ok());
  }
}

TEST_F(SavedModelTest, TheStepsAreCalledInOrderAndOnce) {
  testing::DoublingModel().Write(directory_.path());
  SavedModel model(directory_.path(), {"serve"});
  EXPECT_EQ(model.CreateSession().code(), Code::kFailedPrecondition);
  EXPECT_EQ(model.MakeCallables().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(model.ReadGraph().ok());
  EXPECT_EQ(model.ReadGraph().code(), Code::kFailedPrecondition);
  EXPECT_EQ(model.Restore().code(), Code::kFailedPrecondition);
  EXPECT_EQ(model.RunInit().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(model.CreateSession().ok());
  ASSERT_TRUE(model.Restore().ok());
  ASSERT_TRUE(model.RunInit().ok());
  EXPECT_FALSE(model.IsReady());
  ASSERT_TRUE(model.MakeCallables().ok());
  EXPECT_TRUE(model.IsReady());
  EXPECT_EQ(model.MakeCallables().code(), Code::kFailedPrecondition);
}

TEST_F(SavedModelTest, WrongTagsAreNotFoundAndACutGraphIsDataLoss) {
  testing::DoublingModel().Write(directory_.path());
  EXPECT_EQ(SavedModel(directory_.path(), {"train"}).ReadGraph().code(), Code::kNotFound);
  EXPECT_EQ(SavedModel(directory_.File("nowhere"), {"serve"}).ReadGraph().code(), Code::kNotFound);
  testing::CutFile(directory_.File("saved_model.pb"), 50);
  EXPECT_EQ(SavedModel(directory_.path(), {"serve"}).ReadGraph().code(), Code::kDataLoss);
}

Status LoadToRestore(const std::string& directory) {
  SavedModel model(directory, {"serve"});
  MILLPOND_RETURN_IF_ERROR(model.ReadGraph());
  MILLPOND_RETURN_IF_ERROR(model.CreateSession());
  return model.Restore();
}

TEST_F(SavedModelTest, AShardWithAWrongBitIsDataLossAndACutOneOutOfRange) {
  testing::VariableModel(Vector<float>({10, 100})).Write(directory_.path());
  std::string shard = ReadFile(directory_.File(kShard));
  shard[3] = static_cast<char>(shard[3] ^ 1);
  WriteFile(directory_.File(kShard), shard);
  const Status wrong = LoadToRestore(directory_.path());
  EXPECT_EQ(wrong.code(), Code::kDataLoss) << wrong.message();
  testing::CutFile(directory_.File(kShard), 5);
  const Status cut = LoadToRestore(directory_.path());
  EXPECT_EQ(cut.code(), Code::kOutOfRange) << cut.message();
}

TEST_F(SavedModelTest, AnInitOpThatFailsFailsTheLoad) {
  SavedModelFiles files = testing::TableModel();
  files.Write(directory_.path());
  std::filesystem::remove(directory_.File("assets/words.txt"));
  SavedModel model(directory_.path(), {"serve"});
  const Status failed = LoadAll(model);
  EXPECT_EQ(failed.code(), Code::kNotFound);
  EXPECT_NE(failed.message().find("words.txt"), std::string::npos) << failed.message();
  EXPECT_FALSE(model.IsReady());
}

TEST_F(SavedModelTest, SignatureDefMapHoldsSignaturesAsExported) {
  SavedModelFiles files = testing::DoublingModel();
  Load(files);
  const std::string_view bytes = model_->signature_def_map();
  base::WireReader map(&bytes, 1);
  size_t entry_count = 0;
  for (base::WireTag tag; !map.AtEnd(); ++entry_count) {
    base::WireReader entry;
    std::string name;
    std::string definition_bytes;
    ASSERT_TRUE(map.ReadTag(&tag) && tag.field == 1 && map.ReadDelimited(&entry));
    ASSERT_TRUE(entry.ReadTag(&tag) && tag.field == 1 && entry.ReadString(&name));
    ASSERT_TRUE(entry.ReadTag(&tag) && tag.field == 2 && entry.ReadBytes(&definition_bytes));
    tensorflow::SignatureDef definition;
    ASSERT_TRUE(definition.ParseFromString(definition_bytes));
    EXPECT_EQ(definition.DebugString(), files.meta_graph().signature_def().at(name).DebugString());
  }
  EXPECT_EQ(entry_count, 2);
}

TEST_F(SavedModelTest, ManyThreadsRunItAtOnce) {
  Load(testing::VariableModel(Vector<float>({10, 100})));
  testing::RunTogether(4, [&](int thread) {
    for (int run = 0; run < 200; ++run) {
      const auto x = static_cast<float>(thread * 1'000 + run);
      tensor::TensorList outputs;
      ASSERT_TRUE(Run("serving_default", {Vector<float>({x, 1})}, &outputs).ok());
      ASSERT_EQ(Values<float>(outputs.storage().tensors[0]), (std::vector<float>{10 * x, 100}));
    }
  });
}

TEST_F(SavedModelTest, ItsDestructionFreesItsParameters) {
  constexpr int64_t kElementCount = 4 << 20;
  Tensor value(tensorflow::DT_FLOAT, {kElementCount});
  value.flat<float>().setConstant(1);
  const SavedModelFiles files = testing::VariableModel(value);
  const int64_t before_bytes = RuntimeMemory().Statistics().in_use_bytes;
  Load(files);
  const int64_t parameter_bytes = kElementCount * sizeof(float);
  EXPECT_GE(RuntimeMemory().Statistics().in_use_bytes, before_bytes + parameter_bytes);
  EXPECT_LT(RuntimeMemory().Statistics().in_use_bytes, before_bytes + 2 * parameter_bytes);
  model_.reset();
  EXPECT_LT(RuntimeMemory().Statistics().in_use_bytes, before_bytes + parameter_bytes / 10);
}

TEST_F(SavedModelTest, AnOutputOutlivesItsModel) {
  Load(testing::VariableModel(Vector<float>({10, 100})));
  tensor::TensorList outputs;
  ASSERT_TRUE(Run("serving_default", {Vector<float>({1, 2})}, &outputs).ok());
  model_.reset();
  EXPECT_EQ(Values<float>(outputs.storage().tensors[0]), (std::vector<float>{10, 200}));
}

// --- ServableDevice: the end of a run between two kernels ----------------------------------------

TEST_F(SavedModelTest, ALoopRunsToItsEndWithinItsDeadline) {
  Load(testing::CountingModel());
  tensor::RunContext run;
  run.deadline_ns = base::MonotonicNs() + 60'000'000'000;
  float result = 0;
  const Status ran = Count(0, 50, run, &result);
  ASSERT_TRUE(ran.ok()) << ran.message();
  EXPECT_EQ(result, 50);
}

TEST_F(SavedModelTest, ADeadlineEndsARunWithoutEnd) {
  Load(testing::CountingModel());
  tensor::RunContext run;
  run.deadline_ns = base::MonotonicNs() + 20'000'000;
  float result = 0;
  const Status ended = Count(0, kWithoutEnd, run, &result);
  EXPECT_EQ(ended.code(), Code::kDeadlineExceeded) << ended.message();
  EXPECT_GE(base::MonotonicNs(), run.deadline_ns);
}

TEST_F(SavedModelTest, APassedDeadlineRunsNoKernel) {
  Load(testing::DoublingModel());
  tensor::RunContext run;
  run.deadline_ns = 1;
  tensor::TensorList outputs;
  const int64_t before_count = RuntimeMemory().Statistics().allocation_count;
  EXPECT_EQ(Run("serving_default", {Vector<float>({1})}, &outputs, run).code(),
            Code::kDeadlineExceeded);
  EXPECT_EQ(RuntimeMemory().Statistics().allocation_count, before_count + 1);  // the input
}

// Waits until a run of CountingModel has completed a loop: each loop allocates.
void WaitUntilItLoops() {
  const int64_t begin_count = RuntimeMemory().Statistics().allocation_count;
  while (RuntimeMemory().Statistics().allocation_count < begin_count + 100) {
    std::this_thread::yield();
  }
}

TEST_F(SavedModelTest, ACancellationEndsARunWithoutEnd) {
  Load(testing::CountingModel());
  std::atomic<bool> is_cancelled{false};
  Status ended;
  std::thread runner([&] {
    tensor::RunContext run;
    run.is_cancelled = &is_cancelled;
    float result = 0;
    ended = Count(0, kWithoutEnd, run, &result);
  });
  WaitUntilItLoops();
  is_cancelled = true;
  runner.join();
  EXPECT_EQ(ended.code(), Code::kCancelled) << ended.message();
}

TEST_F(SavedModelTest, ARunThatWasEndedLeavesTheModelFitToRun) {
  Load(testing::CountingModel());
  tensor::RunContext expired;
  expired.deadline_ns = 1;
  float result = 0;
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(Count(0, kWithoutEnd, expired, &result).code(), Code::kDeadlineExceeded);
    EXPECT_TRUE(Count(3, 7, {}, &result).ok());
    EXPECT_EQ(result, 7);
  }
}

TEST_F(SavedModelTest, TheDeadlineOfOneRunEndsNoOther) {
  Load(testing::CountingModel());
  testing::RunTogether(2, [&](int thread) {
    for (int run = 0; run < 50; ++run) {
      tensor::RunContext context;
      if (thread == 0) context.deadline_ns = 1;
      float result = 0;
      ASSERT_EQ(Count(0, 20, context, &result).ok(), thread == 1);
    }
  });
}

TEST(RunScope, AScopeWithinAScopeGivesTheOuterOneBack) {
  SavedModelFiles files = testing::DoublingModel();
  tensorflow::SessionOptions options;
  const std::unique_ptr<tensorflow::Session> session(tensorflow::NewSession(options));
  ASSERT_TRUE(session->Create(files.meta_graph().graph_def()).ok());
  const Callable callable(
      session.get(), MakeSignature("s", files.meta_graph().signature_def().at("serving_default")),
      tensor::OutputSet::All(1));
  tensor::TensorList inputs;
  tensor::TensorList outputs;
  inputs.storage().tensors = {Vector<float>({1})};
  tensor::RunContext expired;
  expired.deadline_ns = 1;
  {
    const RunScope outer(expired);
    {
      const tensor::RunContext without_end;
      const RunScope inner(without_end);
      EXPECT_TRUE(callable.Run(inputs, &outputs).ok());
    }
    EXPECT_EQ(callable.Run(inputs, &outputs).code(), Code::kDeadlineExceeded);
  }
  EXPECT_TRUE(callable.Run(inputs, &outputs).ok());
}

TEST(SavedModelSteps, DestructionAfterAnyStepIsFine) {
  const TemporaryDirectory directory;
  testing::VariableModel(Vector<float>({10, 100})).Write(directory.path());
  Status (SavedModel::*const kSteps[])() = {&SavedModel::ReadGraph, &SavedModel::CreateSession,
                                            &SavedModel::Restore, &SavedModel::RunInit,
                                            &SavedModel::MakeCallables};
  for (size_t step_count = 0; step_count <= 5; ++step_count) {
    SavedModel model(directory.path(), {"serve"});
    for (size_t step = 0; step < step_count; ++step) EXPECT_TRUE((model.*kSteps[step])().ok());
  }
}

}  // namespace
}  // namespace millpond::tf
