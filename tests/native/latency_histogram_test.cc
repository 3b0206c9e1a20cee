#include "native/metrics/latency_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/native/threads.h"
#include "tests/native/units.h"

namespace millpond::metrics {
namespace {

constexpr int64_t kUs = 1'000;
using testing::kMs;
using testing::kSecond;

// The error that the header states.
void ExpectWithinError(int64_t read_ns, int64_t exact_ns, const std::string& what) {
  const double allowed_ns = exact_ns < kUs ? 8 : 0.008 * static_cast<double>(exact_ns);
  EXPECT_LE(std::abs(static_cast<double>(read_ns - exact_ns)), allowed_ns)
      << what << ": read " << read_ns << " for " << exact_ns;
}

// As a fraction, so that the exact rank needs no floating point.
struct Quantile {
  int64_t numerator;
  int64_t denominator;

  double value() const { return static_cast<double>(numerator) / denominator; }
};

constexpr Quantile kQuantiles[] = {{0, 1},    {7, 100},    {1, 4},        {1, 2}, {9, 10},
                                   {99, 100}, {999, 1000}, {9999, 10000}, {1, 1}};

int64_t ExactValueAt(const std::vector<int64_t>& sorted, Quantile quantile) {
  const int64_t count = static_cast<int64_t>(sorted.size());
  const int64_t rank =
      (quantile.numerator * count + quantile.denominator - 1) / quantile.denominator;
  return sorted[std::max<int64_t>(rank, 1) - 1];
}

void ExpectSameAsSorted(const LatencySnapshot& snapshot, std::vector<int64_t> latencies_ns,
                        const std::string& what) {
  std::sort(latencies_ns.begin(), latencies_ns.end());
  int64_t sum_ns = 0;
  for (const int64_t latency_ns : latencies_ns) sum_ns += latency_ns;
  EXPECT_EQ(snapshot.count(), latencies_ns.size()) << what;
  EXPECT_EQ(snapshot.sum_ns(), sum_ns) << what;
  for (const Quantile quantile : kQuantiles) {
    ExpectWithinError(snapshot.ValueAtQuantile(quantile.value()),
                      ExactValueAt(latencies_ns, quantile),
                      what + " at " + std::to_string(quantile.value()));
  }
}

struct Distribution {
  const char* name;
  std::function<double(std::mt19937_64&)> draw_ns;
};

std::vector<Distribution> Distributions() {
  using Rng = std::mt19937_64;
  return {{"constant", [](Rng&) { return 250.0 * kUs; }},
          {"uniform", std::uniform_real_distribution<double>(0, 20.0 * kMs)},
          {"log-normal", std::lognormal_distribution<double>(std::log(2.0 * kMs), 1.0)},
          {"few nanoseconds", std::uniform_real_distribution<double>(0, 3.0 * kUs)},
          {"two humps",
           [](Rng& rng) {
             const double middle_ns = rng() % 100 == 0 ? 120.0 * kMs : 1.0 * kMs;
             return std::normal_distribution<double>(middle_ns, middle_ns / 20)(rng);
           }},
          {"1 us to 100 s", [](Rng& rng) {
             return std::exp(std::uniform_real_distribution<double>(
                 std::log(1.0 * kUs), std::log(100.0 * kSecond))(rng));
           }}};
}

TEST(LatencyHistogram, QuantilesStayWithinTheErrorOfASortedList) {
  std::mt19937_64 rng(20240601);
  for (Distribution& distribution : Distributions()) {
    for (const int count : {1, 2, 3, 10, 999, 1'000, 1'001, 20'000}) {
      LatencyHistogram histogram;
      std::vector<int64_t> latencies_ns(count);
      for (int64_t& latency_ns : latencies_ns) {
        latency_ns = std::max<int64_t>(0, std::llround(distribution.draw_ns(rng)));
        histogram.Record(latency_ns);
      }
      const LatencySnapshot snapshot = histogram.Snapshot();
      ExpectSameAsSorted(snapshot, latencies_ns,
                         distribution.name + (" x " + std::to_string(count)));
      EXPECT_EQ(snapshot.max_ns(), *std::max_element(latencies_ns.begin(), latencies_ns.end()));
    }
  }
}

TEST(LatencyHistogram, EveryLatencyFrom1UsTo100SReadsWithinTheError) {
  for (double latency_ns = 0; latency_ns <= 100.0 * kSecond;
       latency_ns = std::max(latency_ns + 1, latency_ns * 1.003)) {
    LatencyHistogram histogram;
    histogram.Record(static_cast<int64_t>(latency_ns));
    histogram.Record(1'000 * kSecond);  // Otherwise the quantile would read as the exact maximum.
    ExpectWithinError(histogram.Snapshot().ValueAtQuantile(0.5), static_cast<int64_t>(latency_ns),
                      "alone");
  }
}

TEST(LatencyHistogram, NothingRecordedReadsAsZero) {
  const LatencySnapshot snapshot = LatencyHistogram().Snapshot();
  EXPECT_EQ(snapshot.count(), 0);
  EXPECT_EQ(snapshot.sum_ns(), 0);
  EXPECT_EQ(snapshot.max_ns(), 0);
  EXPECT_EQ(snapshot.ValueAtQuantile(0.999), 0);
}

TEST(LatencyHistogram, NegativeLatencyCountsAsZero) {
  LatencyHistogram histogram;
  histogram.Record(-5 * kMs);
  const LatencySnapshot snapshot = histogram.Snapshot();
  EXPECT_EQ(snapshot.count(), 1);
  EXPECT_EQ(snapshot.sum_ns(), 0);
  EXPECT_EQ(snapshot.ValueAtQuantile(1), 0);
}

TEST(LatencyHistogram, LatencyBeyondTheLastBucketReadsAsTheMaximum) {
  LatencyHistogram histogram;
  histogram.Record(1 * kMs);
  histogram.Record(200 * kSecond);
  histogram.Record(1'000 * kSecond);
  const LatencySnapshot snapshot = histogram.Snapshot();
  EXPECT_EQ(snapshot.count(), 3);
  EXPECT_EQ(snapshot.sum_ns(), 1 * kMs + 1'200 * kSecond);
  EXPECT_EQ(snapshot.ValueAtQuantile(0.6), 1'000 * kSecond);
  EXPECT_EQ(snapshot.ValueAtQuantile(1), 1'000 * kSecond);
}

TEST(LatencyHistogram, RecordsTheLargestPossibleLatency) {
  LatencyHistogram histogram;
  histogram.Record(INT64_MAX);
  EXPECT_EQ(histogram.Snapshot().max_ns(), INT64_MAX);
  EXPECT_EQ(histogram.Snapshot().ValueAtQuantile(0.5), INT64_MAX);
}

TEST(LatencyHistogram, CountsEveryRecordOfManyThreads) {
  constexpr int kThreadCount = 8;
  constexpr int kRecordCount = 5'000;
  LatencyHistogram histogram;
  testing::RunTogether(kThreadCount, [&](int thread) {
    for (int record = 0; record < kRecordCount; ++record) {
      histogram.Record((int64_t{record} * kThreadCount + thread) * kUs);
    }
  });
  std::vector<int64_t> latencies_ns(kThreadCount * kRecordCount);
  for (size_t i = 0; i < latencies_ns.size(); ++i) latencies_ns[i] = static_cast<int64_t>(i) * kUs;
  ExpectSameAsSorted(histogram.Snapshot(), latencies_ns, "merged");
  EXPECT_EQ(histogram.Snapshot().max_ns(), latencies_ns.back());
}

class LatencyHistogramOfUse : public ::testing::TestWithParam<LatencyHistogram::Use> {};

// More threads than shards: some have one to themselves, and the others share one.
TEST_P(LatencyHistogramOfUse, CountsEveryRecordOfMoreThreadsThanShards) {
  constexpr int64_t kRecordCount = 200'000;
  const int thread_count = base::ShardCountForRequestThreads() + 3;
  LatencyHistogram histogram(GetParam());
  testing::RunTogether(thread_count, [&](int) {
    for (int64_t record = 0; record < kRecordCount; ++record) histogram.Record(2 * kMs);
  });
  EXPECT_EQ(histogram.Snapshot().count(), thread_count * kRecordCount);
  EXPECT_EQ(histogram.Snapshot().sum_ns(), thread_count * kRecordCount * 2 * kMs);
}

// Each thread takes over the shard of an earlier one.
TEST_P(LatencyHistogramOfUse, CountsEveryRecordOfThreadsThatFollowEachOther) {
  LatencyHistogram histogram(GetParam());
  for (int thread = 0; thread < 100; ++thread) {
    std::thread([&] {
      for (int record = 0; record < 100; ++record) histogram.Record(kMs);
    }).join();
  }
  EXPECT_EQ(histogram.Snapshot().count(), 10'000);
}

INSTANTIATE_TEST_SUITE_P(Uses, LatencyHistogramOfUse,
                         ::testing::Values(LatencyHistogram::Use::kHot,
                                           LatencyHistogram::Use::kRare));

TEST(LatencyHistogram, SnapshotHoldsSumAndMaximumOfItsCounts) {
  constexpr int64_t kRecordCount = 100'000;
  LatencyHistogram histogram;
  std::atomic<bool> recorder_runs{true};
  std::thread recorder([&] {
    for (int64_t record = 1; record <= kRecordCount; ++record) histogram.Record(record * kUs);
    recorder_runs = false;
  });
  int64_t count_before = 0;
  while (recorder_runs.load()) {
    const LatencySnapshot snapshot = histogram.Snapshot();
    const int64_t count = snapshot.count();
    ASSERT_GE(count, count_before);
    ASSERT_GE(snapshot.max_ns(), count * kUs);
    ASSERT_GE(snapshot.sum_ns(), count * (count + 1) / 2 * kUs);
    count_before = count;
  }
  recorder.join();
  EXPECT_EQ(histogram.Snapshot().count(), kRecordCount);
}

TEST(LatencySnapshot, DifferenceHoldsTheRecordsInBetween) {
  std::mt19937_64 rng(7);
  std::lognormal_distribution<double> draw_ns(std::log(2.0 * kMs), 1.0);
  LatencyHistogram histogram;
  for (int record = 0; record < 5'000; ++record) histogram.Record(50 * kSecond);
  const LatencySnapshot earlier = histogram.Snapshot();
  std::vector<int64_t> latencies_ns(5'000);
  for (int64_t& latency_ns : latencies_ns) {
    latency_ns = std::llround(draw_ns(rng));
    histogram.Record(latency_ns);
  }
  const LatencySnapshot window = histogram.Snapshot() - earlier;
  ExpectSameAsSorted(window, latencies_ns, "window");
  ExpectWithinError(window.max_ns(), *std::max_element(latencies_ns.begin(), latencies_ns.end()),
                    "max");
}

TEST(LatencySnapshot, DifferenceHasTheExactMaximumIfItRose) {
  LatencyHistogram histogram;
  histogram.Record(1 * kMs);
  const LatencySnapshot earlier = histogram.Snapshot();
  histogram.Record(7'654'321);
  EXPECT_EQ((histogram.Snapshot() - earlier).max_ns(), 7'654'321);
}

TEST(LatencySnapshot, DifferenceOfEqualSnapshotsIsEmpty) {
  LatencyHistogram histogram;
  histogram.Record(1 * kMs);
  const LatencySnapshot window = histogram.Snapshot() - histogram.Snapshot();
  EXPECT_EQ(window.count(), 0);
  EXPECT_EQ(window.sum_ns(), 0);
  EXPECT_EQ(window.max_ns(), 0);
  EXPECT_EQ(window.ValueAtQuantile(0.99), 0);
}

}  // namespace
}  // namespace millpond::metrics
