#include "native/servable/batch_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

#include "tests/native/threads.h"
#include "tests/native/units.h"

namespace millpond::servable {
namespace {

// If another thread is free.
constexpr bool kBusy = false;
constexpr bool kFree = true;
constexpr int64_t kUs = 1'000;
using testing::kMs;

// A run of a model: a fixed part and a part for each row.
struct Line {
  int64_t fixed_ns;
  int64_t row_ns;

  int64_t At(int64_t rows) const { return fixed_ns + row_ns * rows; }
};

void RecordRuns(const Line& line, int64_t largest_rows, BatchCost* cost) {
  for (int64_t rows = 1; rows <= largest_rows; rows *= 2) cost->Record(rows, line.At(rows));
}

TEST(BatchCost, WithoutRunsTwoRequestsMayJoinAndNothingIsSplit) {
  const BatchCost cost(1'024, 10 * kMs);
  EXPECT_EQ(cost.joined_rows_max(kBusy), 2);
  EXPECT_EQ(cost.run_rows_max(), 1'024);
  const BatchCost single(1, 10 * kMs);
  EXPECT_EQ(single.joined_rows_max(kBusy), 1);
  EXPECT_EQ(single.run_rows_max(), 1);
}

TEST(BatchCost, RowsMaxBelowOneIsOne) {
  const BatchCost cost(0, 0);
  EXPECT_EQ(cost.joined_rows_max(kBusy), 1);
  EXPECT_EQ(cost.run_rows_max(), 1);
}

TEST(BatchCost, BatchGrowsToTwiceTheLargestRunThatIsKnown) {
  BatchCost cost(1'024, 0);
  for (const int64_t rows : {1, 2, 4, 8}) {
    cost.Record(rows, 100 * kUs);
    EXPECT_EQ(cost.joined_rows_max(kBusy), 2 * rows);
  }
  cost.Record(3, 100 * kUs);
  EXPECT_EQ(cost.joined_rows_max(kBusy), 16);
}

TEST(BatchCost, RowsMaxBoundsWhatTheCostWouldAllow) {
  BatchCost cost(50, 0);
  RecordRuns({100 * kUs, 1}, 1'024, &cost);
  EXPECT_EQ(cost.joined_rows_max(kBusy), 50);
  EXPECT_EQ(cost.run_rows_max(), 50);
}

// The figures of the CTR model: 95 µs and 4.4 µs for each row.
TEST(BatchCost, TimeOfARunBoundsItsRows) {
  BatchCost cost(100'000, 1 * kMs);
  RecordRuns({95 * kUs, 4'400}, 1'024, &cost);
  EXPECT_NEAR(static_cast<double>(cost.run_rows_max()), 905'000.0 / 4'400, 1);
  EXPECT_NEAR(static_cast<double>(cost.joined_rows_max(kBusy)), 905'000.0 / 4'400, 1);
}

TEST(BatchCost, BatchIsNotExtendedWhenItsFixedCostIsASmallPart) {
  BatchCost cost(100'000, 0);
  RecordRuns({95 * kUs, 4'400}, 1'024, &cost);
  EXPECT_NEAR(static_cast<double>(cost.joined_rows_max(kBusy)),
              95'000.0 / 4'400 * (BatchCost::kWorthShare - 1), 1);
  EXPECT_EQ(cost.run_rows_max(), 100'000);
}

TEST(BatchCost, BesideAFreeThreadRowsCostNoMoreThanTheFixedPart) {
  BatchCost cost(100'000, 0);
  EXPECT_EQ(cost.joined_rows_max(kFree), 1);
  RecordRuns({95 * kUs, 4'400}, 1'024, &cost);
  EXPECT_NEAR(static_cast<double>(cost.joined_rows_max(kFree)), 95'000.0 / 4'400, 1);
}

TEST(BatchCost, AShortBatchIsAlwaysWorthItsWait) {
  BatchCost cost(100'000, 0);
  EXPECT_TRUE(cost.IsWorthTheWait(64, 1'000'000, 0));
  RecordRuns({95 * kUs, 4'400}, 1'024, &cost);
  EXPECT_TRUE(cost.IsWorthTheWait(64, 1, 0));
  EXPECT_TRUE(cost.IsWorthTheWait(2, 100, 0));
}

// Two requests of 300 rows take 1.4 ms each alone, of which 95 µs are fixed.
TEST(BatchCost, ALongBatchIsWorthTheWaitIfManyWaitBehindIt) {
  BatchCost cost(100'000, 0);
  RecordRuns({95 * kUs, 4'400}, 1'024, &cost);
  const double fixed_rows = 95'000.0 / 4'400;
  const auto waiting_min = static_cast<int64_t>(std::ceil(4 * (300 - fixed_rows) / fixed_rows));
  EXPECT_FALSE(cost.IsWorthTheWait(2, 300, 0));
  EXPECT_FALSE(cost.IsWorthTheWait(2, 300, waiting_min - 1));
  EXPECT_TRUE(cost.IsWorthTheWait(2, 300, waiting_min));
  EXPECT_FALSE(cost.IsWorthTheWait(3, 300, waiting_min));
}

TEST(BatchCost, RequestsShorterThanTheFixedCostAreWorthAnyWait) {
  BatchCost cost(100'000, 10 * kMs);
  RecordRuns({15 * kMs, 100 * kUs}, 1'024, &cost);
  EXPECT_TRUE(cost.IsWorthTheWait(2, 100, 0));
  EXPECT_FALSE(cost.IsWorthTheWait(2, 200, 0));
}

TEST(BatchCost, RunsWithoutAFixedCostAreNotWorthJoining) {
  BatchCost cost(1'024, 0);
  RecordRuns({0, 10 * kUs}, 256, &cost);
  EXPECT_EQ(cost.joined_rows_max(kBusy), 1);
  EXPECT_EQ(cost.run_rows_max(), 1'024);
}

TEST(BatchCost, ASlowModelHasTwiceItsFixedCost) {
  BatchCost cost(100'000, 10 * kMs);
  RecordRuns({15 * kMs, 100 * kUs}, 1'024, &cost);
  EXPECT_NEAR(static_cast<double>(cost.run_rows_max()), 150, 1);
  EXPECT_NEAR(static_cast<double>(cost.joined_rows_max(kBusy)), 150, 1);
}

TEST(BatchCost, OneRowThatTakesTooLongStillRuns) {
  BatchCost cost(1'024, 1 * kMs);
  RecordRuns({0, 5 * kMs}, 8, &cost);
  EXPECT_EQ(cost.joined_rows_max(kBusy), 1);
  EXPECT_EQ(cost.run_rows_max(), 1);
}

TEST(BatchCost, RunsOfOneSizeShowNoPartOfARow) {
  BatchCost cost(1'024, 10 * kMs);
  for (int i = 0; i < 100; ++i) cost.Record(4, 1 * kMs);
  EXPECT_EQ(cost.joined_rows_max(kBusy), 8);
  EXPECT_EQ(cost.run_rows_max(), 1'024);
}

TEST(BatchCost, FewRowsOrNoTimeBreakNothing) {
  BatchCost cost(1'024, 10 * kMs);
  cost.Record(0, 5);
  cost.Record(-3, 5);
  EXPECT_EQ(cost.joined_rows_max(kBusy), 2);
  cost.Record(8, 0);
  cost.Record(16, -1);
  EXPECT_EQ(cost.joined_rows_max(kBusy), 32);
}

// Runs of random rows on one line: the fit is that line, whatever the rows.
TEST(BatchCost, FindsTheLineBehindRandomRuns) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto number = [&](int64_t from, int64_t to) {
      return std::uniform_int_distribution<int64_t>(from, to)(random);
    };
    const Line line = {number(10, 500) * kUs, number(100, 20'000)};
    const int64_t run_ns_max = line.fixed_ns + line.row_ns * number(10, 5'000);
    BatchCost cost(1'000'000, run_ns_max);
    const int64_t largest_rows = number(8, 2'000);
    cost.Record(1, line.At(1));
    cost.Record(largest_rows, line.At(largest_rows));
    for (int i = 0; i < 100; ++i) {
      const int64_t rows = number(1, largest_rows);
      cost.Record(rows, line.At(rows));
    }
    const auto row_ns = static_cast<double>(line.row_ns);
    const double in_time =
        static_cast<double>(std::max(run_ns_max - line.fixed_ns, line.fixed_ns)) / row_ns;
    const double worth = static_cast<double>(line.fixed_ns * (BatchCost::kWorthShare - 1)) / row_ns;
    const double joined = std::min({in_time, worth, 2.0 * static_cast<double>(largest_rows)});
    EXPECT_NEAR(static_cast<double>(cost.run_rows_max()), in_time, 1 + 1e-3 * in_time);
    EXPECT_NEAR(static_cast<double>(cost.joined_rows_max(kBusy)), joined, 1 + 1e-3 * joined);
  }
}

TEST(BatchCost, ForgetsTheCostOfAnEarlierTime) {
  BatchCost cost(1'000'000, 10 * kMs);
  RecordRuns({100 * kUs, 1'000}, 1'024, &cost);
  const int64_t before = cost.run_rows_max();
  for (int i = 0; i < 200; ++i) RecordRuns({100 * kUs, 10'000}, 1'024, &cost);
  EXPECT_NEAR(static_cast<double>(before), 9'900, 10);
  EXPECT_NEAR(static_cast<double>(cost.run_rows_max()), 990, 10);
}

// A run that loses its core for 50 ms says nothing about its cost.
TEST(BatchCost, ARunThatWasInterruptedChangesLittle) {
  BatchCost cost(100'000, 10 * kMs);
  const Line line{100 * kUs, 5'000};
  for (int i = 0; i < 16; ++i) RecordRuns(line, 1'024, &cost);
  const auto before = static_cast<double>(cost.run_rows_max());
  cost.Record(128, 50 * kMs);
  EXPECT_NEAR(static_cast<double>(cost.run_rows_max()), before, 0.05 * before);
}

// A version's first runs are beside its load.
TEST(BatchCost, TheFirstRunOfASizeDoesNotCountForMore) {
  BatchCost cost(100'000, 10 * kMs);
  const Line line{100 * kUs, 5'000};
  cost.Record(1, 10 * line.At(1));
  for (int i = 0; i < 16; ++i) RecordRuns(line, 1'024, &cost);
  EXPECT_NEAR(static_cast<double>(cost.run_rows_max()), 1'980, 0.05 * 1'980);
}

TEST(BatchCost, LimitsStayWithinBoundsWhileThreadsRecord) {
  BatchCost cost(64, 1 * kMs);
  testing::RunTogether(4, [&](int thread) {
    std::mt19937 random(static_cast<unsigned>(thread));
    for (int i = 0; i < 5'000; ++i) {
      cost.Record(static_cast<int64_t>(random() % 100), static_cast<int64_t>(random() % kMs));
      ASSERT_GE(cost.joined_rows_max(kBusy), 1);
      ASSERT_LE(cost.joined_rows_max(kBusy), 64);
      ASSERT_GE(cost.run_rows_max(), 1);
      ASSERT_LE(cost.run_rows_max(), 64);
    }
  });
}

}  // namespace
}  // namespace millpond::servable
