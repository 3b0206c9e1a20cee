#include "native/memory/request_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include "native/memory/jemalloc_api.h"
#include "native/memory/jemalloc_control.h"
#include "native/memory/jemalloc_symbols.h"

namespace millpond::memory {
namespace {

using base::RaiseTo;

// A block and its real size; {nullptr, 0} if no memory is left.
struct Block {
  void* start = nullptr;
  size_t bytes = 0;
};

bool IsAligned(const void* start, size_t alignment) {
  return (reinterpret_cast<uintptr_t>(start) & (alignment - 1)) == 0;
}

Block AllocateAligned(size_t bytes, size_t alignment) {
  const int flags = MALLOCX_ALIGN(alignment);
  const size_t block_bytes = nallocx(bytes, flags);
  void* start = block_bytes == 0 ? nullptr : mallocx(bytes, flags);
  return start == nullptr ? Block{} : Block{start, block_bytes};
}

// The size from which blocks come from an arena of their own. jemalloc returns every block of 8 MiB
// and more to the kernel when it is freed, whatever its oversize_threshold and decay are set to
// (5.3.0; strace shows the madvise). So each request faults the pages of its large tensors in
// again: 6 ms for 10 MiB. It takes 0.14 ms from an arena whose threshold is lifted, so that its
// pages decay as all others.
constexpr size_t kLargeBlockBytes = size_t{8} << 20;

// Returns that arena's flag for mallocx. Returns 0, which means any arena, if this jemalloc cannot
// lift the threshold.
int LargeBlockArenaFlag() {
  static const int kFlag = [] {
    constexpr size_t kNeverOversize = size_t{1} << 62;
    const std::optional<unsigned> arena = ReadControl<unsigned>("arenas.create");
    if (!arena) return 0;
    const std::string threshold = "arena." + std::to_string(*arena) + ".oversize_threshold";
    return WriteControl(threshold, kNeverOversize) ? static_cast<int>(MALLOCX_ARENA(*arena)) : 0;
  }();
  return kFlag;
}

Block AllocateLarge(size_t bytes, size_t alignment) {
  const int flags = MALLOCX_ALIGN(alignment);
  const size_t block_bytes = nallocx(bytes, flags);
  if (block_bytes == 0) return {};
  void* start = mallocx(bytes, flags | LargeBlockArenaFlag() | MALLOCX_TCACHE_NONE);
  return start == nullptr ? Block{} : Block{start, block_bytes};
}

// Requests no alignment if it can. jemalloc has a fast path only for blocks without an alignment: a
// pair takes 7 ns, not 16. For blocks of 16 KiB, whose slow path bypasses the thread cache, a pair
// takes 20 ns, not 210. Blocks of a multiple of 64 bytes are aligned to a cache line anyway.
// jemalloc's documents do not promise it, so each block is checked.
Block AllocateFromJemalloc(size_t bytes, size_t alignment) {
  bytes = std::max<size_t>(bytes, 1);  // nallocx is undefined for 0.
  if (bytes >= kLargeBlockBytes) return AllocateLarge(bytes, alignment);
  const size_t rounded_bytes = (bytes + alignment - 1) & ~(alignment - 1);
  const bool overflowed = rounded_bytes < bytes;
  if (overflowed || alignment > base::kCacheLineBytes) return AllocateAligned(bytes, alignment);
  const size_t block_bytes = nallocx(rounded_bytes, 0);
  void* start = block_bytes == 0 ? nullptr : std::malloc(rounded_bytes);
  if (start == nullptr) return {};
  if (IsAligned(start, alignment)) return {start, block_bytes};
  std::free(start);
  return AllocateAligned(bytes, alignment);
}

Block AllocateFromGlibc(size_t bytes, size_t alignment) {
  void* start = nullptr;
  if (posix_memalign(&start, std::max(alignment, sizeof(void*)), std::max<size_t>(bytes, 1)) != 0) {
    return {};
  }
  return {start, malloc_usable_size(start)};
}

}  // namespace

RequestMemory::RequestMemory() : uses_jemalloc_(IsJemallocPreloaded()), shards_(kShardCount) {}

void* RequestMemory::Allocate(size_t bytes, size_t alignment) noexcept {
  const Block block =
      uses_jemalloc_ ? AllocateFromJemalloc(bytes, alignment) : AllocateFromGlibc(bytes, alignment);
  if (block.start == nullptr) return nullptr;
  Shard& shard = shards_.Mine();
  shard.allocation_count.fetch_add(1, std::memory_order_relaxed);
  AddInUse(shard, static_cast<int64_t>(block.bytes));
  return block.start;
}

void RequestMemory::Deallocate(void* block) noexcept {
  if (block == nullptr) return;
  const size_t bytes = uses_jemalloc_ ? sallocx(block, 0) : malloc_usable_size(block);
  AddInUse(shards_.Mine(), -static_cast<int64_t>(bytes));
  std::free(block);  // jemalloc's free if it is preloaded, and faster than its dallocx.
}

MemoryStatistics RequestMemory::Statistics() const {
  MemoryStatistics statistics;
  for (const Shard& shard : shards_) {
    statistics.in_use_bytes += shard.in_use_bytes.load(std::memory_order_relaxed);
    statistics.allocation_count += shard.allocation_count.load(std::memory_order_relaxed);
  }
  RaiseTo(in_use_bytes_peak_, statistics.in_use_bytes);
  statistics.in_use_bytes_peak = in_use_bytes_peak_.load(std::memory_order_relaxed);
  return statistics;
}

void RequestMemory::AddInUse(Shard& shard, int64_t bytes) {
  const int64_t in_use_bytes =
      shard.in_use_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const int64_t unreported_bytes =
      in_use_bytes - shard.reported_bytes.load(std::memory_order_relaxed);
  if (std::abs(unreported_bytes) >= kReportBytes) Report(shard, in_use_bytes);
}

void RequestMemory::Report(Shard& shard, int64_t in_use_bytes) {
  const int64_t before = shard.reported_bytes.exchange(in_use_bytes, std::memory_order_relaxed);
  const int64_t rise = in_use_bytes - before;
  const int64_t total = reported_bytes_.fetch_add(rise, std::memory_order_relaxed) + rise;
  RaiseTo(in_use_bytes_peak_, total);
  RaiseTo(peak_bytes_since_mark_, total);
}

void RequestMemory::MarkPeak() {
  const int64_t total = reported_bytes_.load(std::memory_order_relaxed);
  marked_bytes_.store(total, std::memory_order_relaxed);
  peak_bytes_since_mark_.store(total, std::memory_order_relaxed);
}

int64_t RequestMemory::PeakRiseBytes() const {
  return peak_bytes_since_mark_.load(std::memory_order_relaxed) -
         marked_bytes_.load(std::memory_order_relaxed);
}

}  // namespace millpond::memory
