#include "native/memory/slab_step.h"

#include <algorithm>

namespace millpond::memory {

ReturnTail ReturnTail::Next(const SpareSlab& spare, size_t bytes) {
  return {spare.slab.get(), spare.resident_bytes - std::min(bytes, spare.resident_bytes)};
}

void ReturnTail::Record(SpareSlab* spare) const {
  spare->resident_bytes = begin_;
  spare->goal_bytes = begin_;
}

std::optional<PreFaultSpare> PreFaultSpare::Next(const SpareSlab& spare, size_t step_bytes) {
  const size_t begin = spare.resident_bytes;
  if (begin >= spare.goal_bytes) return {};
  return PreFaultSpare(spare.slab.get(), begin, std::min(begin + step_bytes, spare.goal_bytes));
}

void PreFaultSpare::Record(SpareSlab* spare) const {
  spare->resident_bytes = end_;
  spare->goal_bytes = std::max(spare->goal_bytes, end_);
}

std::optional<PinSpare> PinSpare::Next(const SpareSlab& spare,
                                       const std::shared_ptr<PagePinner>& pinner) {
  if (pinner == nullptr || spare.refuses_pins ||
      spare.slab->pinned_bytes() >= spare.resident_bytes) {
    return {};
  }
  return PinSpare(spare.slab.get(), spare.resident_bytes, pinner);
}

}  // namespace millpond::memory
