#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <vector>

#include "native/rpc/parked_requests.h"

namespace millpond::rpc {

// A request that waits for the first version of its model.
struct AwaitingRequest {
  ParkedRequest* request = nullptr;
  int64_t change_count = 0;  // the serving map's, when the version was not there
  int64_t until_ns = 0;      // it is looked for once more, and then answered
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

  // Takes the requests that are due: the serving map has changed since they looked, or their time
  // is over. All of them if `is_stopping`.
  std::vector<AwaitingRequest> TakeDue(int64_t change_count, int64_t now_ns, bool is_stopping) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto due =
        std::stable_partition(requests_.begin(), requests_.end(), [&](const AwaitingRequest& item) {
          return !is_stopping && item.change_count == change_count && now_ns < item.until_ns;
        });
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
