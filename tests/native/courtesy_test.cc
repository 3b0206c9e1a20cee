#include "native/base/courtesy.h"

#include <gtest/gtest.h>

namespace millpond::base {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(Courtesy, APieceThatKeptItsCoreNeedsNoRest) {
  EXPECT_EQ(CourtesyRestNs(kMs, kMs), 0);
  EXPECT_EQ(CourtesyRestNs(kMs + 50'000, kMs), 0);
}

TEST(Courtesy, PieceThatLostItsCoreRestsFourTimesItsWork) {
  EXPECT_EQ(CourtesyRestNs(3 * kMs, kMs), 4 * kMs);
}

TEST(Courtesy, NoRestIsShorterThanTwoMilliseconds) {
  EXPECT_EQ(CourtesyRestNs(kMs, kMs / 10), 2 * kMs);
}

TEST(Courtesy, NoRestIsLongerThanTwentyMilliseconds) {
  EXPECT_EQ(CourtesyRestNs(9'000 * kMs, 5'000 * kMs), 20 * kMs);
}

TEST(Courtesy, ClocksThatRunBackwardsGiveNoNegativeRest) {
  EXPECT_EQ(CourtesyRestNs(kMs, -kMs), 2 * kMs);
}

}  // namespace
}  // namespace millpond::base
