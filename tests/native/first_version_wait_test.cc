// Requests that wait for the first version of their model, at a real server.

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "native/base/clock.h"
#include "native/rpc/awaiting_queue.h"
#include "tests/native/served_models.h"

namespace millpond::rpc {
namespace {

using testing::kPredictPath;
using testing::RawClient;
using testing::Scripted;

using Replies = std::vector<std::future<RawClient::Reply>>;

constexpr int64_t kLongNs = testing::kForeverNs;

class FirstVersionWaitTest : public testing::ServedModels {
 protected:
  void StartWaiting(int64_t wait_ns, int thread_count = 2) {
    options_.first_version_wait_ns = wait_ns;
    options_.max_thread_count = thread_count;
    options_.admission = admission_;
    map_.SetNotes("late", {"version 1 is loading, stage restore", true, {}});
    Start();
  }

  Replies BeginLate(int count) {
    Replies replies;
    for (int i = 0; i < count; ++i) {
      replies.push_back(client_->Begin(kPredictPath, Request("late")));
    }
    WaitUntilInFlight(count);
    return replies;
  }

  void WaitUntilInFlight(int count) {
    while (admission_->in_flight_count() < count) std::this_thread::yield();
  }

  const std::shared_ptr<servable::Admission> admission_ =
      std::make_shared<servable::Admission>(4'096);
  Scripted late_{"late", 1};
};

TEST_F(FirstVersionWaitTest, RequestsAreAnsweredByTheVersionOnceItIsPublished) {
  StartWaiting(kLongNs);
  Replies replies = BeginLate(50);
  // The waiting requests hold no thread.
  EXPECT_TRUE(Predict("m").status.ok());
  ASSERT_TRUE(servable::PublishHighest(map_, late_.entry).ok());
  for (auto& reply : replies) EXPECT_TRUE(reply.get().status.ok());
  EXPECT_EQ(late_.servable->run_count(), 50);
  EXPECT_EQ(admission_->in_flight_count(), 0);
}

// Together the requests fit into the budget compressed, but not decompressed.
TEST_F(FirstVersionWaitTest, WaitingRequestsReleaseTheirReadBytes) {
  constexpr int kCount = 8;
  constexpr int64_t kTensorBytes = 1'000'000;
  options_.thread_count = 1;
  options_.budget = std::make_shared<base::ByteBudget>(kCount / 2 * kTensorBytes);
  StartWaiting(kLongNs, /*thread_count=*/1);
  const std::string request = testing::PredictMessage(testing::ModelSpecMessage("late"),
                                                      {{"x", std::string(kTensorBytes, 'x')}});
  std::vector<grpc::ClientContext> contexts(kCount);
  Replies replies;
  for (int i = 0; i < kCount; ++i) {
    contexts[i].set_compression_algorithm(GRPC_COMPRESS_GZIP);
    replies.push_back(client_->Begin(kPredictPath, request, &contexts[i]));
  }
  WaitUntilInFlight(kCount);
  // The model changes and still has no version: the requests are read once more and put aside
  // again.
  ASSERT_TRUE(map_.SetRouting("late", {}).ok());
  EXPECT_TRUE(Predict("m").status.ok());
  ASSERT_TRUE(servable::PublishHighest(map_, late_.entry).ok());
  for (auto& reply : replies) {
    const RawClient::Reply answer = reply.get();
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  }
  EXPECT_EQ(options_.budget->refused_count(), 0);
  contexts.clear();
  client_.reset();  // its connection counts too
  while (options_.budget->in_use_bytes() > 0) std::this_thread::yield();
}

TEST_F(FirstVersionWaitTest, ALoadThatFailsEndsTheWaitWithTheReason) {
  StartWaiting(kLongNs);
  Replies replies = BeginLate(3);
  map_.SetNotes("late", {"version 1 failed: no such op", false, {}});
  for (auto& reply : replies) {
    const RawClient::Reply answer = reply.get();
    EXPECT_EQ(answer.code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_NE(answer.status.error_message().find("version 1 failed: no such op"),
              std::string::npos);
  }
}

TEST_F(FirstVersionWaitTest, TheWaitsEndIsUnavailableWithTheStage) {
  StartWaiting(1'000'000);
  const RawClient::Reply answer = Predict("late");
  EXPECT_EQ(answer.code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(answer.status.error_message(), "model 'late': version 1 is loading, stage restore");
  EXPECT_EQ(UnmatchedRequests().latency.count(), 1);
}

TEST_F(FirstVersionWaitTest, ADeadlineEndsTheWaitBeforeItPasses) {
  StartWaiting(kLongNs);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
  const RawClient::Reply answer = client_->Call(kPredictPath, Request("late"), &context);
  // If the machine stands still for long, the deadline ends the wait.
  EXPECT_TRUE(answer.code() == grpc::StatusCode::UNAVAILABLE ||
              answer.code() == grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(FirstVersionWaitTest, ACancellationEndsTheWait) {
  StartWaiting(kLongNs);
  grpc::ClientContext context;
  auto reply = client_->Begin(kPredictPath, Request("late"), &context);
  WaitUntilInFlight(1);
  context.TryCancel();
  EXPECT_EQ(reply.get().code(), grpc::StatusCode::CANCELLED);
  // The place of the request is free again.
  while (admission_->in_flight_count() > 0) std::this_thread::yield();
}

TEST_F(FirstVersionWaitTest, AModelThatIsForgottenEndsTheWait) {
  StartWaiting(kLongNs);
  Replies replies = BeginLate(3);
  map_.SetNotes("late", {});
  for (auto& reply : replies) EXPECT_EQ(reply.get().code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(FirstVersionWaitTest, AServerThatStopsDoesNotWait) {
  StartWaiting(kLongNs);
  Replies replies = BeginLate(3);
  EXPECT_TRUE(server_->Shutdown(kLongNs));
  for (auto& reply : replies) EXPECT_EQ(reply.get().code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(FirstVersionWaitTest, BeyondTheBoundRequestsAreAnsweredAtOnce) {
  options_.channel_arguments["grpc.max_concurrent_streams"] = 2'000;
  StartWaiting(kLongNs);
  constexpr int kBeyondCount = 20;
  const int count = static_cast<int>(AwaitingQueue::kCountMax) + kBeyondCount;
  Replies replies;
  for (int i = 0; i < count; ++i) {
    replies.push_back(client_->Begin(kPredictPath, Request("late")));
  }
  // Two threads read the requests, so any of them may be the ones that come too late.
  int refused_count = 0;
  while (refused_count < kBeyondCount) {
    for (auto& reply : replies) {
      if (!reply.valid() || reply.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
        continue;
      }
      EXPECT_EQ(reply.get().code(), grpc::StatusCode::UNAVAILABLE);
      ++refused_count;
    }
    std::this_thread::yield();
  }
  ASSERT_TRUE(servable::PublishHighest(map_, late_.entry).ok());
  for (auto& reply : replies) {
    if (!reply.valid()) continue;
    const RawClient::Reply answer = reply.get();
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  }
}

}  // namespace
}  // namespace millpond::rpc
