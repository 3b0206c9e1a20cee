#pragma once

#include <string>
#include <utility>

#include "native/memory/memory_resource.h"
#include "xla/tsl/framework/allocator.h"

namespace millpond::tf {

// A MemoryResource as TensorFlow's Allocator. Borrows the resource. Cost: one virtual call.
class MemoryAllocator : public tsl::Allocator {
 public:
  MemoryAllocator(std::string name, memory::MemoryResource* resource)
      : name_(std::move(name)), resource_(resource) {}

  std::string Name() override { return name_; }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* block) override;
  std::optional<tsl::AllocatorStats> GetStats() override;

 private:
  const std::string name_;
  memory::MemoryResource* const resource_;
};

}  // namespace millpond::tf
