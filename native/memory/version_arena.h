#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "native/base/status.h"
#include "native/memory/arena.h"
#include "native/memory/overflowing_memory.h"
#include "native/memory/slab_pool.h"

namespace millpond::memory {

// The blocks that a version left behind after all of it was freed: either nothing, or leaks.
struct ArenaRemains {
  int64_t live_bytes = 0;
  std::vector<LiveBlocks> live_blocks;
  int64_t overflow_block_count = 0;
};

// The memory of one version: an arena on a slab of a pool.
//
// Owner: the load, then the servable, which frees its session first. Thread: memory() from any
// thread; the rest is for the owner. Cost: Take takes microseconds, for a spare and for a fresh
// slab, because it touches no pages. Release takes as long as jemalloc needs to forget an arena
// (microseconds).
class VersionArena {
 public:
  // Takes a slab and makes an arena on it. `owner` is the model's name, and `wanted_bytes` the
  // memory that it is planned to use of the slab. Blocks that do not fit the slab come from
  // `overflow`, which outlives this object. Returns RESOURCE_EXHAUSTED without address space, and
  // FAILED_PRECONDITION if jemalloc is not preloaded.
  static base::StatusOr<std::unique_ptr<VersionArena>> Take(std::shared_ptr<SlabPool> pool,
                                                            const std::string& owner,
                                                            size_t slab_bytes, size_t wanted_bytes,
                                                            MemoryResource* overflow);
  // Releases the arena. Must not run if blocks are live (see Release).
  ~VersionArena();
  VersionArena(const VersionArena&) = delete;
  VersionArena& operator=(const VersionArena&) = delete;

  MemoryResource* memory() { return &memory_; }
  int64_t overflow_block_count() const { return memory_.overflow_block_count(); }
  ArenaStatistics Statistics() const { return arena_->ArenaStats(); }
  // The memory that the next version of the owner is expected to need. It has the bytes that this
  // version used of the slab, not the resident bytes: a larger version that had the slab before may
  // have touched more.
  SlabNeed need() const {
    return {slab_bytes_, wanted_bytes_, used_slab_bytes(), is_pinned_ ? slab_->pinned_bytes() : 0};
  }
  size_t used_slab_bytes() const { return arena_->used_slab_bytes(); }
  size_t slab_resident_bytes() const { return slab_->ResidentBytes(); }

  // Pins the memory that the version uses of the slab, if the pool pins any (SlabPool::PinWith), so
  // that devices copy faster from it. Takes long if it is not pinned yet. Stops if the pinner
  // refuses. Before Seal.
  void Pin();

  // Makes the slab read-only until Release. Blocks can still be freed, but not allocated.
  base::Status Seal() { return slab_->Seal(); }
  // Makes the slab writable again, before its contents are destroyed.
  base::Status Unseal() { return slab_->Unseal(); }

  // Destroys the arena and gives the slab back to the pool. If blocks are live, their holders may
  // still use and free them. The arena and the slab are then kept for ever, the slab in quarantine,
  // and the caller must keep this object too. A second call returns the same result.
  ArenaRemains Release();

 private:
  VersionArena(std::shared_ptr<SlabPool> pool, size_t slab_bytes, size_t wanted_bytes,
               std::unique_ptr<Slab> slab, std::unique_ptr<Arena> arena, MemoryResource* overflow);

  const std::shared_ptr<SlabPool> pool_;
  const size_t slab_bytes_;  // As requested. The slab may be larger.
  const size_t wanted_bytes_;
  std::unique_ptr<Slab> slab_;  // null once released
  std::unique_ptr<Arena> arena_;
  OverflowingMemory memory_;
  ArenaRemains remains_;
  bool is_pinned_ = false;  // Pin was called.
};

}  // namespace millpond::memory
