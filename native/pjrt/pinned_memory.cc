#include "native/pjrt/pinned_memory.h"

#include <iterator>
#include <utility>

#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {

std::shared_ptr<const PinnedMemory::Charge> PinnedMemory::ChargeFor(size_t bytes) const {
  base::ByteBudget::Share share(&counts_->budget);
  if (!share.Resize(static_cast<int64_t>(bytes))) return nullptr;
  return std::shared_ptr<const Charge>(new Charge{counts_, std::move(share)});
}

bool PinnedMemory::Pin(std::byte* start, size_t bytes, std::shared_ptr<const void> kept) {
  if (counts_->has_failed.load() || pins_->client()->HasOverduePin()) return false;
  const std::shared_ptr<const Charge> charge = ChargeFor(bytes);
  if (charge == nullptr) return false;
  std::shared_ptr<const Kept> both(new Kept{charge, std::move(kept)});
  bool is_pinned = false;
  pins_->client()->pace().Make(
      [&] { is_pinned = pins_->Pin(reinterpret_cast<char*>(start), bytes, std::move(both)); });
  if (!is_pinned) return false;
  const std::lock_guard lock(mutex_);
  pieces_[start] = {bytes, charge};
  return true;
}

bool PinnedMemory::Unpin(std::byte* start, size_t bytes, std::shared_ptr<const void> kept) {
  Kept both{nullptr, std::move(kept)};
  const bool has_ended = AwaitLeases(start, &both.charge);
  auto on_unpinned = [both = std::move(both)](bool is_unpinned) mutable {
    if (!is_unpinned) {
      both.charge->counts->has_failed.store(true);
      KeepForEver(both);
    }
    both.pages = nullptr;
    both.charge = nullptr;
  };
  if (!has_ended) {
    on_unpinned(false);
    return false;
  }
  bool is_unpinned = false;
  pins_->client()->pace().Make(
      [&] { is_unpinned = pins_->Unpin(reinterpret_cast<char*>(start), std::move(on_unpinned)); });
  return is_unpinned;
}

// Takes the piece out, with its charge, and waits for the end of its leases. Returns false if some
// were abandoned.
bool PinnedMemory::AwaitLeases(const std::byte* start, std::shared_ptr<const Charge>* charge) {
  std::unique_lock lock(mutex_);
  // No new lease finds the piece, and those that are there keep its address.
  const auto piece = pieces_.extract(start);
  const Piece& left = piece.mapped();
  *charge = left.charge;
  returned_.wait(lock, [&] { return left.lease_count == left.abandoned_count; });
  return left.abandoned_count == 0;
}

PinnedMemory::Lease PinnedMemory::Take(const std::byte* place) {
  const std::lock_guard lock(mutex_);
  const auto after = pieces_.upper_bound(place);
  if (after == pieces_.begin()) return {};
  auto& [start, piece] = *std::prev(after);
  if (place >= start + piece.bytes) return {};
  ++piece.lease_count;
  return {this, &piece, start + piece.bytes};
}

void PinnedMemory::Abandon(Piece* piece) {
  {
    const std::lock_guard lock(mutex_);
    ++piece->abandoned_count;
  }
  returned_.notify_all();
}

void PinnedMemory::Return(Piece* piece) {
  {
    const std::lock_guard lock(mutex_);
    --piece->lease_count;
  }
  returned_.notify_all();
}

}  // namespace millpond::pjrt
