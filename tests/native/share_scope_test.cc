#include "native/base/share_scope.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "native/base/clock.h"
#include "tests/native/threads.h"

namespace millpond::base {
namespace {

constexpr int64_t kStep = ShareScope::kStepBytes;

TEST(ShareScope, CountsSmallPiecesOnceTheyAreAStep) {
  ByteBudget budget;
  ByteBudget::Share share(&budget);
  const ShareScope scope(&share);
  EXPECT_TRUE(ShareScope::Add(kStep - 1));
  EXPECT_EQ(budget.in_use_bytes(), 0);
  EXPECT_TRUE(ShareScope::Add(1));
  EXPECT_EQ(budget.in_use_bytes(), kStep);
  EXPECT_TRUE(ShareScope::Add(5 * kStep));
  EXPECT_EQ(budget.in_use_bytes(), 6 * kStep);
}

TEST(ShareScope, RefusesWhatTheBudgetHasNot) {
  ByteBudget budget(2 * kStep);
  ByteBudget::Share share(&budget);
  const ShareScope scope(&share);
  EXPECT_FALSE(ShareScope::Add(2 * kStep + 1));
  EXPECT_EQ(ShareScope::NoMemoryFor("it").code(), Code::kResourceExhausted);
  EXPECT_TRUE(ShareScope::Add(2 * kStep));
  EXPECT_FALSE(ShareScope::Add(kStep));
}

TEST(ShareScope, AScopeWithinAScopeGivesTheOuterOneBack) {
  ByteBudget budget;
  ByteBudget::Share outer(&budget);
  ByteBudget::Share inner(&budget);
  const ShareScope outer_scope(&outer);
  {
    const ShareScope inner_scope(&inner);
    EXPECT_TRUE(ShareScope::Add(kStep));
  }
  EXPECT_TRUE(ShareScope::Add(2 * kStep));
  EXPECT_EQ(inner.bytes(), kStep);
  EXPECT_EQ(outer.bytes(), 2 * kStep);
}

// As a batch decodes its requests.
TEST(ShareScope, ScopesWithinEachOtherLeaveOneStepUncountedTogether) {
  ByteBudget budget;
  constexpr int64_t kPiece = kStep / 3;
  int64_t added_bytes = 0;
  const std::function<void(int)> decode = [&](int depth) {
    ByteBudget::Share share(&budget);
    const ShareScope scope(&share);
    EXPECT_TRUE(ShareScope::Add(kPiece));
    added_bytes += kPiece;
    EXPECT_GT(budget.in_use_bytes(), added_bytes - kStep);
    if (depth > 1) decode(depth - 1);
    EXPECT_GT(budget.in_use_bytes(), added_bytes - kStep);
    added_bytes -= kPiece;
  };
  decode(100);
  EXPECT_EQ(budget.in_use_bytes(), 0);
}

TEST(ShareScope, WithoutAScopeNothingCountsOrEnds) {
  EXPECT_TRUE(ShareScope::Add(INT64_MAX));
  EXPECT_TRUE(ShareScope::CheckIsWanted().ok());
}

TEST(DecodeLook, EndsOnceTheDeadlineHasPassed) {
  ByteBudget::Share share;
  ReplyLimits limits;
  limits.deadline_ns = MonotonicNs() - 1'000'000'000;
  const ShareScope scope(&share, limits);
  DecodeLook look;
  EXPECT_TRUE(look.Count(DecodeLook::kLookSteps - 1));
  EXPECT_FALSE(look.Count());
  EXPECT_EQ(look.status().code(), Code::kDeadlineExceeded);
  EXPECT_FALSE(look.Count());
}

TEST(DecodeLook, EndsOnceTheClientHasCancelled) {
  ByteBudget::Share share;
  std::atomic<bool> is_cancelled{false};
  ReplyLimits limits;
  limits.is_cancelled = &is_cancelled;
  const ShareScope scope(&share, limits);
  DecodeLook look;
  EXPECT_TRUE(look.Count(DecodeLook::kLookSteps));
  is_cancelled = true;
  EXPECT_FALSE(look.Count(DecodeLook::kLookSteps));
  EXPECT_EQ(look.status().code(), Code::kCancelled);
}

TEST(DecodeLook, AnotherThreadsScopeDoesNotEndIt) {
  ByteBudget::Share share;
  ReplyLimits limits;
  limits.deadline_ns = 0;
  const ShareScope scope(&share, limits);
  testing::RunTogether(2, [](int) {
    DecodeLook look;
    EXPECT_TRUE(look.Count(DecodeLook::kLookSteps));
  });
}

}  // namespace
}  // namespace millpond::base
