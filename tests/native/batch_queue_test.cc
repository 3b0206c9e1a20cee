#include "native/servable/batch_queue.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>

namespace millpond::servable {
namespace {

TEST(BatchKey, DiffersByModelAndSignature) {
  const std::set<BatchKey> keys = {BatchKeyOf("a", "s"),   BatchKeyOf("b", "s"),
                                   BatchKeyOf("a", "t"),   BatchKeyOf("s", "a"),
                                   BatchKeyOfSeveral("a"), BatchKeyOfSeveral("b")};
  EXPECT_EQ(keys.size(), 6U);
  EXPECT_EQ(keys.count(kNoBatchKey), 0U);
  EXPECT_EQ(BatchKeyOf("a", "s"), BatchKeyOf("a", "s"));
}

TEST(BatchKey, NoSignatureIsTheDefaultOne) {
  EXPECT_EQ(BatchKeyOf("a", ""), BatchKeyOf("a", "serving_default"));
}

constexpr BatchKey kKey = 5;

// Returns true if a queue of `waiting_count` requests, `of_key` of them of kKey, takes no more.
bool IsReached(size_t waiting_count, int64_t of_key) {
  return WaitingLimit::IsReached(kKey, waiting_count, [&] { return of_key; });
}

TEST(WaitingLimit, HoldsForItsKeyWhileItLives) {
  EXPECT_FALSE(IsReached(100, 100));
  {
    const WaitingLimit limit(kKey, 3);
    EXPECT_FALSE(IsReached(2, 2));
    EXPECT_FALSE(IsReached(100, 2));
    EXPECT_TRUE(IsReached(3, 3));
    EXPECT_FALSE(WaitingLimit::IsReached(kKey + 1, 100, [] { return 100; }));
    EXPECT_FALSE(WaitingLimit::IsReached(kNoBatchKey, 100, [] { return 100; }));
  }
  EXPECT_FALSE(IsReached(100, 100));
}

TEST(WaitingLimit, TheLastOneOfAKeyHolds) {
  const WaitingLimit of_old_version(kKey, 3);
  {
    const WaitingLimit of_new_version(kKey, 5);
    EXPECT_FALSE(IsReached(4, 4));
    EXPECT_TRUE(IsReached(5, 5));
  }
  EXPECT_TRUE(IsReached(3, 3));
}

TEST(WaitingLimit, ZeroIsNoLimit) {
  const WaitingLimit limit(kKey, 0);
  EXPECT_FALSE(IsReached(1'000'000, 1'000'000));
}

}  // namespace
}  // namespace millpond::servable
