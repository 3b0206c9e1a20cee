#include "native/rpc/thread_shares.h"

#include <algorithm>
#include <iterator>

namespace millpond::rpc {

ThreadLimits ThreadShares::Decide(const ServingThreads& threads, const ActiveModels& models) {
  const auto model_count = static_cast<int64_t>(models.keys.size());
  if (model_count < 2 || !models.has_long_run) return {};
  const int64_t max_count = threads.max_count - threads.lowered_count;
  const int64_t spare_count =
      std::clamp<int64_t>(max_count - threads.regular_count, 0, threads.spare_count);
  // Without spare threads one of the others is kept for models that hold none.
  const int64_t kept_count = spare_count == 0 && threads.regular_count > 1 ? 1 : 0;
  const int64_t rest_count = spare_count + kept_count;
  const int64_t any_max =
      std::min(threads.regular_count - kept_count + threads.held_up_count, max_count - rest_count);
  return {true, std::max<int64_t>(any_max - threads.uncounted_count, 0),
          std::max<int64_t>(rest_count / model_count, 1)};
}

bool ThreadShares::Limit(const ThreadLimits& limits) {
  // Without a write if nothing changes, because all cores read these.
  if (!limits.is_shared) return is_shared() && is_shared_.exchange(false);
  if (is_shared() && any_max_ == limits.any_max && own_max_ == limits.own_max) return false;
  any_max_ = limits.any_max;
  own_max_ = limits.own_max;
  is_shared_ = true;
  return true;
}

std::shared_ptr<ModelThreads> ThreadShares::ThreadsOf(ModelKey model) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = threads_.find(model); found != threads_.end()) {
    if (auto threads = found->second.lock()) return threads;
  }
  // Drops those of models that no queue knows any more.
  for (auto at = threads_.begin(); at != threads_.end();) {
    at = at->second.expired() ? threads_.erase(at) : std::next(at);
  }
  const auto threads = std::make_shared<ModelThreads>();
  threads_[model] = threads;
  return threads;
}

int64_t ThreadShares::TakeableCount(ModelKey model) {
  const int64_t own_count = own_max_ - ThreadsOf(model)->held_count;
  return std::max<int64_t>({any_max_ - held_count_, own_count, 0});
}

bool ThreadShares::TryTake(ModelThreads* model) {
  for (;;) {
    int64_t held = model->held_count.load();
    if (held < own_max_.load()) {
      if (!model->held_count.compare_exchange_weak(held, held + 1)) continue;
      held_count_.fetch_add(1);
      return true;
    }
    if (!HasRoom()) return false;
    // First, so that the model does not take its share and this thread beside it.
    model->held_count.fetch_add(1);
    if (TryTakeRoom()) return true;
    // Another request of the model may have been refused its share for that. So this one looks
    // again, and takes what has become free meanwhile.
    model->held_count.fetch_sub(1);
  }
}

bool ThreadShares::TryTakeRoom() {
  int64_t held = held_count_.load();
  while (!is_shared() || held < any_max_.load()) {
    if (held_count_.compare_exchange_weak(held, held + 1)) return true;
  }
  return false;
}

bool ThreadShares::Release(ModelThreads* model) {
  const int64_t all_before = held_count_.fetch_sub(1);
  const int64_t own_before = model->held_count.fetch_sub(1);
  return all_before == any_max_.load() || own_before == own_max_.load();
}

}  // namespace millpond::rpc
