#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "native/base/status.h"
#include "native/servable/batch_queue.h"

namespace millpond::servable {

// The keys of a version whose requests may share runs.
struct BatchedVersion {
  std::vector<BatchKey> keys;
  int64_t waiting_max = 0;  // the most requests of a key that may wait for a thread; 0: any
};

// The published versions whose requests may share runs, as the queues of all protocols need them. A
// queue goes by keys, because it knows no versions. If a key has several limits, as in a swap, the
// limit of the version that was published last holds.
//
// Owner: the serving map, which adds and removes versions. Thread: any. Cost for a request: two
// relaxed loads. A look-up under the lock follows if the queue is as long as the smallest limit.
class BatchRegistry {
 public:
  void Add(const BatchedVersion& version);
  void Remove(const BatchedVersion& version);

  // True if no version is there, so that no request needs a key.
  bool is_empty() const { return version_count_.load(std::memory_order_relaxed) == 0; }
  // Returns true if as many requests of `key` wait in a queue as may. `waiting_count` is the length
  // of the queue. `count_of_key` counts its requests of the key, and is called only if needed.
  template <typename CountOfKey>
  bool IsFull(BatchKey key, size_t waiting_count, const CountOfKey& count_of_key) const {
    const auto count = static_cast<int64_t>(waiting_count);
    if (key == kNoBatchKey || count < smallest_limit_.load(std::memory_order_relaxed)) return false;
    const int64_t limit = LimitOf(key);
    return count >= limit && count_of_key() >= limit;
  }
  // Returns the status of a request that is refused because of that.
  static base::Status Refusal();

 private:
  int64_t LimitOf(BatchKey key) const;  // INT64_MAX: none
  void FindSmallestLimit();             // needs mutex_

  std::atomic<int64_t> version_count_{0};
  std::atomic<int64_t> smallest_limit_{INT64_MAX};
  mutable std::mutex mutex_;
  std::map<BatchKey, std::vector<int64_t>> limits_;  // of each key, the last one last
};

}  // namespace millpond::servable
