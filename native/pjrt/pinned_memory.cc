#include "native/pjrt/pinned_memory.h"

#include <iterator>

namespace millpond::pjrt {

bool PinnedMemory::Pin(std::byte* start, size_t bytes) {
  if (has_failed_.load() || pins_->client()->HasOverduePin()) return false;
  if (!budget_.Take(static_cast<int64_t>(bytes))) return false;
  bool is_pinned = false;
  pins_->client()->pace().Make(
      [&] { is_pinned = pins_->Pin(reinterpret_cast<char*>(start), bytes); });
  if (!is_pinned) {
    budget_.Return(static_cast<int64_t>(bytes));
    return false;
  }
  const std::lock_guard lock(mutex_);
  pieces_[start] = {bytes, 0};
  return true;
}

bool PinnedMemory::Unpin(std::byte* start, size_t bytes) {
  bool is_unpinned = false;
  if (AwaitLeases(start)) {
    pins_->client()->pace().Make(
        [&] { is_unpinned = pins_->Unpin(reinterpret_cast<char*>(start)); });
  }
  if (is_unpinned) {
    budget_.Return(static_cast<int64_t>(bytes));
  } else {
    has_failed_.store(true);
  }
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
