#include "native/tf/accelerated_runner.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/base/giving_way.h"
#include "native/pjrt/device_memory.h"
#include "native/pjrt/device_parameters.h"
#include "native/pjrt/device_turns.h"
#include "native/pjrt/plugin.h"
#include "native/pjrt/tuned_trial.h"
#include "native/tensor/run_context.h"
#include "native/tf/servable_device.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/native/fake_pjrt_plugin.h"

namespace millpond::tf {
namespace {

using tensorflow::Tensor;

constexpr float kFactor = 3;  // of the program
constexpr float kHostAnswer = -1;

// The CPU: counts its runs, and answers each with one number.
class CountingRunner final : public SignatureRunner {
 public:
  explicit CountingRunner(std::atomic<int>* run_count) : run_count_(run_count) {}
  const base::Status& made() const override { return made_; }
  base::Status MakeCallable(const tensor::OutputSet&) const override { return {}; }
  base::Status Run(const tensor::OutputSet&, const tensor::TensorList&,
                   tensor::TensorList* result) const override {
    ++*run_count_;
    result->storage().tensors = {Tensor(kHostAnswer)};
    return {};
  }

 private:
  const base::Status made_;
  std::atomic<int>* const run_count_;
};

tensor::TensorSpec FloatRows(const char* name) {
  tensor::TensorSpec spec;
  spec.name = name;
  spec.dtype = tensorflow::DT_FLOAT;
  spec.is_rank_known = true;
  spec.dims = {tensor::TensorSpec::kUnknownSize};
  return spec;
}

class AcceleratedRunnerTest : public ::testing::Test {
 protected:
  AcceleratedRunnerTest() {
    controls_ = reinterpret_cast<FakePjrtControls* (*)()>(
        dlsym(dlopen(FAKE_PJRT_PLUGIN, RTLD_NOW), "FakePjrtControlsOf"))();
    *controls_ = {};
    signature_.name = "serving_default";
    signature_.inputs = {FloatRows("x")};
    signature_.outputs = {FloatRows("y")};
    options_.wait_ns_max = 500'000'000;
    Open();
  }

  void Open() {
    const auto accelerator =
        pjrt::Accelerator::MakeAll(pjrt::Plugin::Open(FAKE_PJRT_PLUGIN).value(), options_)
            .value()
            .front();
    const auto parameters = std::make_shared<pjrt::DeviceParameters>(
        accelerator, "m", std::vector{pjrt::HostTensor{PJRT_Buffer_Type_F32, {1}, &kFactor, 4}});
    EXPECT_TRUE(parameters->Upload(/*run_bytes=*/0).ok());
    constexpr size_t row = sizeof(float);
    for (auto* const program : {&program_, &exact_}) {
      *program = std::make_unique<pjrt::RowProgram>(parameters, std::vector<size_t>{0},
                                                    std::vector{row}, std::vector{row},
                                                    /*needs_exact_rows=*/program == &exact_);
      EXPECT_TRUE((*program)->AddSize(4, std::move(accelerator->Compile("4 1").value())).ok());
    }
    runner_ = MakeRunner(*program_);
  }

  std::unique_ptr<AcceleratedRunner> MakeRunner(const pjrt::RowProgram& program) {
    return std::make_unique<AcceleratedRunner>(std::make_unique<CountingRunner>(&host_runs_),
                                               std::vector<const pjrt::RowProgram*>{&program},
                                               signature_);
  }

  // Runs `x`, and returns the elements of y.
  std::vector<float> Run(const Tensor& x) const {
    tensor::TensorList inputs;
    inputs.storage().tensors = {x};
    tensor::TensorList result;
    EXPECT_TRUE(runner_->Run(tensor::OutputSet::All(1), inputs, &result).ok());
    const auto y = result.storage().tensors.at(0).flat<float>();
    return {y.data(), y.data() + y.size()};
  }
  std::vector<float> RunRows(const std::vector<float>& rows) const {
    Tensor x(tensorflow::DT_FLOAT, {static_cast<int64_t>(rows.size())});
    std::copy(rows.begin(), rows.end(), x.flat<float>().data());
    return Run(x);
  }

  int64_t CpuRuns(pjrt::CpuReason reason) const { return CpuRuns(reason, *program_); }
  static int64_t CpuRuns(pjrt::CpuReason reason, const pjrt::RowProgram& program) {
    return program.counts().Figures("").cpu_run_counts[static_cast<size_t>(reason)];
  }

  FakePjrtControls* controls_;
  pjrt::AcceleratorOptions options_;
  tensor::Signature signature_;
  std::unique_ptr<pjrt::RowProgram> program_;
  std::unique_ptr<pjrt::RowProgram> exact_;  // whose rows are not independent
  std::atomic<int> host_runs_{0};
  std::unique_ptr<AcceleratedRunner> runner_;
};

// A model with a replica on each of two devices.
class ReplicasTest : public AcceleratedRunnerTest {
 protected:
  ReplicasTest() {
    controls_->device_count = 2;
    accelerators_ =
        pjrt::Accelerator::MakeAll(pjrt::Plugin::Open(FAKE_PJRT_PLUGIN).value(), {}).value();
    constexpr size_t row = sizeof(float);
    std::vector<const pjrt::RowProgram*> borrowed;
    for (const auto& accelerator : accelerators_) {
      const auto parameters = std::make_shared<pjrt::DeviceParameters>(
          accelerator, "m", std::vector{pjrt::HostTensor{PJRT_Buffer_Type_F32, {1}, &kFactor, 4}});
      EXPECT_TRUE(parameters->Upload(/*run_bytes=*/0).ok());
      programs_.push_back(std::make_unique<pjrt::RowProgram>(parameters, std::vector<size_t>{0},
                                                             std::vector{row}, std::vector{row}));
      EXPECT_TRUE(
          programs_.back()->AddSize(4, std::move(accelerator->Compile("4 1").value())).ok());
      borrowed.push_back(programs_.back().get());
    }
    runner_ = std::make_unique<AcceleratedRunner>(std::make_unique<CountingRunner>(&host_runs_),
                                                  borrowed, signature_);
  }

  pjrt::Accelerator::List accelerators_;
  std::vector<std::unique_ptr<pjrt::RowProgram>> programs_;
};

TEST_F(ReplicasTest, IdleReplicasTakeTurns) {
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(runner_->MayRun(1));  // as SplitRunner asks before each run
    EXPECT_EQ(RunRows({1}), (std::vector<float>{3}));
  }
  EXPECT_EQ(controls_->device_run_counts[0], 2);
  EXPECT_EQ(controls_->device_run_counts[1], 2);
}

TEST_F(ReplicasTest, RequestsGoToTheShortestWait) {
  const auto busy = accelerators_[0]->turns().Take("other", /*is_low=*/false, 1'000'000,
                                                   pjrt::DeviceTurns::kNoDeadline);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(RunRows({1}), (std::vector<float>{3}));
  EXPECT_EQ(controls_->device_run_counts[0], 0);
  EXPECT_EQ(controls_->device_run_counts[1], 3);
}

TEST_F(ReplicasTest, OtherReplicaTakesOverFromALostDevice) {
  controls_->failing_device = 1;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(RunRows({1}), (std::vector<float>{3}));
  EXPECT_EQ(controls_->device_run_counts[0], 4);
  EXPECT_EQ(controls_->device_run_counts[1], 0);
  EXPECT_EQ(host_runs_, 0);
  EXPECT_TRUE(accelerators_[1]->State().is_failing);
  EXPECT_FALSE(accelerators_[0]->State().is_failing);
  controls_->failing_device = 0;
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kHostAnswer}));
}

// A program of "4 1" that adds this to each answer.
constexpr float kAdded = 7;

TEST_F(ReplicasTest, ATrialRunsOnEachReplica) {
  for (const auto& program : programs_) {
    auto tuned = program->parameters().accelerator()->Compile("4 1 7");
    ASSERT_TRUE(program->Offer(4, std::move(tuned.value())).ok());
  }
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor})) << "no request tries it";
  {
    const pjrt::TunedTrial trial(4);
    EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor + kAdded}));
  }
  for (const auto& program : programs_) EXPECT_TRUE(program->UseOffered(4));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor + kAdded}));
  EXPECT_EQ(host_runs_, 0);
}

TEST_F(ReplicasTest, ATrialThatFailsGivesNothingUp) {
  for (const auto& program : programs_) {
    auto tuned = program->parameters().accelerator()->Compile("4 1 7");
    ASSERT_TRUE(program->Offer(4, std::move(tuned.value())).ok());
  }
  controls_->failing_device = 1;
  {
    const pjrt::TunedTrial trial(4);
    tensor::TensorList inputs;
    inputs.storage().tensors = {Tensor(tensorflow::DT_FLOAT, {1})};
    inputs.storage().tensors[0].flat<float>()(0) = 1;
    tensor::TensorList result;
    EXPECT_EQ(runner_->Run(tensor::OutputSet::All(1), inputs, &result).code(),
              base::Code::kInternal);
  }
  controls_->failing_device = -1;
  EXPECT_TRUE(programs_[0]->HasPassed(4));
  EXPECT_FALSE(programs_[1]->HasPassed(4));
  for (const auto& program : programs_) program->WithdrawOffered(4);
  const std::vector<int64_t> before(controls_->device_run_counts, controls_->device_run_counts + 2);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor}));
  EXPECT_EQ(controls_->device_run_counts[0], before[0] + 2);
  EXPECT_EQ(controls_->device_run_counts[1], before[1] + 2) << "no replica is lost";
  EXPECT_EQ(host_runs_, 0);
}

TEST_F(ReplicasTest, ALostReplicaEndsNoTrial) {
  controls_->failing_device = 1;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor}));
  auto tuned = accelerators_[0]->Compile("4 1 7");
  ASSERT_TRUE(programs_[0]->Offer(4, std::move(tuned.value())).ok());
  {
    const pjrt::TunedTrial trial(4);
    EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor + kAdded}));
  }
  EXPECT_TRUE(programs_[0]->UseOffered(4));
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor + kAdded}));
  EXPECT_EQ(controls_->device_run_counts[1], 0);
}

TEST_F(ReplicasTest, ATrialNeedsAReplicaThatIsLeft) {
  tensor::TensorList inputs;
  inputs.storage().tensors = {Tensor(tensorflow::DT_FLOAT, {1})};
  inputs.storage().tensors[0].flat<float>()(0) = 1;
  const auto tried = [&] {
    const pjrt::TunedTrial trial(4);
    tensor::TensorList result;
    return runner_->Run(tensor::OutputSet::All(1), inputs, &result).code();
  };
  EXPECT_EQ(tried(), base::Code::kNotFound) << "nothing is offered";
  for (const int device : {0, 1}) {
    controls_->failing_device = device;
    for (int i = 0; i < 2; ++i) RunRows({1});
  }
  for (const auto& program : programs_) {
    auto tuned = program->parameters().accelerator()->Compile("4 1 7");
    ASSERT_TRUE(program->Offer(4, std::move(tuned.value())).ok());
  }
  controls_->failing_device = -1;
  EXPECT_EQ(tried(), base::Code::kNotFound) << "both are lost";
}

TEST_F(AcceleratedRunnerTest, RunsOnTheAccelerator) {
  EXPECT_EQ(RunRows({1, 2, 5}), (std::vector<float>{3, 6, 15}));
  EXPECT_EQ(host_runs_, 0);
}

TEST_F(AcceleratedRunnerTest, RowsThatAreNotIndependentFillAProgram) {
  runner_ = MakeRunner(*exact_);
  EXPECT_EQ(RunRows({1, 2, 5, 7}), (std::vector<float>{3, 6, 15, 21}));
  EXPECT_EQ(RunRows({1, 2, 5}), (std::vector<float>{kHostAnswer}));
  EXPECT_EQ(RunRows({1, 2, 5, 7, 9}), (std::vector<float>{kHostAnswer}));
  EXPECT_EQ(host_runs_, 2);
}

TEST_F(AcceleratedRunnerTest, OtherShapesRunOnTheCpu) {
  EXPECT_EQ(RunRows({}), (std::vector<float>{kHostAnswer}));
  EXPECT_EQ(Run(Tensor(tensorflow::DT_FLOAT, {2, 2})), (std::vector<float>{kHostAnswer}));
  EXPECT_EQ(Run(Tensor(tensorflow::DT_INT32, {2})), (std::vector<float>{kHostAnswer}));
  EXPECT_EQ(host_runs_, 3);
  EXPECT_EQ(controls_->run_count, 0);
  EXPECT_EQ(CpuRuns(pjrt::CpuReason::kShape), 3);
}

TEST_F(AcceleratedRunnerTest, ALostAcceleratorIsLeftAlone) {
  controls_->fails_runs = true;
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kHostAnswer}));
  controls_->fails_runs = false;
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kHostAnswer}));
  EXPECT_EQ(host_runs_, 2);
  EXPECT_EQ(controls_->run_count, 1);
  EXPECT_EQ(CpuRuns(pjrt::CpuReason::kFailed), 1);
  EXPECT_EQ(CpuRuns(pjrt::CpuReason::kLost), 1);
}

// No run ends any more: each of the requests under way has its answer, and later ones wait for
// nothing.
TEST_F(AcceleratedRunnerTest, TheCpuAnswersIfTheDeviceHangs) {
  options_.stall_ns = 50'000'000;
  Open();
  controls_->run_ns = int64_t{1} << 60U;
  std::vector<std::thread> requests;
  std::atomic<int> answer_count{0};
  for (int i = 0; i < 5; ++i) {
    requests.emplace_back([&] {
      tensor::TensorList inputs;
      inputs.storage().tensors = {Tensor(tensorflow::DT_FLOAT, {1})};
      tensor::TensorList result;
      if (runner_->Run(tensor::OutputSet::All(1), inputs, &result).ok()) ++answer_count;
    });
  }
  for (std::thread& request : requests) request.join();
  EXPECT_EQ(answer_count, 5);
  const int64_t run_count = controls_->run_count;
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kHostAnswer}));
  EXPECT_EQ(controls_->run_count, run_count);
  runner_.reset();
  program_.reset();
  exact_.reset();
  *controls_ = {};
}

// A run that the turns of others keep from the accelerator is the CPU's, and the next one is not.
TEST_F(AcceleratedRunnerTest, ARunThatWaitsForLongLosesNothing) {
  pjrt::DeviceTurns& turns = program_->parameters().accelerator()->turns();
  const auto take = [&](int64_t cost_ns) {
    return turns.Take("busy", /*is_low=*/false, cost_ns, pjrt::DeviceTurns::kNoDeadline);
  };
  auto first = take(0);
  auto second = take(0);
  auto third = take(10'000'000);
  std::thread waiting([&] { EXPECT_EQ(RunRows({1}), (std::vector<float>{kHostAnswer})); });
  while (turns.waiting_count() == 0) std::this_thread::yield();
  first.value().End();
  waiting.join();
  EXPECT_EQ(CpuRuns(pjrt::CpuReason::kWaited), 1);
  second.value().End();
  third.value().End();
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor}));
}

TEST_F(AcceleratedRunnerTest, AThreadThatGivesWayTakesNoTurn) {
  std::atomic<bool> gives_way{true};
  const base::GivingWayScope scope(&gives_way);
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kHostAnswer}));
  EXPECT_EQ(CpuRuns(pjrt::CpuReason::kGaveWay), 1);
  EXPECT_FALSE(runner_->MayRun(1));
  EXPECT_EQ(controls_->run_count, 0);
  gives_way = false;
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor}));
}

TEST_F(AcceleratedRunnerTest, ItIsKnownBeforeARunIfItMayBe) {
  EXPECT_TRUE(runner_->MayRun(std::nullopt));
  EXPECT_TRUE(runner_->MayRun(3));
  EXPECT_FALSE(runner_->MayRun(0));
  const auto exact = MakeRunner(*exact_);
  EXPECT_TRUE(exact->MayRun(4));
  EXPECT_FALSE(exact->MayRun(3));
  EXPECT_EQ(CpuRuns(pjrt::CpuReason::kShape), 1);
  EXPECT_EQ(CpuRuns(pjrt::CpuReason::kShape, *exact_), 1);
  controls_->fails_runs = true;
  (void)RunRows({1});
  EXPECT_FALSE(runner_->MayRun(4));
  EXPECT_EQ(CpuRuns(pjrt::CpuReason::kLost), 1);
}

// A request whose deadline cannot be met costs neither the accelerator nor the CPU a run.
TEST_F(AcceleratedRunnerTest, APassedDeadlineEndsARequest) {
  tensor::RunContext run;
  run.deadline_ns = base::MonotonicNs() - 1;
  const RunScope scope(run);
  tensor::TensorList inputs;
  inputs.storage().tensors = {Tensor(tensorflow::DT_FLOAT, {1})};
  tensor::TensorList result;
  EXPECT_EQ(runner_->Run(tensor::OutputSet::All(1), inputs, &result).code(),
            base::Code::kDeadlineExceeded);
  EXPECT_EQ(host_runs_, 0);
  EXPECT_EQ(controls_->run_count, 0);
}

// The CPU answers until the parameters, which a run asks for, are there.
TEST_F(AcceleratedRunnerTest, ParametersThatAreAwayComeBack) {
  pjrt::DeviceParameters& parameters = program_->parameters();
  pjrt::DeviceMemory& memory = parameters.accelerator()->memory();
  memory.SetLimit(sizeof(kFactor) - 1);
  constexpr size_t row = sizeof(float);
  const auto others = std::make_shared<pjrt::DeviceParameters>(
      parameters.accelerator(), "m",
      std::vector{pjrt::HostTensor{PJRT_Buffer_Type_F32, {1}, &kFactor, sizeof(kFactor)}});
  EXPECT_EQ(others->Upload(/*run_bytes=*/0).code(), base::Code::kResourceExhausted);
  memory.SetLimit(1'000);
  pjrt::RowProgram program(others, {0}, {row}, {row});
  ASSERT_TRUE(program.AddSize(4, std::move(parameters.accelerator()->Compile("4 1").value())).ok());
  runner_ = std::make_unique<AcceleratedRunner>(std::make_unique<CountingRunner>(&host_runs_),
                                                std::vector<const pjrt::RowProgram*>{&program},
                                                signature_);
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kHostAnswer}));
  while (RunRows({1}) == std::vector<float>{kHostAnswer}) base::SleepNs(100'000);
  EXPECT_EQ(RunRows({2}), (std::vector<float>{2 * kFactor}));
  EXPECT_EQ(
      program.counts().Figures("").cpu_run_counts[static_cast<size_t>(pjrt::CpuReason::kAway)],
      host_runs_);
  runner_.reset();
}

TEST_F(AcceleratedRunnerTest, AFullAcceleratorIsAskedAgain) {
  controls_->memory_bytes_max = sizeof(float);
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kHostAnswer}));
  controls_->memory_bytes_max = INT64_MAX;
  EXPECT_EQ(RunRows({1}), (std::vector<float>{kFactor}));
  EXPECT_EQ(host_runs_, 1);
  EXPECT_EQ(CpuRuns(pjrt::CpuReason::kMemory), 1);
}

}  // namespace
}  // namespace millpond::tf
