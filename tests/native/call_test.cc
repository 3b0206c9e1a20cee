// A call from its arrival to its answer, as its stream, a thread and its handler see it: no
// connection, and a thread only if the test is about threads.

#include "native/rpc/call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/clock.h"
#include "native/metrics/request_statistics.h"
#include "native/metrics/span_buffer.h"
#include "native/rpc/predict_service.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/stream_call.h"
#include "native/servable/request_reservoir.h"
#include "native/servable/serving_map.h"
#include "tests/native/fake_carrier.h"
#include "tests/native/predict_messages.h"
#include "tests/native/raw_http2.h"
#include "tests/native/scripted_servable.h"
#include "tests/native/serving_maps.h"
#include "tests/native/threads.h"
#include "tests/native/units.h"
#include "tests/native/whole_answers.h"

namespace millpond::rpc {
namespace {

using testing::FakeCarrier;
using testing::GrpcMessage;

struct Handler final : testing::WholeAnswers {
  void Answer(RunnableCall* call) override { answer(call); }
  void RecordRefusal(const Call&, base::Code code) const override { refusals.push_back(code); }

  std::function<void(RunnableCall*)> answer = [](RunnableCall* call) { call->Reply("answer"); };
  mutable std::vector<base::Code> refusals;
};

struct Awaiting final : AwaitingCalls {
  bool TakeAwaitingPlace() override { return has_place; }
  void Await(std::shared_ptr<RunnableCall> call, servable::AwaitedChange, int64_t) override {
    calls.push_back(std::move(call));
  }

  bool has_place = true;
  std::vector<std::shared_ptr<RunnableCall>> calls;
};

class CallTest : public ::testing::Test {
 protected:
  CallTest() {
    limits_.admission = std::make_shared<servable::Admission>(1);
    limits_.budget = budget_;
    limits_.is_cut_short = &is_cut_short_;
    limits_.awaiting = &awaiting_;
    limits_.first_version_wait_ns = 60 * testing::kSecond;
  }
  std::shared_ptr<StreamCall> NewCall(const std::string& text, const std::string& timeout = "") {
    IncomingRequest request{base::ByteBudget::Share(budget_.get())};
    if (!timeout.empty()) request.headers()->Add("grpc-timeout", timeout);
    for (const auto& [name, value] : headers_) request.headers()->Add(name, value);
    MessageOptions options;
    options.budget = budget_.get();
    EXPECT_TRUE(request.Begin(called_, options, 1).ok());
    EXPECT_TRUE(request.AddData(GrpcMessage(text), &space_, 1).ok());
    stream_ += 2;
    auto call = std::make_shared<StreamCall>(carrier_, &limits_, stream_, request.Take(),
                                             CallAccount(&counts_, &open_bytes_, 0));
    carrier_->Add(stream_, call);
    return call;
  }
  const CallEnd& LastAnswer() const { return carrier_->answers().at(stream_); }
  int64_t in_flight_count() const { return limits_.admission->in_flight_count(); }

  const std::shared_ptr<base::ByteBudget> budget_ = std::make_shared<base::ByteBudget>();
  const std::shared_ptr<FakeCarrier> carrier_ = std::make_shared<FakeCarrier>();
  std::atomic<bool> is_cut_short_{false};
  CallCounts counts_;
  std::atomic<int64_t> open_bytes_{0};
  Awaiting awaiting_;
  CallLimits limits_;
  Handler handler_;
  const Method method_{"/test/m", &handler_};
  const Method* called_ = &method_;
  std::map<std::string, std::string> headers_;
  ReceiveSpace space_;
  int32_t stream_ = -1;
};

TEST_F(CallTest, RequestToAModelIsHandledInItsTurn) {
  std::string text;
  handler_.answer = [&](RunnableCall* call) {
    call->request().AppendRest(&text);
    call->Reply("answer");
  };
  const auto call = NewCall("question");
  ASSERT_TRUE(call->Arrive());
  EXPECT_EQ(text, "");
  EXPECT_EQ(in_flight_count(), 1);
  EXPECT_EQ(CallBeingAnswered(call).Prepare(), nullptr);
  EXPECT_EQ(text, "question");
  EXPECT_EQ(in_flight_count(), 0);
  EXPECT_TRUE(call->is_over());
  EXPECT_EQ(LastAnswer().message->body(), "answer");
  // The answer may take long to read; the request is not needed for that.
  EXPECT_EQ(budget_->in_use_bytes(), 6);
}

TEST_F(CallTest, OtherCallsAreHandledAsTheyCome) {
  struct Replier final : CallHandler {
    void Handle(Call* call) override { call->Reply("answer"); }
  } replier;
  const Method method = {"/test/other", &replier};
  called_ = &method;
  const auto call = NewCall("question");
  EXPECT_FALSE(call->Arrive());
  EXPECT_TRUE(call->is_over());
}

TEST_F(CallTest, RefusedRequestIsRecordedAndTellsWhenToComeAgain) {
  const auto first = NewCall("x");
  ASSERT_TRUE(first->Arrive());
  const auto second = NewCall("x");
  EXPECT_FALSE(second->Arrive());
  EXPECT_EQ(LastAnswer().status.code(), base::Code::kResourceExhausted);
  EXPECT_TRUE(LastAnswer().pushback_ms.has_value());
  EXPECT_EQ(handler_.refusals, std::vector<base::Code>{base::Code::kResourceExhausted});
}

TEST_F(CallTest, RequestThatAwaitsAVersionHasAnotherTurn) {
  const std::atomic<int64_t> counter{0};
  bool awaits = true;
  handler_.answer = [&](RunnableCall* call) {
    if (!awaits || !call->TryAwait({&counter, 0})) call->Reply("answer");
  };
  const auto call = NewCall("question");
  ASSERT_TRUE(call->Arrive());
  CallBeingAnswered(call).Prepare();
  ASSERT_EQ(awaiting_.calls, std::vector<std::shared_ptr<RunnableCall>>{call});
  EXPECT_FALSE(call->is_over());
  awaits = false;
  CallBeingAnswered(awaiting_.calls[0]).Prepare();
  EXPECT_TRUE(call->is_over());
  EXPECT_EQ(awaiting_.calls.size(), 1U);
}

TEST_F(CallTest, RequestWithoutAPlaceToWaitIsAnswered) {
  const std::atomic<int64_t> counter{0};
  awaiting_.has_place = false;
  handler_.answer = [&](RunnableCall* call) {
    if (!call->TryAwait({&counter, 0})) call->Fail(base::NotFound("no version"));
  };
  const auto call = NewCall("question");
  ASSERT_TRUE(call->Arrive());
  CallBeingAnswered(call).Prepare();
  EXPECT_EQ(LastAnswer().status.code(), base::Code::kNotFound);
}

TEST_F(CallTest, HeldAnswerIsWrittenOnce) {
  const auto call = NewCall("x");
  call->HoldAnswer();
  call->Reply("answer");
  EXPECT_TRUE(LastAnswer().is_held);
  call->SendHeld();
  call->SendHeld();
  EXPECT_EQ(carrier_->write_count(), 1);
}

TEST_F(CallTest, ServersDeadlineIsNamedUnlessTheClientHasOne) {
  limits_.request_ns_max = testing::kSecond;
  const auto fail = [this](const std::string& timeout) {
    const auto call = NewCall("x", timeout);
    call->Fail({base::Code::kDeadlineExceeded, "too late"});
    return LastAnswer().status.message();
  };
  EXPECT_EQ(fail(""), "too late (--max_request_seconds; the client set no deadline)");
  EXPECT_EQ(fail("1S"), "too late");
}

TEST_F(CallTest, NothingIsComputedForAClientThatIsGone) {
  const auto call = NewCall("x");
  EXPECT_TRUE(call->CheckIsWanted().ok());
  is_cut_short_ = true;
  EXPECT_EQ(call->CheckIsWanted().code(), base::Code::kUnavailable);
  is_cut_short_ = false;
  carrier_->Close(7);
  EXPECT_EQ(call->CheckIsWanted().code(), base::Code::kCancelled);
  EXPECT_FALSE(call->IsWanted(0));
}

// A handler answers while a watchdog cancels, another thread answers too, and the client goes. The
// call is over once, with one answer at most, and nothing of it is left.
TEST_F(CallTest, AnyThreadMayEndACall) {
  for (int round = 0; round < 500; ++round) {
    auto call = NewCall("question");
    testing::RunTogether(4, [&](int thread) {
      if (thread == 0) call->Reply("answer");
      if (thread == 1) call->Fail(base::NotFound("no"));
      if (thread == 2) call->Cancel(1);
      if (thread == 3 && round == 499) carrier_->Close(1);
      (void)call->is_over();
      (void)call->IsWanted(0);
    });
    EXPECT_TRUE(call->is_over());
    EXPECT_FALSE(call->IsWanted(0));
    EXPECT_EQ(counts_.live_count, 1);
    call.reset();
    EXPECT_EQ(counts_.live_count, 0);
  }
}

class ModelCallTest : public CallTest {
 protected:
  ModelCallTest() {
    EXPECT_TRUE(servable::PublishHighest(map_, version_.entry).ok());
    called_ = &predict_method_;
    headers_["traceparent"] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  }

  const std::shared_ptr<servable::RequestReservoir> reservoir_ =
      std::make_shared<servable::RequestReservoir>(servable::RequestReservoirLimits());
  const testing::Scripted version_{"m", 1, {}, reservoir_};
  servable::ServingMap map_;
  const metrics::RequestStatistics statistics_{base::MonotonicNs()};
  metrics::SpanBuffer spans_{metrics::SpanBuffer::Limits()};
  PredictHandler predict_{{&map_, &statistics_, &spans_}, tensor::TensorEncoding::kTypedFields};
  const Method predict_method_{"/test/predict", &predict_};
};

// Copies take their time, and no client waits for them.
TEST_F(ModelCallTest, IsTracedAndSampledAfterItsAnswerIsWritten) {
  const auto call =
      NewCall(testing::PredictMessage(testing::ModelSpecMessage("m"), {{"x", "tensor"}}));
  ASSERT_TRUE(call->Arrive());
  CallBeingAnswered turn(call);
  servable::PreparedRun* const run = turn.Prepare();
  ASSERT_NE(run, nullptr);
  servable::RunAlone(run);
  turn.Finish();
  ASSERT_TRUE(LastAnswer().status.ok());
  EXPECT_EQ(carrier_->write_count(), 0);
  EXPECT_TRUE(spans_.Take(1).empty());
  EXPECT_EQ(reservoir_->Statistics().request_count, 0);
  turn.Send();
  EXPECT_EQ(carrier_->write_count(), 1);
  turn.Offer();
  EXPECT_EQ(spans_.Take(1).size(), 1);
  EXPECT_EQ(reservoir_->Statistics().request_count, 1);
}

}  // namespace
}  // namespace millpond::rpc
