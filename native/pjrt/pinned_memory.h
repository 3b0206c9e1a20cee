#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "native/base/byte_budget.h"
#include "native/memory/page_pins.h"
#include "native/pjrt/client.h"
#include "native/pjrt/driver_thread.h"

namespace millpond::pjrt {

// The memory of this process that all accelerators of a client copy from without a copy between.
//
// A piece is pinned and unpinned by a call of its own, with rests between them (DriverPace): so a
// run waits for one piece at most.
//
// No call waits for a pin longer than overdue_ns, because a driver may hang. Nothing else is pinned
// meanwhile: the memory of loads, of whatever device, is copied once more then. If the driver ends
// such a pin after all, the piece is unpinned at once. There is no limit to the wait for an
// unpin, because a device that still has the piece would read what the memory becomes.
//
// Thread: any. Owner: shared by the accelerators and the slabs with pinned pieces, which keep the
// client. Cost of a lease: a mutex, twice.
class PinnedMemory final : public memory::PagePinner {
 public:
  class Lease;

  // Pins `bytes_max` at most.
  PinnedMemory(std::shared_ptr<const Client> client, int64_t bytes_max,
               int64_t overdue_ns = kStallNs)
      : client_(std::move(client)), overdue_ns_(overdue_ns), budget_(bytes_max) {}
  ~PinnedMemory() override;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  bool Pin(std::byte* start, size_t bytes) override;
  // Waits for the end of the leases of the piece, but for abandoned ones. If there are some, or if
  // the driver refuses, as after the loss of a device, the piece counts to the end, because its
  // pages may be held, and nothing is pinned any more.
  void Unpin(std::byte* start, size_t bytes) override;

  // Returns a lease of the piece that has `place`, or an empty one if it is not pinned.
  Lease Take(const std::byte* place);

  int64_t bytes() const { return budget_.in_use_bytes(); }
  int64_t bytes_max() const { return budget_.limit_bytes(); }

 private:
  struct Piece {
    size_t bytes = 0;
    int lease_count = 0;
    int abandoned_count = 0;  // of these
  };
  class Call;

  void Return(Piece* piece);
  void Abandon(Piece* piece);

  const std::shared_ptr<const Client> client_;
  const int64_t overdue_ns_;
  base::ByteBudget budget_;
  std::atomic<bool> has_failed_{false};  // a call to unpin
  std::unique_ptr<DriverThread> thread_ = std::make_unique<DriverThread>("pin-memory");
  std::mutex mutex_;
  std::condition_variable returned_;
  std::map<const std::byte*, Piece> pieces_;  // by their start; guarded by the mutex
};

// Keeps a piece pinned while a copy from it is under way.
class PinnedMemory::Lease {
 public:
  Lease() = default;
  Lease(PinnedMemory* memory, Piece* piece, const std::byte* end)
      : memory_(memory), piece_(piece), end_(end) {}
  ~Lease() {
    if (piece_ != nullptr) memory_->Return(piece_);
  }
  Lease(Lease&& other) noexcept
      : memory_(other.memory_), piece_(std::exchange(other.piece_, nullptr)), end_(other.end_) {}
  Lease& operator=(Lease&&) = delete;

  // Ends the lease, of a copy that may never end: the piece is not unpinned any more.
  void Abandon() {
    if (piece_ != nullptr) memory_->Abandon(std::exchange(piece_, nullptr));
  }
  // The end of the piece; null if the lease is empty.
  const std::byte* end() const { return end_; }

 private:
  PinnedMemory* memory_ = nullptr;
  Piece* piece_ = nullptr;
  const std::byte* end_ = nullptr;
};

}  // namespace millpond::pjrt
