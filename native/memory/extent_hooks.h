#pragma once

#include <jemalloc/jemalloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace millpond::memory {

// The source of the extents of one jemalloc arena. Cuts them from one range of addresses, from its
// low end upward. So a slab that is used again touches first the pages that are already resident.
//
// ┌────────────────────────────────────────────────────────────────────────────────────────────┐
// │ The functions behind Table() run inside malloc, under jemalloc's locks. No allocation, no   │
// │ logging, no mutex, no assertion that formats: each would deadlock.                          │
// └────────────────────────────────────────────────────────────────────────────────────────────┘
//
// Never hands out memory outside the range. If the range is used up, jemalloc gets a failure, and
// mallocx returns nullptr. Extents that an arena frees stay with the arena, because jemalloc
// retains them. No page of the range is returned to the system or written, so the range may be
// read-only in between.
//
// Thread: any thread at any time. Owner: the arena. jemalloc keeps the address of the hooks as long
// as the arena index lives, so the hooks must live as long.
class ExtentHooks {
 public:
  ExtentHooks(std::byte* start, size_t bytes);
  ExtentHooks(const ExtentHooks&) = delete;
  ExtentHooks& operator=(const ExtentHooks&) = delete;

  extent_hooks_t* Table() { return &table_; }

  // The bytes cut from the range so far, including gaps for alignment.
  size_t cut_bytes() const { return cut_bytes_.load(std::memory_order_relaxed); }

  // Makes this thread's allocations fail for extents of more than `bytes` while the limit lives.
  // jemalloc first requests an extent of its next larger size, to grow in leaps. If that is
  // refused, it requests the size that it needs. This uses the whole slab; the leaps would leave up
  // to 25 % of it in holes.
  class SizeLimit {
   public:
    explicit SizeLimit(size_t bytes);
    ~SizeLimit();
    SizeLimit(const SizeLimit&) = delete;
    SizeLimit& operator=(const SizeLimit&) = delete;
  };

 private:
  static void* Allocate(extent_hooks_t* table, void* new_address, size_t bytes, size_t alignment,
                        bool* zero, bool* commit, unsigned arena_index);
  static ExtentHooks* Of(extent_hooks_t* table);

  std::byte* Cut(size_t bytes, size_t alignment);

  extent_hooks_t table_{};
  std::byte* const start_;
  const size_t bytes_;
  std::atomic<size_t> cut_bytes_{0};
};

}  // namespace millpond::memory
