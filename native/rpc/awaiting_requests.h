#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <vector>

#include "native/rpc/parked_requests.h"
#include "native/servable/awaited_change.h"

namespace millpond::rpc {

// A request that waits for the first version of its model.
struct AwaitingRequest {
  ParkedRequest* request = nullptr;
  servable::AwaitedChange change;
  const std::atomic<bool>* is_cancelled = nullptr;  // the request's
  int64_t until_ns = 0;  // the version is looked up once more, and the request is answered

  bool IsDue(int64_t now_ns) const {
    return now_ns >= until_ns || change.HasCome() || is_cancelled->load(std::memory_order_acquire);
  }
};

// The requests that wait for the first version of their model. No thread waits with them: the
// poller pool's watchdog takes those that are due, and they run like parked requests. Borrows them.
//
// Thread: any. count() takes no lock: while no request waits, no thread takes one.
class AwaitingRequests {
 public:
  // Beyond it a request is answered at once. A load takes seconds, so as many clients as a busy
  // model has, and little memory: they are compressed, and stay so.
  static constexpr size_t kCountMax = 1'024;

  bool IsFull() const { return count() >= kCountMax; }

  void Put(const AwaitingRequest& request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(request);
    count_.store(requests_.size());
  }

  // Takes the requests that are due: their model has changed since they looked, their client is
  // gone, or their time is over. All of them if `is_stopping`.
  std::vector<AwaitingRequest> TakeDue(int64_t now_ns, bool is_stopping) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto due = std::stable_partition(
        requests_.begin(), requests_.end(),
        [&](const AwaitingRequest& item) { return !is_stopping && !item.IsDue(now_ns); });
    std::vector<AwaitingRequest> taken(due, requests_.end());
    requests_.erase(due, requests_.end());
    count_.store(requests_.size());
    return taken;
  }

  size_t count() const { return count_.load(); }

 private:
  std::mutex mutex_;
  std::vector<AwaitingRequest> requests_;
  std::atomic<size_t> count_{0};
};

}  // namespace millpond::rpc
