#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "native/base/status.h"

namespace millpond::memory {

// jemalloc's layout of blocks in extents: an extent holds many small blocks or one large block. A
// value, read once for each arena.
class SizeClasses {
 public:
  struct Bin {
    size_t block_bytes = 0;
    size_t extent_bytes = 0;
    size_t blocks_per_extent = 0;
  };

  // Constructs the classes from `bins`, by ascending block_bytes. The extent of a large block is
  // larger by `large_pad_bytes`, so that blocks start at different cache lines.
  SizeClasses(std::vector<Bin> bins, size_t large_pad_bytes);

  // Reads the classes of this process's jemalloc. Costs about 120 mallctls, which are part of the
  // 70 µs of an arena.
  static base::StatusOr<SizeClasses> OfJemalloc();

  // Returns the size of the extent that holds a block of `block_bytes`, a size class.
  size_t ExtentBytes(size_t block_bytes) const;

  // Returns the total size of the extents of these blocks.
  size_t ExtentBytesOfAll(const std::vector<size_t>& block_bytes) const;

 private:
  // Returns the bin's number, or nullopt for a large block.
  std::optional<size_t> FindBin(size_t block_bytes) const;

  std::vector<Bin> bins_;
  size_t large_pad_bytes_;
};

}  // namespace millpond::memory
