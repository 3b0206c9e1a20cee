#pragma once

#include <atomic>
#include <memory>

#include "native/memory/memory_resource.h"
#include "native/tf/memory_allocator.h"

namespace millpond::tf {

// The source of the memory of one version's devices. While the version is loading it is the
// version's own memory, so that its variables and constants lie there. After that it is the request
// memory.
//
// Loading one SavedModel makes several devices (for the session, grappler and function runtimes).
// The phase belongs to the version and not to a device (docs/design.md, "One device per version").
//
// Thread: any. EndLoading is for the loader, once no kernel runs. Owner: shared by the SavedModel
// and its devices. Cost: the phase is one relaxed load an allocation.
class ParameterMemory {
 public:
  // Borrows `parameters`, which outlives every tensor allocated from it, and `requests`.
  ParameterMemory(memory::MemoryResource* parameters, tsl::Allocator* requests)
      : parameters_("millpond_arena", parameters), requests_(requests) {}

  tsl::Allocator* allocator() {
    return is_loading_.load(std::memory_order_relaxed) ? &parameters_ : requests_;
  }
  bool is_loading() const { return is_loading_.load(std::memory_order_relaxed); }
  void EndLoading() { is_loading_.store(false, std::memory_order_relaxed); }

 private:
  MemoryAllocator parameters_;
  tsl::Allocator* const requests_;
  std::atomic<bool> is_loading_{true};
};

// Makes the devices that are made on this thread allocate from `memory` while the scope lives.
// TensorFlow calls the device factory on the thread that makes a session, and its arguments cannot
// carry `memory`.
class ParameterMemoryScope {
 public:
  explicit ParameterMemoryScope(std::shared_ptr<ParameterMemory> memory);
  ~ParameterMemoryScope();
  ParameterMemoryScope(const ParameterMemoryScope&) = delete;
  ParameterMemoryScope& operator=(const ParameterMemoryScope&) = delete;

  // The memory of this thread's load; null outside a load, and in a load without memory of its own.
  static std::shared_ptr<ParameterMemory> Current();

 private:
  std::shared_ptr<ParameterMemory> outer_;
};

}  // namespace millpond::tf
