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
#include "native/pjrt/driver_pins.h"

namespace millpond::pjrt {

// The memory of this process that all accelerators of a client copy from without a copy between.
//
// A piece is pinned and unpinned by a call of its own, with rests between them (DriverPace): so a
// run waits for one piece at most.
//
// No call waits for the driver longer than DriverPins does, because a driver may hang. Nothing else
// is pinned meanwhile: the memory of loads, of whatever device, is copied once more then.
//
// Thread: any. Owner: shared by the accelerators and the slabs with pinned pieces, which keep the
// client. Cost of a lease: a mutex, twice.
class PinnedMemory final : public memory::PagePinner {
 public:
  class Lease;

  // Pins `bytes_max` at most.
  PinnedMemory(std::shared_ptr<const Client> client, int64_t bytes_max,
               int64_t overdue_ns = kStallNs)
      : pins_(std::make_shared<DriverPins>(std::move(client), overdue_ns)),
        counts_(std::make_shared<Counts>(bytes_max)) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  bool Pin(std::byte* start, size_t bytes, std::shared_ptr<const void> kept) override;
  // Waits for the end of the leases of the piece, but for abandoned ones. The piece counts until it
  // is unpinned: later if the driver hangs, and never if there are such leases, or if the driver
  // refuses, as after the loss of a device. Nothing is pinned any more in the last two cases.
  [[nodiscard]] bool Unpin(std::byte* start, size_t bytes,
                           std::shared_ptr<const void> kept) override;

  // Returns a lease of the piece that has `place`, or an empty one if it is not pinned.
  Lease Take(const std::byte* place);

  int64_t bytes() const { return counts_->budget.in_use_bytes(); }
  int64_t bytes_max() const { return counts_->budget.limit_bytes(); }
  // The calls of the driver, for other memory that is pinned.
  const std::shared_ptr<DriverPins>& pins() const { return pins_; }

 private:
  // The part that a late call changes, which may end after this object.
  struct Counts {
    explicit Counts(int64_t bytes_max) : budget(bytes_max) {}
    base::ByteBudget budget;
    std::atomic<bool> has_failed{false};  // a call to unpin
  };

  struct Charge {
    std::shared_ptr<Counts> counts;
    base::ByteBudget::Share share;
  };
  // The pages and the charge that a late call keeps until its piece is unpinned. The charge ends
  // last.
  struct Kept {
    std::shared_ptr<const Charge> charge;
    std::shared_ptr<const void> pages;
  };
  struct Piece {
    size_t bytes = 0;
    std::shared_ptr<const Charge> charge;
    int lease_count = 0;
    int abandoned_count = 0;  // of these
  };

  std::shared_ptr<const Charge> ChargeFor(size_t bytes) const;
  bool AwaitLeases(const std::byte* start, std::shared_ptr<const Charge>* charge);
  void Return(Piece* piece);
  void Abandon(Piece* piece);

  const std::shared_ptr<DriverPins> pins_;
  const std::shared_ptr<Counts> counts_;
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
