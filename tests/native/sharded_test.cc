#include "native/base/sharded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <set>
#include <thread>

#include "native/base/thread_cores.h"
#include "tests/native/threads.h"

namespace millpond::base {
namespace {

struct alignas(kCacheLineBytes) Shard {
  std::atomic<int64_t> count{0};
};

int64_t Sum(const Sharded<Shard>& shards) {
  int64_t sum = 0;
  for (const Shard& shard : shards) sum += shard.count.load();
  return sum;
}

TEST(Sharded, ThreadsUpToTheShardCountNeverShareAShard) {
  Sharded<Shard> shards(8);
  std::atomic<Shard*> mine[8] = {};
  testing::RunTogether(8, [&](int thread) { mine[thread] = &shards.Mine(); });
  const std::set<Shard*> distinct(std::begin(mine), std::end(mine));
  EXPECT_EQ(distinct.size(), 8);
}

TEST(Sharded, AsManyThreadsLaterAThreadSharesTheShardOfTheFirst) {
  Sharded<Shard> shards(4);
  std::atomic<Shard*> first{nullptr};
  testing::RunOnOneShard(
      4, [&] { shards.Mine().count.fetch_add(1); },
      [&] {
        Shard* none = nullptr;
        if (!first.compare_exchange_strong(none, &shards.Mine())) {
          EXPECT_EQ(&shards.Mine(), first.load());
        }
      });
  EXPECT_EQ(Sum(shards), 5);
}

TEST(Sharded, KeepsTheCountsOfEndedThreads) {
  Sharded<Shard> shards(4);
  for (int add = 0; add < 100; ++add) {
    std::thread([&] { shards.Mine().count.fetch_add(1); }).join();
  }
  EXPECT_EQ(Sum(shards), 100);
}

TEST(ShardCountForRequestThreads, IsAPowerOfTwoNotBelowTheCoresUpTo32) {
  const int shard_count = ShardCountForRequestThreads();
  EXPECT_EQ(shard_count & (shard_count - 1), 0);
  EXPECT_GE(shard_count, std::min<size_t>(32, AllowedCores().size()));
  EXPECT_LE(shard_count, 32);
}

TEST(RaiseTo, NeverLowersTheCellBesideOtherThreads) {
  constexpr int64_t kStepCount = 50'000;
  std::atomic<int64_t> largest{0};
  testing::RunTogether(4, [&](int thread) {
    for (int64_t step = 0; step < kStepCount; ++step) {
      const int64_t value = step * 4 + thread;
      RaiseTo(largest, value);
      ASSERT_GE(largest.load(), value);
    }
  });
  EXPECT_EQ(largest.load(), kStepCount * 4 - 1);
}

}  // namespace
}  // namespace millpond::base
