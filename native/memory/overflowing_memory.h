#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "native/memory/memory_resource.h"

namespace millpond::memory {

// Allocates from a second resource if the first has no memory left. So a version whose init op
// needs more than its slab still loads, with blocks outside of the slab.
//
// Borrows both resources. All blocks of the first lie in `bytes` from `begin`: this range decides
// which resource takes a block back. Statistics are of the first resource.
class OverflowingMemory final : public MemoryResource {
 public:
  OverflowingMemory(MemoryResource* first, const std::byte* begin, size_t bytes,
                    MemoryResource* second)
      : first_(first), begin_(begin), end_(begin + bytes), second_(second) {}

  void* Allocate(size_t bytes, size_t alignment) noexcept override {
    if (void* const block = first_->Allocate(bytes, alignment)) return block;
    void* const block = second_->Allocate(bytes, alignment);
    if (block != nullptr) overflow_block_count_.fetch_add(1, std::memory_order_relaxed);
    return block;
  }

  void Deallocate(void* block) noexcept override {
    if (block == nullptr) return;
    const auto* const at = static_cast<const std::byte*>(block);
    if (at >= begin_ && at < end_) return first_->Deallocate(block);
    overflow_block_count_.fetch_sub(1, std::memory_order_relaxed);
    second_->Deallocate(block);
  }

  MemoryStatistics Statistics() const override { return first_->Statistics(); }

  // The number of live blocks of the second resource.
  int64_t overflow_block_count() const {
    return overflow_block_count_.load(std::memory_order_relaxed);
  }

 private:
  MemoryResource* const first_;
  const std::byte* const begin_;
  const std::byte* const end_;
  MemoryResource* const second_;
  std::atomic<int64_t> overflow_block_count_{0};
};

}  // namespace millpond::memory
