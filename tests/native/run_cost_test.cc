#include "native/tf/run_cost.h"

#include <gtest/gtest.h>

namespace millpond::tf {
namespace {

constexpr int64_t kLongNs = 2 * RunCost::kWorthSharingNs;
constexpr int64_t kShortNs = RunCost::kWorthSharingNs / 4;

TEST(RunCost, UnknownRunsAreWorthSharing) {
  EXPECT_TRUE(RunCost().IsWorthSharing(0));
  EXPECT_TRUE(RunCost().IsWorthSharing(INT64_MAX));
}

TEST(RunCost, RunsAreKnownByTheirSize) {
  RunCost cost;
  cost.Record(/*element_count=*/39, 1, kShortNs);
  cost.Record(/*element_count=*/39'000, 1, kLongNs);
  EXPECT_FALSE(cost.IsWorthSharing(39));
  EXPECT_FALSE(cost.IsWorthSharing(40));
  EXPECT_TRUE(cost.IsWorthSharing(39'000));
  EXPECT_TRUE(cost.IsWorthSharing(40'000));
}

TEST(RunCost, ASharedRunCountsAllItsCores) {
  RunCost cost;
  cost.Record(100, 1, kLongNs);
  for (int i = 0; i < 50; ++i) cost.Record(100, 2, kLongNs / 2);
  EXPECT_TRUE(cost.IsWorthSharing(100));
}

TEST(RunCost, AShortFirstRunOnManyCoresIsMeasuredOnOne) {
  RunCost cost;
  cost.Record(100, 16, kShortNs);
  EXPECT_FALSE(cost.IsWorthSharing(100));
}

TEST(RunCost, ALongFirstRunOnManyCoresIsWorthSharing) {
  RunCost cost;
  cost.Record(100, 16, kLongNs);
  EXPECT_TRUE(cost.IsWorthSharing(100));
}

TEST(RunCost, OneSlowRunOfManyIsNotFollowed) {
  RunCost cost;
  for (int i = 0; i < 10; ++i) cost.Record(100, 1, kShortNs);
  cost.Record(100, 1, kLongNs);
  EXPECT_FALSE(cost.IsWorthSharing(100));
}

TEST(RunCost, AColdFirstRunIsSoonForgotten) {
  RunCost cost;
  cost.Record(100, 1, 10 * kLongNs);
  for (int i = 0; i < 20; ++i) cost.Record(100, 1, kShortNs);
  EXPECT_FALSE(cost.IsWorthSharing(100));
}

TEST(RunCost, LongerRunsAreLearned) {
  RunCost cost;
  for (int i = 0; i < 10; ++i) cost.Record(100, 1, kShortNs);
  for (int i = 0; i < 50; ++i) cost.Record(100, 1, kLongNs);
  EXPECT_TRUE(cost.IsWorthSharing(100));
}

}  // namespace
}  // namespace millpond::tf
