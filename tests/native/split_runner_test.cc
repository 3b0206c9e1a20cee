#include "native/tf/split_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "native/tensor/tensor_rows.h"
#include "native/tf/side_measurement.h"
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
  base::Status RunInTurn(const tensor::OutputSet& outputs, const tensor::TensorList& inputs,
                         tensor::TensorList* result, int64_t* wait_ns) const override {
    *wait_ns += waited_ns;
    return runner_->Run(outputs, inputs, result);
  }
  bool IsThere() const override { return is_there; }
  bool MayRun(std::optional<int64_t> rows) const override {
    asked_rows = rows;
    return may_run;
  }
  void CountCpuRun(pjrt::CpuReason reason) const override {
    refused_count += reason == pjrt::CpuReason::kRefused;
    faster_count += reason == pjrt::CpuReason::kFaster;
  }

  bool may_run = true;
  bool is_there = true;
  int64_t waited_ns = 0;
  mutable std::optional<int64_t> asked_rows;
  mutable int refused_count = 0;
  mutable int faster_count = 0;

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

// Takes some rows, and adds a number to each. Keeps the first element of the last run.
class RowsRunner final : public SignatureRunner {
 public:
  explicit RowsRunner(float added) : added_(added) {}
  const base::Status& made() const override { return made_; }
  base::Status MakeCallable(const tensor::OutputSet&) const override { return {}; }
  base::Status Run(const tensor::OutputSet&, const tensor::TensorList& inputs,
                   tensor::TensorList* result) const override {
    MILLPOND_RETURN_IF_ERROR(error);
    const auto rows = inputs.storage().tensors[0].flat<float>();
    row_counts.push_back(rows.size());
    last.assign(rows.data(), rows.data() + rows.size());
    Tensor sums(tensorflow::DT_FLOAT, {rows.size()});
    sums.flat<float>() = rows + added_;
    result->storage().tensors = {sums};
    return {};
  }

  base::Status error;
  mutable std::vector<int64_t> row_counts;  // of each run
  mutable std::vector<float> last;          // the input of the last run

 private:
  const base::Status made_;
  const float added_;
};

// A signature of rows with the choice: the CPU adds 1, and the device 100.
class ChosenSideTest : public ::testing::Test {
 protected:
  ChosenSideTest() : sides_(std::vector<int64_t>{1, 4}) {
    split_.device.outputs.resize(1);
    split_.device_inputs = {{true, 0}};
    split_.outputs = {{true, 0}};
    auto whole = std::make_unique<RowsRunner>(1);
    auto device = std::make_unique<RowsRunner>(100);
    whole_ = whole.get();
    device_ = device.get();
    auto part = std::make_unique<DevicePart>(std::move(device));
    part_ = part.get();
    runner_ =
        std::make_unique<SplitRunner>(std::move(whole), nullptr, std::move(part), split_, &sides_);
    signature_.inputs.resize(1);
    signature_.inputs[0].dtype = tensorflow::DT_FLOAT;
    signature_.inputs[0].dims = {tensor::TensorSpec::kUnknownSize};
  }

  // Returns the first row of the answer to `rows` rows of 7; 0 if the run fails.
  float Run(int64_t rows) {
    tensor::TensorList inputs;
    inputs.storage().tensors = {Tensor(tensorflow::DT_FLOAT, {rows})};
    inputs.storage().tensors[0].flat<float>().setConstant(7);
    return Run(inputs).ok() ? answer_ : 0;
  }
  base::Status Run(const tensor::TensorList& inputs) {
    tensor::TensorList result;
    MILLPOND_RETURN_IF_ERROR(runner_->Run(tensor::OutputSet::All(1), inputs, &result));
    answer_ = result.storage().tensors[0].flat<float>()(0);
    return {};
  }
  base::Status Measure() {
    return MeasureSides(
        signature_, [this](const tensor::TensorList& inputs) { return Run(inputs); }, &sides_);
  }

  SignatureSplit split_;
  tensor::Signature signature_;
  MeasuredSides sides_;
  RowsRunner* whole_;
  RowsRunner* device_;
  DevicePart* part_;
  std::unique_ptr<SplitRunner> runner_;
  float answer_ = 0;
};

TEST_F(ChosenSideTest, RunsGoToTheChosenSideOfTheirSize) {
  EXPECT_EQ(Run(1), 107);
  sides_.times.Choose(1, pjrt::Side::kCpu, pjrt::SideTimes::kNoProbes);
  EXPECT_EQ(Run(1), 8);
  EXPECT_EQ(Run(3), 107);
  EXPECT_EQ(part_->faster_count, 1);
}

TEST_F(ChosenSideTest, AProbeGoesToTheOtherSideIfItIsThere) {
  sides_.times.Choose(4, pjrt::Side::kCpu, /*probe_one_of=*/3);
  EXPECT_EQ((std::vector{Run(4), Run(4), Run(4)}), (std::vector<float>{8, 8, 107}));
  part_->is_there = false;
  EXPECT_EQ((std::vector{Run(4), Run(4), Run(4)}), (std::vector<float>{8, 8, 8}));
}

TEST_F(ChosenSideTest, AnErrorOfTheCpuIsTheAnswer) {
  sides_.times.Choose(1, pjrt::Side::kCpu, pjrt::SideTimes::kNoProbes);
  whole_->error = base::InvalidArgument("a wrong id");
  EXPECT_EQ(Run(1), 0);
  EXPECT_TRUE(device_->row_counts.empty());
}

TEST_F(ChosenSideTest, EachSizeIsMeasuredOnBothSides) {
  EXPECT_TRUE(Measure().ok());
  for (const pjrt::SizeTimes& size : sides_.times.Times()) {
    EXPECT_GT(size.cpu_ns, 0);
    EXPECT_GT(size.accelerator_ns, 0);
    EXPECT_TRUE(size.is_on_accelerator);
  }
  EXPECT_EQ(std::count(whole_->row_counts.begin(), whole_->row_counts.end(), 1), 6);
  EXPECT_EQ(std::count(whole_->row_counts.begin(), whole_->row_counts.end(), 4), 6);
  EXPECT_EQ(whole_->last, std::vector<float>(4, 0)) << "without a request, zeros";
  EXPECT_EQ(Run(4), 107);
}

TEST_F(ChosenSideTest, RowsOfTheFirstRequestAreMeasured) {
  tensor::TensorList inputs;
  inputs.storage().tensors = {Tensor(tensorflow::DT_FLOAT, {3})};
  inputs.storage().tensors[0].flat<float>().setValues({1, 2, 3});
  ASSERT_TRUE(Run(inputs).ok());
  EXPECT_EQ(Run(2), 107);
  EXPECT_TRUE(Measure().ok());
  EXPECT_EQ(whole_->last, (std::vector<float>{1, 2, 3, 1}));
}

TEST_F(ChosenSideTest, TheWaitForATurnIsNotMeasured) {
  constexpr int64_t kLongNs = 1'000'000'000;
  part_->waited_ns = kLongNs;
  EXPECT_TRUE(Measure().ok());
  EXPECT_LT(sides_.times.Times()[1].accelerator_ns, 0) << "less than the wait";
}

TEST_F(ChosenSideTest, AFailureLeavesTheRestOnTheAccelerator) {
  whole_->error = base::Status(base::Code::kDeadlineExceeded, "too slow");
  EXPECT_EQ(Measure().code(), base::Code::kDeadlineExceeded);
  for (const pjrt::SizeTimes& size : sides_.times.Times()) {
    EXPECT_EQ(size.cpu_ns, 0);
    EXPECT_TRUE(size.is_on_accelerator);
  }
  EXPECT_FALSE(sides_.times.Plan(1).is_timed);
}

}  // namespace
}  // namespace millpond::tf
