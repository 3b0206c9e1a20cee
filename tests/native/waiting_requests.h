#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "native/servable/answer_requests.h"
#include "native/servable/batch_queue.h"
#include "native/servable/prepared_run.h"

namespace millpond::testing {

// The steps of a request of a test.
struct Steps {
  std::function<servable::PreparedRun*()> prepare;
  std::function<void()> finish = [] {};
  std::function<void()> send = [] {};
  std::function<void()> offer = [] {};
};

class RequestOfSteps final : public servable::WaitingRequest {
 public:
  explicit RequestOfSteps(Steps steps) : steps_(std::move(steps)) {}
  servable::PreparedRun* Prepare() override { return steps_.prepare(); }
  void Finish() override { steps_.finish(); }
  void Send() override { steps_.send(); }
  void Offer() override { steps_.offer(); }

 private:
  const Steps steps_;
};

// The requests of a test that wait for a thread, like rpc::RunQueue's. Several threads may share
// one. Thread: any.
class QueuedRequests final : public servable::WaitingRequests {
 public:
  // One call of Take.
  struct Look {
    servable::BatchKey key;
    size_t bytes_max;
  };

  void Add(servable::BatchKey key, Steps steps, size_t message_bytes = 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back({key, message_bytes, std::move(steps)});
  }
  // Adds a request that fails before its run.
  void AddBad(servable::BatchKey key, std::function<void()> answer) {
    Add(key, {[answer = std::move(answer)]() -> servable::PreparedRun* {
          answer();
          return nullptr;
        }});
  }
  // Calls `on_look` before each look of a batch for a request, on the thread of the batch. A test
  // may add requests in it. Set it before the first run.
  void OnLook(std::function<void()> on_look) { on_look_ = std::move(on_look); }

  // Sets the answer of HasFreeThread.
  void SetFreeThread(bool has_free_thread) { has_free_thread_ = has_free_thread; }

  bool HasFreeThread() const override { return has_free_thread_; }
  // As if one thread answered them.
  int64_t WaitingPerThread() const override { return static_cast<int64_t>(size()); }
  std::unique_ptr<servable::WaitingRequest> Take(servable::BatchKey key,
                                                 size_t bytes_max) override {
    if (on_look_) on_look_();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      looks_.push_back({key, bytes_max});
    }
    return TakeOldest(key, bytes_max);
  }
  // Answers the oldest request, and those that share its run, as a thread that is free does.
  // Returns false if none waits.
  bool AnswerNext() {
    const auto request = TakeOldest(servable::kAnyBatchKey, SIZE_MAX);
    if (request != nullptr) servable::AnswerRequests(request.get(), this);
    return request != nullptr;
  }

  size_t size() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return queue_.size();
  }
  std::vector<Look> looks() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return looks_;
  }

 private:
  struct Waiting {
    servable::BatchKey key;
    size_t message_bytes;
    Steps steps;
  };

  std::unique_ptr<servable::WaitingRequest> TakeOldest(servable::BatchKey key, size_t bytes_max) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(queue_.begin(), queue_.end(), [key](const Waiting& waiting) {
      return key == servable::kAnyBatchKey || waiting.key == key;
    });
    if (found == queue_.end() || found->message_bytes > bytes_max) return nullptr;
    auto request = std::make_unique<RequestOfSteps>(std::move(found->steps));
    queue_.erase(found);
    return request;
  }

  std::atomic<bool> has_free_thread_{false};
  std::function<void()> on_look_;
  mutable std::mutex mutex_;
  std::deque<Waiting> queue_;
  std::vector<Look> looks_;
};

}  // namespace millpond::testing
