#include "native/metrics/latency_histogram.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace millpond::metrics {
namespace {

void ExpectSame(const LatencySnapshot& one, const LatencySnapshot& other) {
  EXPECT_EQ(one.count(), other.count());
  EXPECT_EQ(one.sum_ns(), other.sum_ns());
  EXPECT_EQ(one.max_ns(), other.max_ns());
  for (int per_mille = 0; per_mille <= 1'000; ++per_mille) {
    ASSERT_EQ(one.ValueAtQuantile(per_mille / 1'000.0), other.ValueAtQuantile(per_mille / 1'000.0));
  }
}

TEST(SparseLatency, OfNothingAddsNothing) {
  LatencySnapshot sum;
  SparseLatency(LatencySnapshot()).AddTo(&sum);
  EXPECT_EQ(sum.count(), 0);
  EXPECT_EQ(sum.ValueAtQuantile(1), 0);
}

TEST(SparseLatency, SecondsSumToTheirRecords) {
  std::mt19937_64 rng(7);
  std::lognormal_distribution<double> latency_ns(14, 3);  // 1 ms, from the first bucket to the last
  LatencyHistogram histogram;
  LatencySnapshot before;
  LatencySnapshot sum;
  for (int second = 0; second < 20; ++second) {
    for (int i = 0; i < 500; ++i) histogram.Record(static_cast<int64_t>(latency_ns(rng)));
    const LatencySnapshot now = histogram.Snapshot();
    SparseLatency(now - before).AddTo(&sum);
    before = now;
  }
  ExpectSame(sum, before);
}

}  // namespace
}  // namespace millpond::metrics
