#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/memory/memory_resource.h"
#include "native/metrics/sharded.h"

namespace millpond::memory {

// The process's memory for everything that is not a version's parameter: jemalloc with its thread
// caches where it is preloaded, else glibc's malloc.
//
// Thread: any, at once. Counting is wait-free but for a new peak, and threads do not contend.
// Owner: the composition root; there is one in a process, and it lives as long.
// Statistics: in_use_bytes and allocation_count are exact once the threads rest; a read beside
// running ones may be off by what they allocate or free meanwhile. The peak is what a
// process-wide total reached, to which a thread reports only after its own has moved by
// kReportBytes: it is off by less than that for each thread, and it never falls.
// Cost: a pair of Allocate and Deallocate takes 18 ns over jemalloc up to 14 KiB, 10 of them for
// counting, and 46 over glibc, 9 of them (native/bench/request_memory_bench.cc). Blocks of
// kReportBytes and more also write the one shared line: up to 130 ns more where threads meet on it.
// Memory 4 KiB.
class RequestMemory final : public MemoryResource {
 public:
  // More than the threads that allocate in a server on a usual machine: those that come first, the
  // request threads among them, never share a shard.
  static constexpr int kShardCount = 64;
  // Above the tensors of most requests, so that they touch no shared cache line.
  static constexpr int64_t kReportBytes = 256 * 1024;

  RequestMemory();

  void* Allocate(size_t bytes, size_t alignment) noexcept override;
  void Deallocate(void* block) noexcept override;
  MemoryStatistics Statistics() const override;

  // Begins a peak beside the one since the start: how much more than now is in use at once from
  // here on, as PeakRiseBytes tells it, until the next mark. It is the process's: of two loads that
  // warm up together each sees both.
  void MarkPeak();
  int64_t PeakRiseBytes() const;

 private:
  struct alignas(metrics::kCacheLineBytes) Shard {
    std::atomic<int64_t> in_use_bytes{0};  // Below 0 where others' blocks are freed.
    std::atomic<int64_t> reported_bytes{0};
    std::atomic<int64_t> allocation_count{0};
  };

  void AddInUse(Shard& shard, int64_t bytes);
  void Report(Shard& shard, int64_t in_use_bytes);

  const bool uses_jemalloc_;
  metrics::Sharded<Shard> shards_;
  alignas(metrics::kCacheLineBytes) std::atomic<int64_t> reported_bytes_{0};
  mutable std::atomic<int64_t> in_use_bytes_peak_{0};
  std::atomic<int64_t> marked_bytes_{0};
  std::atomic<int64_t> peak_bytes_since_mark_{0};
};

}  // namespace millpond::memory
