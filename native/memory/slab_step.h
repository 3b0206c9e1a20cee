#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "native/memory/slab.h"

// The steps of the keeper's work on the slabs of a pool, one class for each kind of step. The
// theory of operation is in slab_pool.h.
//
// Perform touches, reserves or returns memory, which may take long, so it runs without the pool's
// mutex. The other functions run under the mutex and are pure: Next decides if an idle slab needs
// the step, and Record writes the result of the performed step to that slab. A step on an idle slab
// borrows the slab.
namespace millpond::memory {

// The memory that a spare may keep beyond its expected need: the next version rarely has exactly
// the size of the last version.
inline constexpr size_t kSpareSlackBytes = size_t{16} << 20;

// A slab that is not in use: a spare of its owner, or surplus.
struct IdleSlab {
  std::unique_ptr<Slab> slab;
  std::string owner;
  bool is_surplus = false;
  bool is_being_stepped = false;  // The keeper performs a step on it, without the mutex.
  size_t resident_bytes = 0;
  size_t prefaulted_bytes = 0;  // Pre-faulted by the keeper, from the low end.
  size_t returned_bytes = 0;    // Returned by the keeper, from the low end; for a surplus.
  size_t unneeded_end = 0;      // The end of the unneeded bytes returned so far; for a spare.
};

// Returns the next pages of a surplus to the operating system.
class ReturnSurplus {
 public:
  // Returns nullopt if no page is left to return. The slab can then be unmapped.
  static std::optional<ReturnSurplus> Next(const IdleSlab& surplus, size_t step_bytes);

  const Slab* slab() const { return slab_; }
  void Perform() { slab_->ReturnPages(begin_, end_ - begin_); }
  void Record(IdleSlab* surplus) const;

 private:
  ReturnSurplus(Slab* slab, size_t begin, size_t end) : slab_(slab), begin_(begin), end_(end) {}

  Slab* slab_;
  size_t begin_;
  size_t end_;
};

// Unmaps a surplus whose pages are returned. The pool has removed the slab from its lists.
class UnmapSurplus {
 public:
  explicit UnmapSurplus(std::unique_ptr<Slab> slab) : slab_(std::move(slab)) {}

  void Perform() { slab_.reset(); }

 private:
  std::unique_ptr<Slab> slab_;
};

// Returns the next pages of a spare that the next version does not need. A larger version has left
// them resident.
class ReturnUnneeded {
 public:
  // `prefault_bytes` is the need of the next version. Returns nullopt if the spare has little more.
  static std::optional<ReturnUnneeded> Next(const IdleSlab& spare, size_t prefault_bytes,
                                            size_t step_bytes);

  const Slab* slab() const { return slab_; }
  void Perform() { slab_->ReturnPages(begin_, end_ - begin_); }
  void Record(IdleSlab* spare) const;

 private:
  ReturnUnneeded(Slab* slab, size_t needed_bytes, size_t begin, size_t end)
      : slab_(slab), needed_bytes_(needed_bytes), begin_(begin), end_(end) {}

  Slab* slab_;
  size_t needed_bytes_;  // The bytes below this offset stay.
  size_t begin_;
  size_t end_;
};

// Makes the next pages of a spare resident.
class PreFaultSpare {
 public:
  // `prefault_bytes` is the need of the next version. Returns nullopt if these bytes are resident.
  static std::optional<PreFaultSpare> Next(const IdleSlab& spare, size_t prefault_bytes,
                                           size_t step_bytes);

  const Slab* slab() const { return slab_; }
  void Perform() { slab_->PreFault(begin_, end_ - begin_); }
  void Record(IdleSlab* spare) const;

 private:
  PreFaultSpare(Slab* slab, size_t begin, size_t end) : slab_(slab), begin_(begin), end_(end) {}

  Slab* slab_;
  size_t begin_;
  size_t end_;
};

// Reserves a slab for an owner that has too few.
class ReserveSpare {
 public:
  ReserveSpare(std::string owner, size_t bytes) : owner_(std::move(owner)), bytes_(bytes) {}

  void Perform();

  const std::string& owner() const { return owner_; }
  // Hands over the slab; null if the system has refused it.
  std::unique_ptr<Slab> TakeSlab() { return std::move(slab_); }

 private:
  std::string owner_;
  size_t bytes_;
  std::unique_ptr<Slab> slab_;
};

using SlabStep =
    std::variant<ReturnSurplus, UnmapSurplus, ReturnUnneeded, PreFaultSpare, ReserveSpare>;

}  // namespace millpond::memory
