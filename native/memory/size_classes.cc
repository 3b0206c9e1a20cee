#include "native/memory/size_classes.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "native/memory/jemalloc_control.h"
#include "native/memory/slab.h"

namespace millpond::memory {

SizeClasses::SizeClasses(std::vector<Bin> bins, size_t large_pad_bytes)
    : bins_(std::move(bins)), large_pad_bytes_(large_pad_bytes) {}

base::StatusOr<SizeClasses> SizeClasses::OfJemalloc() {
  const unsigned bin_count = ReadControl<unsigned>("arenas.nbins").value_or(0);
  std::vector<Bin> bins;
  for (unsigned i = 0; i < bin_count; ++i) {
    const std::string bin = "arenas.bin." + std::to_string(i);
    const auto block_bytes = ReadControl<size_t>(bin + ".size");
    const auto extent_bytes = ReadControl<size_t>(bin + ".slab_size");
    const auto block_count = ReadControl<uint32_t>(bin + ".nregs");
    if (!block_bytes || !extent_bytes || !block_count) break;
    bins.push_back({*block_bytes, *extent_bytes, *block_count});
  }
  if (bins.empty() || bins.size() != bin_count) {
    return base::FailedPrecondition("jemalloc does not report its size classes; use jemalloc 5.3");
  }
  const bool is_padded = ReadControl<bool>("opt.cache_oblivious").value_or(true);
  return SizeClasses(std::move(bins), is_padded ? kPageBytes : 0);
}

size_t SizeClasses::ExtentBytes(size_t block_bytes) const {
  const std::optional<size_t> bin = FindBin(block_bytes);
  return bin ? bins_[*bin].extent_bytes : RoundUp(block_bytes + large_pad_bytes_, kPageBytes);
}

size_t SizeClasses::ExtentBytesOfAll(const std::vector<size_t>& block_bytes) const {
  std::vector<size_t> small_block_counts(bins_.size());
  size_t extent_bytes = 0;
  for (const size_t bytes : block_bytes) {
    if (const std::optional<size_t> bin = FindBin(bytes)) {
      ++small_block_counts[*bin];
    } else {
      extent_bytes += ExtentBytes(bytes);
    }
  }
  for (size_t i = 0; i < bins_.size(); ++i) {
    const Bin& bin = bins_[i];
    const size_t extent_count =
        (small_block_counts[i] + bin.blocks_per_extent - 1) / bin.blocks_per_extent;
    extent_bytes += extent_count * bin.extent_bytes;
  }
  return extent_bytes;
}

std::optional<size_t> SizeClasses::FindBin(size_t block_bytes) const {
  const auto bin =
      std::lower_bound(bins_.begin(), bins_.end(), block_bytes,
                       [](const Bin& bin, size_t bytes) { return bin.block_bytes < bytes; });
  if (bin == bins_.end()) return std::nullopt;
  return bin - bins_.begin();
}

}  // namespace millpond::memory
