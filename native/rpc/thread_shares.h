#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "native/rpc/method.h"

namespace millpond::rpc {

// The threads that a model holds by its runs, of all groups together.
struct alignas(64) ModelThreads {
  std::atomic<int64_t> held_count{0};
};

// The threads that run requests, of all groups together.
struct ServingThreads {
  int64_t regular_count = 1;  // in the steady state
  int64_t spare_count = 0;    // beyond these, while models share the threads
  int64_t max_count = 1;
  int64_t held_up_count = 0;    // by runs that have lasted so long that others serve in their stead
  int64_t uncounted_count = 0;  // by runs from before the models shared the threads
  int64_t lowered_count = 0;    // by runs that give way: of max_count, and serve nothing else
};

// The models that have requests, as the queues of all groups and the runs under way know them.
struct ActiveModels {
  std::unordered_set<ModelKey> keys;
  bool has_long_run = false;
};

struct ThreadLimits {
  bool is_shared = false;
  int64_t any_max = 0;  // the threads up to which any model may take one
  int64_t own_max = 0;  // the threads up to which a model may take one whatever others hold
};

// How models share the threads that run requests. One object for the queues of all groups owns the
// decision.
//
// Theory of operation. The order of a queue helps only a model that finds a thread, and runs that
// wait for an accelerator or compute for long hold all of them. So while several models have
// requests, and the runs of one take long, a run holds a place. Any model may take one while all
// models together hold fewer than `any_max`: as many as there are threads in the steady state.
// Beyond that, a model takes one if it holds fewer than its share, which is an even part of the
// spare threads. Its other requests wait, also if threads are idle. There is no limit while one
// model has requests, or while runs are so short that each soon leaves its thread.
//
// Promise, for the queues of all groups together:
// - A model that holds fewer threads than its share waits for no thread.
// - A model that holds as many takes a further one only while all models hold fewer than any_max.
// - A name that is no model takes no share from a model, and its requests need no place.
//
// The first one holds by two facts. TryTake refuses nothing to a model below its share. And all
// models together never hold more than any_max and the shares of all models but one: no more than
// there are threads, as long as the spare threads have a share for each model but one. (Of more
// models, those have a share that come first. Without spare threads one is kept, for one model.)
// A model counts from the first Limit after its first request. Decide leaves out the threads whose
// runs began before the models shared them. After a change of the limits the promise holds once
// the places of before are released.
//
// Cost. While models do not share the threads, a request reads is_shared, which changes only when
// they begin to and end. While they do, each run writes two counts twice that all groups share,
// because the promise is about all groups.
//
// No request waits on beside a place that is free for it. A queue first marks that it holds
// requests back, and then looks at the counts once more. Release first lowers the counts; if it
// returns true, its caller looks for marks. So at least one sees the other: all of that is
// sequentially consistent.
//
// Thread: any; Limit: one at a time.
class ThreadShares {
 public:
  // A model shares the threads for so long after its last request.
  static constexpr int64_t kSharesNs = 10'000'000'000;
  // Models share the threads if the runs of one take so long on average.
  static constexpr int64_t kLongRunNs = 1'000'000;

  // The average from which a run counts as long. It is lower while models share the threads,
  // because threads come and go with that, so that it should not change often.
  int64_t long_run_ns() const { return is_shared() ? kLongRunNs / 2 : kLongRunNs; }

  // Pure.
  static ThreadLimits Decide(const ServingThreads& threads, const ActiveModels& models);
  // Returns true if the limits have changed. Then each queue has to count anew.
  bool Limit(const ThreadLimits& limits);

  // True while models share the threads.
  bool is_shared() const { return is_shared_.load(); }
  // The threads that models hold.
  int64_t held_count() const { return held_count_.load(); }
  // Returns the threads of a model. Keep it for as long as a run may hold one of them.
  std::shared_ptr<ModelThreads> ThreadsOf(ModelKey model);

  // True if any model may take a thread.
  bool HasRoom() const { return !is_shared() || held_count_.load() < any_max_.load(); }
  // True if the model may take a thread.
  bool MayTake(const ModelThreads& model) const {
    return HasRoom() || model.held_count.load() < own_max_.load();
  }
  // The threads that the model may take now.
  int64_t TakeableCount(ModelKey model);
  // Takes a thread for a run of the model. Returns false if it may not have one.
  bool TryTake(ModelThreads* model);
  // Releases it. Returns true if a request that was held back may have it.
  [[nodiscard]] bool Release(ModelThreads* model);

 private:
  bool TryTakeRoom();

  alignas(64) std::atomic<bool> is_shared_{false};
  std::atomic<int64_t> any_max_{0};
  std::atomic<int64_t> own_max_{0};
  alignas(64) std::atomic<int64_t> held_count_{0};
  alignas(64) std::mutex mutex_;
  std::unordered_map<ModelKey, std::weak_ptr<ModelThreads>> threads_;  // guarded by mutex_
};

}  // namespace millpond::rpc
