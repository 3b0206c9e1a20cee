#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "native/memory/memory_resource.h"

namespace millpond::memory {

// Injects faults: refuses the allocations of another resource that `must_fail` selects.
//
// Thread: any; allocating threads call `must_fail` at the same time. Owner: borrows `upstream`.
class FailingMemory final : public MemoryResource {
 public:
  // Returns true for an allocation that must fail. `attempt` counts the calls of Allocate from 0
  // up, including the failed calls.
  using MustFail = std::function<bool(int64_t attempt, size_t bytes)>;

  FailingMemory(MemoryResource* upstream, MustFail must_fail)
      : upstream_(upstream), must_fail_(std::move(must_fail)) {}

  // Refuses only the allocation number `failing_attempt`.
  FailingMemory(MemoryResource* upstream, int64_t failing_attempt)
      : FailingMemory(upstream, [failing_attempt](int64_t attempt, size_t /*bytes*/) {
          return attempt == failing_attempt;
        }) {}

  void* Allocate(size_t bytes, size_t alignment) noexcept override {
    const int64_t attempt = attempt_count_.fetch_add(1, std::memory_order_relaxed);
    return must_fail_(attempt, bytes) ? nullptr : upstream_->Allocate(bytes, alignment);
  }
  void Deallocate(void* block) noexcept override { upstream_->Deallocate(block); }
  MemoryStatistics Statistics() const override { return upstream_->Statistics(); }

  int64_t attempt_count() const { return attempt_count_.load(std::memory_order_relaxed); }

 private:
  MemoryResource* const upstream_;
  const MustFail must_fail_;
  std::atomic<int64_t> attempt_count_{0};
};

}  // namespace millpond::memory
