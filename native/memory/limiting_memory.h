#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "native/memory/memory_resource.h"

namespace millpond::memory {

// Limits another resource. Refuses a block if the bytes requested through this object and not yet
// returned would exceed the limit. For one user's share of a resource that has many users.
//
// Thread: any, behind one mutex. Owner: borrows `upstream`, which outlives it.
// Cost: an entry of a hash map for each live block. For parameters, not for requests.
class LimitingMemory final : public MemoryResource {
 public:
  LimitingMemory(MemoryResource* upstream, int64_t limit_bytes);

  void* Allocate(size_t bytes, size_t alignment) noexcept override;
  void Deallocate(void* block) noexcept override;
  MemoryStatistics Statistics() const override { return upstream_->Statistics(); }

 private:
  MemoryResource* const upstream_;
  std::mutex mutex_;
  size_t free_bytes_;
  std::unordered_map<void*, size_t> bytes_of_block_;
};

}  // namespace millpond::memory
