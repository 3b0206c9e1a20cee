#include "native/inference/controlled_version.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/servable/serving_map.h"
#include "tests/native/plain_servable.h"
#include "tests/native/predict_messages.h"
#include "tests/native/threads.h"

namespace millpond::inference {
namespace {

using base::Code;
using base::Status;
using testing::FakeRun;
using testing::NumbersOf;
using testing::NumberTensor;

namespace dtype = tensor::dtype;

// A Predict request with these rows of x.
std::string PredictRows(const std::vector<float>& x) {
  const std::string tensor = testing::kRowsMark + NumberTensor(dtype::kFloat, {}, x).bytes;
  return testing::PredictMessage(testing::ModelSpecMessage("m"), {{"x", tensor}});
}

// A version of one signature, x: float32[?] -> y, which doubles x.
class ControlledVersionTest : public ::testing::Test {
 protected:
  using Script = testing::Script;

  // Makes the version. Each of its runs first calls `script`.
  void Make(bool is_batched = false, Script script = {},
            int64_t run_ns_max = tensor::RunContext::kNoDeadline) {
    std::unique_ptr<servable::Servable> servable = MakeServable(std::move(script));
    const servable::BatchingServable* batching = nullptr;
    if (is_batched) {
      auto batched = std::make_unique<servable::BatchingServable>(std::move(servable),
                                                                  servable::BatchSettings());
      batching = batched.get();
      servable = std::move(batched);
    }
    version_ = std::make_unique<ControlledVersion>(
        std::make_shared<servable::ServableEntry>(std::move(servable)), batching, run_ns_max);
  }
  base::StatusOr<std::string> Predict(const std::vector<float>& x, bool may_write = true) const {
    return version_->Answer("Predict", PredictRows(x), may_write);
  }
  void Publish() { ASSERT_TRUE(map_.Publish(version_->entry(), {}).ok()); }
  void Retire() { ASSERT_TRUE(map_.Retire("m", 7, {}).ok()); }

  servable::ServingMap map_;
  std::unique_ptr<ControlledVersion> version_;
  std::vector<size_t> run_rows_;

 private:
  std::unique_ptr<servable::Servable> MakeServable(Script script) {
    const auto run = [this](const FakeRun& run) -> Status {
      auto x = NumbersOf<float>(run.inputs.storage().tensors[0]);
      run_rows_.push_back(x.size());
      for (float& value : x) value *= 2;
      run.result->Reset(1);
      run.result->storage().tensors[0] =
          NumberTensor(dtype::kFloat, {static_cast<int64_t>(x.size())}, x);
      return {};
    };
    const std::vector<tensor::Signature> signatures = {{"serving_default",
                                                        "",
                                                        {testing::Spec("x", dtype::kFloat, {-1})},
                                                        {testing::Spec("y", dtype::kFloat, {-1})}}};
    return std::make_unique<testing::FakeServable>(servable::ServableId{"m", 7}, signatures,
                                                   testing::AfterScript(std::move(script), run));
  }
};

TEST_F(ControlledVersionTest, AnswersBeforeAndWhileItIsPublished) {
  Make();
  EXPECT_TRUE(Predict({1, 2}).ok());
  Publish();
  EXPECT_TRUE(Predict({3}).ok());
  EXPECT_EQ(run_rows_, (std::vector<size_t>{2, 1}));
}

TEST_F(ControlledVersionTest, RetiredVersionRefusesItsUse) {
  Make();
  Publish();
  Retire();
  for (const Status& status : {Predict({1}).status(), version_->MakeCallable(PredictRows({1})),
                               version_->VerifyBatching(false, nullptr).status()}) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(status.message(), "model 'm' version 7 is being unloaded; load it again");
  }
  EXPECT_TRUE(version_->CheckIsAlive().ok());
}

TEST_F(ControlledVersionTest, DestroyedVersionRefusesItsUse) {
  Make();
  ASSERT_TRUE(version_->Destroy().ok());
  EXPECT_EQ(Predict({1}).status().message(), "model 'm' version 7 is destroyed; load it again");
  EXPECT_EQ(version_->CheckIsAlive().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(version_->Destroy().ok());
}

TEST_F(ControlledVersionTest, VersionThatAnswersIsNotDestroyed) {
  Status destroyed;
  Make(/*is_batched=*/false, [&](const tensor::RunContext&) {
    destroyed = version_->Destroy();
    return Status();
  });
  EXPECT_TRUE(Predict({1}).ok());
  EXPECT_EQ(destroyed.code(), Code::kFailedPrecondition);
  EXPECT_TRUE(version_->Destroy().ok());
}

TEST_F(ControlledVersionTest, RunHasTheLimitsOfAReplay) {
  tensor::RunContext seen;
  Make(
      /*is_batched=*/false,
      [&](const tensor::RunContext& context) {
        seen = context;
        return Status(Code::kDeadlineExceeded, "");
      },
      /*run_ns_max=*/1'000'000'000);
  const Status ended = Predict({1}, /*may_write=*/false).status();
  EXPECT_EQ(ended.code(), Code::kFailedPrecondition);
  EXPECT_NE(ended.message().find("within 1000 ms"), std::string::npos) << ended.message();
  EXPECT_NE(seen.deadline_ns, tensor::RunContext::kNoDeadline);
  EXPECT_FALSE(seen.may_write);
  ASSERT_NE(seen.is_cancelled, nullptr);
  EXPECT_FALSE(seen.is_cancelled->load());
  version_->CancelRuns();
  EXPECT_TRUE(seen.is_cancelled->load());
}

TEST_F(ControlledVersionTest, RowsOfTheWarmUpDecideBatching) {
  Make(/*is_batched=*/true);
  ASSERT_TRUE(Predict({1, 2, 3}).ok());
  EXPECT_FALSE(version_->Batching()[0].is_on);
  const auto warmed_up = version_->VerifyBatching(/*may_write_variables=*/false, nullptr);
  ASSERT_TRUE(warmed_up.ok()) << warmed_up.status().message();
  EXPECT_EQ(warmed_up.value(), 0);
  EXPECT_TRUE(version_->Batching()[0].is_on);
  const size_t run_count = run_rows_.size();
  EXPECT_TRUE(version_->VerifyBatching(/*may_write_variables=*/false, nullptr).ok());
  EXPECT_EQ(run_rows_.size(), run_count);
}

TEST_F(ControlledVersionTest, CancelledRunsEndTheProof) {
  Make(/*is_batched=*/true);
  version_->CancelRuns();
  EXPECT_EQ(version_->VerifyBatching(false, nullptr).status().code(), Code::kCancelled);
  EXPECT_FALSE(version_->Batching()[0].is_on);
}

TEST_F(ControlledVersionTest, StateOfBatchingOutlivesTheVersion) {
  Make(/*is_batched=*/true);
  ASSERT_TRUE(version_->VerifyBatching(false, nullptr).ok());
  ASSERT_TRUE(version_->Destroy().ok());
  ASSERT_EQ(version_->Batching().size(), 1U);
  EXPECT_TRUE(version_->Batching()[0].is_on);
  EXPECT_TRUE(version_->ListHotBatches().empty());
}

TEST_F(ControlledVersionTest, StateOfBatchingGoesOnAfterARefusedEnd) {
  Make(/*is_batched=*/true);
  Publish();
  EXPECT_EQ(version_->Destroy().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(version_->VerifyBatching(false, nullptr).ok());
  EXPECT_TRUE(version_->Batching()[0].is_on);
  Retire();
  ASSERT_TRUE(version_->entry()->Quiesce(0).ok());
  EXPECT_TRUE(version_->Destroy().ok());
}

TEST_F(ControlledVersionTest, WithoutBatchingThereIsNothingToProve) {
  Make();
  EXPECT_EQ(version_->VerifyBatching(false, nullptr).value(), 0);
  EXPECT_TRUE(version_->Batching().empty());
  EXPECT_TRUE(version_->ListHotBatches().empty());
  EXPECT_TRUE(run_rows_.empty());
}

// A successor warms up with the batches of a version that other threads read and end meanwhile.
TEST_F(ControlledVersionTest, ReadersOfTheStateRaceWithItsEnd) {
  Make(/*is_batched=*/true);
  ASSERT_TRUE(version_->VerifyBatching(false, nullptr).ok());
  testing::RunTogether(4, [&](int thread) {
    for (int i = 0; i < 100; ++i) {
      if (thread == 0 && i == 50) {
        EXPECT_TRUE(version_->Destroy().ok());
      } else {
        EXPECT_TRUE(version_->Batching()[0].is_on);
        version_->ListHotBatches();
      }
    }
  });
}

}  // namespace
}  // namespace millpond::inference
