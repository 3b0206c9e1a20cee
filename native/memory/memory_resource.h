#pragma once

#include <cstddef>
#include <cstdint>

namespace millpond::memory {

// What a resource had handed out at one moment. Bytes are those of the blocks, which may be larger
// than asked for.
struct MemoryStatistics {
  int64_t in_use_bytes = 0;
  int64_t in_use_bytes_peak = 0;
  int64_t allocation_count = 0;  // Since the start; deallocations do not lower it.
};

// Where blocks of memory come from. Limits, logging and fault injection are resources that wrap
// another; tests/native/memory_resource_contract.h holds for each of them.
//
// Thread: any, at once; a block may be deallocated by another thread than allocated it.
// Lifetime: a resource outlives its blocks.
class MemoryResource {
 public:
  MemoryResource() = default;
  MemoryResource(const MemoryResource&) = delete;
  MemoryResource& operator=(const MemoryResource&) = delete;
  virtual ~MemoryResource() = default;

  // A block of at least `bytes` (0 gives one too) at a multiple of `alignment`, a power of two, or
  // nullptr where there is none to be had, and then nothing has changed.
  [[nodiscard]] virtual void* Allocate(size_t bytes, size_t alignment) noexcept = 0;

  // Takes back what Allocate gave; nullptr is ignored. Without the size, though TensorFlow's
  // tensors know it: taking it on trust saved nothing measurable over jemalloc's own look-up.
  virtual void Deallocate(void* block) noexcept = 0;

  virtual MemoryStatistics Statistics() const = 0;
};

}  // namespace millpond::memory
