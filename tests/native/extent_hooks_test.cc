#include "native/memory/extent_hooks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "native/memory/slab.h"
#include "tests/native/threads.h"

namespace millpond::memory {
namespace {

// Calls the hooks as jemalloc does, over a range of addresses that are never touched.
class ExtentHooksTest : public ::testing::Test {
 protected:
  static constexpr size_t kRangeBytes = 64 * kPageBytes;

  std::byte* Allocate(size_t bytes, size_t alignment = kPageBytes, void* address = nullptr,
                      bool zero = false) {
    bool commit = false;
    extent_hooks_t* const table = hooks_.Table();
    void* const extent = table->alloc(table, address, bytes, alignment, &zero, &commit, 7);
    EXPECT_EQ(commit, extent != nullptr);
    EXPECT_FALSE(extent != nullptr && zero);  // The pages of a used slab are not zero.
    return static_cast<std::byte*>(extent);
  }

  std::byte* const start_ = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  ExtentHooks hooks_{start_, kRangeBytes};
};

TEST_F(ExtentHooksTest, ExtentsFollowEachOtherFromTheLowEnd) {
  EXPECT_EQ(Allocate(3 * kPageBytes), start_);
  EXPECT_EQ(Allocate(kPageBytes), start_ + 3 * kPageBytes);
  EXPECT_EQ(Allocate(kPageBytes, 8 * kPageBytes), start_ + 8 * kPageBytes);
  EXPECT_EQ(hooks_.cut_bytes(), 9 * kPageBytes);
}

TEST_F(ExtentHooksTest, UnfitExtentsAreRefusedAndSmallerOnesGiven) {
  EXPECT_NE(Allocate(60 * kPageBytes), nullptr);
  EXPECT_EQ(Allocate(5 * kPageBytes), nullptr);
  EXPECT_EQ(Allocate(SIZE_MAX - kPageBytes + 1), nullptr);
  EXPECT_EQ(Allocate(kPageBytes, size_t{1} << 41), nullptr);
  EXPECT_EQ(hooks_.cut_bytes(), 60 * kPageBytes);
  EXPECT_EQ(Allocate(4 * kPageBytes), start_ + 60 * kPageBytes);
}

TEST_F(ExtentHooksTest, FixedAddressesAndZeroedPagesAreRefused) {
  EXPECT_EQ(Allocate(kPageBytes, kPageBytes, start_), nullptr);
  EXPECT_EQ(Allocate(kPageBytes, kPageBytes, nullptr, /*zero=*/true), nullptr);
  EXPECT_EQ(hooks_.cut_bytes(), 0);
}

TEST_F(ExtentHooksTest, ALimitRefusesLargerExtentsUntilItsEnd) {
  {
    const ExtentHooks::SizeLimit limit(2 * kPageBytes);
    EXPECT_EQ(Allocate(3 * kPageBytes), nullptr);
    EXPECT_NE(Allocate(2 * kPageBytes), nullptr);
  }
  EXPECT_NE(Allocate(3 * kPageBytes), nullptr);
}

TEST_F(ExtentHooksTest, NothingIsGivenBackAndExtentsMayBeSplitAndMerged) {
  extent_hooks_t* const table = hooks_.Table();
  EXPECT_EQ(table->dalloc, nullptr);
  EXPECT_EQ(table->destroy, nullptr);
  EXPECT_EQ(table->decommit, nullptr);
  EXPECT_EQ(table->purge_lazy, nullptr);
  EXPECT_EQ(table->purge_forced, nullptr);
  EXPECT_FALSE(table->split(table, start_, 2 * kPageBytes, kPageBytes, kPageBytes, true, 7));
  EXPECT_FALSE(table->merge(table, start_, kPageBytes, start_ + kPageBytes, kPageBytes, true, 7));
}

TEST_F(ExtentHooksTest, ThreadsNeverGetTheSameBytes) {
  constexpr int kThreadCount = 8;
  std::vector<std::vector<std::byte*>> extents(kThreadCount);
  testing::RunTogether(kThreadCount, [&](int thread) {
    while (std::byte* const extent = Allocate(kPageBytes)) extents[thread].push_back(extent);
  });
  std::vector<std::byte*> all;
  for (const auto& some : extents) all.insert(all.end(), some.begin(), some.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), kRangeBytes / kPageBytes);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], start_ + i * kPageBytes);
}

}  // namespace
}  // namespace millpond::memory
