#pragma once

#include <atomic>
#include <cstdint>

#include "native/base/clock.h"

namespace millpond::tf {

// The values that the control plane and a running load exchange. Any thread.
struct LoadControl {
  // Sets restore_ns_target. More than 30 years count as 30 years.
  void SetRestoreTarget(double seconds) { restore_ns_target = base::SecondsToNs(seconds); }

  // True if the load must stop at the next piece of a tensor or at the next kernel, and end with
  // CANCELLED.
  std::atomic<bool> is_cancelled{false};
  // The speed limit of the restore; 0 if it has no limit. Read between two pieces of a tensor.
  std::atomic<int64_t> restore_bytes_per_second_max{0};
  // The bytes that all restore ops of the load read or copy together; set before the first of them.
  std::atomic<int64_t> restore_bytes{0};
  // The longest that the restore may take while requests come, for PaceBesideRequests; 0: no limit.
  // If restore_bytes_per_second_max is set, it counts instead.
  std::atomic<int64_t> restore_ns_target{0};
  // The tensor bytes that were read into the version's memory and are checked.
  std::atomic<int64_t> restored_bytes{0};
  // The tensor bytes that were in memory already, and were not read (table_store.h).
  std::atomic<int64_t> kept_bytes{0};
  // The part of kept_bytes that was copied from a table that other versions hold.
  std::atomic<int64_t> copied_bytes{0};
};

// Makes the restore kernel that runs on this thread obey `control` while the scope lives. Restore
// runs inline on the loader's thread, so a thread-local can pass the control.
class LoadScope {
 public:
  explicit LoadScope(LoadControl* control) : outer_(current_) { current_ = control; }
  ~LoadScope() { current_ = outer_; }
  LoadScope(const LoadScope&) = delete;
  LoadScope& operator=(const LoadScope&) = delete;

  // The control of this thread's load; null outside a load.
  static LoadControl* Current() { return current_; }

 private:
  static inline thread_local LoadControl* current_ = nullptr;
  LoadControl* const outer_;
};

}  // namespace millpond::tf
