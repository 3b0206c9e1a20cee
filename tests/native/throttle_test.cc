#include "native/base/throttle.h"

#include <gtest/gtest.h>

namespace millpond::base {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(Throttle, APieceThatKeptItsCoreNeedsNoRest) {
  EXPECT_EQ(ThrottleRestNs(kMs, kMs), 0);
  EXPECT_EQ(ThrottleRestNs(kMs + 50'000, kMs), 0);
}

TEST(Throttle, PieceThatLostItsCoreRestsFourTimesItsWork) {
  EXPECT_EQ(ThrottleRestNs(3 * kMs, kMs), 4 * kMs);
}

TEST(Throttle, NoRestIsShorterThanTwoMilliseconds) {
  EXPECT_EQ(ThrottleRestNs(kMs, kMs / 10), 2 * kMs);
}

TEST(Throttle, NoRestIsLongerThanTwentyMilliseconds) {
  EXPECT_EQ(ThrottleRestNs(9'000 * kMs, 5'000 * kMs), 20 * kMs);
}

TEST(Throttle, ClocksThatRunBackwardsGiveNoNegativeRest) {
  EXPECT_EQ(ThrottleRestNs(kMs, -kMs), 2 * kMs);
}

}  // namespace
}  // namespace millpond::base
