#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/base/sharded.h"
#include "native/memory/memory_resource.h"

namespace millpond::memory {

// Remembers the largest requested block, and forwards everything to another resource.
class RecordingMemory final : public MemoryResource {
 public:
  explicit RecordingMemory(MemoryResource* upstream) : upstream_(upstream) {}

  void* Allocate(size_t bytes, size_t alignment) noexcept override {
    base::RaiseTo(largest_bytes_, static_cast<int64_t>(bytes));
    return upstream_->Allocate(bytes, alignment);
  }
  void Deallocate(void* block) noexcept override { upstream_->Deallocate(block); }
  MemoryStatistics Statistics() const override { return upstream_->Statistics(); }

  int64_t largest_bytes() const { return largest_bytes_; }
  void Forget() { largest_bytes_ = 0; }

 private:
  MemoryResource* const upstream_;
  std::atomic<int64_t> largest_bytes_{0};
};

}  // namespace millpond::memory
