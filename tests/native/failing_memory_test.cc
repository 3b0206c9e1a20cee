#include "tests/native/failing_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/native/fake_memory.h"
#include "tests/native/memory_resource_contract.h"
#include "tests/native/slab_arena.h"
#include "tests/native/stacked_memory.h"

namespace millpond::memory {
namespace {

constexpr int64_t kAmpleBytes = int64_t{1} << 30;

std::unique_ptr<MemoryResource> FailNever(std::unique_ptr<MemoryResource> upstream) {
  return StackedMemory::Over(std::move(upstream), [](MemoryResource* resource) {
    return std::make_unique<FailingMemory>(resource, /*failing_attempt=*/-1);
  });
}
struct FailingFake {
  static constexpr int64_t kPeakErrorBytes = 0;
  static std::unique_ptr<MemoryResource> Create() {
    return FailNever(std::make_unique<FakeMemory>(kAmpleBytes));
  }
};
struct FailingArena {
  static constexpr int64_t kPeakErrorBytes = 0;
  static std::unique_ptr<MemoryResource> Create() { return FailNever(CreateArenaMemory()); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(FailingFake, MemoryResourceContract, FailingFake);
INSTANTIATE_TYPED_TEST_SUITE_P(FailingArena, MemoryResourceContract, FailingArena);

constexpr int kBlockCount = 10;

// Allocates like a load: one block after the other; frees all of them if one is refused.
bool LoadsWhole(MemoryResource& memory) {
  std::vector<void*> blocks;
  while (blocks.size() < kBlockCount) {
    void* const block = memory.Allocate(10'000 * (blocks.size() + 1), kTensorAlignment);
    if (block == nullptr) break;
    blocks.push_back(block);
  }
  const bool is_whole = blocks.size() == kBlockCount;
  for (void* block : blocks) memory.Deallocate(block);
  return is_whole;
}

TEST(FailingMemory, ARefusalAtEachAllocationLeavesNothingBehind) {
  FakeMemory upstream(kAmpleBytes);
  for (int failing = 0; failing < kBlockCount; ++failing) {
    FailingMemory memory(&upstream, failing);
    EXPECT_FALSE(LoadsWhole(memory));
    EXPECT_EQ(memory.attempt_count(), failing + 1);
    EXPECT_EQ(upstream.Statistics().in_use_bytes, 0);
  }
  FailingMemory memory(&upstream, kBlockCount);
  EXPECT_TRUE(LoadsWhole(memory));
}

TEST(FailingMemory, AnArenaCanBeDestroyedAfterARefusalAtEachAllocation) {
  if (!IsJemallocPreloaded()) GTEST_SKIP() << "needs LD_PRELOAD=libjemalloc.so.2";
  for (int failing = 0; failing < kBlockCount; ++failing) {
    SlabArena on_slab(16 * kMiB);
    FailingMemory memory(on_slab.arena.get(), failing);
    EXPECT_FALSE(LoadsWhole(memory));
    EXPECT_TRUE(on_slab.arena->Destroy().ok());
  }
}

TEST(FailingMemory, APredicateMayGoBySize) {
  FakeMemory upstream(kAmpleBytes);
  FailingMemory memory(&upstream, [](int64_t, size_t bytes) { return bytes > 100; });
  EXPECT_EQ(memory.Allocate(101, 64), nullptr);
  void* const block = memory.Allocate(100, 64);
  EXPECT_NE(block, nullptr);
  memory.Deallocate(block);
}

}  // namespace
}  // namespace millpond::memory
