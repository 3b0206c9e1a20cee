#include "native/pjrt/pinned_memory.h"

#include <iterator>
#include <utility>

#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {

bool PinnedMemory::Pin(std::byte* start, size_t bytes) {
  if (counts_->has_failed.load() || pins_->client()->HasOverduePin()) return false;
  if (!counts_->budget.Take(static_cast<int64_t>(bytes))) return false;
  bool is_pinned = false;
  pins_->client()->pace().Make(
      [&] { is_pinned = pins_->Pin(reinterpret_cast<char*>(start), bytes); });
  if (!is_pinned) {
    counts_->budget.Return(static_cast<int64_t>(bytes));
    return false;
  }
  const std::lock_guard lock(mutex_);
  pieces_[start] = {bytes, 0};
  return true;
}

bool PinnedMemory::Unpin(std::byte* start, size_t bytes, std::shared_ptr<const void> kept) {
  auto on_unpinned = [counts = counts_, bytes, kept = std::move(kept)](bool is_unpinned) mutable {
    if (is_unpinned) {
      counts->budget.Return(static_cast<int64_t>(bytes));
      kept = nullptr;
    } else {
      counts->has_failed.store(true);
      KeepForEver(std::move(kept));
    }
  };
  if (!AwaitLeases(start)) {
    on_unpinned(false);
    return false;
  }
  bool is_unpinned = false;
  pins_->client()->pace().Make(
      [&] { is_unpinned = pins_->Unpin(reinterpret_cast<char*>(start), std::move(on_unpinned)); });
  return is_unpinned;
}

// Takes the piece out, and waits for the end of its leases. Returns false if some were abandoned.
bool PinnedMemory::AwaitLeases(const std::byte* start) {
  std::unique_lock lock(mutex_);
  // No new lease finds the piece, and those that are there keep its address.
  const auto piece = pieces_.extract(start);
  const Piece& left = piece.mapped();
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
