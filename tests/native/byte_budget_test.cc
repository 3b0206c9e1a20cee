#include "native/base/byte_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

namespace millpond::base {
namespace {

TEST(ByteBudget, GivesOutItsLimitAndNoByteMore) {
  ByteBudget budget(100);
  EXPECT_TRUE(budget.Take(60));
  EXPECT_FALSE(budget.Take(41));
  EXPECT_TRUE(budget.Take(40));
  EXPECT_EQ(budget.in_use_bytes(), 100);
  EXPECT_EQ(budget.refused_count(), 1);
  budget.Return(100);
  EXPECT_EQ(budget.in_use_bytes(), 0);
}

TEST(ByteBudget, WithoutALimitCountsAndRefusesNothing) {
  ByteBudget budget;
  EXPECT_TRUE(budget.Take(INT64_MAX / 2));
  EXPECT_TRUE(budget.Take(1));
  EXPECT_EQ(budget.refused_count(), 0);
}

TEST(ByteBudget, CallsAndConnectionsHaveReservesBeyondTheLimit) {
  using Use = ByteBudget::Use;
  constexpr int64_t kReserve = ByteBudget::kReserveBytes;
  ByteBudget budget(100);
  ASSERT_TRUE(budget.Take(100));
  EXPECT_FALSE(budget.Take(1));
  EXPECT_TRUE(budget.Take(kReserve, Use::kCall));
  EXPECT_FALSE(budget.Take(1, Use::kCall));
  EXPECT_TRUE(budget.Take(kReserve, Use::kConnection));
  EXPECT_FALSE(budget.Take(1, Use::kConnection));
  budget.Return(2 * kReserve);
  EXPECT_FALSE(budget.Take(1));
  EXPECT_TRUE(ByteBudget().Take(INT64_MAX / 2, Use::kConnection));
}

TEST(ByteBudget, AnAbsurdSizeIsRefused) {
  ByteBudget budget(100);
  ASSERT_TRUE(budget.Take(100));
  EXPECT_FALSE(budget.Take(INT64_MAX - 100));
  EXPECT_EQ(budget.in_use_bytes(), 100);
}

TEST(ByteBudgetShare, ReturnsItsBytesWhenItEnds) {
  ByteBudget budget(100);
  {
    ByteBudget::Share share(&budget);
    EXPECT_TRUE(share.Resize(80));
    EXPECT_FALSE(share.Resize(101));
    EXPECT_EQ(share.bytes(), 80);
    EXPECT_TRUE(share.Resize(30));
    EXPECT_EQ(budget.in_use_bytes(), 30);
  }
  EXPECT_EQ(budget.in_use_bytes(), 0);
}

TEST(ByteBudgetShare, MovesWithItsBytes) {
  ByteBudget budget(100);
  ByteBudget::Share first(&budget);
  ASSERT_TRUE(first.Resize(10));
  ByteBudget::Share second(std::move(first));
  EXPECT_EQ(budget.in_use_bytes(), 10);
  ByteBudget::Share third(&budget);
  ASSERT_TRUE(third.Resize(5));
  third = std::move(second);
  EXPECT_EQ(budget.in_use_bytes(), 10);
  third = {};
  EXPECT_EQ(budget.in_use_bytes(), 0);
}

TEST(ByteBudgetShare, AbandonedBytesStayTaken) {
  ByteBudget budget(100);
  {
    ByteBudget::Share share(&budget);
    ASSERT_TRUE(share.Resize(60));
    share.Abandon();
    EXPECT_EQ(share.bytes(), 0);
  }
  EXPECT_EQ(budget.in_use_bytes(), 60);
}

TEST(ByteBudgetShare, WithoutABudgetCountsNothing) {
  ByteBudget::Share share;
  EXPECT_TRUE(share.Resize(INT64_MAX));
}

TEST(ByteBudget, ThreadsNeverHoldMoreThanTheLimitTogether) {
  constexpr int64_t kLimit = 1000;
  ByteBudget budget(kLimit);
  std::atomic<int64_t> held{0};
  std::atomic<int64_t> held_max{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5'000; ++i) {
        if (!budget.Take(300)) continue;
        const int64_t now = held.fetch_add(300) + 300;
        int64_t before = held_max;
        while (before < now && !held_max.compare_exchange_weak(before, now)) {
        }
        held.fetch_sub(300);
        budget.Return(300);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(held_max, kLimit);
  EXPECT_EQ(budget.in_use_bytes(), 0);
}

}  // namespace
}  // namespace millpond::base
