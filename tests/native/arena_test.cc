#include "native/memory/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "native/memory/jemalloc_api.h"
#include "native/memory/slab.h"
#include "tests/native/memory_resource_contract.h"
#include "tests/native/slab_arena.h"
#include "tests/native/threads.h"

namespace millpond::memory {
namespace {

struct ArenaSubject {
  static constexpr int64_t kPeakErrorBytes = 0;
  static std::unique_ptr<MemoryResource> Create() { return CreateArenaMemory(); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Arena, MemoryResourceContract, ArenaSubject);

TEST(ArenaWithoutJemalloc, IsRefusedWithTheRemedy) {
  if (IsJemallocPreloaded()) GTEST_SKIP() << "jemalloc is preloaded";
  const auto slab = std::move(Slab::Reserve(kMiB).value());
  const auto arena = Arena::Create(slab.get());
  EXPECT_EQ(arena.status().code(), base::Code::kFailedPrecondition);
  EXPECT_NE(arena.status().message().find("millpond serve"), std::string::npos);
}

// ctest runs this file once more with jemalloc preloaded.
class ArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!IsJemallocPreloaded()) GTEST_SKIP() << "needs LD_PRELOAD=libjemalloc.so.2";
  }
};

bool IsInside(const Slab& slab, const void* block) {
  const auto* const at = static_cast<const std::byte*>(block);
  return at >= slab.start() && at < slab.start() + slab.reserved_bytes();
}

// Allocates blocks of these sizes in this order; stops at the first refused one.
std::vector<void*> AllocateAll(Arena& arena, const std::vector<size_t>& sizes) {
  std::vector<void*> blocks;
  for (const size_t bytes : sizes) {
    void* block = arena.Allocate(bytes, kTensorAlignment);
    if (block == nullptr) break;
    blocks.push_back(block);
  }
  return blocks;
}

void DeallocateAll(Arena& arena, const std::vector<void*>& blocks) {
  for (void* block : blocks) arena.Deallocate(block);
}

size_t Sum(const std::vector<size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
}

TEST_F(ArenaTest, EveryBlockLiesInTheSlab) {
  SlabArena on_slab(64 * kMiB);
  std::vector<void*> blocks;
  for (size_t bytes = 1; bytes <= 8 * kMiB; bytes = bytes * 3 / 2 + 1) {
    blocks.push_back(on_slab.arena->Allocate(bytes, kTensorAlignment));
    EXPECT_TRUE(IsInside(*on_slab.slab, blocks.back())) << bytes;
  }
  DeallocateAll(*on_slab.arena, blocks);
}

TEST_F(ArenaTest, FullSlabGivesNullptrAndTheArenaWorksOn) {
  SlabArena on_slab(8 * kMiB);
  Arena& arena = *on_slab.arena;
  const std::vector<void*> blocks = AllocateAll(arena, std::vector<size_t>(20, kMiB));
  EXPECT_EQ(blocks.size(), 7);  // Each block takes one more page: the eighth does not fit.
  EXPECT_EQ(arena.Allocate(kMiB, kTensorAlignment), nullptr);
  arena.Deallocate(blocks[3]);
  void* const again = arena.Allocate(kMiB, kTensorAlignment);
  EXPECT_TRUE(IsInside(*on_slab.slab, again));
  arena.Deallocate(again);
  for (const size_t i : {0, 1, 2, 4, 5, 6}) arena.Deallocate(blocks[i]);
  EXPECT_TRUE(arena.Destroy().ok());
}

TEST_F(ArenaTest, FreedMemoryOfLargeBlocksServesSmallOnes) {
  SlabArena on_slab(8 * kMiB);
  const size_t most_bytes = 6 * kMiB;
  on_slab.arena->Deallocate(on_slab.arena->Allocate(most_bytes, kTensorAlignment));
  const std::vector<void*> blocks = AllocateAll(*on_slab.arena, std::vector<size_t>(1700, 4096));
  EXPECT_EQ(blocks.size(), 1700);
  DeallocateAll(*on_slab.arena, blocks);
}

std::vector<std::vector<size_t>> AdversarialTensorSizes() {
  std::mt19937_64 rng(7);
  std::vector<std::vector<size_t>> lists = {
      {},
      {0},
      std::vector<size_t>(26, 19'200'000),
      std::vector<size_t>(3, 2 * kMiB),
      {16 * 1024, 16 * 1024 + 1, 14 * 1024, 14 * 1024 + 1, 4096, 4097},
      {(std::size_t{20} << 20) + 1, (std::size_t{24} << 20) + 1, 1, 1, 1},
  };
  std::vector<size_t> growing;
  for (size_t bytes = 1; bytes < 40 * kMiB; bytes += bytes / 3 + 1) growing.push_back(bytes);
  lists.emplace_back(growing.rbegin(), growing.rend());
  lists.push_back(growing);
  for (int list = 0; list < 20; ++list) {
    std::vector<size_t> sizes;
    for (int tensor = 0; tensor < 200; ++tensor) {
      sizes.push_back(rng() % (size_t{1} << (1 + rng() % 23)));
    }
    lists.push_back(std::move(sizes));
  }
  return lists;
}

TEST_F(ArenaTest, ThePlannedSlabHoldsExactlyItsBlocks) {
  for (const std::vector<size_t>& sizes : AdversarialTensorSizes()) {
    const size_t planned_bytes = PlanSlabBytes(sizes);
    SlabArena on_slab(planned_bytes);
    const std::vector<void*> blocks = AllocateAll(*on_slab.arena, sizes);
    EXPECT_EQ(blocks.size(), sizes.size());
    const ArenaStatistics statistics = on_slab.arena->ArenaStats();
    EXPECT_EQ(statistics.used_bytes(), planned_bytes);
    EXPECT_EQ(statistics.retained_bytes, 0);
    DeallocateAll(*on_slab.arena, blocks);
  }
}

TEST_F(ArenaTest, CtrEmbeddingTablesTakeAtMostATenthMore) {
  const std::vector<size_t> tables(26, 19'200'000);
  EXPECT_GE(PlanSlabBytes(tables), Sum(tables));
  EXPECT_LE(PlanSlabBytes(tables), Sum(tables) * 110 / 100);
}

TEST_F(ArenaTest, BlockBytesAreTheCountedBytes) {
  SlabArena on_slab(64 * kMiB);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{65}, size_t{19'201}, 5 * kMiB + 1}) {
    void* const block = on_slab.arena->Allocate(bytes, kTensorAlignment);
    EXPECT_EQ(on_slab.arena->Statistics().in_use_bytes, Arena::BlockBytes(bytes)) << bytes;
    on_slab.arena->Deallocate(block);
  }
  EXPECT_EQ(Arena::BlockBytes(SIZE_MAX), 0);
}

TEST_F(ArenaTest, StatisticsDivideTheSlab) {
  SlabArena on_slab(16 * kMiB);
  Arena& arena = *on_slab.arena;
  void* const kept = arena.Allocate(3 * kMiB, kTensorAlignment);
  arena.Deallocate(arena.Allocate(2 * kMiB, kTensorAlignment));
  std::memset(kept, 1, 3 * kMiB);
  const ArenaStatistics statistics = arena.ArenaStats();
  EXPECT_EQ(statistics.allocated_bytes, 3 * kMiB);
  EXPECT_EQ(statistics.active_unused_bytes, kPageBytes);
  EXPECT_EQ(statistics.retained_bytes, 2 * kMiB + kPageBytes);
  EXPECT_EQ(statistics.slab_reserved_bytes(), 16 * kMiB);
  EXPECT_GE(statistics.slab_resident_bytes, 3 * kMiB);
  // Huge pages may hold more than was touched.
  EXPECT_LE(statistics.slab_resident_bytes, 6 * kMiB);
  arena.Deallocate(kept);
}

TEST_F(ArenaTest, ALeakIsNamedBySizeAndCountAndKeepsTheArena) {
  SlabArena on_slab(64 * kMiB);
  Arena& arena = *on_slab.arena;
  const std::vector<void*> blocks = AllocateAll(arena, {100, 100, 19'200, 5 * kMiB, 64, 100});
  arena.Deallocate(blocks[0]);
  const std::vector<LiveBlocks> live = arena.LiveBlocksBySize();
  ASSERT_EQ(live.size(), 4);
  EXPECT_EQ(live[0].block_bytes, 64);
  EXPECT_EQ(live[1].block_bytes, 128);
  EXPECT_EQ(live[1].count, 2);
  EXPECT_EQ(live[2].block_bytes, 20 * 1024);
  EXPECT_EQ(live[3].block_bytes, 5 * kMiB);
  const base::Status status = arena.Destroy();
  EXPECT_EQ(status.code(), base::Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("in 5 blocks"), std::string::npos) << status.message();
  void* const more = arena.Allocate(100, kTensorAlignment);
  EXPECT_TRUE(IsInside(*on_slab.slab, more));
  arena.Deallocate(more);
  DeallocateAll(arena, {blocks.begin() + 1, blocks.end()});
  EXPECT_TRUE(arena.Destroy().ok());
}

TEST_F(ArenaTest, EndedArenaGivesNoBlockAndEndsOnlyOnce) {
  SlabArena on_slab(4 * kMiB);
  Arena& arena = *on_slab.arena;
  arena.Deallocate(arena.Allocate(kMiB, kTensorAlignment));
  EXPECT_TRUE(arena.Destroy().ok());
  EXPECT_TRUE(arena.Destroy().ok());
  EXPECT_EQ(arena.Allocate(1, kTensorAlignment), nullptr);
  EXPECT_EQ(arena.Statistics().allocation_count, 1);
  EXPECT_EQ(arena.ArenaStats().slab_reserved_bytes(), 4 * kMiB);
  EXPECT_TRUE(arena.LiveBlocksBySize().empty());
}

TEST_F(ArenaTest, BlocksOutlivingTheirArenaQuarantineTheSlab) {
  SlabArena on_slab(4 * kMiB);
  void* const leaked = on_slab.arena->Allocate(kMiB, kTensorAlignment);
  std::memset(leaked, 0x5a, kMiB);
  on_slab.arena.reset();
  SlabArena other(4 * kMiB);  // A new arena would get the index if it had been freed.
  other.arena->Deallocate(other.arena->Allocate(kMiB, kTensorAlignment));
  const auto* const bytes = static_cast<const unsigned char*>(leaked);
  for (size_t i = 0; i < kMiB; ++i) ASSERT_EQ(bytes[i], 0x5a);
  static_cast<void>(on_slab.slab.release());  // Quarantine.
}

TEST_F(ArenaTest, SealedSlabCanBeReadAndFreedIntoButNotAllocatedFrom) {
  SlabArena on_slab(64 * kMiB);
  Arena& arena = *on_slab.arena;
  const std::vector<void*> blocks = AllocateAll(arena, {100, 100, 4096, 20'000, 5 * kMiB, kMiB});
  std::memset(blocks[4], 0x77, 5 * kMiB);
  ASSERT_TRUE(on_slab.slab->Seal().ok());
  EXPECT_EQ(static_cast<unsigned char*>(blocks[4])[4 * kMiB], 0x77);
  EXPECT_EQ(arena.Allocate(100, kTensorAlignment), nullptr);
  DeallocateAll(arena, blocks);
  EXPECT_TRUE(arena.Destroy().ok());
  EXPECT_TRUE(on_slab.slab->is_sealed());
}

TEST_F(ArenaTest, ThousandArenasInTurnTouchTheSamePages) {
  const std::vector<size_t> sizes = {19'200, 100, 300'000, 4096, kMiB, 77};
  const auto slab = std::move(Slab::Reserve(16 * kMiB).value());
  size_t resident_bytes_of_first = 0;
  for (int version = 0; version < 1'000; ++version) {
    const auto arena = std::move(Arena::Create(slab.get()).value());
    const std::vector<void*> blocks = AllocateAll(*arena, sizes);
    ASSERT_EQ(blocks.size(), sizes.size()) << version;
    for (size_t i = 0; i < sizes.size(); ++i) std::memset(blocks[i], version, sizes[i]);
    DeallocateAll(*arena, blocks);
    ASSERT_TRUE(arena->Destroy().ok());
    if (version == 0) resident_bytes_of_first = slab->ResidentBytes();
  }
  // Large blocks begin at a random cache line of their first page, so end on one page or the next.
  EXPECT_LE(slab->ResidentBytes(), resident_bytes_of_first + 4 * kPageBytes);
}

// Each block is filled with its owner's byte, so that two that overlap show.
void UseAtRandom(Arena& arena, const Slab& slab, int thread) {
  struct Filled {
    unsigned char* start;
    size_t bytes;
  };
  std::mt19937_64 rng(thread);
  std::vector<Filled> live;
  const auto free_one = [&] {
    std::swap(live[rng() % live.size()], live.back());
    const Filled block = live.back();
    EXPECT_EQ(std::count(block.start, block.start + block.bytes, thread + 1), block.bytes);
    arena.Deallocate(block.start);
    live.pop_back();
  };
  for (int step = 0; step < 3'000; ++step) {
    const size_t bytes = 1 + rng() % (size_t{1} << (rng() % 20));
    void* const block = arena.Allocate(bytes, size_t{1} << (rng() % 13));
    if (block == nullptr || live.size() > 30) {
      if (!live.empty()) free_one();
    }
    if (block == nullptr) continue;
    ASSERT_TRUE(IsInside(slab, block));
    std::memset(block, thread + 1, bytes);
    live.push_back({static_cast<unsigned char*>(block), bytes});
  }
  while (!live.empty()) free_one();
}

TEST_F(ArenaTest, EightThreadsThatFillTheSlabAtRandomNeverShareAByte) {
  SlabArena on_slab(24 * kMiB);  // At times there is less memory than the threads need.
  testing::RunTogether(8, [&](int thread) { UseAtRandom(*on_slab.arena, *on_slab.slab, thread); });
  EXPECT_EQ(on_slab.arena->Statistics().in_use_bytes, 0);
  EXPECT_EQ(on_slab.arena->ArenaStats().active_bytes(), 0);
  EXPECT_TRUE(on_slab.arena->Destroy().ok());
}

}  // namespace
}  // namespace millpond::memory
