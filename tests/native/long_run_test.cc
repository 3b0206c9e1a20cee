// Which long runs are greedy, and when they give way.

#include "native/rpc/long_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "tests/native/units.h"

namespace millpond::rpc {
namespace {

using testing::kMs;

constexpr int64_t kGreedyNs = LongRun::kGreedyNs;

TEST(LongRun, IsGreedyOnceItHasComputedLongSinceItWasSeen) {
  LongRun run;
  EXPECT_FALSE(run.IsGreedy(/*begin_ns=*/7, /*cpu_ns=*/500 * kMs));
  EXPECT_FALSE(run.IsGreedy(7, 500 * kMs + kGreedyNs - 1));
  EXPECT_TRUE(run.IsGreedy(7, 500 * kMs + kGreedyNs));
}

TEST(LongRun, TheNextRunOfTheThreadBeginsAnew) {
  LongRun run;
  EXPECT_FALSE(run.IsGreedy(7, 0));
  EXPECT_TRUE(run.IsGreedy(7, kGreedyNs));
  EXPECT_FALSE(run.IsGreedy(8, kGreedyNs));
  EXPECT_FALSE(run.IsGreedy(8, 2 * kGreedyNs - 1));
  EXPECT_TRUE(run.IsGreedy(8, 2 * kGreedyNs));
}

TEST(LongRun, ARunThatWaitsIsNotGreedy) {
  LongRun run;
  for (int look = 0; look < 1'000; ++look) EXPECT_FALSE(run.IsGreedy(7, 3 * kMs));
}

TEST(LongRun, OnlyAGreedyRunBesideModestOnesMustGiveWay) {
  const int64_t now_ns = 100'000 * kMs;
  EXPECT_TRUE(MustGiveWay(true, /*modest_ns=*/now_ns, now_ns));
  EXPECT_TRUE(MustGiveWay(true, now_ns - 9'000 * kMs, now_ns));
  EXPECT_FALSE(MustGiveWay(true, now_ns - 11'000 * kMs, now_ns));
  EXPECT_FALSE(MustGiveWay(true, INT64_MIN / 2, now_ns));
  EXPECT_FALSE(MustGiveWay(false, now_ns, now_ns));
}

// The share of a lowered run beside a usual thread, which has 1.
double ShareOf(size_t lowered_count) { return std::pow(0.8, StepsOfLowering(lowered_count)); }

TEST(StepsOfLowering, LeaveEachRunAShareAndOthersMore) {
  EXPECT_GE(ShareOf(0), 0.1);
  double all = 0;
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_GE(ShareOf(i), 0.014) << i;
    if (i > 0) {
      EXPECT_LE(ShareOf(i), ShareOf(i - 1)) << i;
    }
    all += ShareOf(i);
  }
  EXPECT_LT(all, 0.5);
}

}  // namespace
}  // namespace millpond::rpc
