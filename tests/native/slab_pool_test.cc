#include "native/memory/slab_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "native/memory/slab.h"
#include "tests/native/threads.h"

namespace millpond::memory {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

SlabPoolOptions SmallSteps(int spare_slab_count = 1) {
  SlabPoolOptions options;
  options.spare_slab_count = spare_slab_count;
  options.step_bytes = kMiB;
  options.step_pause_ns = 7;
  return options;
}

class SlabPoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<Slab> Take(const std::string& owner, size_t bytes) {
    return std::move(pool_.Take(owner, bytes).value());
  }
  // The steps that the keeper took.
  int KeepUntilDone() {
    int step_count = 0;
    while (pool_.KeepStep()) ++step_count;
    return step_count;
  }
  SlabPoolStatistics Statistics() const { return pool_.Statistics(); }

  SlabPool pool_{SmallSteps()};
};

TEST_F(SlabPoolTest, KeepsNothingWithoutExpectations) {
  EXPECT_EQ(pool_.KeepStep(), std::nullopt);
  auto slab = Take("a", 5 * kMiB);
  EXPECT_GE(slab->reserved_bytes(), 5 * kMiB);
  EXPECT_EQ(Statistics().in_use_count, 1);
  EXPECT_EQ(pool_.KeepStep(), std::nullopt);
  pool_.GiveBack("a", std::move(slab));
}

TEST_F(SlabPoolTest, AnExpectedSpareIsMadeAndPreFaultedStepByStep) {
  pool_.Expect("a", 8 * kMiB, 3 * kMiB);
  EXPECT_EQ(pool_.KeepStep(), 7);
  EXPECT_EQ(Statistics().spare_reserved_bytes, 8 * kMiB);
  EXPECT_EQ(Statistics().spare_resident_bytes, 0);
  EXPECT_EQ(pool_.KeepStep(), 7);
  EXPECT_EQ(Statistics().spare_resident_bytes, kMiB);
  EXPECT_EQ(KeepUntilDone(), 2);
  const auto slab = Take("a", 8 * kMiB);
  EXPECT_GE(slab->ResidentBytes(), 3 * kMiB);
  EXPECT_EQ(Statistics().spare_count, 0);
}

TEST_F(SlabPoolTest, SlabOfAnEndedVersionIsTheNextOnes) {
  auto slab = Take("a", 4 * kMiB);
  std::byte* const start = slab->start();
  std::memset(start, 1, 4 * kMiB);
  pool_.Expect("a", 4 * kMiB, 4 * kMiB);
  pool_.GiveBack("a", std::move(slab));
  EXPECT_EQ(Statistics().spare_resident_bytes, 4 * kMiB);
  const auto next = Take("a", 3 * kMiB);
  EXPECT_EQ(next->start(), start);
  EXPECT_EQ(next->ResidentBytes(), 4 * kMiB);
}

TEST_F(SlabPoolTest, MemoryBeyondTheNextVersionsUseIsReturned) {
  auto slab = Take("a", 64 * kMiB);
  std::memset(slab->start(), 1, 60 * kMiB);
  pool_.Expect("a", 64 * kMiB, 4 * kMiB);
  pool_.GiveBack("a", std::move(slab));
  EXPECT_EQ(Statistics().spare_resident_bytes, 60 * kMiB);
  EXPECT_EQ(KeepUntilDone(), 60);  // from 4 MiB on, to the end
  EXPECT_EQ(Statistics().spare_resident_bytes, 4 * kMiB);
  EXPECT_EQ(Take("a", 64 * kMiB)->ResidentBytes(), 4 * kMiB);
}

TEST_F(SlabPoolTest, UnprocessedSurplusIsTheOwnersNextSlab) {
  auto slab = Take("a", 4 * kMiB);
  std::memset(slab->start(), 1, 4 * kMiB);
  std::byte* const start = slab->start();
  pool_.GiveBack("a", std::move(slab));
  ASSERT_EQ(Statistics().surplus_count, 1);
  EXPECT_EQ(Take("a", 4 * kMiB)->start(), start);
  EXPECT_EQ(Statistics().surplus_count, 0);
}

TEST_F(SlabPoolTest, ReturnedMemoryIsPreFaultedOnceExpected) {
  auto slab = Take("a", 64 * kMiB);
  std::memset(slab->start(), 1, 60 * kMiB);
  pool_.Expect("a", 64 * kMiB, 4 * kMiB);
  pool_.GiveBack("a", std::move(slab));
  KeepUntilDone();
  pool_.Expect("a", 64 * kMiB, 50 * kMiB);
  KeepUntilDone();
  EXPECT_EQ(Statistics().spare_resident_bytes, 50 * kMiB);
  pool_.Expect("a", 64 * kMiB, 4 * kMiB);
  KeepUntilDone();
  EXPECT_EQ(Take("a", 64 * kMiB)->ResidentBytes(), 4 * kMiB);
}

TEST_F(SlabPoolTest, ASpareThatIsResidentIsNotTouchedAgain) {
  auto slab = Take("a", 8 * kMiB);
  std::memset(slab->start(), 1, 8 * kMiB);
  pool_.Expect("a", 8 * kMiB, 8 * kMiB);
  pool_.GiveBack("a", std::move(slab));
  EXPECT_EQ(KeepUntilDone(), 0);
}

TEST_F(SlabPoolTest, ASpareThatIsALittleLargerThanNeededStaysAsItIs) {
  auto slab = Take("a", 32 * kMiB);
  std::memset(slab->start(), 1, 12 * kMiB);
  pool_.Expect("a", 32 * kMiB, 4 * kMiB);
  pool_.GiveBack("a", std::move(slab));
  KeepUntilDone();
  EXPECT_EQ(Take("a", 32 * kMiB)->ResidentBytes(), 12 * kMiB);
}

TEST_F(SlabPoolTest, DuringASwapNoThirdSlabIsMade) {
  auto first = Take("a", 2 * kMiB);
  pool_.Expect("a", 2 * kMiB, kMiB);
  KeepUntilDone();
  auto second = Take("a", 2 * kMiB);
  EXPECT_EQ(pool_.KeepStep(), std::nullopt);
  pool_.GiveBack("a", std::move(first));
  EXPECT_EQ(Statistics().spare_count, 1);
  EXPECT_EQ(Statistics().surplus_count, 0);
}

TEST_F(SlabPoolTest, AnOwnerThatServesTwoVersionsStillGetsItsSpare) {
  auto first = Take("a", 2 * kMiB);
  auto second = Take("a", 2 * kMiB);
  pool_.Expect("a", 2 * kMiB, 0, /*serving_slab_count=*/2);
  KeepUntilDone();
  EXPECT_EQ(Statistics().spare_count, 1);
}

TEST_F(SlabPoolTest, UnexpectedSlabsAreReturnedInStepsAndUnmapped) {
  auto slab = Take("a", 4 * kMiB);
  std::memset(slab->start(), 1, 4 * kMiB);
  pool_.GiveBack("a", std::move(slab));
  EXPECT_EQ(Statistics().surplus_resident_bytes, 4 * kMiB);
  for (int64_t left = 3; left >= 0; --left) {
    EXPECT_EQ(pool_.KeepStep(), 7);
    EXPECT_EQ(Statistics().surplus_resident_bytes, left * static_cast<int64_t>(kMiB));
  }
  EXPECT_EQ(KeepUntilDone(), 1);
  EXPECT_EQ(Statistics().surplus_count, 0);
}

TEST_F(SlabPoolTest, SurplusGoesBackBeforeASpareIsMade) {
  auto slab = Take("a", 2 * kMiB);
  std::memset(slab->start(), 1, 2 * kMiB);
  pool_.GiveBack("a", std::move(slab));
  pool_.Expect("b", 2 * kMiB, 2 * kMiB);
  pool_.KeepStep();
  EXPECT_EQ(Statistics().surplus_resident_bytes, kMiB);
  EXPECT_EQ(Statistics().spare_count, 0);
}

TEST_F(SlabPoolTest, SparesThatNoLongerFitAreReplaced) {
  for (const size_t expected_bytes : {8 * kMiB, 2 * kMiB, 30 * kMiB}) {
    pool_.Expect("a", expected_bytes, kMiB);
    KeepUntilDone();
    EXPECT_EQ(Statistics().spare_count, 1);
    EXPECT_EQ(Statistics().spare_reserved_bytes, expected_bytes);
    EXPECT_EQ(Statistics().surplus_count, 0);
  }
}

TEST_F(SlabPoolTest, ASpareSomewhatTooLargeIsKept) {
  pool_.Expect("a", 8 * kMiB, 0);
  KeepUntilDone();
  pool_.Expect("a", 6 * kMiB, 0);
  EXPECT_EQ(KeepUntilDone(), 0);
  EXPECT_EQ(Statistics().spare_reserved_bytes, 8 * kMiB);
}

TEST_F(SlabPoolTest, AForgottenOwnersSparesGoBack) {
  pool_.Expect("a", 2 * kMiB, 2 * kMiB);
  KeepUntilDone();
  pool_.Forget("a");
  EXPECT_EQ(Statistics().spare_count, 0);
  KeepUntilDone();
  EXPECT_TRUE(pool_.StatisticsByOwner().empty());
}

TEST_F(SlabPoolTest, OfTwoSparesTheOneWithMoreMemoryIsTaken) {
  SlabPool pool(SmallSteps(2));
  auto touched = std::move(pool.Take("a", 4 * kMiB).value());
  auto fresh = std::move(pool.Take("a", 4 * kMiB).value());
  std::memset(touched->start(), 1, 4 * kMiB);
  std::byte* const start = touched->start();
  pool.Expect("a", 4 * kMiB, 0);
  pool.GiveBack("a", std::move(fresh));
  pool.GiveBack("a", std::move(touched));
  EXPECT_EQ(pool.Statistics().spare_count, 2);
  const auto taken = std::move(pool.Take("a", kMiB).value());
  EXPECT_EQ(taken->start(), start);
}

TEST_F(SlabPoolTest, SparesAreNotSharedBetweenOwners) {
  pool_.Expect("a", 2 * kMiB, 2 * kMiB);
  KeepUntilDone();
  const auto slab = Take("b", 2 * kMiB);
  EXPECT_EQ(slab->ResidentBytes(), 0);
  EXPECT_EQ(pool_.StatisticsByOwner()["a"].spare_count, 1);
}

TEST_F(SlabPoolTest, ASealedSlabIsWritableWhenItComesAgain) {
  pool_.Expect("a", 2 * kMiB, 0);
  auto slab = Take("a", 2 * kMiB);
  ASSERT_TRUE(slab->Seal().ok());
  pool_.GiveBack("a", std::move(slab));
  const auto again = Take("a", 2 * kMiB);
  EXPECT_FALSE(again->is_sealed());
  std::memset(again->start(), 1, again->reserved_bytes());
}

TEST(SlabPool, AQuarantinedSlabIsCountedAndOutlivesThePool) {
  std::byte* start = nullptr;
  {
    SlabPool pool(SmallSteps());
    auto slab = std::move(pool.Take("a", 2 * kMiB).value());
    start = slab->start();
    start[5] = std::byte{0x5a};
    pool.Quarantine(std::move(slab));
    const SlabPoolStatistics statistics = pool.StatisticsByOwner()["a"];
    EXPECT_EQ(statistics.quarantined_count, 1);
    EXPECT_EQ(statistics.quarantined_reserved_bytes, 2 * kMiB);
    EXPECT_EQ(statistics.in_use_count, 0);
    EXPECT_EQ(pool.KeepStep(), std::nullopt);
  }
  EXPECT_EQ(start[5], std::byte{0x5a});
}

TEST_F(SlabPoolTest, AReservationThatFailsIsReportedAndNotTriedInALoop) {
  EXPECT_EQ(pool_.Take("a", SIZE_MAX / 2).status().code(), base::Code::kResourceExhausted);
  pool_.Expect("a", SIZE_MAX / 2, 0);
  EXPECT_EQ(KeepUntilDone(), 1);
  EXPECT_EQ(Statistics().spare_count, 0);
  pool_.Expect("a", 2 * kMiB, 0);
  KeepUntilDone();
  EXPECT_EQ(Statistics().spare_count, 1);
}

TEST_F(SlabPoolTest, NotifiesOfPossibleWork) {
  int call_count = 0;
  pool_.NotifyOfWork([&] { ++call_count; });
  pool_.Expect("a", 2 * kMiB, 0);
  EXPECT_EQ(call_count, 1);
  pool_.GiveBack("a", Take("a", 2 * kMiB));
  EXPECT_EQ(call_count, 3);
  pool_.NotifyOfWork(nullptr);
  pool_.Forget("a");
  EXPECT_EQ(call_count, 3);
}

// A loader writes the whole slab: if the keeper still touched it, ThreadSanitizer would report it.
TEST_F(SlabPoolTest, LoadersSwapBesideTheKeeperAndNoSlabIsLost) {
  std::atomic<bool> loaders_run{true};
  std::thread keeper([&] {
    while (loaders_run) pool_.KeepStep();
  });
  testing::RunTogether(3, [&](int thread) {
    const std::string owner = thread == 0 ? "a" : "b";
    std::mt19937_64 rng(thread);
    for (int version = 0; version < 100; ++version) {
      auto slab = Take(owner, 2 * kMiB);
      for (size_t at = 0; at < slab->reserved_bytes(); at += kPageBytes) {
        slab->start()[at] = static_cast<std::byte>(thread);
      }
      pool_.Expect(owner, (1 + rng() % 4) * 2 * kMiB, 2 * kMiB);
      if (version % 20 == 19) pool_.Forget(owner);
      pool_.GiveBack(owner, std::move(slab));
    }
  });
  loaders_run = false;
  keeper.join();
  EXPECT_EQ(Statistics().in_use_count, 0);
  pool_.Forget("a");
  pool_.Forget("b");
  KeepUntilDone();
  EXPECT_TRUE(pool_.StatisticsByOwner().empty());
}

}  // namespace
}  // namespace millpond::memory
