#pragma once

#include <cstdint>

namespace millpond::memory {

// The uses of the bytes of an arena's slab. The first four figures are disjoint and add up to the
// slab: each byte of the slab is counted in exactly one of them.
struct ArenaStatistics {
  int64_t allocated_bytes = 0;      // In live blocks, with jemalloc's rounding.
  int64_t active_unused_bytes = 0;  // In pages that hold live blocks, but not in a block.
  int64_t retained_bytes = 0;       // In pages that held blocks, free for later blocks.
  int64_t unused_bytes = 0;         // Never part of a block.

  // The pages of the slab that have memory behind them, from any of the four figures above. An
  // earlier version may have touched them.
  int64_t slab_resident_bytes = 0;

  int64_t active_bytes() const { return allocated_bytes + active_unused_bytes; }
  // The bytes from the slab's low end up to the last byte that was ever part of a block. A spare
  // is pre-faulted up to there.
  int64_t used_bytes() const { return active_bytes() + retained_bytes; }
  int64_t slab_reserved_bytes() const { return used_bytes() + unused_bytes; }
};

// The number of live blocks of one size.
struct LiveBlocks {
  int64_t block_bytes = 0;
  int64_t count = 0;
};

}  // namespace millpond::memory
