#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "native/rpc/call.h"
#include "native/rpc/runnable_call.h"
#include "native/servable/awaited_change.h"

namespace millpond::rpc {

// The requests that wait for the first version of their model. They hold no thread: the watchdog
// takes those that are to be looked up again, and queues them.
//
// Thread: any.
class AwaitingQueue final : public AwaitingCalls {
 public:
  // Beyond it a request does not wait. A load takes seconds, so as many clients as a busy model
  // has, and little memory: waiting requests are compressed, and stay so.
  static constexpr size_t kCountMax = 1'024;

  bool TakeAwaitingPlace() override;
  void Await(std::shared_ptr<RunnableCall> call, servable::AwaitedChange change,
             int64_t until_ns) override;
  // From now on no request waits, and TakeDue takes all that do.
  void Release() { is_releasing_ = true; }

  // Takes the requests whose wait is over, in the order in which they came.
  std::vector<std::shared_ptr<RunnableCall>> TakeDue(int64_t now_ns);

 private:
  struct Item {
    std::shared_ptr<RunnableCall> call;
    servable::AwaitedChange change;
    int64_t until_ns = 0;

    bool IsDue(int64_t now_ns) const {
      return now_ns >= until_ns || change.HasCome() || call->is_cancelled();
    }
  };

  std::mutex mutex_;
  std::vector<Item> items_;       // guarded by mutex_
  std::atomic<size_t> count_{0};  // places taken: by items_, or soon
  std::atomic<bool> is_releasing_{false};
};

}  // namespace millpond::rpc
