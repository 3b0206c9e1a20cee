#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "native/rpc/runnable_call.h"
#include "native/servable/batch_registry.h"

namespace millpond::rpc {

// The requests in other queues of the same server.
struct WaitingElsewhere {
  size_t count = 0;
  std::map<servable::BatchKey, int64_t> counts_by_key;
};

// The requests that wait for a thread, in the order of their arrival.
//
// A queue that empties now and then holds a burst, all of which is served. A queue that has not
// emptied for kStandingNs shows an overload: each request that joins it waits as long as the
// requests before it did, and all answers come late. Then the queue refuses a request at once if it
// would wait longer than 1/kDelayShare of the time that its deadline leaves. So the requests that
// are answered are answered early, and clients learn at once that they should use another server.
// The rule follows CoDel (RFC 8289), with a target that the client chooses: a request with a
// distant deadline may wait, and a request without a deadline always may. A short queue refuses
// nothing, because runs that last seconds make requests wait without an overload too.
//
// The expected wait of a request is the time that the queue needs for the requests before it, at
// the pace of the last requests taken, and at least as long as the oldest has waited already. The
// age of the oldest alone would not do: under twice the load, requests would wait twice as long as
// they may, because the queue grows while the oldest is young.
//
// Thread: any.
class RunQueue {
 public:
  static constexpr int64_t kStandingNs = 100'000'000;
  static constexpr int64_t kDelayShare = 10;
  // The pace is smoothed over about so many requests.
  static constexpr int64_t kPaceCount = 32;

  // A queue of fewer than `short_count` requests is short, and refuses none as too late. Borrows
  // `batches`.
  RunQueue(const servable::BatchRegistry& batches, size_t short_count)
      : batches_(batches), short_count_(short_count) {}

  // The requests that the queue has not taken. The caller answers them by RunnableCall::Refuse.
  struct Refused {
    std::vector<std::shared_ptr<RunnableCall>> too_late;
    std::vector<std::shared_ptr<RunnableCall>> too_many;
  };

  // Adds requests, the oldest first, unless they would wait too long, or too many of their key wait
  // already (servable::BatchRegistry), here and elsewhere.
  Refused Add(std::vector<std::shared_ptr<RunnableCall>>::iterator begin,
              std::vector<std::shared_ptr<RunnableCall>>::iterator end, int64_t now_ns,
              const WaitingElsewhere& elsewhere = {});
  // Adds a request that has waited for a version of its model, and does not refuse it.
  void AddAgain(std::shared_ptr<RunnableCall> call, int64_t now_ns);
  // True if a request that has just arrived may run at once: nothing waits that may run, and its
  // model may run.
  bool MayPass(RunnableCall* arrived);
  // Returns the oldest request whose model may run now; null if there is none.
  std::shared_ptr<RunnableCall> Take(int64_t now_ns);
  // Returns the oldest request of `key`, for a thread that runs another request. With
  // servable::kAnyBatchKey it is the oldest one that is not compressed. Returns null if its message
  // is longer than `bytes_max`, if there is none among the oldest servable::kLookedAtMax, or if its
  // model may not run now.
  std::shared_ptr<RunnableCall> TakeFor(servable::BatchKey key, size_t bytes_max);
  // Sets the models that may not run now, because they have their share of the threads. Their
  // requests stay in the queue, in their order, as long as their clients wait. Call it again now
  // and then, because it also lets Take return requests whose deadline has come.
  void SetPausedModels(std::set<std::string> models, int64_t now_ns);

  // Returns the number of the requests of `key`.
  int64_t CountOf(servable::BatchKey key);

  // The requests that may run now.
  size_t size() const { return size_.load(); }
  // True if a model may not run now.
  bool has_paused() const { return has_paused_.load(); }
  // The number of requests that were refused because they would have waited too long.
  int64_t refused_count() const { return refused_count_.load(std::memory_order_relaxed); }

 private:
  struct Waiting {
    std::shared_ptr<RunnableCall> call;
    int64_t since_ns = 0;
  };

  // All of these need mutex_.
  bool IsTooLate(const RunnableCall& call, int64_t now_ns) const;
  bool IsTooMany(const RunnableCall& call, const WaitingElsewhere& elsewhere) const;
  int64_t CountOfLocked(servable::BatchKey key) const;
  int64_t ExpectedWaitNs(int64_t now_ns) const;
  void Push(std::shared_ptr<RunnableCall> call, int64_t now_ns);
  void EndRemoval();

  const servable::BatchRegistry& batches_;
  const size_t short_count_;
  std::mutex mutex_;
  std::deque<Waiting> queue_;
  std::vector<std::shared_ptr<RunnableCall>> paused_;  // requests of paused_models_
  std::set<std::string> paused_models_;
  int64_t filled_ns_ = 0;    // when the queue was last empty
  int64_t taken_ns_ = 0;     // when Take last took a request; 0: the queue was empty since
  int64_t taken_count_ = 0;  // since then, by Take and TakeFor
  int64_t pace_ns_ = 0;      // the time from one request taken to the next
  alignas(64) std::atomic<size_t> size_{0};
  std::atomic<bool> has_paused_{false};
  std::atomic<int64_t> refused_count_{0};
};

}  // namespace millpond::rpc
