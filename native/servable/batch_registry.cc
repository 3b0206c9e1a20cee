#include "native/servable/batch_registry.h"

#include <algorithm>

namespace millpond::servable {

void BatchRegistry::Add(const BatchedVersion& version) {
  version_count_.fetch_add(1, std::memory_order_relaxed);
  if (version.waiting_max == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const BatchKey key : version.keys) limits_[key].push_back(version.waiting_max);
  FindSmallestLimit();
}

void BatchRegistry::Remove(const BatchedVersion& version) {
  version_count_.fetch_sub(1, std::memory_order_relaxed);
  if (version.waiting_max == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const BatchKey key : version.keys) {
    const auto found = limits_.find(key);
    std::vector<int64_t>& of_key = found->second;
    of_key.erase(std::find(of_key.begin(), of_key.end(), version.waiting_max));
    if (of_key.empty()) limits_.erase(found);
  }
  FindSmallestLimit();
}

void BatchRegistry::FindSmallestLimit() {
  int64_t smallest = INT64_MAX;
  for (const auto& [key, of_key] : limits_) smallest = std::min(smallest, of_key.back());
  smallest_limit_.store(smallest, std::memory_order_relaxed);
}

// The control plane may hold the lock and have lost its core. In that case one more request may
// wait than the limit allows.
int64_t BatchRegistry::LimitOf(BatchKey key) const {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return INT64_MAX;
  const auto found = limits_.find(key);
  return found == limits_.end() ? INT64_MAX : found->second.back();
}

base::Status BatchRegistry::Refusal() {
  return {base::Code::kUnavailable,
          "the queue of this signature is full (max_enqueued_batches); try again later, or use "
          "another server"};
}

}  // namespace millpond::servable
