// The phases of requests that share a run.
#include <gtest/gtest.h>

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

  // A request, with a while for its decoding and its encoding.
  struct Request {
    explicit Request(int64_t its_rows = 1) : rows(its_rows), watch(base::MonotonicNs()) {}

    const int64_t rows;
    PhaseWatch watch;
    servable::PreparedRun run;
    PhaseTimes times;
  };

  void Queue(Request* request) {
    waiting_.Add(servable::BatchKeyOf("m", ""),
                 {[this, request] { return Prepare(request); }, [request] { Finish(request); }});
  }
  // Answers all, the first one with those that share its run.
  void AnswerAll(const std::vector<Request*>& requests) {
    for (Request* request : requests) Queue(request);
    while (waiting_.AnswerNext()) {
    }
  }
  servable::PreparedRun* Prepare(Request* request) const {
    request->watch.Enter(Phase::kDecode, base::MonotonicNs());
    Spin();
    servable::PreparedRun& run = request->run;
    run.servable = servable_.get();
    run.signatures = {&Signature()};
    run.outputs = tensor::OutputSet::All(1);
    run.inputs.Reset(1);
    run.inputs.storage().tensors[0] = {
        std::string(4 * request->rows, 'x'), kFloat, {request->rows, 1}, {}};
    run.watch = &request->watch;
    return &run;
  }
  static void Finish(Request* request) {
    const base::Status ran = EndRun(&request->run);
    EXPECT_TRUE(ran.ok()) << ran.message();
    EXPECT_EQ(request->run.results.at(0).storage().tensors.at(0).dims,
              (std::vector<int64_t>{request->rows, 1}));
    Spin();
    request->times = request->watch.End(base::MonotonicNs());
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
  Request first;
  Request second;
  AnswerAll({&first, &second});
  EXPECT_EQ(Figures().run_count, 1);
  EXPECT_EQ(Figures().request_count, 2);
  ExpectSum(first.times);
  ExpectSum(second.times);
  // The decoding of the second, and the encoding of the first.
  EXPECT_GE(first.times[Phase::kBatch], kSpinNs);
  EXPECT_GE(second.times[Phase::kBatch], kSpinNs);
  // The run is the same for both.
  EXPECT_GE(first.times[Phase::kRun], kSpinNs);
  EXPECT_GE(second.times[Phase::kRun], kSpinNs);
  EXPECT_GE(Figures().wait_ns, kSpinNs);
}

TEST_F(BatchPhasesTest, ARequestOfAnUnbatchedSignatureHasNoBatch) {
  Request alone;
  AnswerAll({&alone});
  EXPECT_EQ(alone.times[Phase::kBatch], PhaseTimes::kNone);
  EXPECT_GE(alone.times[Phase::kRun], kSpinNs);
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
  Request large(20);
  Request small;
  AnswerAll({&large, &small});
  ExpectSum(large.times);
  EXPECT_GE(large.times[Phase::kRun], 3 * kSpinNs);
  EXPECT_GE(large.times[Phase::kBatch], 3 * kSpinNs);  // all of the other request
  EXPECT_EQ(Figures().split_request_count, 1);
  EXPECT_EQ(Figures().run_count, 4);
  EXPECT_EQ(Figures().request_count, 2);
  EXPECT_EQ(Figures().row_count, 21);
}

}  // namespace
}  // namespace millpond::inference
