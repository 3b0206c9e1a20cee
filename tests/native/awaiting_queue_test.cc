// The requests that wait for the first version of their model: their places, and when they go on.

#include "native/rpc/awaiting_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "native/rpc/incoming_request.h"
#include "native/rpc/receive_block.h"
#include "native/rpc/stream_call.h"
#include "tests/native/fake_carrier.h"
#include "tests/native/units.h"
#include "tests/native/whole_answers.h"

namespace millpond::rpc {
namespace {

using testing::kMs;
using Calls = std::vector<std::shared_ptr<RunnableCall>>;

struct NoHandler final : testing::WholeAnswers {
  void Answer(RunnableCall*) override {}
};

class AwaitingQueueTest : public ::testing::Test {
 protected:
  // Has a call wait for the change of `counter_`, at most until `until_ns`.
  std::shared_ptr<RunnableCall> Await(int64_t until_ns = 1'000 * kMs) {
    IncomingRequest request{base::ByteBudget::Share()};
    EXPECT_TRUE(request.Begin(&method_, {}, 0).ok());
    const auto call =
        std::make_shared<StreamCall>(carrier_, &limits_, ++stream_, request.Take(), CallAccount());
    EXPECT_TRUE(queue_.TakeAwaitingPlace());
    queue_.Await(call, {&counter_, counter_.load()}, until_ns);
    return call;
  }

  const std::shared_ptr<testing::FakeCarrier> carrier_ = std::make_shared<testing::FakeCarrier>();
  const CallLimits limits_{};
  NoHandler handler_;
  const Method method_{"/test/m", &handler_};
  std::atomic<int64_t> counter_{0};
  int32_t stream_ = -1;
  AwaitingQueue queue_;
};

TEST_F(AwaitingQueueTest, TakesAllInTheirOrderAfterTheChange) {
  const Calls calls = {Await(), Await(), Await()};
  EXPECT_TRUE(queue_.TakeDue(0).empty());
  counter_ += 1;
  EXPECT_EQ(queue_.TakeDue(0), calls);
  EXPECT_TRUE(queue_.TakeDue(0).empty());
}

TEST_F(AwaitingQueueTest, TakesThoseWhoseTimeIsOver) {
  const auto late = Await(20 * kMs);
  const auto early = Await(10 * kMs);
  EXPECT_TRUE(queue_.TakeDue(10 * kMs - 1).empty());
  EXPECT_EQ(queue_.TakeDue(10 * kMs), Calls{early});
  EXPECT_EQ(queue_.TakeDue(20 * kMs), Calls{late});
}

TEST_F(AwaitingQueueTest, TakesWhatItsClientCancels) {
  const auto waits = Await();
  const auto cancelled = Await();
  cancelled->Cancel(0);
  EXPECT_EQ(queue_.TakeDue(0), Calls{cancelled});
}

TEST_F(AwaitingQueueTest, AFullQueueGivesAPlaceOnceOneIsFree) {
  const auto first = Await(kMs);
  for (size_t i = 1; i < AwaitingQueue::kCountMax; ++i) Await();
  EXPECT_FALSE(queue_.TakeAwaitingPlace());
  EXPECT_EQ(queue_.TakeDue(kMs), Calls{first});
  EXPECT_TRUE(queue_.TakeAwaitingPlace());
  EXPECT_FALSE(queue_.TakeAwaitingPlace());
}

TEST_F(AwaitingQueueTest, AfterItsReleaseNothingWaits) {
  const Calls calls = {Await(), Await()};
  queue_.Release();
  EXPECT_FALSE(queue_.TakeAwaitingPlace());
  EXPECT_EQ(queue_.TakeDue(0), calls);
}

}  // namespace
}  // namespace millpond::rpc
