#pragma once

#include <atomic>
#include <cstdint>

#include "native/base/status.h"

namespace millpond::base {

// The cancellation of one request, with its instant. Any thread may cancel and any thread may read.
class Cancellation {
 public:
  // Cancels the request at `now_ns` of MonotonicNs. A second call changes nothing.
  void Cancel(int64_t now_ns) {
    int64_t never = kNever;
    cancelled_ns_.compare_exchange_strong(never, now_ns, std::memory_order_relaxed);
    is_cancelled_.store(true, std::memory_order_release);
  }

  // The flag that a run polls. It lives as long as this object.
  const std::atomic<bool>* flag() const { return &is_cancelled_; }
  bool is_cancelled() const { return is_cancelled_.load(std::memory_order_acquire); }

  // Returns the final status of a request that ended with `status`. If the request was cancelled
  // after its deadline `deadline_ns` had passed, CANCELLED becomes DEADLINE_EXCEEDED.
  Status Settle(Status status, int64_t deadline_ns) const {
    if (status.code() != Code::kCancelled || !is_cancelled()) return status;
    if (cancelled_ns_.load(std::memory_order_relaxed) < deadline_ns) return status;
    return {Code::kDeadlineExceeded, "the request's deadline passed: " + status.message()};
  }

 private:
  static constexpr int64_t kNever = INT64_MIN;

  std::atomic<int64_t> cancelled_ns_{kNever};  // set before is_cancelled_
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace millpond::base
