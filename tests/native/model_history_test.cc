#include "native/metrics/model_history.h"
#include "tests/native/units.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace millpond::metrics {
namespace {

using testing::kMs;
using testing::kSecond;

LatencySnapshot Requests(int64_t count, int64_t latency_ns) {
  LatencyHistogram histogram(LatencyHistogram::Use::kRare);
  for (int64_t i = 0; i < count; ++i) histogram.Record(latency_ns);
  return histogram.Snapshot();
}

class ModelHistoryTest : public ::testing::Test {
 protected:
  void Pass(int64_t span_ns, int64_t count, int64_t latency_ns = kMs, int64_t failed_count = 0) {
    const TimeSpan span{now_ns_, now_ns_ + span_ns};
    now_ns_ = span.end_ns;
    history_.Add(span, Requests(count, latency_ns), failed_count);
  }
  void PassSecond(int64_t count, int64_t latency_ns = kMs, int64_t failed_count = 0) {
    Pass(kSecond, count, latency_ns, failed_count);
    history_.EndSecond(now_ns_);
  }

  int64_t now_ns_ = 1'000 * kSecond;
  ModelHistory history_;
};

TEST_F(ModelHistoryTest, APointHasItsSecondsCountsAndTenSecondsOfLatency) {
  PassSecond(3, 90 * kMs);
  for (int second = 0; second < 9; ++second) PassSecond(2, kMs, 1);
  const HistoryPoint tenth = history_.points().back();
  EXPECT_EQ(tenth.at_ns, now_ns_);
  EXPECT_EQ(tenth.count, 2);
  EXPECT_EQ(tenth.failed_count, 1);
  EXPECT_EQ(tenth.latency.count, 21);
  EXPECT_EQ(tenth.latency.max_ns, 90 * kMs);
  PassSecond(2);
  EXPECT_EQ(history_.points().back().latency.count, 20);
  EXPECT_EQ(history_.points().back().latency.max_ns, kMs);
}

TEST_F(ModelHistoryTest, SecondsWithoutRequestsHaveAPointForTenSecondsOnly) {
  PassSecond(1);
  for (int second = 0; second < 20; ++second) PassSecond(0);
  ASSERT_EQ(history_.points().size(), 10);
  EXPECT_EQ(history_.points().back().count, 0);
  EXPECT_EQ(history_.points().back().latency.count, 1);
}

TEST_F(ModelHistoryTest, ALateSecondCountsWhole) {
  PassSecond(1);
  Pass(30 * kSecond, 5);
  history_.EndSecond(now_ns_);
  EXPECT_EQ(history_.points().back().count, 5);
  EXPECT_EQ(history_.points().back().latency.count, 5);
}

TEST_F(ModelHistoryTest, ACutSecondIsOnePointAndTwoSpans) {
  PassSecond(1);
  Pass(300 * kMs, 3, 5 * kMs);
  const int64_t cut_ns = now_ns_;
  Pass(700 * kMs, 4);
  history_.EndSecond(now_ns_);
  EXPECT_EQ(history_.points().size(), 2);
  EXPECT_EQ(history_.points().back().count, 7);
  EXPECT_EQ(history_.Between(cut_ns - 300 * kMs, cut_ns).count(), 3);
  EXPECT_EQ(history_.Between(cut_ns, now_ns_).count(), 4);
  EXPECT_EQ(history_.Between(0, now_ns_).count(), 8);
  EXPECT_EQ(history_.Between(cut_ns, cut_ns).count(), 0);
}

TEST_F(ModelHistoryTest, BetweenIsToTheSecond) {
  PassSecond(1);
  const int64_t end_ns = now_ns_;
  PassSecond(10);
  EXPECT_EQ(history_.Between(end_ns - 900 * kMs, end_ns + 100 * kMs).count(), 1);
  EXPECT_EQ(history_.Between(end_ns - 400 * kMs, end_ns + 600 * kMs).count(), 10);
}

TEST_F(ModelHistoryTest, ForgetsAfterFifteenMinutes) {
  PassSecond(7);
  const int64_t first_ns = now_ns_;
  for (int second = 0; second < 899; ++second) PassSecond(second % 2);
  EXPECT_EQ(history_.points().size(), 900);
  EXPECT_EQ(history_.Between(0, first_ns).count(), 7);
  PassSecond(0);
  EXPECT_EQ(history_.points().front().at_ns, first_ns + kSecond);
  EXPECT_EQ(history_.Between(0, first_ns).count(), 0);
  for (int second = 0; second < 910; ++second) PassSecond(0);
  EXPECT_TRUE(history_.is_empty());
}

}  // namespace
}  // namespace millpond::metrics
