#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "native/rpc/model_queue.h"
#include "native/rpc/runnable_call.h"
#include "native/rpc/thread_shares.h"
#include "native/servable/batch_registry.h"

namespace millpond::rpc {

// The requests in other queues of the same server.
struct WaitingElsewhere {
  size_t count = 0;
  std::map<servable::BatchKey, int64_t> counts_by_key;
};

// The charge of another model for its requests in a thread's run.
struct GuestCharge {
  ModelKey model = kNoModelKey;
  int64_t charged_ns = 0;
  int64_t request_count = 0;
};

// The charge for the requests of a thread's run, for the end of the run.
struct RunCharge {
  ModelKey model = kNoModelKey;  // kNoModelKey: no request of the run came from the queue
  int64_t charged_ns = 0;
  int64_t request_count = 0;        // that the run answers
  int64_t period = 0;               // of the queue
  int64_t took_ns = 0;              // set after the run; 0: it has not ended
  ModelThreads* threads = nullptr;  // of which the run holds one; null: it needs none
  std::vector<GuestCharge> guests = {};
};

// The requests that wait for a thread: a queue for each model. A free thread takes the oldest
// request of the model that has had the least of the threads' time.
//
// Fairness. The requests of a model that sends more than the threads can serve wait behind one
// another, and not in front of other models'. The order among models is start-time fair queueing
// (https://doi.org/10.1109/90.649569) with equal shares: each queue has a start tag, the threads'
// time that its model has had; the least tag is next. A request that is taken adds what a request
// of its model costs, as learned from the runs; its run's end puts that right. A queue that was
// empty starts at the tag that is served now, so no model saves up, and all debts end once nothing
// waits.
//
// Promise: while a model has requests here, no other model's requests take more of the threads'
// time than its own do, but for one run of each, and for what the runs under way take more or less
// than expected.
//
// Threads. A request that is next takes no thread while its model has its part of them
// (ThreadShares). Then the queue holds it back, and the next model's request is next.
//
// Overload. A queue that empties now and then holds a burst, all of which is served. A model's
// queue that has not emptied for kStandingNs shows an overload: each request that joins it waits as
// long as the requests before it did, and all answers come late. Then it refuses a request at once
// if it would wait longer than 1/kDelayShare of the time that its deadline leaves. So the requests
// that are answered are answered early, and clients learn at once that they should use another
// server. The rule follows CoDel (RFC 8289), with a target that the client chooses: a request with
// a distant deadline may wait, and a request without a deadline always may. While few requests wait
// in all, none is refused, because runs that last seconds make requests wait without an overload
// too.
//
// The expected wait of a request is the time that its model's queue needs for the requests before
// it, at the pace of the last requests taken, and at least as long as the oldest has waited
// already. The age of the oldest alone would not do: under twice the load, requests would wait
// twice as long as they may, because the queue grows while the oldest is young.
//
// Thread: any.
class RunQueue {
 public:
  static constexpr int64_t kStandingNs = 100'000'000;
  static constexpr int64_t kDelayShare = 10;
  // A request of a model of which no run is known counts as so long.
  static constexpr int64_t kUnknownCostNs = 100'000;

  // While fewer than `short_count` requests wait, none is refused as too late. Borrows `batches`
  // and `shares`.
  RunQueue(const servable::BatchRegistry& batches, size_t short_count, ThreadShares* shares)
      : batches_(batches), short_count_(short_count), thread_shares_(*shares) {}

  // The requests that the queue has not taken. The caller answers them by RunnableCall::Refuse.
  struct Refused {
    std::vector<std::shared_ptr<RunnableCall>> too_late;
    std::vector<std::shared_ptr<RunnableCall>> too_many;
  };

  // Adds requests, the oldest first, unless they would wait too long, or too many of their batch
  // key wait already (servable::BatchRegistry), here and elsewhere.
  Refused Add(std::vector<std::shared_ptr<RunnableCall>>::iterator begin,
              std::vector<std::shared_ptr<RunnableCall>>::iterator end, int64_t now_ns,
              const WaitingElsewhere& elsewhere = {});
  // Adds a request that has waited for a version of its model, and does not refuse it.
  void AddAgain(std::shared_ptr<RunnableCall> call, int64_t now_ns);
  // Returns true if a request that has just arrived may run at once: nothing waits that may run,
  // and its model may run and take a thread. Sets `charge` to that of its run.
  bool TryPass(RunnableCall* arrived, int64_t now_ns, RunCharge* charge);
  // Returns the request that is next; null if none waits whose model may take a thread now. Settles
  // the charge of the thread's last run first, and sets it to that of the next one. The thread that
  // a run holds is released apart from its charge, without a lock (ThreadShares::Release).
  std::shared_ptr<RunnableCall> Take(int64_t now_ns, RunCharge* charge);
  // Returns the oldest request of `model` and `key`, for a thread that runs another request. With
  // servable::kAnyBatchKey it is the oldest one that is not compressed of the model that is next.
  // Looks at other models if `model` has none, because a request that has a turn within another
  // one's run may have a batch, too. Returns null if its message is longer than `bytes_max`, if
  // there is none among a model's oldest servable::kLookedAtMax, or if the model may not run now.
  // Adds to `charge` what a request of its model was charged.
  std::shared_ptr<RunnableCall> TakeFor(ModelKey model, servable::BatchKey key, size_t bytes_max,
                                        RunCharge* charge);
  // Puts right what the requests of a run that has ended were charged, and learns from it.
  void Settle(const RunCharge& charge);
  // Learns from a run that passed the queue without a charge. Otherwise models whose requests come
  // one at a time would never be known, and never share the threads.
  void NotePassed(ModelKey model, int64_t took_ns, int64_t now_ns);
  // Does the same as Settle for a run that goes on, on a thread that serves nothing else from now
  // on, and releases the thread that it holds. It has taken `took_ns` so far. Clears `charge`: with
  // the lock, because the run may call TakeFor meanwhile. Returns true if a request that was held
  // back may have the thread (ThreadShares::Release).
  [[nodiscard]] bool SettleEarly(RunCharge* charge, int64_t took_ns);
  // Adds the models that have requests here or hold threads, or did not long ago.
  void AddActiveModels(int64_t now_ns, ActiveModels* models);
  // Counts anew what may take a thread, after a change of the limits or a Release.
  void Recount();
  // Sets the models that may not run now, because they have their share of the threads. Their
  // requests stay in the queue, in their order, as long as their clients wait. Call it again now
  // and then, because it also lets Take return requests whose deadline has come.
  void SetPausedModels(const std::set<std::string>& models, int64_t now_ns);

  // Returns the number of the requests of `key`.
  int64_t CountOf(servable::BatchKey key);

  // The models of which something is known.
  size_t known_count();
  // The requests whose models may run now.
  size_t size() const { return size_.load(); }
  // The part of these requests that may take a thread now.
  size_t ready_count() const { return ready_count_.load(); }
  // True if requests wait because their models have their part of the threads.
  bool holds_back() const { return holds_back_.load(); }
  // True if a model may not run now.
  bool has_paused() const { return has_paused_.load(); }
  // The number of requests that were refused because they would have waited too long.
  int64_t refused_count() const { return refused_count_.load(std::memory_order_relaxed); }

 private:
  // A model's queue and its place in the order.
  struct Share {
    explicit Share(ModelKey model) : queue(model) {}
    ModelQueue queue;
    int64_t start_ns = 0;   // the tag: what the model has had of the threads' time
    int64_t cost_ns = 0;    // of a request; 0: not known
    int64_t run_ns = 0;     // of a run, which may answer several requests; 0: not known
    int64_t came_ns = 0;    // when the last request came
    int64_t filled_id = 0;  // grows with the time at which the queue was last empty
    bool is_paused = false;
    std::shared_ptr<ModelThreads> threads;  // null: for names that are no models
  };
  // A queue's place in the order. Of equal tags, the queue that filled first is first.
  struct Place {
    int64_t start_ns;
    int64_t filled_id;
    Share* share;
    bool operator<(const Place& other) const {
      return std::tie(start_ns, filled_id) < std::tie(other.start_ns, other.filled_id);
    }
  };

  // All of these need mutex_.
  Share* ShareOf(ModelKey model);
  Share* Find(ModelKey model);
  static int64_t CostNs(const Share& share) {
    return share.cost_ns == 0 ? kUnknownCostNs : share.cost_ns;
  }
  static void Learn(int64_t ns, int64_t* mean_ns);
  static void LearnRun(int64_t took_ns, Share* share);
  void AddGuest(const Share& share, RunCharge* charge);
  int64_t SettleGuests(const RunCharge& charge, const Share& share);
  static Place PlaceOf(Share* share) { return {share->start_ns, share->filled_id, share}; }
  Share* First() const { return order_.empty() ? nullptr : order_.begin()->share; }
  Share* TakeThread(int64_t now_ns, ModelThreads** threads);
  bool MoveToItsModel(int64_t now_ns, Share* share);
  bool TryTakeThread(const Share& share, ModelThreads** threads);
  size_t CountHeldBack() const;
  void CountReady();
  void Enter(Share* share);
  void SetTag(Share* share, int64_t start_ns);
  void EndTaking(Share* share);
  void SettleLocked(const RunCharge& charge);
  Share* FindWith(ModelKey model, servable::BatchKey key, size_t bytes_max,
                  std::shared_ptr<RunnableCall>* taken);
  void DropIdleShares();
  bool IsTooLate(const RunnableCall& call, int64_t now_ns);
  bool IsTooMany(const RunnableCall& call, const WaitingElsewhere& elsewhere) const;
  int64_t CountOfLocked(servable::BatchKey key) const;
  void Push(std::shared_ptr<RunnableCall> call, int64_t now_ns);
  void Pause(Share* share, bool is_paused, int64_t now_ns);
  // CountReady follows, whose store is the one that threads rely on.
  void AddToSize(size_t count) {
    size_.store(size_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }
  void TakeFromSize(size_t count) {
    size_.store(size_.load(std::memory_order_relaxed) - count, std::memory_order_relaxed);
  }

  const servable::BatchRegistry& batches_;
  const size_t short_count_;
  ThreadShares& thread_shares_;
  std::mutex mutex_;
  // The shares of all models with requests, and some without, whose cost is kept.
  std::unordered_map<ModelKey, std::unique_ptr<Share>> shares_;
  size_t shares_max_ = 0;  // at which idle ones are dropped
  std::set<Place> order_;  // of the queues with requests that may run
  int64_t last_filled_id_ = 0;
  int64_t served_ns_ = 0;  // the tag of the last request that Take returned
  int64_t latest_ns_ = 0;  // the highest tag so far
  int64_t period_ = 0;     // since something waits; a charge of an earlier one is not put right
  std::set<ModelKey> paused_models_;
  std::vector<std::shared_ptr<RunnableCall>> unwanted_;  // of paused models, for Take
  alignas(64) std::atomic<size_t> size_{0};
  std::atomic<size_t> ready_count_{0};
  std::atomic<bool> holds_back_{false};
  std::atomic<bool> has_paused_{false};
  std::atomic<int64_t> refused_count_{0};
};

}  // namespace millpond::rpc
