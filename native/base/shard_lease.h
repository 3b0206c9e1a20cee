#pragma once

namespace millpond::base {

// The result for a thread that has no shard to itself.
inline constexpr int kNoShard = -1;

// Returns a free shard for the calling thread, or kNoShard. LeasedShard calls it if the thread has
// no shard.
int LeaseShard(int* mine);

// Returns the number of a shard that only the calling thread writes to, so that it needs no
// read-modify-write. The number is below ShardCountForRequestThreads(). Returns kNoShard while
// other threads hold all shards. A thread keeps its shard to its end. The next holder of the shard
// sees all writes of the thread.
//
// Thread: any. Lock-free; a thread-local read for a thread that has a shard.
inline int LeasedShard() {
  static thread_local int mine = kNoShard;
  return mine >= 0 ? mine : LeaseShard(&mine);
}

}  // namespace millpond::base
