#include "native/tf/split_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"

namespace millpond::tf {
namespace {

using tensorflow::Tensor;

// Adds a number to each input, and returns the sums as its outputs.
class AddingRunner final : public SignatureRunner {
 public:
  explicit AddingRunner(float added) : added_(added) {}
  const base::Status& made() const override { return made_; }
  base::Status MakeCallable(const tensor::OutputSet&) const override { return {}; }
  base::Status Run(const tensor::OutputSet&, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override {
    ++run_count;
    MILLPOND_RETURN_IF_ERROR(error);
    result->storage().tensors.clear();
    for (const Tensor& input : inputs.storage().tensors) {
      result->storage().tensors.emplace_back(input.scalar<float>()() + added_);
    }
    return {};
  }

  mutable int run_count = 0;
  base::Status error;

 private:
  const base::Status made_;
  const float added_;
};

// Takes each run, unless the test forbids it.
class DevicePart : public DeviceRunner {
 public:
  explicit DevicePart(std::unique_ptr<SignatureRunner> runner) : runner_(std::move(runner)) {}
  const base::Status& made() const override { return runner_->made(); }
  base::Status MakeCallable(const tensor::OutputSet&) const override { return {}; }
  base::Status Run(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override {
    return runner_->Run(outputs, inputs, result);
  }
  bool MayRun(std::optional<int64_t> rows) const override {
    asked_rows = rows;
    return may_run;
  }
  void CountRefused() const override { ++refused_count; }

  bool may_run = true;
  mutable std::optional<int64_t> asked_rows;
  mutable int refused_count = 0;

 private:
  const std::unique_ptr<SignatureRunner> runner_;
};

// The host part adds 10 to each of two inputs; the device part adds 100 to the first input and to
// the second output of the host part.
class SplitRunnerTest : public ::testing::Test {
 protected:
  SplitRunnerTest() {
    split_.host.outputs.resize(2);
    split_.device.outputs.resize(2);
    split_.device_inputs = {{true, 0}, {false, 1}};
    split_.outputs = {{true, 1}, {false, 0}, {true, 0}};
    auto whole = std::make_unique<AddingRunner>(1);
    auto host = std::make_unique<AddingRunner>(10);
    auto device = std::make_unique<AddingRunner>(100);
    whole_ = whole.get();
    host_ = host.get();
    device_ = device.get();
    auto part = std::make_unique<DevicePart>(std::move(device));
    part_ = part.get();
    runner_ =
        std::make_unique<SplitRunner>(std::move(whole), std::move(host), std::move(part), split_);
  }

  std::vector<float> Run(const tensor::OutputSet& outputs) {
    tensor::TensorList inputs;
    inputs.storage().tensors = {Tensor(1.0F), Tensor(2.0F)};
    tensor::TensorList result;
    status_ = runner_->Run(outputs, inputs, &result);
    std::vector<float> values;
    for (const Tensor& tensor : result.storage().tensors) {
      values.push_back(tensor.scalar<float>()());
    }
    return values;
  }

  SignatureSplit split_;
  AddingRunner* whole_;
  AddingRunner* host_;
  AddingRunner* device_;
  DevicePart* part_;
  std::unique_ptr<SplitRunner> runner_;
  base::Status status_;
};

TEST_F(SplitRunnerTest, OutputsComeFromBothParts) {
  EXPECT_EQ(Run(tensor::OutputSet::All(3)), (std::vector<float>{112, 11, 101}));
  EXPECT_EQ(whole_->run_count, 0);
}

TEST_F(SplitRunnerTest, OnlyTheOutputsAskedForAreReturned) {
  tensor::OutputSet outputs(3);
  outputs.Add(1);
  EXPECT_EQ(Run(outputs), (std::vector<float>{11}));
}

TEST_F(SplitRunnerTest, AFailureOfTheHostPartIsAnsweredByTheWhole) {
  host_->error = base::InvalidArgument("an id is too large");
  EXPECT_EQ(Run(tensor::OutputSet::All(3)), (std::vector<float>{2, 3}));
  EXPECT_EQ(device_->run_count, 0);
  EXPECT_EQ(part_->refused_count, 1);
  whole_->error = base::InvalidArgument("the CPU says so too");
  Run(tensor::OutputSet::All(3));
  EXPECT_EQ(status_.message(), "the CPU says so too");
}

TEST_F(SplitRunnerTest, APassedDeadlineIsNoRunOnTheCpu) {
  host_->error = base::Status(base::Code::kDeadlineExceeded, "too late");
  EXPECT_EQ(Run(tensor::OutputSet::All(3)), std::vector<float>());
  EXPECT_EQ(whole_->run_count, 0);
  EXPECT_EQ(part_->refused_count, 0);
}

TEST_F(SplitRunnerTest, ARunThatTheDeviceCannotTakeHasNoHostPart) {
  part_->may_run = false;
  EXPECT_EQ(Run(tensor::OutputSet::All(3)), (std::vector<float>{2, 3}));
  EXPECT_EQ(host_->run_count, 0);
  EXPECT_EQ(part_->asked_rows, std::nullopt) << "scalars have no rows";
}

TEST_F(SplitRunnerTest, TheRowsAreThoseOfAnInputThatCrosses) {
  part_->may_run = false;
  tensor::TensorList inputs;
  inputs.storage().tensors = {Tensor(tensorflow::DT_FLOAT, {5}), Tensor(tensorflow::DT_FLOAT, {9})};
  tensor::TensorList result;
  whole_->error = base::InvalidArgument("the CPU was asked");
  EXPECT_FALSE(runner_->Run(tensor::OutputSet::All(3), inputs, &result).ok());
  EXPECT_EQ(part_->asked_rows, 5);
}

TEST_F(SplitRunnerTest, AFailureOfTheDeviceIsAnsweredByTheWhole) {
  device_->error = RefusingRunner().Run(tensor::OutputSet(), tensor::TensorList(), nullptr);
  EXPECT_EQ(Run(tensor::OutputSet::All(3)), (std::vector<float>{2, 3}));
  EXPECT_EQ(host_->run_count, 1);
}

// The flag of the index check is the last output of the device part.
class FlagRunner final : public SignatureRunner {
 public:
  explicit FlagRunner(const std::vector<bool>& flags) : flags_(flags) {}
  const base::Status& made() const override { return made_; }
  base::Status MakeCallable(const tensor::OutputSet&) const override { return {}; }
  base::Status Run(const tensor::OutputSet&, const tensor::TensorList&,
                   tensor::TensorList* result) const override {
    Tensor flags(tensorflow::DT_BOOL, {static_cast<int64_t>(flags_.size())});
    std::copy(flags_.begin(), flags_.end(), flags.flat<bool>().data());
    result->storage().tensors = {Tensor(7.0F), Tensor(8.0F), flags};
    return {};
  }

 private:
  const base::Status made_;
  const std::vector<bool> flags_;
};

TEST_F(SplitRunnerTest, AWrongIndexIsAnsweredByTheWhole) {
  split_.has_index_check = true;
  split_.device.outputs.resize(3);
  for (const bool is_right : {true, false}) {
    auto part = std::make_unique<DevicePart>(
        std::make_unique<FlagRunner>(std::vector<bool>{true, is_right, true}));
    part_ = part.get();
    runner_ =
        std::make_unique<SplitRunner>(std::make_unique<AddingRunner>(1),
                                      std::make_unique<AddingRunner>(10), std::move(part), split_);
    EXPECT_EQ(Run(tensor::OutputSet::All(3)),
              is_right ? (std::vector<float>{8, 11, 7}) : (std::vector<float>{2, 3}));
    EXPECT_EQ(part_->refused_count, is_right ? 0 : 1);
  }
}

}  // namespace
}  // namespace millpond::tf
