#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "native/base/clock.h"

namespace millpond::pjrt {

// Spaces out the calls of a driver that stop all runs while they last: pins of memory, and loads
// and frees of programs. One such call is under way at a time, and a rest comes before the next
// one.
//
// Theory of operation. If the driver is free for half of the time only, a GPU that is half busy has
// no time left: runs pile up, and the last one waits for all calls together, not for one. So while
// runs go on, a rest is as long as several calls.
//
// Thread: any, but no thread of a request calls Make. Owner: a Client.
class DriverPace {
 public:
  // The rest in calls, while runs go on and otherwise.
  static constexpr int64_t kBusyRests = 4;
  static constexpr int64_t kIdleRests = 1;
  // Runs go on for so long after one has ended.
  static constexpr int64_t kBusyNs = 100'000'000;
  static constexpr int64_t kWaitMaxNs = 100'000'000;

  // Returns the rest after a call of `took_ns`, `since_run_ns` after the end of a run.
  static int64_t RestNs(int64_t took_ns, int64_t since_run_ns) {
    return took_ns * (since_run_ns < kBusyNs ? kBusyRests : kIdleRests);
  }

  // Notes the end of a run, by a coarse clock. Wait-free; writes no cache line that was just
  // written.
  void NoteRun() {
    const int64_t now_ns = base::CoarseMonotonicNs();
    if (now_ns - run_ns_.load(std::memory_order_relaxed) < kBusyNs / 8) return;
    run_ns_.store(now_ns, std::memory_order_relaxed);
  }

  // Makes the call after those of other threads and the rest after the last one. Waits for each
  // of them for kWaitMaxNs at most, because a driver may hang, and a thread of idle priority may be
  // without a core: the pace is a courtesy.
  template <typename Call>
  void Make(const Call& call) {
    Begin();
    const int64_t began_ns = base::MonotonicNs();
    call();
    const int64_t now_ns = base::MonotonicNs();
    End(now_ns + RestNs(now_ns - began_ns, now_ns - run_ns_.load(std::memory_order_relaxed)));
  }

 private:
  void Begin() {
    int64_t rest_ns = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::nanoseconds(kWaitMaxNs), [&] { return !is_calling_; });
      is_calling_ = true;
      rest_ns = free_ns_ - base::MonotonicNs();
    }
    if (rest_ns > 0) base::SleepNs(std::min(rest_ns, kWaitMaxNs));
  }

  void End(int64_t free_ns) {
    const std::lock_guard lock(mutex_);
    is_calling_ = false;
    free_ns_ = std::max(free_ns_, free_ns);
    changed_.notify_one();
  }

  std::atomic<int64_t> run_ns_{-kBusyNs};
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool is_calling_ = false;
  int64_t free_ns_ = 0;
};

}  // namespace millpond::pjrt
