#include "native/tf/version_load.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/memory/jemalloc_api.h"
#include "native/tf/tensor_storage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/native/fake_memory.h"
#include "tests/native/saved_model_files.h"
#include "tests/native/tensorflow_runtime.h"
#include "tests/native/tensors.h"
#include "tests/native/units.h"

namespace millpond::tf {
namespace {

using base::Code;
using base::Status;
using servable::ServableEntry;
using testing::SavedModelFiles;
using testing::TemporaryDirectory;
using testing::Vector;

using testing::kMiB;
constexpr int64_t kNowNs = 1'000'000'000;

using Step = Status (VersionLoad::*)();
const std::vector<Step> kSteps = {&VersionLoad::ReadGraph, &VersionLoad::CreateSession,
                                  &VersionLoad::Restore, &VersionLoad::RunInit,
                                  &VersionLoad::MakeCallables};

class VersionLoadTest : public ::testing::Test {
 protected:
  VersionLoadTest() { testing::VariableModel(Vector<float>({10, 100})).Write(directory_.path()); }

  std::unique_ptr<VersionLoad> NewLoad(const std::vector<std::string>& tags = {"serve"}) const {
    return std::make_unique<VersionLoad>(servable::ServableId{"m", 7}, directory_.path(), tags);
  }
  // Takes the first `count` steps.
  static void TakeSteps(VersionLoad& load, size_t count = kSteps.size()) {
    for (size_t i = 0; i < count; ++i) {
      const Status taken = (load.*kSteps[i])();
      ASSERT_TRUE(taken.ok()) << i << ": " << taken.message();
    }
  }
  static FinishedLoad Finished(VersionLoad& load) {
    auto finished = load.Finish(nullptr, nullptr, kNowNs);
    EXPECT_TRUE(finished.ok()) << finished.status().message();
    return std::move(finished.value());
  }
  // Returns the answer of the version to x, of VariableModel.
  static std::vector<float> Answer(const servable::Servable& servable,
                                   std::initializer_list<float> x) {
    tensor::TensorList inputs;
    tensor::TensorList outputs;
    inputs.storage().tensors = {Vector<float>(x)};
    const tensor::Signature& signature = servable.signatures().at("serving_default");
    const Status ran = servable.Run(signature, tensor::OutputSet::All(1), {}, inputs, &outputs);
    EXPECT_TRUE(ran.ok()) << ran.message();
    return ran.ok() ? testing::Values<float>(outputs.storage().tensors[0]) : std::vector<float>();
  }
  static void ExpectEnded(const Status& status) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(status.message(), "the load of m version 7 is finished");
  }
  // Expects that no step can be taken any more.
  static void ExpectEnded(VersionLoad& load) {
    for (const Step step : kSteps) ExpectEnded((load.*step)());
    ExpectEnded(load.CheckInputShapes());
    ExpectEnded(load.PlanMemory(0).status());
    ExpectEnded(load.TakeArena(std::make_shared<memory::SlabPool>(memory::SlabPoolOptions()), kMiB,
                               &testing::RuntimeMemory())
                    .status());
    ExpectEnded(load.MakeCallable([](const servable::Servable&) { return Status(); }));
    ExpectEnded(load.Finish(nullptr, nullptr, kNowNs).status());
    ExpectEnded(load.MissingOps().status());
    ExpectEnded(load.VariablesWithoutValue().status());
    ExpectEnded(load.MayWriteVariables().status());
  }

  const TemporaryDirectory directory_;
};

TEST_F(VersionLoadTest, FinishGivesAnEntryThatAnswers) {
  const auto load = NewLoad();
  TakeSteps(*load);
  const FinishedLoad finished = Finished(*load);
  EXPECT_EQ(finished.entry->id().name, "m");
  EXPECT_EQ(finished.entry->id().version, 7);
  EXPECT_FALSE(finished.entry->is_published());
  EXPECT_EQ(Answer(finished.entry->servable(), {1, 2}), (std::vector<float>{10, 200}));
  EXPECT_TRUE(finished.entry->Destroy().ok());
  EXPECT_EQ(finished.version->Free().live_bytes, 0);
}

TEST_F(VersionLoadTest, EachStepNeedsTheStepBeforeIt) {
  for (size_t next = 0; next < kSteps.size(); ++next) {
    const auto load = NewLoad();
    TakeSteps(*load, next);
    for (size_t step = 0; step < kSteps.size(); ++step) {
      if (step == next) continue;
      EXPECT_EQ(((*load).*kSteps[step])().code(), Code::kFailedPrecondition) << next << step;
    }
    // A step out of order changes nothing.
    EXPECT_TRUE(((*load).*kSteps[next])().ok()) << next;
  }
}

TEST_F(VersionLoadTest, MakeCallableAndFinishNeedAllSteps) {
  for (size_t count = 0; count < kSteps.size(); ++count) {
    const auto load = NewLoad();
    TakeSteps(*load, count);
    bool is_called = false;
    const Status made = load->MakeCallable([&](const servable::Servable&) {
      is_called = true;
      return Status();
    });
    EXPECT_EQ(made.code(), Code::kFailedPrecondition) << count;
    EXPECT_NE(made.message().find("make_callable"), std::string::npos) << made.message();
    EXPECT_FALSE(is_called);
    const Status finished = load->Finish(nullptr, nullptr, kNowNs).status();
    EXPECT_EQ(finished.code(), Code::kFailedPrecondition) << count;
    EXPECT_NE(finished.message().find("finish"), std::string::npos) << finished.message();
  }
}

TEST_F(VersionLoadTest, MakeCallableGetsTheVersionAndReturnsTheResult) {
  const auto load = NewLoad();
  TakeSteps(*load);
  std::vector<float> answer;
  const Status made = load->MakeCallable([&](const servable::Servable& servable) {
    EXPECT_EQ(servable.id().version, 7);
    answer = Answer(servable, {3, 1});
    return Status(Code::kDataLoss, "of the caller");
  });
  EXPECT_EQ(made.code(), Code::kDataLoss);
  EXPECT_EQ(answer, (std::vector<float>{30, 100}));
  EXPECT_EQ(Answer(Finished(*load).entry->servable(), {1, 1}), (std::vector<float>{10, 100}));
}

TEST_F(VersionLoadTest, NoStepFollowsFinish) {
  const auto load = NewLoad();
  TakeSteps(*load);
  const FinishedLoad finished = Finished(*load);
  ExpectEnded(*load);
  // The version belongs to the entry now.
  EXPECT_EQ(load->Discard().live_bytes, 0);
  EXPECT_EQ(Answer(finished.entry->servable(), {1, 2}), (std::vector<float>{10, 200}));
}

TEST_F(VersionLoadTest, NoStepFollowsDiscardAfterAnyStep) {
  for (size_t count = 0; count <= kSteps.size(); ++count) {
    const auto load = NewLoad();
    TakeSteps(*load, count);
    EXPECT_EQ(load->Discard().live_bytes, 0);
    ExpectEnded(*load);
    EXPECT_EQ(load->Discard().live_bytes, 0);
  }
}

TEST_F(VersionLoadTest, DiscardFreesTheParameters) {
  constexpr int64_t kBytes = 16 * kMiB;
  tensorflow::Tensor value(tensorflow::DT_FLOAT, {kBytes / int64_t{sizeof(float)}});
  value.flat<float>().setConstant(1);
  testing::VariableModel(value).Write(directory_.path());
  const int64_t before_bytes = testing::RuntimeMemory().Statistics().in_use_bytes;
  const auto load = NewLoad();
  TakeSteps(*load, 3);
  EXPECT_EQ(load->restored_bytes(), kBytes);
  EXPECT_GE(testing::RuntimeMemory().Statistics().in_use_bytes, before_bytes + kBytes);
  load->Discard();
  EXPECT_LT(testing::RuntimeMemory().Statistics().in_use_bytes, before_bytes + kBytes / 10);
}

TEST_F(VersionLoadTest, ACancelledRestoreEndsWithCancelled) {
  const auto load = NewLoad();
  TakeSteps(*load, 2);
  load->Cancel();
  const Status restored = load->Restore();
  EXPECT_EQ(restored.code(), Code::kCancelled) << restored.message();
  // The load cannot be continued.
  EXPECT_EQ(load->RunInit().code(), Code::kFailedPrecondition);
  EXPECT_EQ(load->Finish(nullptr, nullptr, kNowNs).status().code(), Code::kFailedPrecondition);
}

TEST_F(VersionLoadTest, ACancelledInitEndsWithCancelled) {
  testing::TableModel().Write(directory_.path());
  const auto load = NewLoad();
  TakeSteps(*load, 3);
  load->Cancel();
  const Status initialized = load->RunInit();
  EXPECT_EQ(initialized.code(), Code::kCancelled) << initialized.message();
  EXPECT_EQ(load->MakeCallables().code(), Code::kFailedPrecondition);
}

TEST_F(VersionLoadTest, AnotherThreadCancelsAPacedRestore) {
  constexpr int64_t kElementCount = 8 << 20;
  tensorflow::Tensor value(tensorflow::DT_FLOAT, {kElementCount});
  value.flat<float>().setConstant(1);
  testing::VariableModel(value).Write(directory_.path());
  const auto load = NewLoad();
  load->SetRestoreBytesPerSecond(1);
  TakeSteps(*load, 2);
  Status restored;
  std::thread loader([&] { restored = load->Restore(); });
  // At this pace the restore would take a year.
  while (load->restored_bytes() == 0) std::this_thread::yield();
  load->Cancel();
  loader.join();
  EXPECT_EQ(restored.code(), Code::kCancelled) << restored.message();
  EXPECT_LT(load->restored_bytes(), kElementCount * int64_t{sizeof(float)});
}

TEST_F(VersionLoadTest, CancelAfterTheEndLeavesTheVersion) {
  const auto load = NewLoad();
  TakeSteps(*load);
  const FinishedLoad finished = Finished(*load);
  load->Cancel();
  load->SetRestoreBytesPerSecond(1);
  EXPECT_EQ(load->restored_bytes(), 2 * int64_t{sizeof(float)});
  EXPECT_EQ(Answer(finished.entry->servable(), {1, 2}), (std::vector<float>{10, 200}));
}

TEST_F(VersionLoadTest, AFailedStepEndsTheLoadThere) {
  const auto other_tags = NewLoad({"train"});
  EXPECT_EQ(other_tags->ReadGraph().code(), Code::kNotFound);
  EXPECT_EQ(other_tags->CreateSession().code(), Code::kFailedPrecondition);
  const auto cut = NewLoad();
  TakeSteps(*cut, 2);
  testing::CutFile(directory_.File("variables/variables.data-00000-of-00001"), 5);
  EXPECT_EQ(cut->Restore().code(), Code::kOutOfRange);
  EXPECT_EQ(cut->RunInit().code(), Code::kFailedPrecondition);
  EXPECT_EQ(cut->Discard().live_bytes, 0);
}

TEST_F(VersionLoadTest, PropertiesOfTheModel) {
  const auto load = NewLoad();
  TakeSteps(*load, 4);
  EXPECT_EQ(load->MissingOps().value(), std::vector<std::string>());
  EXPECT_EQ(load->VariablesWithoutValue().value(), std::vector<std::string>());
  EXPECT_FALSE(load->MayWriteVariables().value());
}

TEST_F(VersionLoadTest, StatisticsReportTheVersionAndItsHandles) {
  metrics::RequestStatistics statistics(0);
  const auto load = NewLoad();
  TakeSteps(*load);
  FinishedLoad finished = std::move(load->Finish(nullptr, &statistics, kNowNs).value());
  finished.entry->requests().Of(metrics::Method::kPredict).Record(Code::kOk, {});
  statistics.Sample(2 * kNowNs);
  const auto in_flight_count = [&]() -> int64_t {
    for (const metrics::MethodStatistics& method : statistics.Methods()) {
      if (method.key.model == "m" && method.key.version == 7) return method.in_flight_count;
    }
    return -1;
  };
  {
    const servable::ServableHandle handle(finished.entry.get());
    EXPECT_EQ(in_flight_count(), 1);
  }
  EXPECT_EQ(in_flight_count(), 0);
  ASSERT_TRUE(finished.entry->Destroy().ok());
  finished.entry.reset();
  EXPECT_EQ(in_flight_count(), 0);
}

// Over jemalloc only.
class VersionLoadArenaTest : public VersionLoadTest {
 protected:
  void SetUp() override {
    if (!memory::IsJemallocPreloaded()) GTEST_SKIP() << "without jemalloc there are no arenas";
  }
  void TakeArena(VersionLoad& load) {
    const auto plan = load.PlanMemory(kMiB);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const auto taken = load.TakeArena(pool_, plan.value().slab_bytes, &testing::RuntimeMemory());
    ASSERT_TRUE(taken.ok()) << taken.status().message();
  }

  const std::shared_ptr<memory::SlabPool> pool_ =
      std::make_shared<memory::SlabPool>(memory::SlabPoolOptions());
};

TEST_F(VersionLoadArenaTest, MemoryIsPlannedBetweenGraphAndSession) {
  const auto load = NewLoad();
  EXPECT_EQ(load->PlanMemory(0).status().code(), Code::kFailedPrecondition);
  TakeSteps(*load, 1);
  const auto plan = load->PlanMemory(0);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_GE(plan.value().parameter_bytes, 2 * sizeof(float));
  EXPECT_GE(plan.value().slab_bytes, plan.value().parameter_bytes);
  EXPECT_EQ(load->PlanMemory(kMiB).value().slab_bytes, plan.value().slab_bytes + kMiB);
  EXPECT_EQ(load->PlanMemory(SIZE_MAX).value().slab_bytes, SIZE_MAX);
  ASSERT_TRUE(load->CreateSession().ok());
  EXPECT_EQ(load->PlanMemory(0).status().code(), Code::kFailedPrecondition);
}

TEST_F(VersionLoadArenaTest, ParametersLieInTheArena) {
  const auto load = NewLoad();
  TakeSteps(*load, 1);
  TakeArena(*load);
  for (size_t i = 1; i < kSteps.size(); ++i) ASSERT_TRUE(((*load).*kSteps[i])().ok()) << i;
  const FinishedLoad finished = Finished(*load);
  ASSERT_NE(finished.version->arena(), nullptr);
  EXPECT_GT(finished.version->arena()->used_slab_bytes(), 0);
  EXPECT_EQ(finished.version->overflow_block_count(), 0);
  EXPECT_TRUE(finished.version->Seal().value());
  EXPECT_EQ(Answer(finished.entry->servable(), {1, 2}), (std::vector<float>{10, 200}));
  ASSERT_TRUE(finished.entry->Destroy().ok());
  EXPECT_EQ(finished.version->Free().live_bytes, 0);
  EXPECT_EQ(pool_->Statistics().in_use_count, 0);
}

TEST_F(VersionLoadArenaTest, DiscardGivesTheSlabBack) {
  for (size_t count = 1; count <= kSteps.size(); ++count) {
    const auto load = NewLoad();
    TakeSteps(*load, 1);
    TakeArena(*load);
    EXPECT_EQ(pool_->Statistics().in_use_count, 1);
    for (size_t i = 1; i < count; ++i) ASSERT_TRUE(((*load).*kSteps[i])().ok()) << i;
    EXPECT_EQ(load->Discard().live_bytes, 0);
    EXPECT_EQ(pool_->Statistics().in_use_count, 0);
  }
}

TEST_F(VersionLoadArenaTest, AnArenaThatComesTooLateIsGivenBack) {
  const auto load = NewLoad();
  TakeSteps(*load, 2);
  const auto taken = load->TakeArena(pool_, kMiB, &testing::RuntimeMemory());
  EXPECT_EQ(taken.status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(pool_->Statistics().in_use_count, 0);
}

TEST_F(VersionLoadTest, WithoutAnArenaNothingIsSealed) {
  const auto load = NewLoad();
  TakeSteps(*load);
  const FinishedLoad finished = Finished(*load);
  EXPECT_FALSE(finished.version->Seal().value());
  EXPECT_EQ(finished.version->overflow_block_count(), 0);
}

}  // namespace
}  // namespace millpond::tf
