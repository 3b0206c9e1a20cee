#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/base/sharded.h"
#include "native/memory/memory_resource.h"

namespace millpond::memory {

// The process's memory for everything except the parameters of versions. Allocates with jemalloc
// and its thread caches if jemalloc is preloaded, and with glibc's malloc if not.
//
// Thread: any thread at any time. Counting is wait-free except for a new peak, and threads do not
// contend. Owner: the composition root. A process has one, which lives as long as the process.
// Statistics: in_use_bytes and allocation_count are exact while no thread allocates. Otherwise they
// may be off by what running threads allocate or free during the read. The peak is the highest
// value of a process-wide total. A thread adds to that total only when its own bytes have changed
// by kReportBytes. So the peak is off by less than kReportBytes for each thread. It never falls.
// Cost: over jemalloc a pair of Allocate and Deallocate takes 18 ns up to 14 KiB, 10 of them for
// counting. Over glibc it takes 46 ns, 9 of them for counting
// (native/bench/request_memory_bench.cc). Blocks of kReportBytes and more also write the one shared
// cache line, which takes up to 130 ns more if threads meet there. Memory: 4 KiB.
class RequestMemory final : public MemoryResource {
 public:
  // More than the threads that allocate in a server on a usual machine. The first threads, which
  // include the request threads, never share a shard.
  static constexpr int kShardCount = 64;
  // Above the tensors of most requests, so that requests touch no shared cache line.
  static constexpr int64_t kReportBytes = 256 * 1024;

  RequestMemory();

  void* Allocate(size_t bytes, size_t alignment) noexcept override;
  void Deallocate(void* block) noexcept override;
  MemoryStatistics Statistics() const override;

  // Starts a second peak beside the peak since the start. PeakRiseBytes returns the largest rise of
  // the bytes in use since the last call of MarkPeak. Both belong to the process: if two loads warm
  // up together, each sees the memory of both.
  void MarkPeak();
  int64_t PeakRiseBytes() const;

 private:
  struct alignas(base::kCacheLineBytes) Shard {
    std::atomic<int64_t> in_use_bytes{0};  // Below 0 if the thread frees blocks of other threads.
    std::atomic<int64_t> reported_bytes{0};
    std::atomic<int64_t> allocation_count{0};
  };

  void AddInUse(Shard& shard, int64_t bytes);
  void Report(Shard& shard, int64_t in_use_bytes);

  const bool uses_jemalloc_;
  base::Sharded<Shard> shards_;
  alignas(base::kCacheLineBytes) std::atomic<int64_t> reported_bytes_{0};
  mutable std::atomic<int64_t> in_use_bytes_peak_{0};
  std::atomic<int64_t> marked_bytes_{0};
  std::atomic<int64_t> peak_bytes_since_mark_{0};
};

}  // namespace millpond::memory
