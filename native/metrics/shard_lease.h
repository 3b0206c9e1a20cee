#pragma once

namespace millpond::metrics {

// Where a thread has no shard for itself.
inline constexpr int kNoShard = -1;

// For LeasedShard: the calling thread's first time, and where it has none.
int LeaseShard(int* mine);

// The number of the shard that the calling thread, and no other, may write to: it needs no
// read-modify-write for it. Below ShardCountForRequestThreads(); kNoShard while as many threads
// hold one each. A thread keeps what it has got to its end, and then the next one gets it, which
// sees what was written.
//
// Thread: any. Lock-free; a thread-local read for a thread that has one.
inline int LeasedShard() {
  static thread_local int mine = kNoShard;
  return mine >= 0 ? mine : LeaseShard(&mine);
}

}  // namespace millpond::metrics
