// The phases of requests that share a run.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/base/clock.h"
#include "native/inference/signature_request.h"
#include "native/servable/batching_servable.h"
#include "tests/native/fake_servable.h"
#include "tests/native/opaque_tensors.h"
#include "tests/native/waiting_requests.h"

namespace millpond::inference {
namespace {

using metrics::Phase;
using metrics::PhaseTimes;
using metrics::PhaseWatch;
using testing::FakeRun;
using testing::FakeServable;

constexpr int kFloat = 1;
constexpr int64_t kSpinNs = 200'000;

void Spin() {
  const int64_t end_ns = base::MonotonicNs() + kSpinNs;
  while (base::MonotonicNs() < end_ns) {
  }
}

class BatchPhasesTest : public ::testing::Test {
 protected:
  explicit BatchPhasesTest(servable::BatchSettings settings = {}) {
    tensor::Signature signature{
        "serving_default", "", {tensor::TensorSpec()}, {tensor::TensorSpec()}};
    auto inner = std::make_unique<FakeServable>(servable::ServableId{"m", 1},
                                                std::vector<tensor::Signature>{signature},
                                                [](const FakeRun& run) {
                                                  Spin();
                                                  return testing::EchoInputs(run);
                                                });
    servable_ = std::make_unique<servable::BatchingServable>(std::move(inner), settings);
    servable_->LearnCost(Signature(), 1, 100'000);
    servable_->LearnCost(Signature(), 8, 110'000);
  }

  const tensor::Signature& Signature() const {
    return servable_->signatures().at("serving_default");
  }
  void TurnOn() { servable_->TurnOn(Signature(), {}); }

  // Answers a request of `rows` rows, and returns its phases.
  PhaseTimes Answer(int64_t rows = 1) {
    PhaseWatch watch(base::MonotonicNs());
    watch.Enter(Phase::kDecode, base::MonotonicNs());
    tensor::TensorList inputs;
    inputs.Reset(1);
    inputs.storage().tensors[0] = {std::string(4 * rows, 'x'), kFloat, {rows, 1}, {}};
    tensor::TensorList result;
    const base::Status ran = RunSignature(*servable_, Signature(), tensor::OutputSet::All(1), {},
                                          inputs, &result, &watch);
    EXPECT_TRUE(ran.ok()) << ran.message();
    EXPECT_EQ(result.storage().tensors.at(0).dims, (std::vector<int64_t>{rows, 1}));
    return watch.End(base::MonotonicNs());
  }
  // Adds a request that waits, with a while before and after its own answer.
  void AddWaiting(PhaseTimes* times) {
    waiting_.Add(servable::BatchKeyOf("m", ""), [this, times] {
      Spin();
      *times = Answer();
      Spin();
    });
  }
  servable::BatchFigures Figures() const { return servable_->Batching().at(0).figures; }

  testing::QueuedRequests waiting_;
  std::unique_ptr<servable::BatchingServable> servable_;
};

void ExpectSum(const PhaseTimes& times) {
  int64_t sum_ns = 0;
  for (const Phase phase :
       {Phase::kQueue, Phase::kDecode, Phase::kBatch, Phase::kRun, Phase::kEncode}) {
    ASSERT_GE(times[phase], 0);
    sum_ns += times[phase];
  }
  EXPECT_EQ(sum_ns, times[Phase::kTotal]);
}

TEST_F(BatchPhasesTest, TheHandlingOfAnotherRequestIsNoRun) {
  TurnOn();
  const servable::BatchScope scope(&waiting_);
  PhaseTimes second;
  AddWaiting(&second);
  const PhaseTimes first = Answer();
  EXPECT_EQ(Figures().run_count, 1);
  EXPECT_EQ(Figures().request_count, 2);
  ExpectSum(first);
  ExpectSum(second);
  EXPECT_GE(first[Phase::kBatch], 2 * kSpinNs);
  EXPECT_GE(first.batch_after_run_ns, kSpinNs);
  EXPECT_LE(first.batch_after_run_ns, first[Phase::kBatch] - kSpinNs);
  // The run is the same for both.
  EXPECT_GE(first[Phase::kRun], kSpinNs);
  EXPECT_GE(second[Phase::kRun], kSpinNs);
  EXPECT_GE(Figures().wait_ns, kSpinNs);
}

TEST_F(BatchPhasesTest, ARequestOfAnUnbatchedSignatureHasNoBatch) {
  const servable::BatchScope scope(&waiting_);
  const PhaseTimes alone = Answer();
  EXPECT_EQ(alone[Phase::kBatch], PhaseTimes::kNone);
  EXPECT_GE(alone[Phase::kRun], kSpinNs);
}

TEST_F(BatchPhasesTest, ARunOutsideAScopeHasNoBatch) {
  TurnOn();
  EXPECT_EQ(Answer()[Phase::kBatch], PhaseTimes::kNone);
}

servable::BatchSettings SettingsOf(int64_t rows_max) {
  servable::BatchSettings settings;
  settings.rows_max = rows_max;
  return settings;
}

class PiecePhasesTest : public BatchPhasesTest {
 protected:
  PiecePhasesTest() : BatchPhasesTest(SettingsOf(8)) {}
};

TEST_F(PiecePhasesTest, TurnsOfOthersBetweenPiecesAreNoRun) {
  TurnOn();
  const servable::BatchScope scope(&waiting_);
  PhaseTimes second;
  AddWaiting(&second);
  const PhaseTimes split = Answer(20);
  ExpectSum(split);
  EXPECT_GE(split[Phase::kRun], 3 * kSpinNs);
  EXPECT_GE(split[Phase::kBatch], 3 * kSpinNs);  // two spins, and the run of the other request
  EXPECT_EQ(Figures().split_request_count, 1);
  EXPECT_EQ(Figures().run_count, 4);
  EXPECT_EQ(Figures().request_count, 2);
  EXPECT_EQ(Figures().row_count, 21);
}

}  // namespace
}  // namespace millpond::inference
