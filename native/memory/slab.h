#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "native/base/status.h"
#include "native/memory/page_pins.h"

namespace millpond::memory {

inline constexpr size_t kPageBytes = 4096;
// A huge page. The start and the size of a slab are multiples of it.
inline constexpr size_t kSlabUnitBytes = size_t{2} << 20;

// Returns `bytes` rounded up to a multiple of `unit_bytes`, a power of two. Returns 0 on overflow.
constexpr size_t RoundUp(size_t bytes, size_t unit_bytes) {
  return (bytes + unit_bytes - 1) & ~(unit_bytes - 1);
}

// Takes the memory of slabs that are reserved later from these NUMA nodes in turns, so that the
// cores of all nodes reach a version's parameters equally fast. Without nodes it is the node of the
// thread that touches it first, as at the start. Returns false, and changes nothing, if the kernel
// refuses that. While no other thread uses slabs.
bool InterleaveSlabs(const std::vector<int>& nodes);

// One contiguous range of addresses for the parameters of one version. The pages that were touched
// have memory behind them. The only class that requests memory from the operating system.
//
// Thread: any thread may read start() and the sizes. PreFault, ReturnPages, MoveTail, PinNext, Seal
// and Unseal are for the current owner of the slab, one thread at a time.
// Owner: the pool, the keeper's step or a version (unique_ptr). The destructor unmaps the slab, so
// none of its blocks may be in use.
// Pages: huge pages, if the kernel has them, until SetSmallPagesAtStart. Compared with pages of 4
// KiB over 512 MiB (native/bench/slab_bench.cc), a random row is read in 9 ns, not 26; sealing
// takes 30 µs, not 27 ms; unmapping takes 1.3 ms, not 53. A fault no longer stalls the other core.
// Pins: no page is unmapped, returned, moved or replaced while it is pinned, because each function
// that does so unpins it first. If a driver is late to pin or unpin it, it stays until then, and
// its memory too, longer than the slab if need be.
// Cost: reserved bytes cost only addresses (MAP_NORESERVE). For the rest see each function.
class Slab {
 public:
  // Reserves `bytes`, rounded up to kSlabUnitBytes. Returns RESOURCE_EXHAUSTED if the system
  // refuses.
  static base::StatusOr<std::unique_ptr<Slab>> Reserve(size_t bytes);

  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab();

  std::byte* start() const { return start_; }
  size_t reserved_bytes() const { return reserved_bytes_; }

  // Returns the bytes of the pages that currently have memory behind them, among those before
  // `end`. Uses mincore, which takes 0.1 to 0.3 ms for 512 MiB.
  size_t ResidentBytes(size_t end = SIZE_MAX) const;

  // Returns the end of the last page that has memory behind it; 0 if none has. Costs the same.
  size_t ResidentEnd() const;

  // Makes the pages of the range resident and writable. Keeps their contents, so blocks may lie
  // there. Does nothing to a sealed slab. The range is cut at the slab's end.
  void PreFault(size_t offset, size_t bytes);

  // Pins the next piece of the slab, up to `end` at most, for devices to copy from. The piece stays
  // pinned until its memory is returned, moved or unmapped. Returns false if the pinner refuses, as
  // it does for a sealed slab.
  bool PinNext(size_t end, const std::shared_ptr<PagePinner>& pinner) {
    return !is_sealed() && pins_.PinNext(end, pinner);
  }
  // The bytes from the start on that are pinned.
  size_t pinned_bytes() const { return pins_.bytes(); }

  // Returns the pages of the range to the operating system; their contents become 0. Returns only
  // whole pages. Unpins all from there on. Pages that cannot be unpinned become 0, and stay until a
  // later call, or the slab's end.
  void ReturnPages(size_t offset, size_t bytes);

  // Chooses small or huge pages for the memory that the first unit has yet to get. A huge page
  // would be mostly empty in the slab of a small version.
  void SetSmallPagesAtStart(bool is_small);

  // Moves memory without copying it: the `bytes` before `end` become the memory of `to` from
  // `to_offset` on. What `to` had there is lost. This slab is cut: it ends at `end - bytes`
  // afterwards. All numbers are multiples of kSlabUnitBytes. Returns the bytes that were moved,
  // fewer than `bytes` if the system refuses, and 0 if memory cannot be unpinned. If the place of a
  // refused unit is lost too, to a hole or to other memory, `to` ends before it afterwards, and
  // never unmaps it. Moves unit by unit, because each call holds the process's lock of mappings: 3
  // ms for 500 MB, where fresh pages would take 0.2 s and more.
  size_t MoveTail(size_t end, size_t bytes, Slab* to, size_t to_offset);

  // Makes the whole slab read-only, or writable again. A write to a sealed slab ends the process.
  // Works unit by unit, because each call holds the process's lock of mappings: with small pages
  // for 100 µs.
  base::Status Seal();
  base::Status Unseal();
  // Makes the destructor leave the slab mapped. For a slab with blocks that may still be used.
  void LeaveMapped() { is_left_mapped_ = true; }

  // True as long as a page is still to be unpinned: nothing can be moved out of the slab.
  bool has_stuck_pins() const { return pins_.stuck_end() > 0; }
  bool is_sealed() const { return is_sealed_.load(std::memory_order_relaxed); }

 private:
  // Pages that outlive their slab until a driver unpins them. Whoever unpins has them.
  struct LeftPages {
    ~LeftPages();
    std::byte* start = nullptr;
    size_t bytes = 0;
  };

  Slab(std::byte* start, size_t reserved_bytes)
      : start_(start), reserved_bytes_(reserved_bytes), pins_(start, left_) {}

  base::Status Protect(int protection, bool is_sealed);
  void Cut(size_t end);
  size_t StuckEnd() const;
  void LoseUnit(size_t offset);
  template <typename Visit>
  void VisitPages(size_t end, const Visit& visit) const;

  std::byte* const start_;
  size_t reserved_bytes_;  // Only MoveTail changes it.
  std::atomic<bool> is_sealed_{false};
  bool is_left_mapped_ = false;
  bool has_small_pages_ = false;
  const std::shared_ptr<LeftPages> left_ = std::make_shared<LeftPages>();
  PinnedPieces pins_;
};

}  // namespace millpond::memory
