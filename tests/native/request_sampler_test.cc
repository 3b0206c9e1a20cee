#include "native/metrics/request_statistics.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "native/base/clock.h"
#include "tests/native/units.h"

namespace millpond::metrics {
namespace {

using testing::kSecond;

TEST(RequestSampler, SecondsFollowEachOtherAndSkipMissedOnes) {
  EXPECT_EQ(NextSecondNs(10 * kSecond, 10 * kSecond), 11 * kSecond);
  EXPECT_EQ(NextSecondNs(10 * kSecond, 10 * kSecond + 999'999'999), 11 * kSecond);
  EXPECT_EQ(NextSecondNs(10 * kSecond, 11 * kSecond), 12 * kSecond);
  EXPECT_EQ(NextSecondNs(10 * kSecond, 15 * kSecond + 1), 16 * kSecond);
}

TEST(RequestSampler, EndsTheFirstSecondAfterOne) {
  const int64_t start_ns = base::MonotonicNs();
  const auto statistics = std::make_shared<RequestStatistics>(start_ns);
  RequestSampler sampler(statistics);
  while (statistics->History({}, 0).empty()) std::this_thread::yield();
  EXPECT_GE(statistics->History({}, 0).front().at_ns, start_ns + kSecond);
}

TEST(RequestSampler, StopsAtOnceAndTwice) {
  const auto statistics = std::make_shared<RequestStatistics>(base::MonotonicNs());
  RequestSampler sampler(statistics);
  sampler.Stop();
  sampler.Stop();
  EXPECT_TRUE(statistics->History({}, 0).empty());
}

}  // namespace
}  // namespace millpond::metrics
