#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "native/memory/memory_resource.h"

namespace millpond::memory {

// A resource with an exact account of every block and an end that tests can reach. Thread: any,
// behind one mutex.
class FakeMemory final : public MemoryResource {
 public:
  explicit FakeMemory(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  void* Allocate(size_t bytes, size_t alignment) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto free_bytes = static_cast<size_t>(limit_bytes_ - statistics_.in_use_bytes);
    if (bytes > free_bytes) return nullptr;
    void* block = nullptr;
    if (posix_memalign(&block, std::max(alignment, sizeof(void*)), std::max<size_t>(bytes, 1))) {
      return nullptr;
    }
    bytes_of_block_[block] = static_cast<int64_t>(bytes);
    statistics_.in_use_bytes += static_cast<int64_t>(bytes);
    statistics_.in_use_bytes_peak =
        std::max(statistics_.in_use_bytes_peak, statistics_.in_use_bytes);
    ++statistics_.allocation_count;
    return block;
  }

  void Deallocate(void* block) noexcept override {
    if (block == nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto entry = bytes_of_block_.find(block);
    // The block was freed twice, or belongs to another resource.
    if (entry == bytes_of_block_.end()) std::abort();
    statistics_.in_use_bytes -= entry->second;
    bytes_of_block_.erase(entry);
    std::free(block);
  }

  MemoryStatistics Statistics() const override {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  const int64_t limit_bytes_;
  mutable std::mutex mutex_;
  MemoryStatistics statistics_;
  std::unordered_map<void*, int64_t> bytes_of_block_;
};

}  // namespace millpond::memory
