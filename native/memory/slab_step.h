#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "native/base/status.h"
#include "native/memory/page_pins.h"
#include "native/memory/slab.h"

// The steps of the keeper's work on the spare slabs of a pool, one class for each kind of step. The
// theory of operation is in slab_pool.h.
//
// Perform touches, reserves or returns memory, which may take long, so it runs without the pool's
// mutex. The other functions run under the mutex and are pure: Next decides if a spare needs the
// step, and Record writes the result of the performed step to that spare. A step on a spare borrows
// its slab.
namespace millpond::memory {

// A slab that is not in use. Its memory lies at its low end. All sizes are multiples of
// kSlabUnitBytes.
struct SpareSlab {
  std::unique_ptr<Slab> slab;
  size_t resident_bytes = 0;
  size_t goal_bytes = 0;          // The keeper pre-faults the slab up to here.
  bool is_being_stepped = false;  // The keeper performs a step on it, without the mutex.
  bool refuses_pins = false;      // The pinner has refused its last piece.
};

// Returns the last resident pages of a spare to the operating system.
class ReturnTail {
 public:
  // Returns at most `bytes`, which is a multiple of kSlabUnitBytes.
  static ReturnTail Next(const SpareSlab& spare, size_t bytes);

  const Slab* slab() const { return slab_; }
  // Returns all pages from here on, because a version may have left more beyond the resident bytes.
  void Perform() { slab_->ReturnPages(begin_, slab_->reserved_bytes() - begin_); }
  void Record(SpareSlab* spare) const;

 private:
  ReturnTail(Slab* slab, size_t begin) : slab_(slab), begin_(begin) {}

  Slab* slab_;
  size_t begin_;
};

// Unmaps a slab without memory. The pool has removed it from its lists.
class UnmapSlab {
 public:
  explicit UnmapSlab(std::unique_ptr<Slab> slab) : slab_(std::move(slab)) {}

  void Perform() { slab_.reset(); }

 private:
  std::unique_ptr<Slab> slab_;
};

// Makes the next pages of a spare resident.
class PreFaultSpare {
 public:
  // Returns nullopt if the spare has reached its goal.
  static std::optional<PreFaultSpare> Next(const SpareSlab& spare, size_t step_bytes);

  const Slab* slab() const { return slab_; }
  void Perform() { slab_->PreFault(begin_, end_ - begin_); }
  void Record(SpareSlab* spare) const;

 private:
  PreFaultSpare(Slab* slab, size_t begin, size_t end) : slab_(slab), begin_(begin), end_(end) {}

  Slab* slab_;
  size_t begin_;
  size_t end_;
};

// Pins the next piece of a spare's memory.
class PinSpare {
 public:
  // Returns nullopt if all of the memory is pinned, if the pinner refuses more, or without a
  // pinner.
  static std::optional<PinSpare> Next(const SpareSlab& spare,
                                      const std::shared_ptr<PagePinner>& pinner);

  const Slab* slab() const { return slab_; }
  void Perform() { is_pinned_ = slab_->PinNext(end_, pinner_); }
  void Record(SpareSlab* spare) const { spare->refuses_pins = !is_pinned_; }

 private:
  PinSpare(Slab* slab, size_t end, std::shared_ptr<PagePinner> pinner)
      : slab_(slab), end_(end), pinner_(std::move(pinner)) {}

  Slab* slab_;
  size_t end_;
  std::shared_ptr<PagePinner> pinner_;
  bool is_pinned_ = false;
};

// Reserves a slab of `bytes`, which later steps pre-fault.
class ReserveSpare {
 public:
  explicit ReserveSpare(size_t bytes) : bytes_(bytes) {}

  void Perform() { slab_ = Slab::Reserve(bytes_); }

  // Hands over the slab, or the error of its reservation (Slab::Reserve).
  base::StatusOr<std::unique_ptr<Slab>> TakeSlab() { return std::move(slab_); }

 private:
  size_t bytes_;
  base::StatusOr<std::unique_ptr<Slab>> slab_ = std::unique_ptr<Slab>();
};

using SlabStep = std::variant<ReturnTail, UnmapSlab, PreFaultSpare, PinSpare, ReserveSpare>;

}  // namespace millpond::memory
