#include "native/rpc/poller_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "native/base/clock.h"
#include "native/base/thread_cores.h"
#include "native/rpc/completion_tag.h"

namespace millpond::rpc {

thread_local PollerPool::Poller* PollerPool::self_ = nullptr;

PollerPool::PollerPool(const Queues& queues, size_t max_poller_count)
    : queues_(queues), max_poller_count_(std::max(max_poller_count, queues.size())) {}

PollerPool::~PollerPool() { Join(); }

bool PollerPool::Poller::IsHeldUp(int64_t now_ns) const {
  const int64_t since_ns = busy_since_ns;
  return since_ns != 0 && now_ns - since_ns >= kStallNs;
}

void PollerPool::Start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  cores_ = base::AllowedCores();
  for (size_t i = 0; i < queues_.size(); ++i) AddPoller(i, false);
  watchdog_ = std::thread([this] { Watch(); });
}

bool PollerPool::PinToCores(bool is_pinned) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cores_.size() != queues_.size()) return false;
  for (const auto& poller : pollers_) {
    if (poller->is_relief || poller->has_left) continue;
    const std::vector<int> own = {cores_[poller->queue_index]};
    // A core that has gone offline since: the thread stays where it may run.
    (void)base::RestrictToCores(poller->thread.native_handle(), is_pinned ? own : cores_);
  }
  return true;
}

void PollerPool::AddPoller(size_t queue_index, bool is_relief) {
  auto poller = std::make_unique<Poller>();
  poller->queue_index = queue_index;
  poller->is_relief = is_relief;
  poller->thread = std::thread([this, self = poller.get()] { Poll(self); });
  const std::string name = "cq-" + std::to_string(queue_index);
  pthread_setname_np(poller->thread.native_handle(), name.c_str());
  pollers_.push_back(std::move(poller));
}

void PollerPool::Poll(Poller* self) {
  grpc::ServerCompletionQueue& queue = *queues_[self->queue_index]->get();
  self_ = self;
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
    const int64_t begin_ns = base::MonotonicNs();
    self->busy_since_ns.store(begin_ns);
    static_cast<CompletionTag*>(tag)->Proceed(ok);
    self->busy_since_ns.store(0);
    if (base::MonotonicNs() - begin_ns >= kStallNs && Leave(self)) return;
  }
}

bool PollerPool::Leave(Poller* self) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (IsServed(self->queue_index, self)) self->has_left = true;
  return self->has_left;
}

bool PollerPool::IsServed(size_t queue_index, const Poller* except) const {
  const int64_t now_ns = base::MonotonicNs();
  return std::any_of(pollers_.begin(), pollers_.end(), [&](const auto& poller) {
    return poller.get() != except && poller->queue_index == queue_index && !poller->has_left &&
           !poller->IsHeldUp(now_ns);
  });
}

void PollerPool::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_stopping_changed_.wait_for(lock, std::chrono::nanoseconds(kStallNs),
                                        [this] { return is_stopping_; })) {
    ReapPollers();
    RelieveStalledQueues();
  }
}

void PollerPool::RelieveStalledQueues() {
  const size_t max_thread_count = max_poller_count_ + queues_.size();
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!IsServed(i, nullptr) && pollers_.size() < max_thread_count) TryAddPoller(i);
    if (IsServed(i, nullptr) && pollers_.size() <= max_poller_count_) TakeOverWaits(i);
  }
}

void PollerPool::TryAddPoller(size_t queue_index) {
  try {
    AddPoller(queue_index, true);
  } catch (const std::system_error&) {
    // No thread to be had: the queue is as it was, and the next tick tries again.
  }
}

void PollerPool::TakeOverWaits(size_t queue_index) {
  const int64_t now_ns = base::MonotonicNs();
  for (const auto& poller : pollers_) {
    if (poller->queue_index != queue_index || !poller->IsHeldUp(now_ns)) continue;
    CallSource* const source = poller->owed_wait.exchange(nullptr);
    if (source != nullptr) source->WaitForCall(queues_[queue_index].get());
  }
}

void PollerPool::ReapPollers() {
  const auto gone = std::partition(pollers_.begin(), pollers_.end(),
                                   [](const auto& poller) { return !poller->has_left; });
  for (auto poller = gone; poller != pollers_.end(); ++poller) (*poller)->thread.join();
  pollers_.erase(gone, pollers_.end());
}

void PollerPool::StopWatching() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  is_stopping_changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

void PollerPool::Join() {
  StopWatching();
  std::vector<std::unique_ptr<Poller>> pollers;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    pollers.swap(pollers_);
  }
  for (const auto& poller : pollers) {
    if (poller->thread.joinable()) poller->thread.join();
  }
}

}  // namespace millpond::rpc
