#include "native/rpc/poller_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "native/base/clock.h"
#include "native/rpc/completion_tag.h"

namespace millpond::rpc {

thread_local PollerPool::Poller* PollerPool::self_ = nullptr;

PollerPool::PollerPool(const Queues& queues, size_t max_poller_count)
    : queues_(queues), max_poller_count_(std::max(max_poller_count, queues.size())) {}

PollerPool::~PollerPool() { Join(); }

void PollerPool::Start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < queues_.size(); ++i) AddPoller(i);
  watchdog_ = std::thread([this] { Watch(); });
}

void PollerPool::AddPoller(size_t queue_index) {
  pollers_.push_back(std::make_unique<Poller>());
  Poller* const poller = pollers_.back().get();
  poller->queue_index = queue_index;
  poller->thread = std::thread([this, poller] { Poll(poller); });
  const std::string name = "cq-" + std::to_string(queue_index);
  pthread_setname_np(poller->thread.native_handle(), name.c_str());
}

void PollerPool::Poll(Poller* self) {
  grpc::ServerCompletionQueue& queue = *queues_[self->queue_index];
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
  const bool is_relieved = std::any_of(pollers_.begin(), pollers_.end(), [&](const auto& other) {
    return other.get() != self && other->queue_index == self->queue_index && !other->has_left;
  });
  if (is_relieved) self->has_left = true;
  return is_relieved;
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
  const int64_t now_ns = base::MonotonicNs();
  for (size_t i = 0; i < queues_.size(); ++i) {
    const bool is_served = std::any_of(pollers_.begin(), pollers_.end(), [&](const auto& poller) {
      const int64_t busy_since_ns = poller->busy_since_ns;
      return poller->queue_index == i && !poller->has_left &&
             (busy_since_ns == 0 || now_ns - busy_since_ns < kStallNs);
    });
    if (!is_served && pollers_.size() < max_poller_count_) Relieve(i);
  }
}

void PollerPool::Relieve(size_t queue_index) {
  for (const auto& poller : pollers_) {
    if (poller->queue_index != queue_index) continue;
    CallSource* const source = poller->owed_wait.exchange(nullptr);
    if (source != nullptr) source->WaitForCall(queues_[queue_index].get());
  }
  AddPoller(queue_index);
}

void PollerPool::ReapPollers() {
  const auto gone = std::partition(pollers_.begin(), pollers_.end(),
                                   [](const auto& poller) { return !poller->has_left; });
  for (auto poller = gone; poller != pollers_.end(); ++poller) (*poller)->thread.join();
  pollers_.erase(gone, pollers_.end());
}

void PollerPool::WaitUntilIdle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& poller : pollers_) {
    // Only a thread that is on its way out of a call is waited for: calls have all been answered.
    while (poller->busy_since_ns != 0 && !poller->has_left) std::this_thread::yield();
  }
}

void PollerPool::Join() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  is_stopping_changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  for (const auto& poller : pollers_) {
    if (poller->thread.joinable()) poller->thread.join();
  }
  pollers_.clear();
}

}  // namespace millpond::rpc
