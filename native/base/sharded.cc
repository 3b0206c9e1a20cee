#include "native/base/sharded.h"

#include <thread>

namespace millpond::base {

int ShardCountForRequestThreads() {
  constexpr int kMaxShardCount = 32;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  int shard_count = 1;
  while (shard_count < cores && shard_count < kMaxShardCount) shard_count *= 2;
  return shard_count;
}

}  // namespace millpond::base
