#include "native/pjrt/device_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "native/base/clock.h"

namespace millpond::pjrt {
namespace {

using base::Code;

constexpr int64_t kMillisecond = 1'000'000;

base::StatusOr<DeviceTurns::Turn> Take(DeviceTurns* turns, const std::string& model,
                                       int64_t cost_ns = 10 * kMillisecond,
                                       int64_t deadline_ns = DeviceTurns::kNoDeadline) {
  return turns->Take(model, /*is_low=*/false, cost_ns, deadline_ns);
}

void AwaitWaiter(const DeviceTurns& turns) {
  while (turns.waiting_count() == 0) std::this_thread::yield();
}

TEST(DeviceTurnsTest, AThirdLongRunWaitsForTheFirst) {
  DeviceTurns turns;
  auto first = Take(&turns, "a");
  auto second = Take(&turns, "a");
  ASSERT_TRUE(first.ok() && second.ok());
  std::atomic<bool> has_begun{false};
  std::thread third([&] {
    EXPECT_TRUE(Take(&turns, "a").ok());
    has_begun = true;
  });
  AwaitWaiter(turns);
  EXPECT_FALSE(has_begun);
  EXPECT_GT(first.value().End(), 0);
  third.join();
  EXPECT_TRUE(has_begun);
  EXPECT_EQ(first.value().End(), 0) << "a turn ends once";
}

TEST(DeviceTurnsTest, ARunThatCannotMeetItsDeadlineIsRefused) {
  DeviceTurns turns;
  const int64_t soon_ns = base::MonotonicNs() + 20 * kMillisecond;
  auto alone = Take(&turns, "a", 1'000 * kMillisecond, soon_ns);
  EXPECT_TRUE(alone.ok()) << "only a run shows that the cost is too high";
  EXPECT_EQ(Take(&turns, "a", 1'000 * kMillisecond, soon_ns).status().code(),
            Code::kDeadlineExceeded);
  EXPECT_EQ(Take(&turns, "b", kMillisecond, base::MonotonicNs() - 1).status().code(),
            Code::kDeadlineExceeded);
  alone.value().End();
  EXPECT_TRUE(Take(&turns, "b", kMillisecond, base::MonotonicNs() + 1'000 * kMillisecond).ok());
}

TEST(DeviceTurnsTest, ADeadlineEndsAWait) {
  DeviceTurns turns;
  auto first = Take(&turns, "a");
  auto second = Take(&turns, "a");
  const int64_t deadline_ns = base::MonotonicNs() + 3 * kMillisecond;
  EXPECT_EQ(Take(&turns, "b", kMillisecond, deadline_ns).status().code(), Code::kDeadlineExceeded);
  EXPECT_GE(base::MonotonicNs(), deadline_ns);
  // The run that gave up left nothing behind.
  first.value().End();
  second.value().End();
  EXPECT_TRUE(Take(&turns, "b").ok());
}

// Takes a turn of low priority while others fill the device to the end, and one of them ends if
// `ends_one`.
Code StarvedCode(bool ends_one) {
  DeviceTurns turns(/*wait_ns_max=*/500 * kMillisecond);
  auto first = Take(&turns, "busy", 0);
  auto second = Take(&turns, "busy", 0);
  auto third = Take(&turns, "busy");
  Code code = Code::kOk;
  std::thread low([&] {
    code =
        turns.Take("low", /*is_low=*/true, kMillisecond, DeviceTurns::kNoDeadline).status().code();
  });
  AwaitWaiter(turns);
  if (ends_one) first.value().End();
  low.join();
  EXPECT_EQ(turns.waiting_count(), 0);
  return code;
}

TEST(DeviceTurnsTest, ALowRunThatStarvesIsNoLossOfTheDevice) {
  EXPECT_EQ(StarvedCode(/*ends_one=*/true), Code::kAborted);
}

TEST(DeviceTurnsTest, ADeviceWhoseRunsDoNotEndIsLost) {
  EXPECT_EQ(StarvedCode(/*ends_one=*/false), Code::kUnavailable);
}

TEST(DeviceTurnsTest, ThreadsOfAllModelsGetTheirTurns) {
  DeviceTurns turns;
  std::atomic<int> under_way{0};
  std::atomic<int> most{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      const std::string model(1, static_cast<char>('a' + thread % 3));
      for (int run = 0; run < 300; ++run) {
        auto turn =
            turns.Take(model, /*is_low=*/thread == 5, 3 * kMillisecond, DeviceTurns::kNoDeadline);
        ASSERT_TRUE(turn.ok());
        const int now = under_way.fetch_add(1) + 1;
        int before = most.load();
        while (before < now && !most.compare_exchange_weak(before, now)) {
        }
        under_way.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 2) << "runs of 3 ms are two at a time";
}

}  // namespace
}  // namespace millpond::pjrt
