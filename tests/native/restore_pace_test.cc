#include "native/tf/restore_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace millpond::tf {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kMegabyte = 1'000'000;
constexpr int64_t kPieceBytes = 100'000;

// Reads pieces without a pause of its own until `end_ns`; returns the bytes read.
int64_t ReadUntil(RestorePace& pace, int64_t* now_ns, int64_t end_ns, int64_t rate) {
  int64_t read_bytes = 0;
  while (*now_ns < end_ns) {
    const int64_t wait_ns = pace.WaitNs(*now_ns, rate);
    *now_ns += wait_ns;
    if (wait_ns > 0) continue;
    pace.Spend(kPieceBytes);
    read_bytes += kPieceBytes;
  }
  return read_bytes;
}

TEST(RestorePace, WithoutALimitNothingWaits) {
  RestorePace pace(0);
  for (int piece = 0; piece < 100; ++piece) {
    EXPECT_EQ(pace.WaitNs(0, 0), 0);
    pace.Spend(kMegabyte);
  }
}

TEST(RestorePace, TheFirstPieceIsReadAtOnceAndTheSecondOncePaidFor) {
  RestorePace pace(5 * kSecondNs);
  EXPECT_EQ(pace.WaitNs(5 * kSecondNs, 10 * kMegabyte), 0);
  pace.Spend(kMegabyte);
  EXPECT_EQ(pace.WaitNs(5 * kSecondNs, 10 * kMegabyte), kSecondNs / 10);
  EXPECT_EQ(pace.WaitNs(5 * kSecondNs + kSecondNs / 20, 10 * kMegabyte), kSecondNs / 20);
  EXPECT_EQ(pace.WaitNs(5 * kSecondNs + kSecondNs / 10, 10 * kMegabyte), 0);
}

TEST(RestorePace, TheRateHoldsOverASecond) {
  RestorePace pace(0);
  int64_t now_ns = 0;
  const int64_t read_bytes = ReadUntil(pace, &now_ns, kSecondNs, 20 * kMegabyte);
  EXPECT_NEAR(read_bytes, 20 * kMegabyte, 2 * kPieceBytes);
}

TEST(RestorePace, SleepsThatEndLateAreMadeUpFor) {
  RestorePace pace(0);
  int64_t read_bytes = 0;
  for (int64_t now_ns = 0; now_ns < kSecondNs;) {
    const int64_t wait_ns = pace.WaitNs(now_ns, 20 * kMegabyte);
    now_ns += wait_ns == 0 ? 0 : wait_ns + 1'000'000;
    if (wait_ns > 0) continue;
    pace.Spend(kPieceBytes);
    read_bytes += kPieceBytes;
  }
  EXPECT_NEAR(read_bytes, 20 * kMegabyte, 3 * kPieceBytes);
}

TEST(RestorePace, ALongHoldUpIsNotMadeUpForInABurst) {
  RestorePace pace(0);
  pace.Spend(kMegabyte);
  int64_t now_ns = 100 * kSecondNs;
  const int64_t read_bytes = ReadUntil(pace, &now_ns, now_ns + kSecondNs, 20 * kMegabyte);
  const int64_t credit_bytes = 20 * kMegabyte * RestorePace::kCreditNs / kSecondNs;
  EXPECT_NEAR(read_bytes, 20 * kMegabyte + credit_bytes, 2 * kPieceBytes);
}

TEST(PaceBesideRequests, IsGentleUnlessTheTargetWantsMore) {
  constexpr int64_t kGigabyte = 1'000 * kMegabyte;
  EXPECT_EQ(PaceBesideRequests(500 * kMegabyte, 10 * kSecondNs), 250 * kMegabyte);
  EXPECT_EQ(PaceBesideRequests(2'500 * kMegabyte, 10 * kSecondNs), 250 * kMegabyte);
  EXPECT_EQ(PaceBesideRequests(8 * kGigabyte, 10 * kSecondNs), 800 * kMegabyte);
  EXPECT_EQ(PaceBesideRequests(100 * kGigabyte, 10 * kSecondNs), 4 * kGigabyte);
}

TEST(RestorePace, AnotherLimitHoldsFromTheNextQuestionOn) {
  RestorePace pace(0);
  pace.Spend(kMegabyte);
  EXPECT_EQ(pace.WaitNs(0, 1), kMegabyte * kSecondNs);
  EXPECT_EQ(pace.WaitNs(0, kMegabyte), kSecondNs);
  EXPECT_EQ(pace.WaitNs(0, 0), 0);
  EXPECT_EQ(pace.WaitNs(0, 1), 0) << "a limit that was lifted leaves no debt";
}

TEST(RestorePace, AClockThatStandsOrGoesBackPaysNothing) {
  RestorePace pace(kSecondNs);
  pace.Spend(kMegabyte);
  EXPECT_EQ(pace.WaitNs(0, kMegabyte), kSecondNs);
  EXPECT_EQ(pace.WaitNs(kSecondNs, kMegabyte), kSecondNs);
}

}  // namespace
}  // namespace millpond::tf
