#include "native/base/shard_lease.h"

#include <atomic>
#include <cstdint>

#include "native/base/sharded.h"

namespace millpond::base {
namespace {

// The value of a thread that has returned its shard because it is ending.
constexpr int kOver = -2;

// A bit for each shard that a thread holds.
std::atomic<uint32_t> held_shards{0};

uint32_t AllShards() { return ~uint32_t{0} >> (32 - ShardCountForRequestThreads()); }

// Returns a thread's shard when the thread ends.
class Lease {
 public:
  explicit Lease(int* mine) : mine_(mine) {}
  ~Lease() {
    // Release: the next holder sees the writes of this thread.
    held_shards.fetch_and(~(uint32_t{1} << *mine_), std::memory_order_release);
    *mine_ = kOver;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  int* const mine_;
};

}  // namespace

int LeaseShard(int* mine) {
  static const uint32_t kAll = AllShards();
  if (*mine == kOver) return kNoShard;
  uint32_t held = held_shards.load(std::memory_order_relaxed);
  uint32_t first_free = 0;
  do {
    if ((kAll & ~held) == 0) return kNoShard;
    first_free = kAll & ~held & (held + 1);
  } while (!held_shards.compare_exchange_weak(held, held | first_free, std::memory_order_acquire));
  *mine = __builtin_ctz(first_free);
  static thread_local Lease lease(mine);
  return *mine;
}

}  // namespace millpond::base
