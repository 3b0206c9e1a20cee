#include "native/memory/version_arena.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "native/memory/jemalloc_api.h"
#include "tests/native/fake_memory.h"
#include "tests/native/fake_page_pinner.h"
#include "tests/native/units.h"

namespace millpond::memory {
namespace {

using testing::kMiB;
constexpr size_t kAlignment = 64;

class OverflowingMemoryTest : public ::testing::Test {
 protected:
  // Its blocks lie outside of `range_`, so all of them belong to the second resource here.
  std::byte range_[64];
  FakeMemory first_{0};
  FakeMemory second_{kMiB};
  OverflowingMemory memory_{&first_, range_, sizeof(range_), &second_};
};

TEST_F(OverflowingMemoryTest, SecondSourceFillsInForTheFirst) {
  void* const block = memory_.Allocate(1'000, kAlignment);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(memory_.overflow_block_count(), 1);
  EXPECT_EQ(second_.Statistics().in_use_bytes, 1'000);
  memory_.Deallocate(block);
  EXPECT_EQ(memory_.overflow_block_count(), 0);
  EXPECT_EQ(second_.Statistics().in_use_bytes, 0);
}

TEST_F(OverflowingMemoryTest, ReturnsNullIfBothAreExhausted) {
  EXPECT_EQ(memory_.Allocate(2 * kMiB, kAlignment), nullptr);
  EXPECT_EQ(memory_.overflow_block_count(), 0);
  memory_.Deallocate(nullptr);
  EXPECT_EQ(memory_.overflow_block_count(), 0);
}

// This holds over jemalloc only.
class VersionArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!IsJemallocPreloaded()) GTEST_SKIP() << "without jemalloc there are no arenas";
  }
  std::unique_ptr<VersionArena> Take(size_t bytes) {
    return std::move(VersionArena::Take(pool_, "m", bytes, bytes, &overflow_).value());
  }

  const std::shared_ptr<SlabPool> pool_ = std::make_shared<SlabPool>(SlabPoolOptions());
  FakeMemory overflow_{64 * kMiB};
};

TEST_F(VersionArenaTest, ItsMemoryIsPinnedAndStaysSoForTheNextVersion) {
  auto unpinned = Take(8 * kMiB);
  unpinned->Pin();
  EXPECT_TRUE(unpinned->Seal().ok());
  unpinned.reset();
  const auto pinner = std::make_shared<testing::FakePagePinner>();
  pool_->PinWith(pinner);
  auto arena = Take(8 * kMiB);
  void* const block = arena->memory()->Allocate(5 * kMiB, kAlignment);
  arena->Pin();
  EXPECT_EQ(pinner->bytes(), RoundUp(arena->used_slab_bytes(), kPageBytes));
  EXPECT_GE(pinner->bytes(), 5 * kMiB);
  EXPECT_EQ(arena->need().pinned_bytes, pinner->bytes());
  arena->memory()->Deallocate(block);
  const size_t pinned_bytes = pinner->bytes();
  pool_->Expect("m", arena->need());
  arena.reset();
  EXPECT_EQ(pinner->bytes(), pinned_bytes);
  EXPECT_EQ(Take(8 * kMiB)->need().pinned_bytes, 0) << "a version that uploads nothing";
}

TEST_F(VersionArenaTest, ItsSlabIsTheNextVersions) {
  auto arena = Take(8 * kMiB);
  void* const block = arena->memory()->Allocate(kMiB, kAlignment);
  std::memset(block, 1, kMiB);
  EXPECT_GE(arena->used_slab_bytes(), kMiB);
  pool_->Expect("m", arena->need());
  arena->memory()->Deallocate(block);
  EXPECT_EQ(arena->Release().live_bytes, 0);
  EXPECT_EQ(pool_->Statistics().spare_count, 1);
  const auto next = Take(8 * kMiB);
  void* const again = next->memory()->Allocate(kMiB, kAlignment);
  // jemalloc begins large blocks at different cache lines of a page.
  EXPECT_LT(std::abs(static_cast<std::byte*>(again) - static_cast<std::byte*>(block)), kPageBytes);
  next->memory()->Deallocate(again);
}

TEST_F(VersionArenaTest, LeakedBlockQuarantinesTheSlabAndMayBeFreed) {
  auto* const arena = Take(8 * kMiB).release();  // as LoadedVersion keeps it, for ever
  void* const block = arena->memory()->Allocate(5'000, kAlignment);
  const ArenaRemains remains = arena->Release();
  EXPECT_GE(remains.live_bytes, 5'000);
  ASSERT_EQ(remains.live_blocks.size(), 1);
  EXPECT_EQ(remains.live_blocks[0].count, 1);
  EXPECT_EQ(pool_->Statistics().quarantined_count, 1);
  EXPECT_EQ(arena->Release().live_bytes, remains.live_bytes);
  std::memset(block, 1, 5'000);
  arena->memory()->Deallocate(block);
}

TEST_F(VersionArenaTest, OverflowOfTheSlabIsServedElsewhereAndCounted) {
  const auto arena = Take(2 * kMiB);
  void* const block = arena->memory()->Allocate(4 * kMiB, kAlignment);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(arena->overflow_block_count(), 1);
  EXPECT_EQ(overflow_.Statistics().in_use_bytes, 4 * kMiB);
  arena->memory()->Deallocate(block);
  EXPECT_EQ(arena->Release().overflow_block_count, 0);
}

TEST_F(VersionArenaTest, SealedItCanBeFreedAndItsSlabIsWritableForTheNext) {
  auto arena = Take(8 * kMiB);
  pool_->Expect("m", arena->need());
  void* const block = arena->memory()->Allocate(kMiB, kAlignment);
  ASSERT_TRUE(arena->Seal().ok());
  arena->memory()->Deallocate(block);
  EXPECT_EQ(arena->Release().live_bytes, 0);
  const auto next = Take(8 * kMiB);
  void* const again = next->memory()->Allocate(kMiB, kAlignment);
  std::memset(again, 2, kMiB);
  next->memory()->Deallocate(again);
}

TEST(VersionArena, WithoutJemallocIsRefusedAndTheSlabGoesBack) {
  if (IsJemallocPreloaded()) GTEST_SKIP() << "with jemalloc there are arenas";
  FakeMemory overflow(0);
  const auto pool = std::make_shared<SlabPool>(SlabPoolOptions());
  EXPECT_EQ(VersionArena::Take(pool, "m", kMiB, kMiB, &overflow).status().code(),
            base::Code::kFailedPrecondition);
  EXPECT_EQ(pool->Statistics().in_use_count, 0);
}

}  // namespace
}  // namespace millpond::memory
