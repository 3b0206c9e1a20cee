#pragma once

#include <atomic>
#include <mutex>

namespace millpond::base {

// Tells the code of a run, which knows no threads, whether the run gives way: it has taken so much
// processor time that its thread has a lower priority than the threads of other requests. The time
// of such a run says little about what it costs.
//
// While the scope lives, GivesWay of this thread reads `gives_way`, which any thread may set.
class GivingWayScope {
 public:
  // Borrows the flag, and the lock that is held to lower the thread; null: no thread does.
  explicit GivingWayScope(const std::atomic<bool>* gives_way, std::mutex* lowering = nullptr);
  ~GivingWayScope();
  GivingWayScope(const GivingWayScope&) = delete;
  GivingWayScope& operator=(const GivingWayScope&) = delete;
};

// False on a thread without a scope. Cost: about 1 ns.
bool GivesWay();

// Keeps this thread's priority while it lives, for a part of a run in which it holds what others
// wait for. One at a time on a thread. Never waits.
class KeptPriority {
 public:
  KeptPriority();
  ~KeptPriority() = default;
  KeptPriority(const KeptPriority&) = delete;
  KeptPriority& operator=(const KeptPriority&) = delete;

  // False if the thread gives way, or is about to: then it must not hold what others wait for.
  explicit operator bool() const { return is_kept_; }

 private:
  std::unique_lock<std::mutex> lowering_;
  bool is_kept_;
};

}  // namespace millpond::base
