#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "native/servable/batch_scope.h"

namespace millpond::testing {

// The requests of a test that wait for a thread, like rpc::RunQueue's: each is a function that
// answers it from start to end. The scopes of several threads may share one. Thread: any.
class QueuedRequests final : public servable::WaitingRequests {
 public:
  // One call of AnswerWaiting or AnswerAny.
  struct Look {
    servable::BatchKey key;
    size_t bytes_max;
  };

  void Add(servable::BatchKey key, std::function<void()> answer, size_t message_bytes = 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back({key, message_bytes, std::move(answer)});
  }
  // Calls `on_look` before each look of a run for company, on the thread of the run. A test may add
  // requests in it. Set it before the first run.
  void OnLook(std::function<void()> on_look) { on_look_ = std::move(on_look); }

  // Sets the answer of HasFreeThread.
  void SetFreeThread(bool has_free_thread) { has_free_thread_ = has_free_thread; }

  bool HasFreeThread() const override { return has_free_thread_; }
  // As if one thread answered them.
  int64_t WaitingPerThread() const override { return static_cast<int64_t>(size()); }
  bool AnswerWaiting(servable::BatchKey key, size_t bytes_max) override {
    return AnswerOldest(key, bytes_max);
  }
  bool AnswerAny(size_t bytes_max) override {
    return AnswerOldest(servable::kNoBatchKey, bytes_max);
  }
  // Answers the oldest request, as a thread that is free does. Returns false if none waits.
  bool AnswerNext() {
    const std::function<void()> answer = Take(servable::kNoBatchKey, SIZE_MAX);
    if (answer) answer();
    return answer != nullptr;
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
    std::function<void()> answer;
  };

  bool AnswerOldest(servable::BatchKey key, size_t bytes_max) {
    if (on_look_) on_look_();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      looks_.push_back({key, bytes_max});
    }
    const std::function<void()> answer = Take(key, bytes_max);
    if (answer) answer();
    return answer != nullptr;
  }
  std::function<void()> Take(servable::BatchKey key, size_t bytes_max) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(queue_.begin(), queue_.end(), [key](const Waiting& waiting) {
      return key == servable::kNoBatchKey || waiting.key == key;
    });
    if (found == queue_.end() || found->message_bytes > bytes_max) return {};
    std::function<void()> answer = std::move(found->answer);
    queue_.erase(found);
    return answer;
  }

  std::atomic<bool> has_free_thread_{false};
  std::function<void()> on_look_;
  mutable std::mutex mutex_;
  std::deque<Waiting> queue_;
  std::vector<Look> looks_;
};

}  // namespace millpond::testing
