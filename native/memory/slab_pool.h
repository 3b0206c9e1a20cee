#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "native/base/status.h"
#include "native/memory/page_pins.h"
#include "native/memory/slab.h"
#include "native/memory/slab_step.h"

// Theory of operation.
//
// The problem. The parameters of a version lie in one slab. The kernel faults in each page of a
// fresh slab when it is first touched. These faults are the most expensive part of a swap, and they
// slow down the requests that run at the same time. Therefore the pool keeps memory that is faulted
// in already, for the next versions of all owners (the models).
//
// The spare memory belongs to no owner. An owner needs spare memory only while its next version
// is loaded beside the present one, and few owners load at once. So the pool aims at the memory of
// the N largest versions, one for each owner, where N is spare_slab_count: the target. The memory
// is in spare slabs. Take makes the slab of a version out of them: it moves pages from one address
// to another, which touches no page (slab_assembly.h). So any spare serves any owner, a version
// gets the memory that it needs and no more, and N owners of any sizes can load at once.
//
// Nothing is lost in a swap. The next version takes as much memory from the spares as it needs. The
// slab of the outgoing version becomes a spare, with its memory. If both versions have one size,
// the spare memory is at its target again, and the keeper has nothing to do. So swaps may follow
// each other at any pace and in any order.
//
// The states of a slab. Each slab of the pool is in one of three states:
// - In use: a load or a version owns the slab. The pool has only its owner and its size (in_use_).
// - Spare: its memory waits for the next version of any owner (spares_).
// - Quarantined: blocks in the slab have leaked, and their holders may still use them
//   (quarantined_). The slab stays mapped until the process ends.
//
// From         To           By
// -            in use       Take, which reserves a fresh slab if no spare is one as it is
// spare        in use       Take, if the spare has the memory that is needed, or less
// spare        -            Take, if it has moved all of its memory away
// in use       spare        GiveBack
// in use       quarantined  Quarantine
// in use       -            GiveBack, if the slab cannot be unsealed
// -            spare        the keeper, if memory is missing and there is room for it
// spare        -            the keeper, which returns the pages that are too much
//
// Small versions. A slab has huge pages. If a version wants less than half of one, its slab begins
// with small pages until it is a spare again, so that a small version takes as much memory as it
// has parameters.
//
// Owed memory. From Take until the outgoing version gives its slab back, its owner has more slabs
// in use than the versions that it serves at rest. That slab is owed, and counts as spare memory:
// the keeper makes no spare memory in its place. A version that waits as a canary, or is kept for a
// rollback, makes its owner's slab owed until that is decided: the owner counts as one of the N
// that load.
//
// Missing memory. The spares are short of the target after an owner's first load or a version that
// has grown, and after a leak. The keeper fills them up only to the extent that Refill permits: the
// control plane knows if the machine has room. An owner's first load takes nothing from the spares,
// which the next swap of another owner may need.
//
// Surplus. If the spares have more than the target and a little slack, the keeper returns memory to
// the operating system until they are at the target: after a version that has shrunk, or an owner
// that is gone. It takes the memory from the smallest spare first. Take may still use it.
//
// Pinned memory. Devices copy faster from pinned memory, and pinning it takes long. So once the
// spares have their memory, the keeper pins as much of it, piece by piece, as was pinned for the
// versions that they are kept for. It stays pinned in the version that takes it and in the spare
// that it becomes again, so a swap pins nothing. What a version has beyond that is pinned by its
// load (VersionArena::Pin). The slab unpins what it returns or moves.
//
// The threads. Loaders call Take, Expect and Refill. Unloaders call GiveBack, or Quarantine after a
// leak, and Refill. The control plane calls Forget when a model is gone, and reads the statistics.
// The keeper (SlabKeeper), one thread of idle priority, calls KeepStep until nothing is left to do.
// After that it calls Take for tables that it copies ahead, if CanSpare permits (copy_ahead.h).
// No request thread calls the pool.
//
// The steps. A step of the keeper touches or returns at most step_bytes, or pins a piece. Each kind
// of step is a class (slab_step.h). A step has three parts:
// - The pool chooses it under the mutex, and marks the slab as being stepped.
// - The keeper performs it without the mutex.
// - The pool records the result under the mutex, and notifies the threads that wait in Take.
//
// Invariants:
// - The mutex is held only for look-ups, never while memory is touched, moved, reserved or
//   returned. The keeper and the loaders may lose their core while they hold it.
// - A slab is in exactly one of in_use_, spares_ and quarantined_. The only exceptions are a slab
//   that the keeper is reserving or unmapping, which belongs to its step, and the parts of an
//   assembly.
// - At most one spare is being stepped, and at most one assembly is under way, never both. While
//   an assembly is under way, the spares are incomplete, and nothing is decided from their sum.
// - No block lies in a spare, and no spare is sealed.
// - At rest, the spares have at most the target and its slack (SpareSlackOf).
namespace millpond::memory {

// Returns the bytes by which the spare memory may exceed its target, because the next version
// rarely has exactly the size of the last one.
size_t SpareSlackOf(size_t target_bytes);

struct SlabPoolOptions {
  // The owners that may load a version at once and find its memory faulted in.
  int spare_slab_count = 1;
  // The bytes that one step of the keeper touches or returns, a multiple of kSlabUnitBytes. A huge
  // page is faulted in as a whole, which takes 0.2 to 0.5 ms of a core.
  size_t step_bytes = kSlabUnitBytes;
  // The keeper's rest after a step: 500 MB are pre-faulted in 0.4 s if a core is free.
  int64_t step_pause_ns = 1'000'000;
};

// The memory of a loaded version, which the next version of its owner is expected to need too.
struct SlabNeed {
  size_t slab_bytes = 0;    // The addresses of its slab.
  size_t wanted_bytes = 0;  // The memory that it wanted of the pool.
  size_t used_bytes = 0;    // The memory that it used.
  size_t pinned_bytes = 0;  // The part of it that was pinned.
};

// The slabs of the pool by state. Resident bytes are measured when a slab is given back, and
// updated by each step after that.
struct SlabPoolStatistics {
  int64_t in_use_count = 0;
  int64_t in_use_reserved_bytes = 0;
  int64_t spare_count = 0;
  int64_t spare_reserved_bytes = 0;
  int64_t spare_resident_bytes = 0;    // Without the surplus.
  int64_t surplus_resident_bytes = 0;  // On its way back to the operating system.
  int64_t quarantined_count = 0;
  int64_t quarantined_reserved_bytes = 0;
  std::string reservation_refusal;  // SlabPool::reservation_refusal_
};

// Keeps the memory of unloaded versions for later versions of any owner (a model). See the theory
// of operation above.
//
// Thread: any; KeepStep only one thread at a time (the keeper).
// Owner: the composition root. It outlives the versions. The destructor unmaps all spares. It
// leaves the quarantined slabs mapped, because their blocks may still be read.
// Contract: each slab taken is given back or quarantined.
// Waiting: loaders, unloaders (which run at idle priority) and readers of the statistics may wait
// for the mutex, whose holder may have lost its core. Take and Refill wait for the end of the step
// or the assembly that is under way: milliseconds.
class SlabPool {
 public:
  explicit SlabPool(SlabPoolOptions options);
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // Takes a slab of at least `slab_bytes`. If a need of the owner is known, about the first
  // `wanted_bytes` of the slab have memory, or as much as the spares have. If the owner's last
  // version used less than it wanted, or more, the same difference is assumed again. Returns
  // RESOURCE_EXHAUSTED if the system refuses a reservation, or if the slab has lost addresses to
  // other memory (SlabAssembly::Perform). The spares keep their memory then.
  base::StatusOr<std::unique_ptr<Slab>> Take(const std::string& owner, size_t slab_bytes,
                                             size_t wanted_bytes);

  // Takes back a slab without live blocks as a spare. Unseals it if it was sealed, and unmaps it if
  // it cannot be unsealed. Costs a mincore of the slab. Memory that the version left untouched
  // below its last page counts as resident.
  void GiveBack(std::unique_ptr<Slab> slab);

  // Takes over a slab in which blocks have leaked. It stays mapped until the process ends, and is
  // counted.
  void Quarantine(std::unique_ptr<Slab> slab);

  // Records what the next version of `owner` will need. `serving_slab_count` is the number of
  // versions that the owner serves at rest. Call Refill after it.
  void Expect(const std::string& owner, const SlabNeed& need, int serving_slab_count = 1);

  // Forgets the need of `owner`, because the owner is gone.
  void Forget(const std::string& owner);

  // Lets the keeper fault in the memory that is missing now, if it is at most `room_bytes`. If not,
  // permits the memory of smaller versions that fits, and returns false. Replaces what the last
  // call permitted.
  bool Refill(size_t room_bytes);

  // Returns true if the spares have `bytes` of memory in place besides what owners other than `own`
  // may need of them. They may be left short by an eighth of `bytes` (kSpareShortShare).
  bool CanSpare(size_t bytes, const std::set<std::string>& own) const;

  // Performs one step of upkeep and returns how long to rest before the next. Returns nullopt if
  // nothing is left to do.
  std::optional<int64_t> KeepStep();

  // Sets what pins memory. Before the first load.
  void PinWith(std::shared_ptr<PagePinner> pinner);
  // Null if nothing is pinned.
  std::shared_ptr<PagePinner> pinner() const;

  // Sets the function that is called when there may be work. It runs under the pool's mutex, so it
  // may only wake a thread. An empty function ends the calls.
  void NotifyOfWork(std::function<void()> on_work);

  SlabPoolStatistics Statistics() const;

 private:
  struct Expectation {
    SlabNeed need;
    int serving_slab_count = 1;

    // The memory that the next version will need.
    size_t SpareBytes() const { return RoundUp(need.used_bytes, kSlabUnitBytes); }
    // The part of it that is pinned ahead.
    size_t PinnedBytes() const { return std::min(need.pinned_bytes, SpareBytes()); }
  };
  struct InUse {
    std::string owner;
    size_t reserved_bytes = 0;
  };

  // The methods below need the mutex.
  size_t WantedBytes(const std::string& owner, size_t slab_bytes, size_t wanted_bytes) const;
  std::vector<const Expectation*> LargestExpectations(size_t skipped_count = 0) const;
  size_t TargetBytes(size_t skipped_count = 0) const;
  size_t OwedBytes() const;
  size_t PlannedBytes() const;
  size_t MissingBytes(size_t skipped_count = 0) const;
  size_t UnfaultedBytes() const;
  size_t UnpinnedBytes() const;
  bool IsSettled() const;
  void ForgoGoals(size_t bytes_max);
  void FindSurplus();
  std::optional<SlabStep> ChooseStep();
  std::optional<SlabStep> ChooseReturn();
  std::optional<SlabStep> ChooseUnmapping();
  std::optional<SlabStep> ChoosePreFault();
  std::optional<SlabStep> ChoosePinning();
  std::optional<SlabStep> ChooseReservation();
  template <typename Step>
  void Record(const Step& step);
  void Record(const UnmapSlab& /*step*/) {}
  void Record(ReserveSpare& step);
  void WakeKeeper();

  const SlabPoolOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable settled_;  // No step on a spare and no assembly is under way.
  std::function<void()> on_work_;
  std::shared_ptr<PagePinner> pinner_;
  std::map<std::string, Expectation> expectations_;
  std::unordered_map<const Slab*, InUse> in_use_;
  std::vector<SpareSlab> spares_;
  std::vector<std::unique_ptr<Slab>> quarantined_;
  size_t permitted_bytes_ = 0;  // The keeper may make so much more spare memory.
  size_t reserving_bytes_ = 0;  // The goal of the spare that the keeper reserves now.
  // The reason why the system refused the keeper's last reservation; "" if it did not.
  std::string reservation_refusal_;
  bool is_assembling_ = false;  // A Take moves memory, without the mutex.
  bool is_in_surplus_ = false;  // The keeper returns memory until the target is met.
};

}  // namespace millpond::memory
