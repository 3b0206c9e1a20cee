#include "native/pjrt/device_turns.h"

#include <algorithm>
#include <chrono>

#include "native/base/clock.h"

namespace millpond::pjrt {
namespace {

base::Status TooLate() {
  return {base::Code::kDeadlineExceeded,
          "the request's deadline would pass before the accelerator has computed it"};
}

}  // namespace

base::StatusOr<DeviceTurns::Turn> DeviceTurns::Take(const std::string& model, bool is_low,
                                                    int64_t cost_ns, int64_t deadline_ns) {
  const int64_t now_ns = base::MonotonicNs();
  std::unique_lock lock(mutex_);
  const bool is_alone = run_counts_.find(model) == run_counts_.end();
  const int64_t least_ns = is_alone ? 0 : schedule_.LeastWaitNs(model) + cost_ns;
  if (deadline_ns - least_ns < now_ns) return TooLate();
  Waiter waiter;
  const int64_t id = ++last_id_;
  schedule_.Add(model, is_low, id, cost_ns);
  waiters_[id] = &waiter;
  ++run_counts_[model];
  if (model != last_model_) {
    if (!last_model_.empty()) model_changed_ns_.store(now_ns, std::memory_order_relaxed);
    last_model_ = model;
  }
  BeginRuns();
  const int64_t wait_ns = std::min(deadline_ns - now_ns, wait_ns_max_);
  waiter.begins.wait_for(lock, std::chrono::nanoseconds(wait_ns), [&] { return waiter.has_begun; });
  if (waiter.has_begun) return Turn(this, model, id, base::MonotonicNs());
  schedule_.Remove(model, id);
  waiters_.erase(id);
  CountEnd(model);
  if (wait_ns < wait_ns_max_) return TooLate();
  if (schedule_.last_end_ns() > now_ns) {
    return base::Status(base::Code::kAborted, "other runs on the accelerator came first");
  }
  return base::Status(base::Code::kUnavailable, "runs on the accelerator do not end");
}

int64_t DeviceTurns::ExpectedWaitNs(bool is_low) const {
  const std::lock_guard lock(mutex_);
  return schedule_.ExpectedWaitNs(is_low);
}

bool DeviceTurns::IsShared() const {
  return base::CoarseMonotonicNs() - model_changed_ns_.load(std::memory_order_relaxed) < kSharedNs;
}

size_t DeviceTurns::waiting_count() const {
  const std::lock_guard lock(mutex_);
  return waiters_.size();
}

// Begins as many runs as may be under way. Called with the lock.
void DeviceTurns::BeginRuns() {
  while (const auto id = schedule_.Begin(IsShared())) {
    const auto waiter = waiters_.find(*id);
    waiter->second->has_begun = true;
    waiter->second->begins.notify_one();
    waiters_.erase(waiter);
  }
}

void DeviceTurns::CountEnd(const std::string& model) {
  const auto count = run_counts_.find(model);
  if (--count->second == 0) run_counts_.erase(count);
}

int64_t DeviceTurns::End(const std::string& model, int64_t id, int64_t began_ns) {
  const int64_t now_ns = base::MonotonicNs();
  const std::lock_guard lock(mutex_);
  const int64_t took_ns = schedule_.End(id, began_ns, now_ns);
  busy_ns_.fetch_add(took_ns, std::memory_order_relaxed);
  CountEnd(model);
  BeginRuns();
  return took_ns;
}

}  // namespace millpond::pjrt
