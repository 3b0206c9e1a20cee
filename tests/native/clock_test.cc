#include "native/base/clock.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace millpond::base {
namespace {

TEST(Clock, MonotonicNsNeverGoesBack) {
  int64_t before_ns = MonotonicNs();
  for (int read = 0; read < 10'000; ++read) {
    const int64_t now_ns = MonotonicNs();
    ASSERT_GE(now_ns, before_ns);
    before_ns = now_ns;
  }
}

TEST(Clock, CoarseMonotonicNsLagsByAtMostATick) {
  constexpr int64_t kLongestTickNs = 10'000'000;  // A kernel of 100 Hz.
  const int64_t before_ns = MonotonicNs();
  const int64_t coarse_ns = CoarseMonotonicNs();
  EXPECT_GE(coarse_ns, before_ns - kLongestTickNs);
  EXPECT_LE(coarse_ns, MonotonicNs());
}

TEST(Clock, SecondsToNsAddsToAnyClockReading) {
  EXPECT_EQ(SecondsToNs(0.25), 250'000'000);
  EXPECT_EQ(SecondsToNs(-1), 0);
  EXPECT_EQ(SecondsToNs(1e300), 1'000'000'000'000'000'000);
}

}  // namespace
}  // namespace millpond::base
