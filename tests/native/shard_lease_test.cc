#include "native/base/shard_lease.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "native/base/sharded.h"
#include "tests/native/threads.h"

namespace millpond::base {
namespace {

// Returns the leases of that many threads, all alive at once.
std::multiset<int> LeaseTogether(int thread_count) {
  std::vector<int> leased(thread_count);
  std::atomic<int> waiting_count{thread_count};
  testing::RunTogether(thread_count, [&](int thread) {
    leased[thread] = LeasedShard();
    waiting_count.fetch_sub(1);
    while (waiting_count.load() > 0) std::this_thread::yield();
    // A thread with a lease keeps it. A thread without a lease may get one, as others end.
    if (leased[thread] >= 0) {
      EXPECT_EQ(LeasedShard(), leased[thread]);
    }
  });
  return {leased.begin(), leased.end()};
}

// This counts the test's own thread, which keeps its lease.
TEST(LeasedShard, EachShardHasOneThreadAndLateOnesHaveNone) {
  const int shard_count = ShardCountForRequestThreads();
  const int mine = LeasedShard();
  ASSERT_GE(mine, 0);
  std::multiset<int> leased = LeaseTogether(shard_count + 3);
  EXPECT_EQ(leased.count(kNoShard), 4);
  leased.erase(kNoShard);
  leased.insert(mine);
  for (int shard = 0; shard < shard_count; ++shard) EXPECT_EQ(leased.count(shard), 1) << shard;
}

TEST(LeasedShard, AThreadThatEndsLeavesItsShardToTheNext) {
  const int shard_count = ShardCountForRequestThreads();
  const std::multiset<int> first = LeaseTogether(shard_count + 3);
  EXPECT_EQ(LeaseTogether(shard_count + 3), first);
  // It is unknown if the test's own thread holds a shard.
  EXPECT_GE(first.size() - first.count(kNoShard), shard_count - 1);
}

TEST(LeasedShard, AThreadThatHadNoneGetsOneOnceItIsFree) {
  const int shard_count = ShardCountForRequestThreads();
  std::atomic<int> holding_count{0};
  std::atomic<bool> may_end{false};
  std::vector<std::thread> holders;
  for (int i = 0; i < shard_count; ++i) {
    holders.emplace_back([&] {
      LeasedShard();
      holding_count.fetch_add(1);
      while (!may_end.load()) std::this_thread::yield();
    });
  }
  while (holding_count.load() < shard_count) std::this_thread::yield();
  std::thread([&] {
    EXPECT_EQ(LeasedShard(), kNoShard);
    may_end = true;
    for (std::thread& holder : holders) holder.join();
    // If the first test's thread holds the only shard, no shard becomes free.
    EXPECT_TRUE(shard_count == 1 || LeasedShard() >= 0);
  }).join();
}

}  // namespace
}  // namespace millpond::base
