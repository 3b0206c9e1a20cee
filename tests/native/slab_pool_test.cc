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
#include "tests/native/fake_page_pinner.h"
#include "tests/native/threads.h"
#include "tests/native/units.h"

namespace millpond::memory {
namespace {

using testing::kMiB;
constexpr size_t kHeadroomBytes = 64 * kMiB;

SlabPoolOptions ShortPause(int spare_slab_count = 1) {
  SlabPoolOptions options;
  options.spare_slab_count = spare_slab_count;
  options.step_pause_ns = 7;
  return options;
}

SlabNeed NeedOf(size_t bytes, size_t pinned_bytes = 0) {
  return {bytes + kHeadroomBytes, bytes, bytes, pinned_bytes};
}

// Touches the first bytes of a slab, as a version does that restores its parameters.
void Fill(Slab* slab, size_t bytes) { std::memset(slab->start(), 1, bytes); }

// The steps that the keeper took.
int KeepUntilDone(SlabPool* pool) {
  int step_count = 0;
  while (pool->KeepStep()) ++step_count;
  return step_count;
}

class SlabPoolTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Slab> Take(SlabPool* pool, const std::string& owner, size_t bytes) {
    return std::move(pool->Take(owner, bytes + kHeadroomBytes, bytes).value());
  }
  std::unique_ptr<Slab> Take(const std::string& owner, size_t bytes) {
    return Take(&pool_, owner, bytes);
  }
  // Loads the first version of an owner, or a further one, and lets the keeper finish.
  std::unique_ptr<Slab> Load(const std::string& owner, size_t bytes) {
    auto slab = Take(owner, bytes);
    Fill(slab.get(), bytes);
    Expect(owner, bytes);
    KeepUntilDone(&pool_);
    return slab;
  }
  void Expect(const std::string& owner, size_t bytes) {
    pool_.Expect(owner, NeedOf(bytes));
    pool_.Refill(SIZE_MAX);
  }
  SlabPoolStatistics Statistics() const { return pool_.Statistics(); }

  SlabPool pool_{ShortPause()};
};

TEST(SpareSlackOf, IsASixteenthInWholeUnitsAndBounded) {
  EXPECT_EQ(SpareSlackOf(0), 0);
  EXPECT_EQ(SpareSlackOf(2 * kMiB), 2 * kMiB);
  EXPECT_EQ(SpareSlackOf(100 * kMiB), 8 * kMiB);
  EXPECT_EQ(SpareSlackOf(10'000 * kMiB), 16 * kMiB);
}

TEST_F(SlabPoolTest, KeepsNothingWithoutExpectations) {
  EXPECT_EQ(pool_.KeepStep(), std::nullopt);
  auto slab = Take("a", 5 * kMiB);
  EXPECT_GE(slab->reserved_bytes(), 5 * kMiB);
  EXPECT_EQ(slab->ResidentBytes(), 0);
  EXPECT_EQ(Statistics().in_use_count, 1);
  EXPECT_EQ(pool_.KeepStep(), std::nullopt);
  pool_.GiveBack(std::move(slab));
}

TEST_F(SlabPoolTest, ExpectedMemoryIsPreFaultedStepByStep) {
  Expect("a", 6 * kMiB);
  EXPECT_EQ(pool_.KeepStep(), 7);
  EXPECT_EQ(Statistics().spare_reserved_bytes, 6 * kMiB + kHeadroomBytes);
  EXPECT_EQ(Statistics().spare_resident_bytes, 0);
  EXPECT_EQ(pool_.KeepStep(), 7);
  EXPECT_EQ(Statistics().spare_resident_bytes, 2 * kMiB);
  EXPECT_EQ(KeepUntilDone(&pool_), 2);
  const auto slab = Take("a", 6 * kMiB);
  EXPECT_EQ(slab->ResidentBytes(), 6 * kMiB);
  EXPECT_EQ(Statistics().spare_count, 0);
}

TEST_F(SlabPoolTest, SlabOfAnEndedVersionIsTheNextOnesAsItIs) {
  auto first = Load("a", 4 * kMiB);
  std::byte* const start = first->start();
  auto second = Load("a", 4 * kMiB);
  pool_.GiveBack(std::move(first));
  EXPECT_EQ(KeepUntilDone(&pool_), 0);
  const auto third = Take("a", 4 * kMiB);
  EXPECT_EQ(third->start(), start);
  EXPECT_EQ(third->ResidentBytes(), 4 * kMiB);
}

// The keeper pins ahead of the first swap, and the swaps after it pin only what was pinned never.
TEST_F(SlabPoolTest, SwapsPinNothing) {
  const auto pinner = std::make_shared<testing::FakePagePinner>();
  pool_.PinWith(pinner);
  auto serving = Load("m", 8 * kMiB);
  EXPECT_TRUE(pinner->calls.empty()) << "nothing was pinned for the first version";
  pool_.Expect("m", NeedOf(8 * kMiB, 8 * kMiB));
  KeepUntilDone(&pool_);
  for (int swap = 0; swap < 4; ++swap) {
    auto next = Take("m", 8 * kMiB);
    EXPECT_EQ(next->pinned_bytes(), 8 * kMiB);
    Fill(next.get(), 8 * kMiB);
    pool_.GiveBack(std::exchange(serving, std::move(next)));
    KeepUntilDone(&pool_);
    EXPECT_EQ(pinner->calls.size(), 2) << "the first version's slab, and the spare";
  }
  pool_.Forget("m");
  pool_.GiveBack(std::move(serving));
  KeepUntilDone(&pool_);
  EXPECT_EQ(pinner->bytes(), 0);
}

TEST_F(SlabPoolTest, APinnerThatRefusesIsNotAskedInALoop) {
  const auto pinner = std::make_shared<testing::FakePagePinner>();
  pinner->bytes_max = 10 * kMiB;
  pool_.PinWith(pinner);
  auto serving = Load("m", 16 * kMiB);
  pool_.Expect("m", NeedOf(16 * kMiB, 16 * kMiB));
  KeepUntilDone(&pool_);
  EXPECT_EQ(pinner->bytes(), 10 * kMiB);
  EXPECT_EQ(KeepUntilDone(&pool_), 0);
  pool_.Forget("m");
  KeepUntilDone(&pool_);
  pool_.GiveBack(std::move(serving));
}

TEST_F(SlabPoolTest, DuringASwapNoThirdSlabIsMade) {
  auto first = Load("a", 4 * kMiB);
  auto second = Take("a", 4 * kMiB);
  pool_.Refill(SIZE_MAX);
  EXPECT_EQ(pool_.KeepStep(), std::nullopt);
  Expect("a", 4 * kMiB);
  EXPECT_EQ(pool_.KeepStep(), std::nullopt);
  pool_.GiveBack(std::move(first));
  EXPECT_EQ(Statistics().spare_resident_bytes, 4 * kMiB);
  EXPECT_EQ(Statistics().surplus_resident_bytes, 0);
}

TEST_F(SlabPoolTest, OwnerThatServesTwoVersionsStillHasSpareMemory) {
  auto first = Load("a", 2 * kMiB);
  auto second = Take("a", 2 * kMiB);
  pool_.Expect("a", NeedOf(2 * kMiB), /*serving_slab_count=*/2);
  pool_.Refill(SIZE_MAX);
  KeepUntilDone(&pool_);
  EXPECT_EQ(Statistics().spare_resident_bytes, 2 * kMiB);
}

TEST_F(SlabPoolTest, SpareMemoryIsThatOfTheLargestVersions) {
  SlabPool pool(ShortPause(2));
  for (const size_t mib : {4, 30, 10, 20}) {
    pool.Expect("of " + std::to_string(mib), NeedOf(mib * kMiB));
    pool.Refill(SIZE_MAX);
    KeepUntilDone(&pool);
  }
  EXPECT_EQ(pool.Statistics().spare_resident_bytes, 50 * kMiB);
  pool.Forget("of 30");
  pool.Refill(SIZE_MAX);
  KeepUntilDone(&pool);
  EXPECT_EQ(pool.Statistics().spare_resident_bytes, 30 * kMiB);
}

TEST_F(SlabPoolTest, SmallVersionTakesOnlyWhatItNeedsOfALargeSpare) {
  auto large = Load("large", 100 * kMiB);
  auto small = Load("small", 2 * kMiB);
  EXPECT_EQ(Statistics().spare_resident_bytes, 100 * kMiB);
  auto next = Take("small", 2 * kMiB);
  EXPECT_EQ(next->ResidentBytes(), 2 * kMiB);
  EXPECT_EQ(Statistics().spare_resident_bytes, 98 * kMiB);
  pool_.GiveBack(std::move(small));
  EXPECT_EQ(KeepUntilDone(&pool_), 0);
  // The next version of the large owner is made of both spares.
  const auto large_next = Take("large", 100 * kMiB);
  EXPECT_EQ(large_next->ResidentBytes(), 100 * kMiB);
  EXPECT_EQ(Statistics().spare_count, 0);
}

TEST_F(SlabPoolTest, VersionThatHasGrownTakesWhatThereIs) {
  auto first = Load("a", 10 * kMiB);
  auto second = Take("a", 14 * kMiB);
  EXPECT_GE(second->reserved_bytes(), 14 * kMiB + kHeadroomBytes);
  EXPECT_EQ(second->ResidentBytes(), 10 * kMiB);
  Fill(second.get(), 14 * kMiB);
  Expect("a", 14 * kMiB);
  KeepUntilDone(&pool_);
  EXPECT_EQ(Statistics().spare_resident_bytes, 0);  // that of the first version is owed
  pool_.GiveBack(std::move(first));
  pool_.Refill(SIZE_MAX);
  KeepUntilDone(&pool_);
  EXPECT_EQ(Statistics().spare_resident_bytes, 14 * kMiB);
}

TEST(SlabPool, GrowthOfALargeVersionBesideASmallOneIsOneSpare) {
  SlabPool pool(ShortPause(/*spare_slab_count=*/2));
  pool.Expect("small", NeedOf(2 * kMiB));
  pool.Expect("large", NeedOf(100 * kMiB));
  pool.Refill(SIZE_MAX);
  KeepUntilDone(&pool);
  ASSERT_EQ(pool.Statistics().spare_count, 2);
  pool.Expect("large", NeedOf(150 * kMiB));
  pool.Refill(SIZE_MAX);
  KeepUntilDone(&pool);
  EXPECT_EQ(pool.Statistics().spare_count, 3);
  EXPECT_EQ(pool.Statistics().spare_resident_bytes, 152 * kMiB);
}

TEST(SlabPool, VersionWithoutParametersIsNoWork) {
  SlabPool pool(ShortPause(/*spare_slab_count=*/2));
  pool.Expect("empty", NeedOf(0));
  pool.Refill(SIZE_MAX);
  EXPECT_FALSE(pool.KeepStep());
  pool.Expect("large", NeedOf(8 * kMiB));
  pool.Refill(SIZE_MAX);
  KeepUntilDone(&pool);
  pool.Expect("large", NeedOf(12 * kMiB));
  pool.Refill(SIZE_MAX);
  for (int step = 0; step < 3; ++step) {  // One reserves the slab, two pre-fault it.
    EXPECT_TRUE(pool.KeepStep());
  }
  EXPECT_FALSE(pool.KeepStep());
  EXPECT_EQ(pool.Statistics().spare_resident_bytes, 12 * kMiB);
}

TEST_F(SlabPoolTest, MemoryOfAShrunkVersionIsReturnedBeyondTheSlack) {
  auto first = Load("a", 64 * kMiB);
  auto second = Take("a", 60 * kMiB);
  Fill(second.get(), 60 * kMiB);
  Expect("a", 60 * kMiB);
  pool_.GiveBack(std::move(first));
  // 64 + 64 - 60 MiB are 8 MiB more than the target: four steps, and an empty slab to unmap.
  EXPECT_EQ(KeepUntilDone(&pool_), 5);
  EXPECT_EQ(Statistics().spare_resident_bytes, 60 * kMiB);
  auto third = Take("a", 58 * kMiB);
  Expect("a", 58 * kMiB);
  pool_.GiveBack(std::move(second));
  EXPECT_EQ(KeepUntilDone(&pool_), 0);
}

TEST_F(SlabPoolTest, PlanIsCorrectedByWhatTheLastVersionUsed) {
  for (const auto& [used_mib, resident_mib] : {std::pair{8, 8}, {14, 14}}) {
    SlabPool pool(ShortPause());
    pool.Expect("a", {64 * kMiB, /*wanted_bytes=*/10 * kMiB, used_mib * kMiB});
    pool.Refill(SIZE_MAX);
    KeepUntilDone(&pool);
    const auto slab = std::move(pool.Take("a", 64 * kMiB, 10 * kMiB).value());
    EXPECT_EQ(slab->ResidentBytes(), resident_mib * kMiB);
  }
}

TEST_F(SlabPoolTest, FirstVersionOfAnOwnerTakesNothing) {
  Expect("a", 4 * kMiB);
  KeepUntilDone(&pool_);
  EXPECT_EQ(Take("b", 4 * kMiB)->ResidentBytes(), 0);
}

TEST_F(SlabPoolTest, SmallVersionTakesNoHugePage) {
  auto slab = Take("a", 8 * kPageBytes);
  Fill(slab.get(), 8 * kPageBytes);
  EXPECT_EQ(slab->ResidentBytes(), 8 * kPageBytes);
  pool_.GiveBack(std::move(slab));
  // The spare serves a large version as any other one does.
  slab = Take("b", 4 * kMiB);
  Fill(slab.get(), 4 * kMiB);
  EXPECT_EQ(slab->ResidentBytes(), 4 * kMiB);
}

TEST_F(SlabPoolTest, UnexpectedMemoryIsReturnedInStepsAndUnmapped) {
  auto slab = Take("a", 6 * kMiB);
  Fill(slab.get(), 6 * kMiB);
  pool_.GiveBack(std::move(slab));
  for (int64_t left = 4; left >= 0; left -= 2) {
    EXPECT_EQ(pool_.KeepStep(), 7);
    EXPECT_EQ(Statistics().surplus_resident_bytes, left * static_cast<int64_t>(kMiB));
  }
  EXPECT_EQ(Statistics().spare_resident_bytes, 0);
  EXPECT_EQ(KeepUntilDone(&pool_), 1);
  EXPECT_EQ(Statistics().spare_count, 0);
}

TEST_F(SlabPoolTest, WithoutSparesAllMemoryIsReturned) {
  SlabPool pool(ShortPause(0));
  auto slab = Take(&pool, "a", 4 * kMiB);
  Fill(slab.get(), 4 * kMiB);
  pool.Expect("a", NeedOf(4 * kMiB));
  EXPECT_TRUE(pool.Refill(SIZE_MAX));
  EXPECT_EQ(pool.KeepStep(), std::nullopt);
  pool.GiveBack(std::move(slab));
  KeepUntilDone(&pool);
  EXPECT_EQ(pool.Statistics().spare_count, 0);
}

TEST_F(SlabPoolTest, SurplusMayStillBeTaken) {
  auto first = Load("a", 8 * kMiB);
  auto second = Take("a", 8 * kMiB);
  Fill(second.get(), 8 * kMiB);
  Expect("a", 2 * kMiB);
  pool_.GiveBack(std::move(first));
  pool_.GiveBack(std::move(second));
  EXPECT_GT(Statistics().surplus_resident_bytes, 0);
  EXPECT_EQ(Take("a", 16 * kMiB)->ResidentBytes(), 16 * kMiB);
}

TEST_F(SlabPoolTest, AForgottenOwnersMemoryGoesBack) {
  Expect("a", 4 * kMiB);
  KeepUntilDone(&pool_);
  pool_.Forget("a");
  EXPECT_EQ(Statistics().spare_resident_bytes, 0);
  EXPECT_EQ(Statistics().surplus_resident_bytes, 4 * kMiB);
  KeepUntilDone(&pool_);
  EXPECT_EQ(Statistics().spare_count, 0);
}

TEST_F(SlabPoolTest, MemoryWithoutRoomIsNotMade) {
  pool_.Expect("a", NeedOf(10 * kMiB));
  EXPECT_FALSE(pool_.Refill(10 * kMiB - 1));
  EXPECT_EQ(KeepUntilDone(&pool_), 0);
  EXPECT_TRUE(pool_.Refill(10 * kMiB));
  KeepUntilDone(&pool_);
  EXPECT_EQ(Statistics().spare_resident_bytes, 10 * kMiB);
}

TEST_F(SlabPoolTest, RoomForASmallVersionOnlyIsUsedForIt) {
  pool_.Expect("large", NeedOf(100 * kMiB));
  pool_.Expect("small", NeedOf(10 * kMiB));
  EXPECT_FALSE(pool_.Refill(50 * kMiB));
  KeepUntilDone(&pool_);
  EXPECT_EQ(Statistics().spare_resident_bytes, 10 * kMiB);
}

TEST_F(SlabPoolTest, RoomThatIsGoneEndsThePreFaulting) {
  Expect("a", 10 * kMiB);
  pool_.KeepStep();
  pool_.KeepStep();
  EXPECT_FALSE(pool_.Refill(0));
  KeepUntilDone(&pool_);
  EXPECT_EQ(Statistics().spare_resident_bytes, 2 * kMiB);
}

TEST_F(SlabPoolTest, ASealedSlabIsWritableWhenItComesAgain) {
  auto first = Load("a", 4 * kMiB);
  auto second = Take("a", 4 * kMiB);
  ASSERT_TRUE(first->Seal().ok());
  pool_.GiveBack(std::move(first));
  const auto again = Take("a", 4 * kMiB);
  EXPECT_FALSE(again->is_sealed());
  std::memset(again->start(), 1, again->reserved_bytes());
}

TEST(SlabPool, AQuarantinedSlabIsCountedAndOutlivesThePool) {
  std::byte* start = nullptr;
  {
    SlabPool pool(ShortPause());
    auto slab = std::move(pool.Take("a", 2 * kMiB, 0).value());
    start = slab->start();
    start[5] = std::byte{0x5a};
    pool.Quarantine(std::move(slab));
    const SlabPoolStatistics statistics = pool.Statistics();
    EXPECT_EQ(statistics.quarantined_count, 1);
    EXPECT_EQ(statistics.quarantined_reserved_bytes, 2 * kMiB);
    EXPECT_EQ(statistics.in_use_count, 0);
    EXPECT_EQ(pool.KeepStep(), std::nullopt);
  }
  EXPECT_EQ(start[5], std::byte{0x5a});
}

TEST_F(SlabPoolTest, AReservationThatFailsIsReportedAndNotTriedInALoop) {
  EXPECT_EQ(pool_.Take("a", SIZE_MAX / 2, 0).status().code(), base::Code::kResourceExhausted);
  pool_.Expect("a", {SIZE_MAX / 2, 2 * kMiB, 2 * kMiB});
  pool_.Refill(SIZE_MAX);
  EXPECT_EQ(KeepUntilDone(&pool_), 1);
  EXPECT_EQ(Statistics().spare_count, 0);
  EXPECT_FALSE(Statistics().reservation_refusal.empty());
  Expect("a", 2 * kMiB);
  KeepUntilDone(&pool_);
  EXPECT_EQ(Statistics().spare_count, 1);
  EXPECT_EQ(Statistics().reservation_refusal, "");
}

TEST_F(SlabPoolTest, RefusedSlabLeavesTheSparesAsTheyWere) {
  Expect("a", 4 * kMiB);
  KeepUntilDone(&pool_);
  EXPECT_FALSE(pool_.Take("a", SIZE_MAX / 2, 4 * kMiB).ok());
  EXPECT_EQ(Statistics().spare_resident_bytes, 4 * kMiB);
  EXPECT_EQ(Statistics().in_use_count, 0);
}

TEST_F(SlabPoolTest, NotifiesOfPossibleWork) {
  int call_count = 0;
  pool_.NotifyOfWork([&] { ++call_count; });
  pool_.Expect("a", NeedOf(2 * kMiB));
  EXPECT_EQ(call_count, 1);
  pool_.GiveBack(Take("a", 2 * kMiB));
  EXPECT_EQ(call_count, 3);
  pool_.Refill(SIZE_MAX);
  EXPECT_EQ(call_count, 4);
  pool_.NotifyOfWork(nullptr);
  pool_.Forget("a");
  EXPECT_EQ(call_count, 4);
}

// A loader writes the whole slab: if the keeper still touched it, ThreadSanitizer would report it.
TEST_F(SlabPoolTest, LoadersSwapBesideTheKeeperAndNoSlabIsLost) {
  SlabPool pool(ShortPause(2));
  std::atomic<bool> loaders_run{true};
  std::thread keeper([&] {
    while (loaders_run) pool.KeepStep();
  });
  testing::RunTogether(3, [&](int thread) {
    const std::string owner = thread == 0 ? "a" : "b";
    std::mt19937_64 rng(thread);
    for (int version = 0; version < 100; ++version) {
      const size_t bytes = (1 + rng() % 4) * 2 * kMiB;
      auto slab = Take(&pool, owner, bytes);
      for (size_t at = 0; at < bytes; at += kPageBytes) {
        slab->start()[at] = static_cast<std::byte>(thread);
      }
      pool.Expect(owner, NeedOf(bytes));
      pool.Refill(rng() % 5 == 0 ? 0 : SIZE_MAX);
      if (version % 20 == 19) pool.Forget(owner);
      pool.GiveBack(std::move(slab));
    }
  });
  loaders_run = false;
  keeper.join();
  EXPECT_EQ(pool.Statistics().in_use_count, 0);
  pool.Forget("a");
  pool.Forget("b");
  KeepUntilDone(&pool);
  EXPECT_EQ(pool.Statistics().spare_count, 0);
}

}  // namespace
}  // namespace millpond::memory
