#include "native/tf/parameter_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "native/tf/saved_model.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/native/fake_memory.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"

namespace millpond::tf {
namespace {

using base::Code;
using base::Status;
using memory::FakeMemory;
using tensorflow::Tensor;
using testing::RuntimeMemory;
using testing::SavedModelFiles;
using testing::TemporaryDirectory;

constexpr int64_t kPlentyBytes = 1 << 30;
constexpr int kVariableCount = 100'000;
constexpr int64_t kVariableBytes = kVariableCount * sizeof(float);

// Refuses the allocation of that number, counted from 0: either this one alone, or all after it
// too.
class RefusingMemory final : public memory::MemoryResource {
 public:
  explicit RefusingMemory(int64_t refused) : refused_(refused) {}

  void* Allocate(size_t bytes, size_t alignment) noexcept override {
    return asked_count_++ == refused_ ? nullptr : memory_.Allocate(bytes, alignment);
  }
  void Deallocate(void* block) noexcept override { memory_.Deallocate(block); }
  memory::MemoryStatistics Statistics() const override { return memory_.Statistics(); }
  int64_t asked_count() const { return asked_count_; }

 private:
  const int64_t refused_;
  int64_t asked_count_ = 0;
  FakeMemory memory_{kPlentyBytes};
};

// Returns 0, step, 2 step, ...: as many values as LargeVariableModel's variable has.
Tensor Steps(float step) {
  Tensor values(tensorflow::DT_FLOAT, {kVariableCount});
  for (int i = 0; i < kVariableCount; ++i) values.flat<float>()(i) = static_cast<float>(i) * step;
  return values;
}

// y = x * v with 100,000 floats.
SavedModelFiles LargeVariableModel() { return testing::VariableModel(Steps(1)); }

class ParameterMemoryTest : public ::testing::Test {
 protected:
  void Write(const SavedModelFiles& files) { files.Write(directory_.path()); }

  // Runs the steps until one fails.
  Status Load(memory::MemoryResource* parameters) {
    model_ = std::make_unique<SavedModel>(directory_.path(), std::vector<std::string>{"serve"});
    MILLPOND_RETURN_IF_ERROR(model_->ReadGraph());
    MILLPOND_RETURN_IF_ERROR(model_->SetParameterMemory(parameters));
    MILLPOND_RETURN_IF_ERROR(model_->CreateSession());
    MILLPOND_RETURN_IF_ERROR(model_->Restore());
    MILLPOND_RETURN_IF_ERROR(model_->RunInit());
    MILLPOND_RETURN_IF_ERROR(model_->MakeCallables());
    model_->EndLoading();
    return {};
  }

  Status Answer(Tensor x, Tensor* y) const {
    tensor::TensorList inputs;
    inputs.storage().tensors = {std::move(x)};
    tensor::TensorList outputs;
    const tensor::Signature& signature = model_->signatures().at("serving_default");
    MILLPOND_RETURN_IF_ERROR(model_->Run(
        signature, tensor::OutputSet::All(signature.outputs.size()), {}, inputs, &outputs));
    *y = outputs.storage().tensors[0];
    return {};
  }

  const TemporaryDirectory directory_;
  FakeMemory parameters_{kPlentyBytes};
  FakeMemory others_{kPlentyBytes};
  std::unique_ptr<SavedModel> model_;  // dies before the memory that it lies in
};

TEST_F(ParameterMemoryTest, VariablesLieInItOnceAndNowhereElse) {
  Write(LargeVariableModel());
  const int64_t requests_before = RuntimeMemory().Statistics().in_use_bytes;
  const Status loaded = Load(&parameters_);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  const int64_t in_use_bytes = parameters_.Statistics().in_use_bytes;
  EXPECT_GE(in_use_bytes, kVariableBytes);
  // A second copy existed neither then nor now.
  EXPECT_LT(parameters_.Statistics().in_use_bytes_peak, kVariableBytes * 3 / 2);
  EXPECT_LT(RuntimeMemory().Statistics().in_use_bytes, requests_before + kVariableBytes / 2);
}

TEST_F(ParameterMemoryTest, RequestsAllocateNothingInIt) {
  Write(LargeVariableModel());
  ASSERT_TRUE(Load(&parameters_).ok());
  const memory::MemoryStatistics before = parameters_.Statistics();
  Tensor y;
  ASSERT_TRUE(Answer(Steps(2), &y).ok());
  EXPECT_EQ(y.flat<float>()(7), 7 * 14);
  EXPECT_EQ(parameters_.Statistics().allocation_count, before.allocation_count);
}

TEST_F(ParameterMemoryTest, NothingIsLeftInItOnceTheModelIsFreed) {
  Write(LargeVariableModel());
  ASSERT_TRUE(Load(&parameters_).ok());
  Tensor y;
  ASSERT_TRUE(Answer(Steps(2), &y).ok());
  model_.reset();
  EXPECT_EQ(parameters_.Statistics().in_use_bytes, 0);
}

// Its graph is not run again.
TEST_F(ParameterMemoryTest, NothingOfTheInitOpsGraphIsLeftInIt) {
  SavedModelFiles files = testing::DoublingModel();
  files.AddConst("large", Steps(1));
  files.AddConst("true", Tensor(true));
  files.AddNode("check", "Assert", {"true", "large"}, [](tensorflow::NodeDef* node) {
    (*node->mutable_attr())["T"].mutable_list()->add_type(tensorflow::DT_FLOAT);
  });
  files.SetInitOp("check");
  Write(files);
  const Status loaded = Load(&parameters_);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  EXPECT_GE(parameters_.Statistics().in_use_bytes_peak, kVariableBytes);
  EXPECT_LT(parameters_.Statistics().in_use_bytes, kVariableBytes / 2);
}

TEST_F(ParameterMemoryTest, TwoVersionsEachHaveTheirOwn) {
  Write(LargeVariableModel());
  ASSERT_TRUE(Load(&parameters_).ok());
  const std::unique_ptr<SavedModel> first = std::move(model_);
  const int64_t first_count = parameters_.Statistics().allocation_count;
  ASSERT_TRUE(Load(&others_).ok());
  EXPECT_GE(others_.Statistics().in_use_bytes, kVariableBytes);
  EXPECT_EQ(parameters_.Statistics().allocation_count, first_count);
}

TEST_F(ParameterMemoryTest, ThePlanNamesEveryBlockOfTheVariables) {
  Write(LargeVariableModel());
  SavedModel model(directory_.path(), {"serve"});
  ASSERT_TRUE(model.ReadGraph().ok());
  const base::StatusOr<std::vector<size_t>> bytes = model.ParameterBytes();
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_EQ(std::count(bytes.value().begin(), bytes.value().end(), kVariableBytes), 1);
}

TEST_F(ParameterMemoryTest, AfterTheSessionIsMadeItIsTooLateToSetIt) {
  Write(testing::DoublingModel());
  ASSERT_TRUE(Load(&parameters_).ok());
  EXPECT_EQ(model_->SetParameterMemory(&parameters_).code(), Code::kFailedPrecondition);
  EXPECT_EQ(model_->ParameterBytes().status().code(), Code::kFailedPrecondition);
}

TEST_F(ParameterMemoryTest, TooSmallMemoryIsExhaustedAndLeavesNothing) {
  Write(LargeVariableModel());
  FakeMemory parameters(kVariableBytes / 2);
  EXPECT_EQ(Load(&parameters).code(), Code::kResourceExhausted);
  model_.reset();
  EXPECT_EQ(parameters.Statistics().in_use_bytes, 0);
}

// For every model, every allocation of its load is refused once.
using MakeFiles = SavedModelFiles (*)();
class RefusedAllocation : public ParameterMemoryTest,
                          public ::testing::WithParamInterface<MakeFiles> {};

TEST_P(RefusedAllocation, AtAnyPointOfALoadFailsItOrNotAndLeavesNothing) {
  Write(GetParam()());
  RefusingMemory counting(-1);
  ASSERT_TRUE(Load(&counting).ok());
  model_.reset();
  ASSERT_GT(counting.asked_count(), 0);
  int failed_count = 0;
  for (int64_t refused = 0; refused < counting.asked_count(); ++refused) {
    RefusingMemory parameters(refused);
    failed_count += Load(&parameters).ok() ? 0 : 1;
    model_.reset();
    EXPECT_EQ(parameters.Statistics().in_use_bytes, 0) << "allocation " << refused;
  }
  EXPECT_GT(failed_count, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, RefusedAllocation,
                         ::testing::Values(&LargeVariableModel, &testing::TableModel,
                                           &testing::CountingModel));

TEST(ParameterMemoryScope, BelongsToItsThreadAndEndsWithItself) {
  FakeMemory parameters(kPlentyBytes);
  const auto memory = std::make_shared<ParameterMemory>(&parameters, tensorflow::cpu_allocator());
  EXPECT_EQ(ParameterMemoryScope::Current(), nullptr);
  {
    const ParameterMemoryScope scope(memory);
    EXPECT_EQ(ParameterMemoryScope::Current(), memory);
    std::thread([] { EXPECT_EQ(ParameterMemoryScope::Current(), nullptr); }).join();
  }
  EXPECT_EQ(ParameterMemoryScope::Current(), nullptr);
}

}  // namespace
}  // namespace millpond::tf
