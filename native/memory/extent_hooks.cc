#include "native/memory/extent_hooks.h"

#include <type_traits>

#include "native/memory/slab.h"

namespace millpond::memory {
namespace {

// Read inside malloc. SizeLimit has written it before, so the thread's copy exists by then: the
// first use of a thread-local may allocate, and must not happen inside malloc.
thread_local size_t largest_extent_bytes = SIZE_MAX;

bool AllowSplit(extent_hooks_t* /*table*/, void* /*start*/, size_t /*bytes*/, size_t /*low_bytes*/,
                size_t /*high_bytes*/, bool /*is_committed*/, unsigned /*arena_index*/) {
  return false;  // jemalloc's hooks return true for "failed".
}

bool AllowMerge(extent_hooks_t* /*table*/, void* /*low*/, size_t /*low_bytes*/, void* /*high*/,
                size_t /*high_bytes*/, bool /*is_committed*/, unsigned /*arena_index*/) {
  return false;
}

}  // namespace

ExtentHooks::ExtentHooks(std::byte* start, size_t bytes) : start_(start), bytes_(bytes) {
  // A null hook opts out. The null hooks are dalloc (so that extents are retained), destroy,
  // commit, decommit and both purges.
  table_.alloc = &ExtentHooks::Allocate;
  table_.split = &AllowSplit;
  table_.merge = &AllowMerge;
}

void* ExtentHooks::Allocate(extent_hooks_t* table, void* new_address, size_t bytes,
                            size_t alignment, bool* zero, bool* commit, unsigned /*arena_index*/) {
  // Refuses a fixed address and zeroed pages. Neither is needed, and the pages of a used slab are
  // not zero.
  if (new_address != nullptr || *zero || bytes > largest_extent_bytes) return nullptr;
  std::byte* const extent = Of(table)->Cut(bytes, alignment);
  if (extent != nullptr) *commit = true;
  return extent;
}

ExtentHooks* ExtentHooks::Of(extent_hooks_t* table) {
  static_assert(std::is_standard_layout_v<ExtentHooks>, "the table must be the first member");
  return reinterpret_cast<ExtentHooks*>(table);
}

std::byte* ExtentHooks::Cut(size_t bytes, size_t alignment) {
  const auto base = reinterpret_cast<uintptr_t>(start_);
  size_t cut_bytes = cut_bytes_.load(std::memory_order_relaxed);
  size_t offset = 0;
  do {
    offset = RoundUp(base + cut_bytes, alignment) - base;
    if (offset > bytes_ || bytes > bytes_ - offset) return nullptr;
  } while (!cut_bytes_.compare_exchange_weak(cut_bytes, offset + bytes, std::memory_order_relaxed));
  return start_ + offset;
}

ExtentHooks::SizeLimit::SizeLimit(size_t bytes) { largest_extent_bytes = bytes; }
ExtentHooks::SizeLimit::~SizeLimit() { largest_extent_bytes = SIZE_MAX; }

}  // namespace millpond::memory
