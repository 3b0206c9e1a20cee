#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace millpond::base {

// The alignment of a shard, which keeps two shards out of one cache line.
inline constexpr size_t kCacheLineBytes = 64;

// Returns the number of shards, a power of two: a shard for each core that the process may use,
// because each has one request thread. At most 32, which bounds the memory on large machines.
int ShardCountForRequestThreads();

// Returns the number of shards for a shard of one cache line, a power of two: four for each core,
// so that hardly any two request threads share one, whatever other threads have numbers between
// them. At most 128.
int CellCountForRequestThreads();

// Cells that many threads add to and few threads read. Each thread adds to a shard of its own, and
// a reader combines all shards.
//
// Thread: any. Threads are numbered for each type of Shard, in the order of their first use. So the
// threads that use one type get neighbouring numbers, whatever other threads the process runs. If
// there are more threads than shards, threads share shards. So a Shard's members must be atomic,
// and threads must add to them with read-modify-write operations (2 ns uncontended).
// Lifetime: a thread may end at any time; its contribution stays.
// Cost: Mine() is a thread-local read and a mask. Memory is shard_count * sizeof(Shard), allocated
// at construction.
template <typename Shard>
class Sharded {
 public:
  // Makes the shards. `shard_count` is a power of two.
  explicit Sharded(int shard_count)
      : shard_count_(shard_count), shards_(std::make_unique<Shard[]>(shard_count)) {
    static_assert(alignof(Shard) >= kCacheLineBytes, "declare the shard alignas(kCacheLineBytes)");
  }

  Shard& Mine() { return shards_[ThreadNumber() & (shard_count_ - 1)]; }

  Shard* begin() { return shards_.get(); }
  Shard* end() { return shards_.get() + shard_count_; }
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

// Raises `cell` to `value` if it is lower. Lock-free: a failed compare-exchange is repeated only
// while another thread raises the same cell.
inline void RaiseTo(std::atomic<int64_t>& cell, int64_t value) {
  int64_t seen = cell.load(std::memory_order_relaxed);
  while (seen < value && !cell.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace millpond::base
