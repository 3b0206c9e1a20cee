// The server's record of the calls that it answers.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include "native/base/clock.h"
#include "native/metrics/request_statistics.h"
#include "tests/native/served_models.h"
#include "tests/native/wire_message.h"

namespace millpond::rpc {
namespace {

using base::Code;
using metrics::Method;
using metrics::MethodSnapshot;
using metrics::Phase;
using testing::kForeverNs;
using testing::kMetadataPath;
using testing::kPredictPath;
using testing::kRarePath;
using testing::ModelSpecMessage;
using testing::WireMessage;

class RecordedCallsTest : public testing::ServedModels {
 protected:
  void SetUp() override { Start(); }

  static MethodSnapshot Of(const servable::ServableEntry& entry, Method method) {
    return entry.requests().Of(method).Snapshot();
  }
  // The statistics of the recorder that the server made.
  MethodSnapshot RareCalls() {
    return statistics_->MethodWithoutModel("GetModelStatus")->Snapshot();
  }
  static std::string MetadataRequest(const std::string& model) {
    return WireMessage().Message(1, ModelSpecMessage(model)).Bytes(2, "signature_def").bytes();
  }
};

// A call is recorded before it is answered, so each is counted by the time of its reply.
TEST_F(RecordedCallsTest, APredictHasAllPhasesAndTheyAddUpToItsTotal) {
  ASSERT_TRUE(Predict("m").status.ok());
  const MethodSnapshot recorded = Of(*quick_.entry, Method::kPredict);
  int64_t sum_ns = 0;
  for (const Phase phase : {Phase::kQueue, Phase::kDecode, Phase::kRun, Phase::kEncode}) {
    EXPECT_EQ(recorded.phase(phase).count(), 1);
    sum_ns += recorded.phase(phase).sum_ns();
  }
  EXPECT_EQ(recorded.phase(Phase::kTotal).sum_ns(), sum_ns);
  EXPECT_EQ(recorded.by_code.at(Code::kOk).count(), 1);
}

TEST_F(RecordedCallsTest, ABadInputEndsInDecodeAndAnExpiredRunInRun) {
  EXPECT_FALSE(client_->Call(kPredictPath, PredictMessage(ModelSpecMessage("m"), {})).status.ok());
  const MethodSnapshot bad = Of(*quick_.entry, Method::kPredict);
  EXPECT_EQ(bad.by_code.at(Code::kInvalidArgument).count(), 1);
  EXPECT_EQ(bad.phase(Phase::kDecode).count(), 1);
  EXPECT_EQ(bad.phase(Phase::kRun).count(), 0);

  grpc::ClientContext context;
  auto held = client_->Begin(kPredictPath, Request("held"), &context);
  gate_.WaitForArrivals(1);
  context.TryCancel();
  EXPECT_EQ(held.get().code(), grpc::StatusCode::CANCELLED);
  WaitUntilUnpinned(*held_.entry);
  const MethodSnapshot cancelled = Of(*held_.entry, Method::kPredict);
  EXPECT_EQ(cancelled.by_code.at(Code::kCancelled).count(), 1);
  EXPECT_EQ(cancelled.phase(Phase::kRun).count(), 1);
  EXPECT_EQ(cancelled.phase(Phase::kEncode).count(), 0);
}

// The client sends this deadline as a header and waits longer, so only the server sees it.
TEST_F(RecordedCallsTest, ADeadlineThatPassesHereIsExceededAndNotCancelled) {
  for (int64_t call = 1; call <= 2; ++call) {
    grpc::ClientContext context;
    context.AddMetadata("grpc-timeout", "500m");
    EXPECT_FALSE(client_->Begin(kPredictPath, Request("held"), &context).get().status.ok());
    WaitUntilUnpinned(*held_.entry);
    const MethodSnapshot recorded = Of(*held_.entry, Method::kPredict);
    EXPECT_EQ(recorded.by_code.at(Code::kDeadlineExceeded).count(), call);
    EXPECT_EQ(recorded.count(), call);
  }
}

TEST_F(RecordedCallsTest, ACallGivenUpLongBeforeItsDeadlineIsCancelled) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
  auto held = client_->Begin(kPredictPath, Request("held"), &context);
  gate_.WaitForArrivals(1);
  context.TryCancel();
  EXPECT_EQ(held.get().code(), grpc::StatusCode::CANCELLED);
  WaitUntilUnpinned(*held_.entry);
  EXPECT_EQ(Of(*held_.entry, Method::kPredict).by_code.at(Code::kCancelled).count(), 1);
}

// The client's cancellation at its deadline may come before the deadline passes here, and a call
// may expire on its way.
TEST_F(RecordedCallsTest, ADeadlineThatPassesAtTheClientHasOneOfTwoCodes) {
  constexpr int64_t kCallCount = 3;
  for (int64_t call = 0; call < kCallCount; ++call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    const auto reply = client_->Begin(kPredictPath, Request("held"), &context).get();
    EXPECT_EQ(reply.code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
  const MethodSnapshot recorded = Of(*held_.entry, Method::kPredict);
  EXPECT_LE(recorded.count(), kCallCount);
  for (const auto& [code, times] : recorded.by_code) {
    EXPECT_TRUE(code == Code::kDeadlineExceeded || code == Code::kCancelled) << times.count();
  }
}

TEST_F(RecordedCallsTest, MetadataIsRecordedByTheVersionThatAnsweredOrByNone) {
  EXPECT_TRUE(client_->Call(kMetadataPath, MetadataRequest("m")).status.ok());
  EXPECT_FALSE(client_->Call(kMetadataPath, MetadataRequest("nobody")).status.ok());
  EXPECT_EQ(quick_.entry->handle_count(), 0);
  const MethodSnapshot recorded = Of(*quick_.entry, Method::kGetModelMetadata);
  EXPECT_EQ(recorded.count(), 1);
  EXPECT_EQ(recorded.phase(Phase::kDecode).count(), 1);
  EXPECT_EQ(recorded.phase(Phase::kRun).count(), 0);
  EXPECT_EQ(recorded.phase(Phase::kEncode).count(), 1);
  EXPECT_EQ(Of(*quick_.entry, Method::kPredict).count(), 0);
  const auto unmatched = statistics_->unmatched()->Of(Method::kGetModelMetadata).Snapshot();
  EXPECT_EQ(unmatched.by_code.at(Code::kNotFound).count(), 1);
}

TEST_F(RecordedCallsTest, ARareCallIsRecordedByNameOnceItIsAnswered) {
  auto replied = client_->Begin(kRarePath, "");
  auto failed = client_->Begin(kRarePath, "");
  auto dropped = client_->Begin(kRarePath, "");
  ASSERT_TRUE(server_->TakeRareCall(kForeverNs)->Reply("").ok());
  ASSERT_TRUE(server_->TakeRareCall(kForeverNs)->Fail(base::NotFound("no")).ok());
  auto taken = server_->TakeRareCall(kForeverNs);
  EXPECT_EQ(RareCalls().count(), 2);
  taken.reset();
  EXPECT_EQ(RareCalls().by_code.at(Code::kOk).count(), 1);
  EXPECT_EQ(RareCalls().by_code.at(Code::kNotFound).count(), 1);
  EXPECT_EQ(RareCalls().by_code.at(Code::kInternal).count(), 1);
  EXPECT_EQ(RareCalls().phase(Phase::kQueue).count(), 3);
  EXPECT_EQ(RareCalls().phase(Phase::kRun).count(), 3);
}

TEST_F(RecordedCallsTest, UntakenRareCallsAreRecorded) {
  auto waiting = client_->Begin(kRarePath, "");
  EXPECT_TRUE(Predict("m").status.ok());  // sent behind it, so it has come
  EXPECT_FALSE(server_->Shutdown(20'000'000));
  EXPECT_FALSE(waiting.get().status.ok());
  EXPECT_EQ(RareCalls().by_code.at(Code::kUnavailable).count(), 1);
  EXPECT_EQ(RareCalls().phase(Phase::kRun).count(), 0);
}

TEST(RecordedVersion, EndsWhenItIsDestroyed) {
  testing::Scripted version("m", 1);
  EXPECT_FALSE(version.entry->recorder()->ended_ns());
  ASSERT_TRUE(version.entry->Destroy().ok());
  EXPECT_TRUE(version.entry->recorder()->ended_ns());
}

}  // namespace
}  // namespace millpond::rpc
