#include "native/rpc/awaiting_queue.h"

#include <algorithm>
#include <utility>

namespace millpond::rpc {

bool AwaitingQueue::TakeAwaitingPlace() {
  if (is_releasing_) return false;
  if (count_.fetch_add(1) < kCountMax) return true;
  count_.fetch_sub(1);
  return false;
}

void AwaitingQueue::Await(std::shared_ptr<RunnableCall> call, servable::AwaitedChange change,
                          int64_t until_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  items_.push_back({std::move(call), change, until_ns});
}

std::vector<std::shared_ptr<RunnableCall>> AwaitingQueue::TakeDue(int64_t now_ns) {
  std::vector<std::shared_ptr<RunnableCall>> due;
  if (count_.load() == 0) return due;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto first_due = std::stable_partition(items_.begin(), items_.end(), [&](const Item& item) {
    return !is_releasing_ && !item.IsDue(now_ns);
  });
  for (auto item = first_due; item != items_.end(); ++item) due.push_back(std::move(item->call));
  items_.erase(first_due, items_.end());
  count_.fetch_sub(due.size());
  return due;
}

}  // namespace millpond::rpc
