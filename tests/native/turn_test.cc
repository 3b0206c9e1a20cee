#include "native/rpc/turn.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include "tests/native/threads.h"

namespace millpond::rpc {
namespace {

TEST(Turn, NoteMakesItsOwnerWorkAgain) {
  Turn turn;
  ASSERT_TRUE(turn.TryTake());
  EXPECT_FALSE(turn.TryTake());
  EXPECT_FALSE(turn.TryTake());
  EXPECT_FALSE(turn.TryEnd());  // for both notes
  EXPECT_TRUE(turn.TryEnd());
  EXPECT_TRUE(turn.TryTake());
}

// Each thread adds to what is to be seen, and comes for a turn. The owner alone writes what it saw,
// which is no atomic: ThreadSanitizer shows two owners at once.
TEST(Turn, NoNoteIsLostAndOneThreadWorksAtATime) {
  constexpr int kThreadCount = 4;
  constexpr int64_t kCount = 20'000;
  Turn turn;
  std::atomic<int64_t> added{0};
  int64_t seen = 0;
  int64_t work_count = 0;
  testing::RunTogether(kThreadCount, [&](int) {
    for (int64_t i = 0; i < kCount; ++i) {
      added.fetch_add(1);
      if (!turn.TryTake()) continue;
      do {
        seen = added.load();
        ++work_count;
      } while (!turn.TryEnd());
    }
  });
  EXPECT_EQ(seen, kThreadCount * kCount);
  EXPECT_LE(work_count, kThreadCount * kCount);
}

}  // namespace
}  // namespace millpond::rpc
