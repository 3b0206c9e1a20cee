#include "native/servable/batch_size.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace millpond::servable {
namespace {

constexpr int64_t kRowsMax = 1'024;
constexpr BusyThreads kAllBusy{false, 1};
constexpr BusyThreads kOneFree{true, 0};

// The costs of runs of a model: a run takes `fixed_ns`, and `row_ns` for each row.
struct Costs {
  int64_t fixed_ns;
  int64_t row_ns;
};

BatchRoom RoomOf(const Costs& costs, const FormedBatch& batch, const BusyThreads& threads,
                 int64_t run_rows_max = kRowsMax) {
  BatchCost cost(kRowsMax, /*run_ns_max=*/0);
  for (int64_t i = 0; i < 16; ++i) {
    for (int64_t rows = 1; rows <= kRowsMax; rows *= 2) {
      cost.Record(rows, costs.fixed_ns + rows * costs.row_ns);
    }
  }
  return RoomForNextRequest(batch, cost, run_rows_max, threads);
}

// Returns how many rows the next request may have.
int64_t Decide(const Costs& costs, const FormedBatch& batch, const BusyThreads& threads,
               int64_t run_rows_max = kRowsMax) {
  return RoomOf(costs, batch, threads, run_rows_max).sought_rows;
}

// Four rows take as long as the fixed part: up to 15 times as many are worth it.
constexpr Costs kSmallRows{4'000, 1'000};

TEST(RoomForNextRequest, BusyThreadTakesWhatIsWorthIt) {
  EXPECT_EQ(Decide(kSmallRows, {1, 1, 1}, kAllBusy), 59);
  EXPECT_EQ(Decide(kSmallRows, {3, 20, 1}, kAllBusy), 40);
  EXPECT_EQ(Decide(kSmallRows, {3, 60, 1}, kAllBusy), 0);
}

TEST(RoomForNextRequest, BatchStaysShortWhileAThreadIsFree) {
  EXPECT_EQ(Decide(kSmallRows, {1, 1, 1}, kOneFree), 3);
  EXPECT_EQ(Decide(kSmallRows, {4, 4, 1}, kOneFree), 0);
}

// It is decoded already, so the free thread would answer it no earlier.
TEST(RoomForNextRequest, LongerRequestThatWasTakenMayJoin) {
  EXPECT_EQ(RoomOf(kSmallRows, {1, 1, 1}, kOneFree).rows_max, 59);
  EXPECT_EQ(RoomOf(kSmallRows, {1, 1, 1}, kAllBusy).rows_max, 59);
}

TEST(RoomForNextRequest, RunsHaveNoMoreRowsThanTheyMay) {
  const BatchRoom room = RoomOf(kSmallRows, {1, 1, 1}, kAllBusy, /*run_rows_max=*/8);
  EXPECT_EQ(room.sought_rows, 7);
  EXPECT_EQ(room.rows_max, 7);
}

// A wrong measurement must not end batching for ever.
TEST(RoomForNextRequest, TwoOfASizeAlwaysFit) {
  EXPECT_EQ(Decide(kSmallRows, {1, 100, 100}, kAllBusy), 100);
}

// A run of three rows takes 4 ms.
constexpr Costs kLongRows{1'000'000, 1'000'000};

TEST(RoomForNextRequest, LongRequestsJoinOnlyIfManyWait) {
  EXPECT_EQ(Decide(kLongRows, {1, 3, 3}, {false, 1}), 0);
  EXPECT_GT(Decide(kLongRows, {1, 3, 3}, {false, 64}), 0);
}

TEST(RoomForNextRequest, BadRequestsCountAmongThoseTaken) {
  const FormedBatch almost{1, 1, 1, /*is_trial=*/false, kTakenRequestsMax - 1};
  EXPECT_GT(Decide(kSmallRows, almost, kAllBusy), 0);
  const FormedBatch full{1, 1, 1, /*is_trial=*/true, kTakenRequestsMax};
  EXPECT_EQ(Decide(kSmallRows, full, kAllBusy), 0);
}

TEST(RoomForNextRequest, TrialTakesASecondRequestWhateverTheWait) {
  EXPECT_GT(Decide(kLongRows, {1, 3, 3, /*is_trial=*/true}, {false, 1}), 0);
  EXPECT_EQ(Decide(kLongRows, {2, 6, 3, /*is_trial=*/true}, {false, 1}), 0);
}

}  // namespace
}  // namespace millpond::servable
