#include "native/servable/batch_statistics.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>

#include "tests/native/threads.h"

namespace millpond::servable {
namespace {

TEST(BatchStatistics, StartAtZero) {
  const BatchFigures figures = BatchStatistics().Figures();
  EXPECT_EQ(figures.run_count, 0);
  EXPECT_EQ(figures.request_count, 0);
  EXPECT_EQ(figures.by_rows, BatchSizeCounts{});
}

TEST(BatchStatistics, RunsAddUp) {
  BatchStatistics statistics;
  statistics.RecordRun(1, 100, 0, 0, 500);
  statistics.RecordRun(3, 6, 2, 70, 400);
  statistics.RecordFailedBatch();
  statistics.RecordSplit();
  statistics.RecordSplit();
  const BatchFigures figures = statistics.Figures();
  EXPECT_EQ(figures.run_count, 2);
  EXPECT_EQ(figures.request_count, 4);
  EXPECT_EQ(figures.row_count, 106);
  EXPECT_EQ(figures.padding_row_count, 2);
  EXPECT_EQ(figures.wait_ns, 70);
  EXPECT_EQ(figures.run_ns, 900);
  EXPECT_EQ(figures.failed_batch_count, 1);
  EXPECT_EQ(figures.split_request_count, 2);
}

TEST(BatchStatistics, ClassesEndAtPowersOfTwo) {
  struct Case {
    int64_t count;
    size_t index;
  };
  for (const auto& [count, index] :
       {Case{0, 0}, Case{1, 0}, Case{2, 1}, Case{3, 2}, Case{4, 2}, Case{5, 3}, Case{1'024, 10},
        Case{1'025, 11}, Case{16'384, 14}, Case{16'385, 15}, Case{INT64_MAX, 15}}) {
    BatchStatistics statistics;
    statistics.RecordRun(count, 1, 0, 0, 0);
    statistics.RecordRun(1, count, 0, 0, 0);
    BatchSizeCounts expected{};
    expected[0] += 1;
    expected[index] += 1;
    EXPECT_EQ(statistics.Figures().by_requests, expected) << count;
    EXPECT_EQ(statistics.Figures().by_rows, expected) << count;
  }
}

TEST(BatchStatistics, NoRunOfAnyThreadIsLost) {
  BatchStatistics statistics;
  testing::RunTogether(4, [&](int thread) {
    for (int64_t i = 1; i <= 1'000; ++i) statistics.RecordRun(thread + 1, i, 1, 2, 3);
  });
  const BatchFigures figures = statistics.Figures();
  EXPECT_EQ(figures.run_count, 4'000);
  EXPECT_EQ(figures.request_count, 1'000 * (1 + 2 + 3 + 4));
  EXPECT_EQ(figures.row_count, 4 * 500'500);
  EXPECT_EQ(figures.padding_row_count, 4'000);
  EXPECT_EQ(figures.wait_ns, 8'000);
  EXPECT_EQ(figures.run_ns, 12'000);
  EXPECT_EQ(std::accumulate(figures.by_rows.begin(), figures.by_rows.end(), int64_t{0}), 4'000);
}

}  // namespace
}  // namespace millpond::servable
