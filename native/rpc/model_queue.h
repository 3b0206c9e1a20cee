#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "native/rpc/runnable_call.h"

namespace millpond::rpc {

// The requests of one model that wait for a thread, in the order of their arrival, and the pace at
// which threads take them.
//
// Thread: the one that has the lock of the RunQueue.
class ModelQueue {
 public:
  // The pace is smoothed over about so many requests.
  static constexpr int64_t kPaceCount = 32;

  explicit ModelQueue(ModelKey model) : model_(model) {}

  ModelKey model() const { return model_; }
  bool is_empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }
  // The oldest request. The queue is not empty.
  RunnableCall* first() const { return waiting_.front().call.get(); }

  void Push(std::shared_ptr<RunnableCall> call, int64_t now_ns);
  // Takes the oldest request for a thread that is free.
  std::shared_ptr<RunnableCall> TakeFirst(int64_t now_ns);
  // Takes the oldest request of `key` for a thread that runs another one (RunQueue::TakeFor).
  std::shared_ptr<RunnableCall> TakeFor(servable::BatchKey key, size_t bytes_max);
  // Takes the requests whose clients wait for no answer any more.
  std::vector<std::shared_ptr<RunnableCall>> TakeUnwanted(int64_t now_ns);
  // Counts all waits from now, because the requests waited for their model to be resumed, which
  // says nothing about the waits of later requests.
  void Restart(int64_t now_ns);

  int64_t CountOf(servable::BatchKey key) const;
  // The time for which the queue has not been empty.
  int64_t StandingNs(int64_t now_ns) const { return is_empty() ? 0 : now_ns - filled_ns_; }
  // The time that a request which joins the queue would wait. The queue is not empty.
  int64_t ExpectedWaitNs(int64_t now_ns) const;

 private:
  struct Waiting {
    std::shared_ptr<RunnableCall> call;
    int64_t since_ns = 0;
  };

  void EndRemoval();

  const ModelKey model_;
  std::deque<Waiting> waiting_;
  int64_t filled_ns_ = 0;    // when the queue was last empty
  int64_t taken_ns_ = 0;     // when TakeFirst last took a request; 0: the queue was empty since
  int64_t taken_count_ = 0;  // since then, by TakeFirst and TakeFor
  int64_t pace_ns_ = 0;      // the time from one request taken to the next
};

}  // namespace millpond::rpc
