#include "native/servable/batch_statistics.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

#include "tests/native/threads.h"

namespace millpond::servable {
namespace {

template <typename Counts>
int64_t Sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

TEST(BatchStatistics, CountsRunsAndTheirRequests) {
  BatchStatistics statistics;
  BatchRun run;
  run.Add(/*wait_ns=*/1'000);
  run.Add(/*wait_ns=*/1'001);
  statistics.RecordRun(run, /*rows=*/4, /*padding_rows=*/0, /*run_ns=*/9'000);
  const BatchFigures figures = statistics.Figures();
  EXPECT_EQ(figures.run_count, 1);
  EXPECT_EQ(figures.request_count, 2);
  EXPECT_EQ(figures.row_count, 4);
  EXPECT_EQ(figures.wait_ns, 2'001);
  EXPECT_EQ(figures.run_ns, 9'000);
  EXPECT_EQ(figures.by_rows[2], 1);
  EXPECT_EQ(figures.by_requests[1], 1);
  EXPECT_EQ(figures.by_wait[0], 1);  // 1 µs is within its class, and 1 ns more is not
  EXPECT_EQ(figures.by_wait[1], 1);
  EXPECT_EQ(figures.by_run[4], 1);
}

TEST(BatchStatistics, ClassesAreUpToAPowerOfTwoAndTheLastHasTheRest) {
  BatchStatistics statistics;
  for (const int64_t rows : {1, 2, 3, 4, 5, 1 << 14, (1 << 14) + 1, 1 << 20}) {
    statistics.RecordRun({}, rows, 0, 0);
  }
  EXPECT_EQ(statistics.Figures().by_rows,
            (BatchSizeCounts{1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2}));
}

TEST(BatchStatistics, APieceWithoutItsRequestIsARun) {
  BatchStatistics statistics;
  BatchRun first;
  first.Add(/*wait_ns=*/0);
  statistics.RecordRun(first, /*rows=*/16, 0, 0);
  statistics.RecordRun({}, /*rows=*/4, 0, 0);
  const BatchFigures figures = statistics.Figures();
  EXPECT_EQ(figures.run_count, 2);
  EXPECT_EQ(figures.request_count, 1);
  EXPECT_EQ(figures.row_count, 20);
  EXPECT_EQ(Sum(figures.by_requests), 2);
  EXPECT_EQ(Sum(figures.by_wait), 1);
}

TEST(BatchStatistics, NoRunOfAnyThreadIsLost) {
  BatchStatistics statistics;
  testing::RunTogether(4, [&](int thread) {
    for (int64_t i = 1; i <= 1'000; ++i) {
      BatchRun run;
      for (int request = 0; request <= thread; ++request) run.Add(/*wait_ns=*/2);
      statistics.RecordRun(run, /*rows=*/i, /*padding_rows=*/1, /*run_ns=*/3);
    }
  });
  const BatchFigures figures = statistics.Figures();
  EXPECT_EQ(figures.run_count, 4'000);
  EXPECT_EQ(figures.request_count, 1'000 * (1 + 2 + 3 + 4));
  EXPECT_EQ(figures.row_count, 4 * 500'500);
  EXPECT_EQ(figures.padding_row_count, 4'000);
  EXPECT_EQ(figures.wait_ns, 2 * figures.request_count);
  EXPECT_EQ(figures.run_ns, 12'000);
  EXPECT_EQ(Sum(figures.by_rows), 4'000);
}

}  // namespace
}  // namespace millpond::servable
