#include "native/pjrt/pinned_memory.h"

#include <iterator>

namespace millpond::pjrt {

// A call of the driver for a piece, on the thread for such calls.
class PinnedMemory::Call final : public DriverThread::Task {
 public:
  // 0 bytes: unpins.
  Call(const Client& client, std::byte* start, size_t bytes)
      : client_(client), start_(reinterpret_cast<char*>(start)), bytes_(bytes) {}

  // Makes the call, and rests.
  bool Make(DriverThread* thread) {
    bool was_made = false;
    client_.pace().Make([&] { was_made = thread->Perform(this); });
    return was_made && is_done_;
  }

 private:
  void Run() override {
    is_done_ = (bytes_ == 0 ? client_.Unpin(start_) : client_.Pin(start_, bytes_)).ok();
  }

  const Client& client_;
  char* const start_;
  const size_t bytes_;
  bool is_done_ = false;
};

bool PinnedMemory::Pin(std::byte* start, size_t bytes) {
  if (has_failed_.load()) return false;
  if (!budget_.Take(static_cast<int64_t>(bytes))) return false;
  if (!Call(*client_, start, bytes).Make(&thread_)) {
    budget_.Return(static_cast<int64_t>(bytes));
    return false;
  }
  const std::lock_guard lock(mutex_);
  pieces_[start] = {bytes, 0};
  return true;
}

void PinnedMemory::Unpin(std::byte* start, size_t bytes) {
  {
    std::unique_lock lock(mutex_);
    // No new lease finds the piece, and those that are there keep its address.
    const auto piece = pieces_.extract(start);
    const Piece& left = piece.mapped();
    returned_.wait(lock, [&] { return left.lease_count == left.abandoned_count; });
    if (left.abandoned_count > 0) {
      has_failed_.store(true);
      return;
    }
  }
  if (Call(*client_, start, 0).Make(&thread_)) {
    budget_.Return(static_cast<int64_t>(bytes));
  } else {
    has_failed_.store(true);
  }
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
