#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/base/status.h"
#include "native/memory/slab.h"
#include "native/memory/slab_step.h"

// Theory of operation.
//
// The problem. The parameters of a version lie in one slab. The kernel faults in each page of a
// fresh slab when it is first touched. These faults are the most expensive part of a swap, and they
// slow down the requests that run at the same time. Therefore the pool keeps the slabs of unloaded
// versions, with their memory, for later versions of the same owner (a model). Before an owner's
// first swap, the pool reserves a slab and touches its pages in the background.
//
// The states of a slab. Each slab of the pool is in one of four states:
// - In use: a load or a version owns the slab. The pool has only its owner and its size (in_use_).
// - Spare: the slab waits for its owner's next version (idle_). An owner has at most
//   spare_slab_count spares.
// - Surplus: the slab is on its way back to the operating system (idle_, with is_surplus). Take may
//   still use it: on a busy machine the keeper may not reach it for long.
// - Quarantined: blocks in the slab have leaked, and their holders may still use them
//   (quarantined_). The slab stays mapped until the process ends.
//
// From         To           By
// -            in use       Take, which reserves a fresh slab if no idle slab is large enough
// spare        in use       Take
// surplus      in use       Take
// in use       spare        GiveBack, if the owner's spares need the slab
// in use       surplus      GiveBack, if not
// in use       quarantined  Quarantine
// in use       -            GiveBack, if the slab cannot be unsealed
// -            spare        the keeper, if an owner expects more slabs than it has
// -            surplus      the keeper, if the expectation changed during the reservation
// spare        surplus      Expect, GiveBack and Forget, if the spare does not fit or is not needed
// surplus      -            the keeper, which returns the pages and then unmaps the slab
//
// The size of spares. Expect is called after each load with the size of the new version. A spare
// fits if it is at least as large as the expected size, and at most twice as large. If an owner has
// more fitting spares than spare_slab_count, the spares with the most resident memory stay.
//
// The number of spares. An owner needs as many slabs, in use and spare, as the versions that it
// serves at rest plus spare_slab_count. The keeper makes a spare only while the owner has fewer
// slabs. So it makes no spare during a swap, when the slab of the outgoing version soon becomes a
// spare.
//
// The threads. Loaders call Take and Expect. Unloaders call GiveBack, or Quarantine after a leak.
// The control plane calls Forget when a model is gone, and reads the statistics. The keeper
// (SlabKeeper), one thread of idle priority, calls KeepStep until nothing is left to do. No request
// thread calls the pool.
//
// The steps. A step of the keeper touches or returns at most step_bytes. Each kind of step is a
// class (slab_step.h). A step has three parts:
// - The pool chooses it under the mutex, and marks the slab as being stepped.
// - The keeper performs it without the mutex.
// - The pool records the result under the mutex, and notifies the threads that wait in Take.
//
// The steps come in this order: return surplus, return memory that a spare does not need, pre-fault
// spares, reserve missing spares. So the pool never holds the surplus and the new spares together
// for long.
//
// Invariants:
// - The mutex is held only for look-ups, never while memory is touched, reserved or returned. The
//   keeper and the loaders may lose their core while they hold it.
// - A slab is in exactly one of in_use_, idle_ and quarantined_. The only exceptions are a slab
//   that the keeper is reserving or unmapping, which belongs to its step, and a fresh slab on its
//   way out of Take.
// - At most one slab is being stepped. It stays in idle_ until its step is recorded: a Take of this
//   slab waits for the end of the step. Only the keeper touches its memory meanwhile.
// - A surplus never becomes a spare again.
// - No block lies in an idle slab, and no idle slab is sealed.
namespace millpond::memory {

struct SlabPoolOptions {
  // The spares of each owner: slabs that wait, pre-faulted, for its next version.
  int spare_slab_count = 1;
  // The bytes that one step of the keeper touches or returns. A huge page is faulted in as a whole,
  // which takes 0.2 to 0.5 ms of a core. A smaller step would split huge pages on their way back.
  size_t step_bytes = kSlabUnitBytes;
  // The keeper's rest after a step: 500 MB are pre-faulted in 0.4 s if a core is free.
  int64_t step_pause_ns = 1'000'000;
};

// The slabs of the pool by state. Resident bytes are measured when a slab is given back, and
// updated by each step after that.
struct SlabPoolStatistics {
  int64_t in_use_count = 0;
  int64_t in_use_reserved_bytes = 0;
  int64_t spare_count = 0;
  int64_t spare_reserved_bytes = 0;
  int64_t spare_resident_bytes = 0;
  int64_t surplus_count = 0;
  int64_t surplus_reserved_bytes = 0;
  int64_t surplus_resident_bytes = 0;
  int64_t quarantined_count = 0;
  int64_t quarantined_reserved_bytes = 0;
};

// Keeps the slabs of unloaded versions for later versions of the same owner (a model). See the
// theory of operation above.
//
// Thread: any; KeepStep only one thread at a time (the keeper).
// Owner: the composition root. It outlives the versions. The destructor unmaps all idle slabs. It
// leaves the quarantined slabs mapped, because their blocks may still be read.
// Contract: each slab taken is given back or quarantined.
// Waiting: loaders, unloaders (which run at idle priority) and readers of the statistics may wait
// for the mutex, whose holder may have lost its core. A Take that needs the slab that is being
// stepped waits for the end of that one step.
class SlabPool {
 public:
  explicit SlabPool(SlabPoolOptions options);
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // Takes a slab of at least `bytes`. Prefers the owner's idle slab (spare or surplus) of which the
  // most needed bytes are resident. Reserves a fresh slab if no idle slab is large enough. Returns
  // RESOURCE_EXHAUSTED if the system refuses the reservation.
  base::StatusOr<std::unique_ptr<Slab>> Take(const std::string& owner, size_t bytes);

  // Takes back a slab without live blocks. It becomes a spare if it fits its owner's expectation
  // and is among its best spares; otherwise it becomes surplus. Unseals it if it was sealed, and
  // unmaps it if it cannot be unsealed. Costs a mincore of the slab.
  void GiveBack(const std::string& owner, std::unique_ptr<Slab> slab);

  // Takes over a slab in which blocks have leaked. It stays mapped until the process ends, and is
  // counted.
  void Quarantine(std::unique_ptr<Slab> slab);

  // Makes the keeper hold spares for `owner` from now on: slabs of `reserved_bytes`, of which the
  // first `prefault_bytes` are resident. `serving_slab_count` is the number of versions that the
  // owner serves at rest; the keeper makes `spare_slab_count` more. Spares that do not fit the new
  // size become surplus. If a larger version left more than `prefault_bytes` of a fitting spare
  // resident, the rest is returned.
  void Expect(const std::string& owner, size_t reserved_bytes, size_t prefault_bytes,
              int serving_slab_count = 1);

  // Turns the spares of `owner` into surplus, because the owner is gone.
  void Forget(const std::string& owner);

  // Performs one step of upkeep and returns how long to rest before the next. Returns nullopt if
  // nothing is left to do.
  std::optional<int64_t> KeepStep();

  // Sets the function that is called when there may be work. It runs under the pool's mutex, so it
  // may only wake a thread. An empty function ends the calls.
  void NotifyOfWork(std::function<void()> on_work);

  SlabPoolStatistics Statistics() const;
  std::map<std::string, SlabPoolStatistics> StatisticsByOwner() const;

 private:
  struct Expectation {
    size_t reserved_bytes = 0;
    size_t prefault_bytes = 0;
    int slab_count = 0;  // In use and spare together.
  };
  struct InUse {
    std::string owner;
    size_t reserved_bytes = 0;
  };
  struct Quarantined {
    std::unique_ptr<Slab> slab;
    std::string owner;
  };

  // The methods below need the mutex.
  IdleSlab* FindIdle(const std::string& owner, size_t bytes);
  std::unique_ptr<Slab> Remove(const IdleSlab* idle);
  void SortOutSpares(const std::string& owner);
  int InUseCount(const std::string& owner) const;
  int SpareCount(const std::string& owner) const;
  std::optional<SlabStep> ChooseStep();
  std::optional<SlabStep> ChooseForSurplus();
  template <typename Step>
  std::optional<SlabStep> ChooseForSpares();
  std::optional<SlabStep> ChooseReservation() const;
  template <typename Step>
  void Record(const Step& step);
  void Record(const UnmapSurplus& /*step*/) {}
  void Record(ReserveSpare& step);
  void WakeKeeper();

  const SlabPoolOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable step_finished_;
  std::function<void()> on_work_;
  std::map<std::string, Expectation> expectations_;
  std::unordered_map<const Slab*, InUse> in_use_;
  std::vector<IdleSlab> idle_;
  std::vector<Quarantined> quarantined_;
  bool has_reservation_failed_ = false;  // No new attempt until something changes.
};

}  // namespace millpond::memory
