#include "native/memory/background_arena.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <thread>

#include "native/memory/jemalloc_api.h"
#include "native/memory/jemalloc_symbols.h"

namespace millpond::memory {
namespace {

// Returns the arena of a block that the calling thread allocates now.
unsigned ArenaOfNewBlock() {
  void* block = std::malloc(10'000);
  unsigned index = 0;
  size_t index_bytes = sizeof(index);
  EXPECT_EQ(mallctl("arenas.lookup", &index, &index_bytes, &block, sizeof(void*)), 0);
  std::free(block);
  return index;
}

struct BackgroundThread {
  bool is_in_background = false;
  unsigned arena_before = 0;
  unsigned arena = 0;
};

BackgroundThread RunBackgroundThread() {
  BackgroundThread result;
  std::thread([&] {
    result.arena_before = ArenaOfNewBlock();
    result.is_in_background = UseBackgroundArena();
    result.arena = ArenaOfNewBlock();
  }).join();
  return result;
}

TEST(BackgroundArena, IsSharedByBackgroundThreadsAndByNoOther) {
  if (!IsJemallocPreloaded()) GTEST_SKIP() << "needs LD_PRELOAD=libjemalloc.so.2";
  const unsigned mine = ArenaOfNewBlock();
  const BackgroundThread first = RunBackgroundThread();
  const BackgroundThread second = RunBackgroundThread();
  EXPECT_TRUE(first.is_in_background);
  EXPECT_EQ(first.arena, second.arena);
  EXPECT_NE(first.arena, first.arena_before);
  EXPECT_NE(first.arena, mine);
  EXPECT_EQ(ArenaOfNewBlock(), mine);
  unsigned arena_of_other = 0;
  std::thread([&] { arena_of_other = ArenaOfNewBlock(); }).join();
  EXPECT_NE(arena_of_other, first.arena);
}

TEST(BackgroundArena, IsAbsentWithoutJemalloc) {
  if (IsJemallocPreloaded()) GTEST_SKIP() << "jemalloc is preloaded";
  EXPECT_FALSE(UseBackgroundArena());
}

}  // namespace
}  // namespace millpond::memory
