#include "native/memory/slab_step.h"

#include <algorithm>

namespace millpond::memory {
namespace {

size_t EndOfStep(const IdleSlab& idle, size_t begin, size_t step_bytes) {
  return std::min(begin + step_bytes, idle.slab->reserved_bytes());
}

// Lowers the resident bytes: all bytes from `kept_bytes` to `end` are returned.
void RecordReturned(size_t kept_bytes, size_t end, IdleSlab* idle) {
  idle->resident_bytes =
      std::min(idle->resident_bytes, kept_bytes + idle->slab->reserved_bytes() - end);
}

}  // namespace

std::optional<ReturnSurplus> ReturnSurplus::Next(const IdleSlab& surplus, size_t step_bytes) {
  const size_t begin = surplus.returned_bytes;
  if (surplus.resident_bytes == 0 || begin >= surplus.slab->reserved_bytes()) return {};
  return ReturnSurplus(surplus.slab.get(), begin, EndOfStep(surplus, begin, step_bytes));
}

void ReturnSurplus::Record(IdleSlab* surplus) const {
  surplus->returned_bytes = end_;
  RecordReturned(/*kept_bytes=*/0, end_, surplus);
}

std::optional<ReturnUnneeded> ReturnUnneeded::Next(const IdleSlab& spare, size_t prefault_bytes,
                                                   size_t step_bytes) {
  const size_t needed_bytes = RoundUp(prefault_bytes, kSlabUnitBytes);
  const size_t begin = std::max(needed_bytes, spare.unneeded_end);
  const bool has_begun = spare.unneeded_end > 0;
  const bool is_small = spare.resident_bytes <= needed_bytes + kSpareSlackBytes;
  if ((is_small && !has_begun) || begin >= spare.slab->reserved_bytes()) return {};
  return ReturnUnneeded(spare.slab.get(), needed_bytes, begin, EndOfStep(spare, begin, step_bytes));
}

void ReturnUnneeded::Record(IdleSlab* spare) const {
  spare->unneeded_end = end_;
  spare->prefaulted_bytes = std::min(spare->prefaulted_bytes, begin_);
  RecordReturned(needed_bytes_, end_, spare);
}

std::optional<PreFaultSpare> PreFaultSpare::Next(const IdleSlab& spare, size_t prefault_bytes,
                                                 size_t step_bytes) {
  const size_t needed_bytes = std::min(prefault_bytes, spare.slab->reserved_bytes());
  const size_t begin = spare.prefaulted_bytes;
  // The slab of a version is resident from its low end, as far as the version used it.
  const bool is_resident = begin == 0 && spare.resident_bytes >= needed_bytes;
  if (is_resident || begin >= needed_bytes) return {};
  return PreFaultSpare(spare.slab.get(), begin, std::min(begin + step_bytes, needed_bytes));
}

void PreFaultSpare::Record(IdleSlab* spare) const {
  spare->prefaulted_bytes = end_;
  spare->unneeded_end = 0;
  spare->resident_bytes = std::max(spare->resident_bytes, end_);
}

void ReserveSpare::Perform() {
  base::StatusOr<std::unique_ptr<Slab>> reserved = Slab::Reserve(bytes_);
  if (reserved.ok()) slab_ = std::move(reserved.value());
}

}  // namespace millpond::memory
