#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "native/pjrt/device_memory.h"
#include "native/pjrt/executable.h"

namespace millpond::pjrt {

// The executable of one size of a program, and another one that may take its place while runs go
// on.
//
// An executable that is offered is used by trials alone. Once one of them has ended well, Replace
// gives it to all runs that begin from then on, and frees the one before when its last run has
// ended. Requests wait for none of this.
//
// Thread: any for Begin; Offer, Replace and Withdraw by one at a time. Cost of a run: a mutex and a
// shared lock that only Replace and Withdraw take alone.
class ProgramSlot {
 public:
  // An executable, the memory that a run of it takes, and the charge for the executable's own.
  struct Loaded {
    std::optional<DeviceMemory::CopyCharge> charge;  // returned when the executable is freed
    std::shared_ptr<const Executable> executable;
    int64_t run_bytes = 0;
  };

 private:
  struct Entry {
    explicit Entry(Loaded its) : loaded(std::move(its)) {}
    Loaded loaded;
    std::atomic<bool> has_passed{false};  // a trial has ended well
    std::shared_mutex in_use;             // shared by its runs
  };

 public:
  // Keeps an executable for one run, which begins and ends on the same thread. It has none if a
  // trial finds none.
  class Use {
   public:
    Use() = default;

    explicit operator bool() const { return entry_ != nullptr; }
    const std::shared_ptr<const Executable>& executable() const {
      return entry_->loaded.executable;
    }
    int64_t run_bytes() const { return entry_->loaded.run_bytes; }
    // Notes that a trial has ended well.
    void NotePassed() const { entry_->has_passed.store(true, std::memory_order_relaxed); }

   private:
    friend class ProgramSlot;
    explicit Use(Entry* entry) : entry_(entry), in_use_(entry->in_use) {}

    Entry* entry_ = nullptr;
    std::shared_lock<std::shared_mutex> in_use_;
  };

  explicit ProgramSlot(Loaded loaded) : present_(std::make_unique<Entry>(std::move(loaded))) {}
  ProgramSlot(const ProgramSlot&) = delete;
  ProgramSlot& operator=(const ProgramSlot&) = delete;

  // Begins a run of the present executable; if it `is_trial`, of the offered one.
  Use Begin(bool is_trial) const {
    const std::lock_guard lock(mutex_);
    Entry* const entry = is_trial ? offered_.get() : present_.get();
    return entry == nullptr ? Use() : Use(entry);
  }

  // Takes an executable for trials, in place of one that was offered before.
  void Offer(Loaded loaded) { SetOffered(std::make_unique<Entry>(std::move(loaded))); }
  // Frees the one that is offered.
  void Withdraw() { SetOffered(nullptr); }

  // Says whether an executable is offered, and a trial of it has ended well.
  bool HasPassed() const {
    const std::lock_guard lock(mutex_);
    return offered_ != nullptr && offered_->has_passed.load(std::memory_order_relaxed);
  }

  // Gives the offered executable to all later runs. Waits for the runs of the present one, and
  // frees it. Returns false, and changes nothing, unless HasPassed.
  bool Replace() {
    if (!HasPassed()) return false;
    std::unique_ptr<Entry> before;
    {
      const std::lock_guard lock(mutex_);
      before = std::exchange(present_, std::move(offered_));
      has_replaced_ = true;
    }
    AwaitEnd(before.get());
    return true;
  }

  // Says whether Replace has given an offered executable to runs.
  bool HasReplaced() const {
    const std::lock_guard lock(mutex_);
    return has_replaced_;
  }

  int64_t run_bytes() const { return Begin(/*is_trial=*/false).run_bytes(); }

 private:
  void SetOffered(std::unique_ptr<Entry> entry) {
    {
      const std::lock_guard lock(mutex_);
      offered_.swap(entry);
    }
    AwaitEnd(entry.get());
  }

  // Waits for the runs of an entry that no run finds any more.
  static void AwaitEnd(Entry* entry) {
    if (entry != nullptr) const std::unique_lock end(entry->in_use);
  }

  mutable std::mutex mutex_;  // held for a look at the pointers
  // All guarded by the mutex.
  std::unique_ptr<Entry> present_;
  std::unique_ptr<Entry> offered_;  // null: none
  bool has_replaced_ = false;
};

}  // namespace millpond::pjrt
