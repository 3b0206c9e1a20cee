#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "native/rpc/awaiting_requests.h"
#include "native/rpc/call_queue.h"
#include "native/rpc/completion_tag.h"
#include "native/rpc/parked_requests.h"

namespace millpond::rpc {

// Where calls of one kind come from.
class CallSource {
 public:
  virtual ~CallSource() = default;
  // Lets gRPC bring the next call to `queue`; nothing while the server stops.
  virtual void WaitForCall(CallQueue* queue) = 0;
  // Returns true if many calls may wait within gRPC when a drain begins.
  virtual bool IsHot() const { return false; }
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
// Calls beyond what is waited for pile up within gRPC, uncounted. So where threads are all busy,
// arrivals are taken early, to be counted (servable::Admission) and parked, or refused at once:
// - A thread that has not caught up with its queue for kOverloadNs, while no other is idle, takes
//   what has come. What is parked runs oldest first, on whichever thread is free; between two runs
//   a thread takes arrivals every kLookNs, for no longer than it ran, so that refusals never cost
//   more than half of it.
// - Where as many threads as may run requests are all held up, a queue still gets one more, which
//   runs none: it parks or refuses, and is there for cancellations, which end those runs, and for
//   health checks.
class PollerPool {
 public:
  // Above the longest request of a model that is served with a tail in mind; below what a client
  // notices of a health check.
  static constexpr int64_t kStallNs = 10'000'000;
  // Above a burst that is over before anybody could use a refusal; below kStallNs.
  static constexpr int64_t kOverloadNs = 5'000'000;
  // A look costs a system call or two, some µs.
  static constexpr int64_t kLookNs = 1'000'000;

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

  // On a poller's thread: whether a request that has come waits for its turn, as others do, or as
  // this thread is only to take what has come.
  static bool MustPark();
  // On a poller's thread: parks `request`, which `source` brought on `queue`, and waits for the
  // next call. The request may be gone when this returns.
  static void Park(CallSource* source, CallQueue* queue, ParkedRequest* request);

  // On a poller's thread: whether a request may wait for the first version of its model.
  static bool MayAwait() { return !self_->pool->is_releasing_ && !self_->pool->awaiting_.IsFull(); }
  // On a poller's thread: puts `request` aside until it is due, and then runs it as a parked one.
  // It may be gone when this returns.
  static void Await(const AwaitingRequest& request) { self_->pool->awaiting_.Put(request); }
  // Runs what waits for a version within kStallNs; nothing waits any more.
  void ReleaseAwaiting() { is_releasing_ = true; }

  // No queue is given another thread any more.
  void StopWatching();
  // Returns once all threads have ended; the queues have been shut down before.
  void Join();

 private:
  enum class Role {
    kRegular,   // one a queue
    kRelief,    // in the place of one that is held up
    kAcceptor,  // runs no request that is parked
  };

  struct Poller {
    // By one event, for kStallNs and longer.
    bool IsHeldUp(int64_t now_ns) const;
    bool IsIdle() const { return busy_since_ns.load() == 0; }
    bool CanRun() const { return role != Role::kAcceptor && !has_left; }

    std::thread thread;
    PollerPool* pool = nullptr;
    size_t queue_index = 0;
    Role role = Role::kRegular;
    std::atomic<int64_t> busy_since_ns{0};  // 0: waits for an event
    std::atomic<CallSource*> owed_wait{nullptr};
    std::atomic<bool> has_left{false};
    // The thread's own.
    bool is_parking = false;   // every request, whoever else is idle
    int64_t now_ns = 0;        // when its last event was over
    int64_t event_ns = 0;      // how long that took
    int64_t caught_up_ns = 0;  // when it had last taken what had come
  };

  void AddPoller(size_t queue_index, Role role);  // needs mutex_
  void Poll(Poller* self);
  // These four are false once the queue is shut down.
  bool ServeNext(Poller* self);
  bool ServeParked(Poller* self);
  bool ServeArrived(Poller* self);
  bool TakeWhatHasCome(Poller* self);
  template <typename Event>
  static void Occupy(Poller* self, Event&& event);
  grpc::ServerCompletionQueue& QueueOf(const Poller& poller) {
    return *queues_[poller.queue_index]->get();
  }
  bool IsAnyOtherIdle(const Poller* self);
  // Has as many threads that wait for an event look for parked requests as there are such.
  void WakeIdle(const Poller* self);
  // The queues of threads that wait for an event and may run requests; of so many at most.
  std::vector<size_t> QueuesOfIdle(const Poller* except, size_t count_max);
  // True where another thread serves the queue of `self`, which may then leave.
  bool Leave(Poller* self);
  // Whether `queue_index` has a thread that runs requests, other than `except`, and is not held up.
  // Needs mutex_.
  bool IsServed(size_t queue_index, const Poller* except) const;
  bool HasAcceptor(size_t queue_index) const;  // needs mutex_
  size_t CountRunning() const;                 // threads that may run requests; needs mutex_
  void Watch();
  void RunDueAwaiting();                             // without mutex_
  void RelieveStalledQueues();                       // needs mutex_
  bool TryAddPoller(size_t queue_index, Role role);  // needs mutex_
  void TakeOverWaits(size_t queue_index);            // needs mutex_
  void ReapPollers();                                // needs mutex_

  static thread_local Poller* self_;

  const Queues& queues_;
  const size_t max_poller_count_;
  ParkedRequests parked_;
  AwaitingRequests awaiting_;
  std::atomic<bool> is_releasing_{false};
  std::vector<int> cores_;  // set by Start
  std::mutex mutex_;        // no thread takes it while it serves, unless all are busy
  std::condition_variable is_stopping_changed_;
  bool is_stopping_ = false;
  std::vector<std::unique_ptr<Poller>> pollers_;
  std::thread watchdog_;
};

}  // namespace millpond::rpc
