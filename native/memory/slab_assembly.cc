#include "native/memory/slab_assembly.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace millpond::memory {
namespace {

SpareSlab RemoveFrom(std::vector<SpareSlab>* spares, std::vector<SpareSlab>::iterator entry) {
  SpareSlab removed = std::move(*entry);
  spares->erase(entry);
  return removed;
}

// Returns the smallest spare that has `bytes` of memory, or the largest if no spare has as much. So
// large spares stay whole, and few of them are cut. A spare of which a page cannot be unpinned
// comes last, because nothing can be moved out of it.
std::vector<SpareSlab>::iterator BestDonor(size_t bytes, std::vector<SpareSlab>* spares) {
  const auto unfitness = [bytes](const SpareSlab& spare) {
    const bool is_short = spare.resident_bytes < bytes;
    return std::tuple(spare.slab->has_stuck_pins(), is_short,
                      is_short ? SIZE_MAX - spare.resident_bytes : spare.resident_bytes);
  };
  return std::min_element(
      spares->begin(), spares->end(),
      [&](const SpareSlab& a, const SpareSlab& b) { return unfitness(a) < unfitness(b); });
}

base::Status LostAddresses() {
  return {base::Code::kResourceExhausted,
          "cannot move memory to a version's slab: the system refused, and other memory was mapped "
          "at its addresses meanwhile; raise the limit of mappings (vm.max_map_count)"};
}

}  // namespace

SlabAssembly::SlabAssembly(size_t slab_bytes, size_t wanted_bytes, std::vector<SpareSlab>* spares)
    : slab_bytes_(slab_bytes), wanted_bytes_(wanted_bytes) {
  ChooseBase(spares);
  ChooseDonors(spares);
}

// Chooses, among the spares that are large enough and have not too much memory, the one with the
// most memory. It is usually the slab of the model's last version, and nothing has to be moved.
void SlabAssembly::ChooseBase(std::vector<SpareSlab>* spares) {
  if (wanted_bytes_ == 0) return;
  auto best = spares->end();
  for (auto spare = spares->begin(); spare != spares->end(); ++spare) {
    const size_t resident_bytes = spare->resident_bytes;
    const bool fits =
        spare->slab->reserved_bytes() >= slab_bytes_ && resident_bytes <= wanted_bytes_;
    if (fits && (best == spares->end() || resident_bytes > best->resident_bytes)) best = spare;
  }
  if (best == spares->end()) return;
  base_ = RemoveFrom(spares, best);
  resident_bytes_ = base_.resident_bytes;
}

void SlabAssembly::ChooseDonors(std::vector<SpareSlab>* spares) {
  size_t chosen_bytes = resident_bytes_;
  while (chosen_bytes < wanted_bytes_ && !spares->empty()) {
    const auto donor = BestDonor(wanted_bytes_ - chosen_bytes, spares);
    if (donor->resident_bytes == 0) return;
    chosen_bytes += donor->resident_bytes;
    donors_.push_back(RemoveFrom(spares, donor));
  }
}

base::StatusOr<std::unique_ptr<Slab>> SlabAssembly::Perform() {
  std::unique_ptr<Slab> slab = std::move(base_.slab);
  if (slab == nullptr) {
    base::StatusOr<std::unique_ptr<Slab>> reserved = Slab::Reserve(slab_bytes_);
    if (!reserved.ok()) return reserved.status();
    slab = std::move(reserved.value());
  }
  for (SpareSlab& donor : donors_) {
    if (!Draw(&donor, slab.get())) break;
  }
  if (slab->reserved_bytes() >= slab_bytes_) return slab;
  donors_.push_back({std::move(slab), resident_bytes_, resident_bytes_});
  return LostAddresses();
}

// Moves memory from `donor` to the end of the slab's memory. Returns false if the system refuses.
bool SlabAssembly::Draw(SpareSlab* donor, Slab* slab) {
  const size_t bytes = std::min(wanted_bytes_ - resident_bytes_, donor->resident_bytes);
  const size_t moved_bytes =
      donor->slab->MoveTail(donor->resident_bytes, bytes, slab, resident_bytes_);
  donor->resident_bytes = std::min(donor->resident_bytes, donor->slab->reserved_bytes());
  donor->goal_bytes = donor->resident_bytes;
  resident_bytes_ += moved_bytes;
  return moved_bytes == bytes;
}

std::vector<SpareSlab> SlabAssembly::TakeRest() {
  std::vector<SpareSlab> rest;
  for (SpareSlab& donor : donors_) {
    if (donor.resident_bytes > 0) rest.push_back(std::move(donor));
  }
  donors_.clear();
  return rest;
}

}  // namespace millpond::memory
