#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace millpond::rpc {

// How far the server's shutdown is.
struct ServerPhase {
  std::atomic<bool> is_stopping{false};   // no call is waited for any more
  std::atomic<bool> is_cut_short{false};  // none is run any more
};

// A completion queue and the calls that will still use it. gRPC aborts the process where anything
// is asked of a queue that was shut down, and its server's shutdown does not wait for calls whose
// answer is on its way; so each call counts itself from the wait for it to its end, and the queue
// is shut down when none is left.
class CallQueue {
 public:
  explicit CallQueue(std::unique_ptr<grpc::ServerCompletionQueue> queue)
      : queue_(std::move(queue)) {}
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  grpc::ServerCompletionQueue* get() const { return queue_.get(); }

  // By a call, when it is made and as the last thing it does.
  void AddCall() { call_count_.fetch_add(1); }
  void RemoveCall() { call_count_.fetch_sub(1); }
  int64_t call_count() const { return call_count_.load(); }

  // Runs `ask`, which asks gRPC for a call, unless the server stops. gRPC forgets what it is asked
  // for while it begins to stop; so its stop begins when `is_stopping` is set and no queue asks.
  template <typename Ask>
  void AskUnless(const std::atomic<bool>& is_stopping, Ask&& ask) {
    asking_count_.fetch_add(1);
    if (!is_stopping.load()) ask();
    asking_count_.fetch_sub(1);
  }
  bool is_asking() const { return asking_count_.load() > 0; }

 private:
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  // Of this queue's thread, and rarely of another's.
  alignas(64) std::atomic<int64_t> call_count_{0};
  std::atomic<int64_t> asking_count_{0};  // threads within AskUnless
};

}  // namespace millpond::rpc
