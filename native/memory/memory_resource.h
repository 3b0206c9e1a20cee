#pragma once

#include <cstddef>
#include <cstdint>

namespace millpond::memory {

// The memory that a resource had handed out at one moment. The bytes are the sizes of the blocks,
// which may be larger than requested.
struct MemoryStatistics {
  int64_t in_use_bytes = 0;
  int64_t in_use_bytes_peak = 0;
  int64_t allocation_count = 0;  // Since the start; a deallocation does not lower it.
};

// A source of blocks of memory. Limits, logging and fault injection are resources that wrap
// another. Each resource obeys tests/native/memory_resource_contract.h.
//
// Thread: any thread at any time. A thread may deallocate the block of another thread.
// Lifetime: a resource outlives its blocks.
class MemoryResource {
 public:
  MemoryResource() = default;
  MemoryResource(const MemoryResource&) = delete;
  MemoryResource& operator=(const MemoryResource&) = delete;
  virtual ~MemoryResource() = default;

  // Returns a block of at least `bytes` at a multiple of `alignment`, a power of two. Returns a
  // block for 0 bytes too. Returns nullptr and changes nothing if no memory is left.
  [[nodiscard]] virtual void* Allocate(size_t bytes, size_t alignment) noexcept = 0;

  // Takes a block of Allocate back; ignores nullptr. Takes no size, although TensorFlow's tensors
  // have it: trusting that size saved nothing measurable over jemalloc's own look-up.
  virtual void Deallocate(void* block) noexcept = 0;

  virtual MemoryStatistics Statistics() const = 0;
};

}  // namespace millpond::memory
