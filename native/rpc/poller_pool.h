#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "native/rpc/call_queue.h"

namespace millpond::rpc {

// Where calls of one kind come from.
class CallSource {
 public:
  virtual ~CallSource() = default;
  // Lets gRPC bring the next call to `queue`; nothing while the server stops.
  virtual void WaitForCall(CallQueue* queue) = 0;
};

// The threads that serve: one for each completion queue, which runs its requests inline, start to
// end.
//
// A request that runs long (a big model, a 30 s batch) would hold up all else that its queue
// brings, health checks and cancellations too. So a watchdog looks every kStallNs, and a queue
// whose threads have all been busy with one event for as long gets another, and the next call is
// waited for in the place of the one that was held up, which leaves when it is back. In the steady
// state there is one thread a queue, and nothing is handed over.
//
// Where as many threads as may run requests are all held up, a queue still gets one more, but no
// further call of the methods that hold them up: it is for cancellations, which end those runs, and
// for health checks.
class PollerPool {
 public:
  // Above the longest request of a model that is served with a tail in mind; below what a client
  // notices of a health check.
  static constexpr int64_t kStallNs = 10'000'000;

  using Queues = std::vector<std::unique_ptr<CallQueue>>;

  // Borrows `queues`. At most `max_poller_count` threads run requests at a time.
  PollerPool(const Queues& queues, size_t max_poller_count);
  ~PollerPool();

  void Start();

  // Each queue's thread on a core of its own, or again on any. False, and nothing changed, where
  // there is not one queue for each core that the process may use. A thread that relieves another
  // is never pinned: the one that it relieves is on that core.
  bool PinToCores(bool is_pinned);

  // On a poller's thread: runs `handle`, then waits for the next call of `source` on `queue`. Not
  // the other way round: a queue whose thread is in a run takes no call that another could answer;
  // calls wait in gRPC, in the order of their arrival, for whichever thread is free first.
  template <typename Handle>
  static void HandleThenWait(CallSource* source, CallQueue* queue, Handle&& handle) {
    std::atomic<CallSource*>& owed_wait = self_->owed_wait;
    owed_wait.store(source);
    handle();
    // The watchdog has waited for us where it took this.
    if (owed_wait.exchange(nullptr) != nullptr) source->WaitForCall(queue);
  }

  // No queue is given another thread any more.
  void StopWatching();
  // Returns once all threads have ended; the queues have been shut down before.
  void Join();

 private:
  struct Poller {
    // By one event, for kStallNs and longer.
    bool IsHeldUp(int64_t now_ns) const;

    std::thread thread;
    size_t queue_index = 0;
    bool is_relief = false;
    std::atomic<int64_t> busy_since_ns{0};  // 0: waits for an event
    std::atomic<CallSource*> owed_wait{nullptr};
    std::atomic<bool> has_left{false};
  };

  void AddPoller(size_t queue_index, bool is_relief);  // needs mutex_
  void Poll(Poller* self);
  // True where another thread serves the queue of `self`, which may then leave.
  bool Leave(Poller* self);
  // Whether `queue_index` has a thread, other than `except`, that is not held up. Needs mutex_.
  bool IsServed(size_t queue_index, const Poller* except) const;
  void Watch();
  void RelieveStalledQueues();             // needs mutex_
  void TryAddPoller(size_t queue_index);   // needs mutex_
  void TakeOverWaits(size_t queue_index);  // needs mutex_
  void ReapPollers();                      // needs mutex_

  static thread_local Poller* self_;

  const Queues& queues_;
  const size_t max_poller_count_;
  std::vector<int> cores_;  // set by Start
  std::mutex mutex_;        // no thread takes it while it serves, unless it was held up
  std::condition_variable is_stopping_changed_;
  bool is_stopping_ = false;
  std::vector<std::unique_ptr<Poller>> pollers_;
  std::thread watchdog_;
};

}  // namespace millpond::rpc
