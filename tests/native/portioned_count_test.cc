#include "native/base/portioned_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>

#include "tests/native/threads.h"

namespace millpond::base {
namespace {

TEST(PortionedCount, CountsWhatIsTakenAndNotWhatIsInHand) {
  PortionedCount count(16);
  EXPECT_TRUE(count.Take(3, 1'000));
  EXPECT_EQ(count.taken(), 3);
  EXPECT_TRUE(count.Take(100, 1'000));
  EXPECT_EQ(count.taken(), 103);
  count.Return(50);
  count.Return(1);
  EXPECT_EQ(count.taken(), 52);
  for (int i = 0; i < 52; ++i) count.Return(1);
  EXPECT_EQ(count.taken(), 0);
}

TEST(PortionedCount, GivesOutAllOfTheLimitAndNoMore) {
  PortionedCount count(16);
  int taken = 0;
  while (count.Take(1, 100)) ++taken;
  EXPECT_EQ(taken, 100);
  EXPECT_EQ(count.taken(), 100);
}

TEST(PortionedCount, WhatAnotherThreadHasInHandIsNotRefused) {
  PortionedCount count(16);
  std::thread other([&] {
    EXPECT_TRUE(count.Take(1, 20));
    count.Return(1);
  });
  other.join();
  EXPECT_TRUE(count.Take(20, 20));
  EXPECT_FALSE(count.Take(1, 20));
}

// A hand may hold what was taken under a higher limit.
TEST(PortionedCount, AHandIsNotUsedBeyondTheLimit) {
  PortionedCount count(16);
  EXPECT_TRUE(count.Take(100, 200));
  count.Return(10);
  EXPECT_FALSE(count.Take(1, 80));
  EXPECT_TRUE(count.Take(1, 91));
}

TEST(PortionedCount, WithoutPortionsEachChangeIsCommon) {
  PortionedCount count(0);
  EXPECT_TRUE(count.Take(2, 2));
  EXPECT_FALSE(count.Take(1, 2));
  count.Return(1);
  EXPECT_TRUE(count.Take(1, 2));
  EXPECT_EQ(count.taken(), 2);
}

TEST(PortionedCount, LimitsUpToTheLargestNumberHold) {
  PortionedCount count(1 << 16);
  EXPECT_TRUE(count.Take(INT64_MAX / 2, INT64_MAX));
  EXPECT_TRUE(count.Take(1, INT64_MAX));
  EXPECT_EQ(count.taken(), INT64_MAX / 2 + 1);
}

TEST(PortionedCount, ThreadsNeverTakeMoreThanTheLimitTogether) {
  constexpr int64_t kLimit = 60;
  PortionedCount count(8);
  std::atomic<int64_t> held{0};
  testing::RunTogether(4, [&](int thread) {
    std::mt19937 random(thread);
    int64_t mine = 0;
    for (int i = 0; i < 20'000; ++i) {
      const auto some = static_cast<int64_t>(1 + random() % 20);
      if (mine >= some) {
        held.fetch_sub(some);
        count.Return(some);
        mine -= some;
      } else if (count.Take(some, kLimit)) {
        ASSERT_LE(held.fetch_add(some) + some, kLimit);
        mine += some;
      }
    }
    held.fetch_sub(mine);
    count.Return(mine);
  });
  EXPECT_EQ(count.taken(), 0);
  EXPECT_TRUE(count.Take(kLimit, kLimit));
}

}  // namespace
}  // namespace millpond::base
