#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "native/memory/memory_resource.h"

namespace millpond::memory {

struct MemoryEvent {
  enum class Kind { kAllocate, kDeallocate };

  Kind kind = Kind::kAllocate;
  void* block = nullptr;  // nullptr: the allocation was refused.
  size_t bytes = 0;       // The requested size; 0 for a deallocation.
  size_t alignment = 0;
};

// Reports each allocation and deallocation of another resource to a sink.
//
// Thread: any; all threads call the sink, at the same time. The events of a block come in order:
// its deallocation is reported before another thread can get the block. Owner: borrows `upstream`.
class LoggingMemory final : public MemoryResource {
 public:
  using Sink = std::function<void(const MemoryEvent&)>;

  LoggingMemory(MemoryResource* upstream, Sink sink)
      : upstream_(upstream), sink_(std::move(sink)) {}

  void* Allocate(size_t bytes, size_t alignment) noexcept override {
    void* block = upstream_->Allocate(bytes, alignment);
    sink_({MemoryEvent::Kind::kAllocate, block, bytes, alignment});
    return block;
  }
  void Deallocate(void* block) noexcept override {
    if (block != nullptr) sink_({MemoryEvent::Kind::kDeallocate, block});
    upstream_->Deallocate(block);
  }
  MemoryStatistics Statistics() const override { return upstream_->Statistics(); }

 private:
  MemoryResource* const upstream_;
  const Sink sink_;
};

}  // namespace millpond::memory
