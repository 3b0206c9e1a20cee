#include "native/rpc/poller_pool.h"

#include <grpcpp/alarm.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "native/base/clock.h"
#include "native/base/thread_cores.h"

namespace millpond::rpc {
namespace {

using NextStatus = grpc::CompletionQueue::NextStatus;

// What a queue has by now.
NextStatus TakeNow(grpc::ServerCompletionQueue* queue, void** tag, bool* ok) {
  return queue->AsyncNext(tag, ok, gpr_inf_past(GPR_CLOCK_MONOTONIC));
}

// An event that means nothing but that there is one. Frees itself.
class WakeEvent final : public CompletionTag {
 public:
  // `counting` is the queue that it counts in as a call.
  WakeEvent(CallQueue* woken, CallQueue* counting) : counting_(counting) {
    counting_->AddCall();
    alarm_.Set(woken->get(), gpr_inf_past(GPR_CLOCK_MONOTONIC), this);
  }
  void Proceed(bool) override {
    CallQueue* const counting = counting_;
    delete this;
    counting->RemoveCall();
  }

 private:
  CallQueue* const counting_;
  grpc::Alarm alarm_;
};

}  // namespace

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
  for (size_t i = 0; i < queues_.size(); ++i) AddPoller(i, Role::kRegular);
  watchdog_ = std::thread([this] { Watch(); });
}

bool PollerPool::PinToCores(bool is_pinned) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cores_.size() != queues_.size()) return false;
  for (const auto& poller : pollers_) {
    if (poller->role != Role::kRegular || poller->has_left) continue;
    const std::vector<int> own = {cores_[poller->queue_index]};
    // A core that has gone offline since: the thread stays where it may run.
    (void)base::RestrictToCores(poller->thread.native_handle(), is_pinned ? own : cores_);
  }
  return true;
}

void PollerPool::AddPoller(size_t queue_index, Role role) {
  auto poller = std::make_unique<Poller>();
  poller->pool = this;
  poller->queue_index = queue_index;
  poller->role = role;
  poller->is_parking = role == Role::kAcceptor;
  poller->now_ns = poller->caught_up_ns = base::MonotonicNs();
  poller->thread = std::thread([this, self = poller.get()] { Poll(self); });
  const std::string name = "cq-" + std::to_string(queue_index);
  pthread_setname_np(poller->thread.native_handle(), name.c_str());
  pollers_.push_back(std::move(poller));
}

void PollerPool::Poll(Poller* self) {
  self_ = self;
  while (ServeNext(self)) {
    if (self->role == Role::kAcceptor) {
      // For what it parked, and for whom the event that it took may have been. First: the watchdog
      // joins who has left, and holds what WakeIdle takes.
      WakeIdle(self);
      if (Leave(self)) return;
    } else if (self->event_ns >= kStallNs && parked_.count() == 0 && Leave(self)) {
      return;
    }
  }
}

// A thread is idle before it looks here for parked requests, and a request is parked before
// WakeIdle looks for idle threads: one of the two sees the other.
bool PollerPool::ServeNext(Poller* self) {
  const bool has_parked = self->role != Role::kAcceptor && parked_.count() > 0;
  return has_parked ? ServeParked(self) : ServeArrived(self);
}

bool PollerPool::ServeParked(Poller* self) {
  if (self->now_ns - self->caught_up_ns >= kLookNs) return TakeWhatHasCome(self);
  ParkedRequest* const oldest = parked_.Take();
  if (oldest != nullptr) Occupy(self, [&] { oldest->RunParked(); });
  return true;
}

bool PollerPool::ServeArrived(Poller* self) {
  void* tag = nullptr;
  bool ok = false;
  const auto proceed = [&] { static_cast<CompletionTag*>(tag)->Proceed(ok); };
  const int64_t behind_ns = self->now_ns - self->caught_up_ns;
  if (behind_ns >= kLookNs) {
    if (behind_ns >= kOverloadNs && !self->is_parking && !IsAnyOtherIdle(self)) {
      return TakeWhatHasCome(self);
    }
    const NextStatus next = TakeNow(&QueueOf(*self), &tag, &ok);
    if (next == NextStatus::SHUTDOWN) return false;
    if (next == NextStatus::GOT_EVENT) {
      Occupy(self, proceed);
      return true;
    }
    self->caught_up_ns = self->now_ns;
    // Some may have been parked meanwhile.
    if (self->role != Role::kAcceptor && parked_.count() > 0) return true;
  }
  if (!QueueOf(*self).Next(&tag, &ok)) return false;
  Occupy(self, proceed);
  return true;
}

// For no longer than since it last did.
bool PollerPool::TakeWhatHasCome(Poller* self) {
  const int64_t end_ns = self->now_ns + (self->now_ns - self->caught_up_ns);
  NextStatus next = NextStatus::GOT_EVENT;
  self->is_parking = true;
  while (next == NextStatus::GOT_EVENT && self->now_ns < end_ns) {
    void* tag = nullptr;
    bool ok = false;
    next = TakeNow(&QueueOf(*self), &tag, &ok);
    if (next == NextStatus::GOT_EVENT) {
      Occupy(self, [&] { static_cast<CompletionTag*>(tag)->Proceed(ok); });
    }
  }
  self->is_parking = false;
  self->caught_up_ns = self->now_ns;
  WakeIdle(self);
  return next != NextStatus::SHUTDOWN;
}

template <typename Event>
void PollerPool::Occupy(Poller* self, Event&& event) {
  const int64_t begin_ns = base::MonotonicNs();
  self->busy_since_ns.store(begin_ns);
  event();
  self->busy_since_ns.store(0);
  self->now_ns = base::MonotonicNs();
  self->event_ns = self->now_ns - begin_ns;
}

bool PollerPool::MustPark() { return self_->is_parking || self_->pool->parked_.count() > 0; }

void PollerPool::Park(CallSource* source, CallQueue* queue, ParkedRequest* request) {
  // First, as the request's end may be the last thing that keeps the queue.
  source->WaitForCall(queue);
  self_->pool->parked_.Put(request);
}

bool PollerPool::IsAnyOtherIdle(const Poller* self) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(pollers_.begin(), pollers_.end(), [&](const auto& poller) {
    return poller.get() != self && poller->CanRun() && poller->IsIdle();
  });
}

// It counts as a call itself, before it looks for parked ones: each of those counts, but may end at
// any moment, and with the last call the queues are shut down. In the last queue, as Server looks
// for calls from the first one on: it sees the parked one or this.
void PollerPool::WakeIdle(const Poller* self) {
  if (parked_.count() == 0) return;
  CallQueue* const counting = queues_.back().get();
  counting->AddCall();
  for (const size_t queue_index : QueuesOfIdle(self, parked_.count())) {
    new WakeEvent(queues_[queue_index].get(), counting);
  }
  counting->RemoveCall();
}

std::vector<size_t> PollerPool::QueuesOfIdle(const Poller* except, size_t count_max) {
  std::vector<size_t> queue_indexes;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& poller : pollers_) {
    if (queue_indexes.size() == count_max) break;
    if (poller.get() == except || !poller->CanRun() || !poller->IsIdle()) continue;
    queue_indexes.push_back(poller->queue_index);
  }
  return queue_indexes;
}

bool PollerPool::Leave(Poller* self) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (IsServed(self->queue_index, self)) self->has_left = true;
  return self->has_left;
}

bool PollerPool::IsServed(size_t queue_index, const Poller* except) const {
  const int64_t now_ns = base::MonotonicNs();
  return std::any_of(pollers_.begin(), pollers_.end(), [&](const auto& poller) {
    return poller.get() != except && poller->queue_index == queue_index && poller->CanRun() &&
           !poller->IsHeldUp(now_ns);
  });
}

bool PollerPool::HasAcceptor(size_t queue_index) const {
  return std::any_of(pollers_.begin(), pollers_.end(), [&](const auto& poller) {
    return poller->queue_index == queue_index && poller->role == Role::kAcceptor &&
           !poller->has_left;
  });
}

size_t PollerPool::CountRunning() const {
  return static_cast<size_t>(std::count_if(pollers_.begin(), pollers_.end(),
                                           [](const auto& poller) { return poller->CanRun(); }));
}

void PollerPool::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_stopping_changed_.wait_for(lock, std::chrono::nanoseconds(kStallNs),
                                        [this] { return is_stopping_; })) {
    ReapPollers();
    RelieveStalledQueues();
    if (awaiting_.count() == 0) continue;
    lock.unlock();
    RunDueAwaiting();
    lock.lock();
  }
}

void PollerPool::RunDueAwaiting() {
  const auto due = awaiting_.TakeDue(base::MonotonicNs(), is_releasing_);
  for (const AwaitingRequest& item : due) parked_.Put(item.request);
  if (!due.empty()) WakeIdle(nullptr);
}

void PollerPool::RelieveStalledQueues() {
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (IsServed(i, nullptr)) {
      TakeOverWaits(i);
    } else if (CountRunning() < max_poller_count_) {
      if (TryAddPoller(i, Role::kRelief)) TakeOverWaits(i);
    } else if (HasAcceptor(i) || TryAddPoller(i, Role::kAcceptor)) {
      TakeOverWaits(i);
    }
  }
}

bool PollerPool::TryAddPoller(size_t queue_index, Role role) {
  try {
    AddPoller(queue_index, role);
  } catch (const std::system_error&) {
    // No thread to be had: the queue is as it was, and the next tick tries again.
    return false;
  }
  return true;
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
