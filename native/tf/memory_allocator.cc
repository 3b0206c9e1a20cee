#include "native/tf/memory_allocator.h"

namespace millpond::tf {

void* MemoryAllocator::AllocateRaw(size_t alignment, size_t num_bytes) {
  return resource_->Allocate(num_bytes, alignment);
}

void MemoryAllocator::DeallocateRaw(void* block) { resource_->Deallocate(block); }

std::optional<tsl::AllocatorStats> MemoryAllocator::GetStats() {
  const memory::MemoryStatistics statistics = resource_->Statistics();
  tsl::AllocatorStats stats;
  stats.num_allocs = statistics.allocation_count;
  stats.bytes_in_use = statistics.in_use_bytes;
  stats.peak_bytes_in_use = statistics.in_use_bytes_peak;
  return stats;
}

}  // namespace millpond::tf
