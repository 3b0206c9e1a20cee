#include "native/rpc/rare_call_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "tests/native/served_models.h"

namespace millpond::rpc {
namespace {

using base::Code;
using testing::kForeverNs;
using testing::kRarePath;
using testing::RawClient;

class RareCallTest : public testing::ServedModels {
 protected:
  void SetUp() override { Start(); }

  std::future<RawClient::Reply> Begin(const std::string& request = "") {
    return client_->Begin(kRarePath, request);
  }
  std::unique_ptr<RareCall> Take() { return server_->TakeRareCall(kForeverNs); }
};

TEST_F(RareCallTest, IsTakenWithItsPathAndBytesAndAnswered) {
  auto reply = Begin(std::string("\0request\xff", 9));
  const auto call = Take();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->path(), kRarePath);
  EXPECT_EQ(call->request(), std::string("\0request\xff", 9));
  ASSERT_TRUE(call->Reply(std::string("\0reply", 6)).ok());
  EXPECT_EQ(reply.get().bytes, std::string("\0reply", 6));
}

TEST_F(RareCallTest, AnEmptyReplyIsOneToo) {
  auto reply = Begin();
  ASSERT_TRUE(Take()->Reply("").ok());
  const RawClient::Reply replied = reply.get();
  EXPECT_TRUE(replied.status.ok());
  EXPECT_EQ(replied.bytes, "");
}

TEST_F(RareCallTest, FailsWithTheStatusGiven) {
  auto reply = Begin();
  ASSERT_TRUE(Take()->Fail(base::NotFound("no model 'q'")).ok());
  const RawClient::Reply failed = reply.get();
  EXPECT_EQ(failed.code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(failed.status.error_message(), "no model 'q'");
}

TEST_F(RareCallTest, HasTheRemainingTimeOfItsClient) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(90));
  auto reply = client_->Begin(kRarePath, "", &context);
  const auto call = Take();
  const int64_t now_ns = base::MonotonicNs();
  const std::optional<int64_t> remaining_ns = call->RemainingNs(now_ns);
  ASSERT_TRUE(remaining_ns.has_value());
  EXPECT_GT(*remaining_ns, 30 * kSecondNs);
  EXPECT_LE(*remaining_ns, 91 * kSecondNs);  // gRPC rounds a timeout up when it sends it
  EXPECT_EQ(call->RemainingNs(now_ns + kSecondNs), *remaining_ns - kSecondNs);
  EXPECT_EQ(call->RemainingNs(now_ns + *remaining_ns + kSecondNs), 0);
  ASSERT_TRUE(call->Reply("").ok());
  EXPECT_EQ(call->RemainingNs(now_ns), remaining_ns);  // answered, and not read after its end
  EXPECT_TRUE(reply.get().status.ok());
}

TEST_F(RareCallTest, OfAClientThatSetNoDeadlineWaitsWithoutLimit) {
  auto reply = Begin();
  const auto call = Take();
  EXPECT_EQ(call->RemainingNs(base::MonotonicNs()), std::nullopt);
  ASSERT_TRUE(call->Reply("").ok());
  EXPECT_TRUE(reply.get().status.ok());
}

TEST_F(RareCallTest, IsAliveUntilItIsAnswered) {
  auto reply = Begin();
  const auto call = Take();
  EXPECT_TRUE(call->IsWanted());
  ASSERT_TRUE(call->Reply("").ok());
  EXPECT_FALSE(call->IsWanted());
  EXPECT_TRUE(reply.get().status.ok());
}

TEST_F(RareCallTest, IsDeadOnceItsClientHasCancelled) {
  grpc::ClientContext context;
  auto reply = client_->Begin(kRarePath, "", &context);
  const auto call = Take();
  ASSERT_TRUE(call->IsWanted());
  context.TryCancel();
  while (call->IsWanted()) std::this_thread::yield();
  ASSERT_TRUE(call->Fail({Code::kCancelled, "the client is gone"}).ok());
  EXPECT_EQ(reply.get().code(), grpc::StatusCode::CANCELLED);
}

TEST_F(RareCallTest, IsAnsweredOnceOnly) {
  auto reply = Begin();
  const auto call = Take();
  ASSERT_TRUE(call->Reply("first").ok());
  EXPECT_EQ(call->Reply("second").code(), Code::kFailedPrecondition);
  EXPECT_EQ(call->Fail(base::Internal("third")).code(), Code::kFailedPrecondition);
  EXPECT_EQ(reply.get().bytes, "first");
}

TEST_F(RareCallTest, DroppedWithoutAnAnswerIsInternal) {
  auto reply = Begin();
  Take().reset();
  EXPECT_EQ(reply.get().code(), grpc::StatusCode::INTERNAL);
}

TEST_F(RareCallTest, TakeReturnsNullAtItsTimeout) {
  EXPECT_EQ(server_->TakeRareCall(0), nullptr);
  EXPECT_EQ(server_->TakeRareCall(1'000'000), nullptr);
  EXPECT_TRUE(server_->HasRareCallsToCome());
}

TEST_F(RareCallTest, CallsAreTakenInTheOrderOfTheirArrival) {
  std::vector<std::future<RawClient::Reply>> replies;
  std::vector<std::unique_ptr<RareCall>> calls;
  for (int i = 0; i < 5; ++i) {
    replies.push_back(Begin(std::to_string(i)));
    calls.push_back(Take());
    EXPECT_EQ(calls.back()->request(), std::to_string(i));
  }
  for (auto& call : calls) EXPECT_TRUE(call->Reply(call->request()).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(replies[i].get().bytes, std::to_string(i));
}

TEST_F(RareCallTest, MoreThanMayWaitAreRefused) {
  std::vector<std::future<RawClient::Reply>> waiting;
  for (size_t i = 0; i < RareCallQueue::kMaxWaiting + 1; ++i) waiting.push_back(Begin());
  // A refused call is the only one with an answer.
  std::future<RawClient::Reply>* refused = nullptr;
  while (refused == nullptr) {
    for (auto& reply : waiting) {
      if (reply.wait_for(std::chrono::seconds(0)) == std::future_status::ready) refused = &reply;
    }
    std::this_thread::yield();
  }
  EXPECT_EQ(refused->get().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (size_t i = 0; i < RareCallQueue::kMaxWaiting; ++i) EXPECT_TRUE(Take()->Reply("").ok());
  for (auto& reply : waiting) {
    if (&reply != refused) {
      EXPECT_TRUE(reply.get().status.ok());
    }
  }
}

TEST_F(RareCallTest, AnswersAfterItsClientLeftAreHarmless) {
  grpc::ClientContext context;
  auto reply = client_->Begin(kRarePath, "", &context);
  const auto call = Take();
  context.TryCancel();
  EXPECT_EQ(reply.get().code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(call->Reply("late").ok());
  EXPECT_TRUE(Predict("m").status.ok());
}

TEST_F(RareCallTest, TakenCallsMayBeAnsweredWhileTheServerDrains) {
  auto reply = Begin();
  const auto call = Take();
  auto drained = std::async(std::launch::async, [&] { return server_->Shutdown(kForeverNs); });
  ASSERT_TRUE(call->Reply("in time").ok());
  EXPECT_EQ(reply.get().bytes, "in time");
  EXPECT_TRUE(drained.get());
}

TEST_F(RareCallTest, UntakenCallsEndWithTheServer) {
  std::vector<std::future<RawClient::Reply>> waiting;
  for (int i = 0; i < 5; ++i) waiting.push_back(Begin());
  auto taken = Take();
  ASSERT_TRUE(taken->Reply("").ok());
  EXPECT_TRUE(Predict("m").status.ok());  // sent behind the others, so they have come
  EXPECT_FALSE(server_->Shutdown(20'000'000));
  int answered_count = 0;
  for (auto& reply : waiting) answered_count += reply.get().status.ok() ? 1 : 0;
  EXPECT_EQ(answered_count, 1);
  EXPECT_EQ(server_->TakeRareCall(kForeverNs), nullptr);
  EXPECT_FALSE(server_->HasRareCallsToCome());
}

TEST_F(RareCallTest, TakenCallsMayOutliveTheDrainAndTheServer) {
  auto first = Begin();
  const auto answered_late = Take();
  auto second = Begin();
  auto dropped = Take();
  EXPECT_FALSE(server_->Shutdown(1'000'000));
  EXPECT_FALSE(first.get().status.ok());
  EXPECT_FALSE(second.get().status.ok());
  server_.reset();
  (void)answered_late->Reply("too late");
  dropped.reset();
}

TEST_F(RareCallTest, ShutdownWakesThreadsInTake) {
  auto taken = std::async(std::launch::async, [&] { return Take(); });
  EXPECT_TRUE(server_->Shutdown(kForeverNs));
  EXPECT_EQ(taken.get(), nullptr);
}

}  // namespace
}  // namespace millpond::rpc
