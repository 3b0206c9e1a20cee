#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace millpond::metrics {

// What a shard starts with, so that no two shards share a cache line.
inline constexpr size_t kCacheLineBytes = 64;

// A power of two: one shard for each core, as there is one request thread for each, but no more
// than 32, so that memory stays bounded on large machines.
int ShardCountForRequestThreads();

// Cells that many threads add to and few read: each thread adds to a shard of its own, a reader
// combines all shards.
//
// Thread: any. Threads are numbered for each type of Shard in the order in which they first come,
// so the threads that use one type get neighbouring numbers whatever else the process runs. More
// threads than shards share shards, so a Shard's members must be atomic and added to with
// read-modify-write operations (2 ns uncontended).
// Lifetime: a thread may end at any time; what it added stays.
// Cost: Mine() is a thread-local read and a mask. Memory is shard_count * sizeof(Shard), at once.
template <typename Shard>
class Sharded {
 public:
  // `shard_count` is a power of two.
  explicit Sharded(int shard_count)
      : shard_count_(shard_count), shards_(std::make_unique<Shard[]>(shard_count)) {
    static_assert(alignof(Shard) >= kCacheLineBytes, "declare the shard alignas(kCacheLineBytes)");
  }

  Shard& Mine() { return shards_[ThreadNumber() & (shard_count_ - 1)]; }

  const Shard* begin() const { return shards_.get(); }
  const Shard* end() const { return shards_.get() + shard_count_; }

 private:
  static unsigned ThreadNumber() {
    static std::atomic<unsigned> next_number{1};
    static thread_local unsigned number = 0;
    if (number == 0) number = next_number.fetch_add(1, std::memory_order_relaxed);
    return number;
  }

  const unsigned shard_count_;
  const std::unique_ptr<Shard[]> shards_;
};

// Raises `cell` to `value` where it is lower. Lock-free: a compare-exchange that fails is tried
// again only while another thread is raising the same cell.
inline void RaiseTo(std::atomic<int64_t>& cell, int64_t value) {
  int64_t seen = cell.load(std::memory_order_relaxed);
  while (seen < value && !cell.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace millpond::metrics
