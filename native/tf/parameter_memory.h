#pragma once

#include <atomic>
#include <memory>

#include "native/memory/memory_resource.h"
#include "native/tf/memory_allocator.h"

namespace millpond::tf {

// What the devices of one version allocate from: the version's own memory while it is loading, so
// that its variables and constants end there, and the request memory from then on.
//
// Loading one SavedModel makes several devices (the session's, grappler's, those of function
// runtimes), so the phase is kept here, once, and not by each of them: one that was left behind
// would serve requests out of the arena, 4x slower (docs/design.md, "One device per version").
//
// Thread: any. EndLoading is the loader's, once no kernel runs. Owner: shared by the SavedModel and
// its devices. Cost: the phase is one relaxed load an allocation.
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

// While it lives, devices that are made on this thread allocate from `memory`. TensorFlow calls the
// device factory on the thread that makes a session, with nothing of ours in its arguments.
class ParameterMemoryScope {
 public:
  explicit ParameterMemoryScope(std::shared_ptr<ParameterMemory> memory);
  ~ParameterMemoryScope();
  ParameterMemoryScope(const ParameterMemoryScope&) = delete;
  ParameterMemoryScope& operator=(const ParameterMemoryScope&) = delete;

  // Null outside a load, and in one without memory of its own.
  static std::shared_ptr<ParameterMemory> Current();

 private:
  std::shared_ptr<ParameterMemory> outer_;
};

}  // namespace millpond::tf
