#include "native/pjrt/api.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {
namespace {

// The end of an event, which a thread of the plugin reports. The waiting thread may be gone by
// then.
class EventEnd {
 public:
  EventEnd(const Api& api, const char* while_doing) : api_(api), while_doing_(while_doing) {}

  // The callback; `own` is a pointer to a shared pointer, which it frees.
  static void Report(PJRT_Error* error, void* own) {
    const std::unique_ptr<Pointer> end(static_cast<Pointer*>(own));
    base::Status status = (*end)->api_.ToStatus(error, (*end)->while_doing_);
    const std::lock_guard lock((*end)->mutex_);
    (*end)->has_ended_ = true;
    (*end)->status_ = std::move(status);
    (*end)->ended_.notify_all();
  }
  // Returns false if it has not ended within `timeout_ns`.
  bool AwaitFor(int64_t timeout_ns, base::Status* status) {
    std::unique_lock lock(mutex_);
    // In pieces: if the process is paused, as by SIGSTOP, so is the plugin's thread that reports
    // the end, and the pause uses up the rest of one piece only.
    const std::chrono::nanoseconds piece(timeout_ns / kPieceCount);
    for (int i = 0; i < kPieceCount && !has_ended_; ++i) {
      ended_.wait_for(lock, piece, [this] { return has_ended_; });
    }
    if (has_ended_) *status = std::move(status_);
    return has_ended_;
  }

  using Pointer = std::shared_ptr<EventEnd>;

 private:
  static constexpr int kPieceCount = 10;

  const Api api_;
  const char* const while_doing_;
  std::mutex mutex_;
  std::condition_variable ended_;
  // Guarded by the mutex.
  bool has_ended_ = false;
  base::Status status_;
};

}  // namespace

base::Status Api::ToStatus(PJRT_Error* error, const std::string& while_doing) const {
  if (error == nullptr) return {};
  MILLPOND_PJRT_ARGS(PJRT_Error_Message, text);
  text.error = error;
  table_->PJRT_Error_Message(&text);
  MILLPOND_PJRT_ARGS(PJRT_Error_GetCode, code);
  code.error = error;
  PJRT_Error* const without_code = table_->PJRT_Error_GetCode(&code);
  base::Status status(base::Code::kInternal,
                      while_doing + ": " + std::string(text.message, text.message_size));
  if (without_code == nullptr && code.code > 0 && static_cast<int>(code.code) < base::kCodeCount) {
    status = base::Status(static_cast<base::Code>(code.code), status.message());
  }
  for (PJRT_Error* const freed : {error, without_code}) {
    if (freed == nullptr) continue;
    MILLPOND_PJRT_ARGS(PJRT_Error_Destroy, destroy);
    destroy.error = freed;
    table_->PJRT_Error_Destroy(&destroy);
  }
  return status;
}

base::Status Api::Await(PJRT_Event* event, const std::string& while_doing) const {
  if (event == nullptr) return {};
  MILLPOND_PJRT_ARGS(PJRT_Event_Await, await);
  await.event = event;
  const base::Status status = ToStatus(table_->PJRT_Event_Await(&await), while_doing);
  Free(event);
  return status;
}

bool Api::AwaitFor(PJRT_Event* event, int64_t timeout_ns, const char* while_doing,
                   base::Status* status) const {
  const base::StatusOr<bool> has_happened = HasHappened(event);
  const bool is_over = has_happened.ok() && has_happened.value();
  if (is_over || !MILLPOND_PJRT_HAS(*this, PJRT_Event_OnReady)) {
    *status = Await(event, while_doing);
    return true;
  }
  const auto end = std::make_shared<EventEnd>(*this, while_doing);
  MILLPOND_PJRT_ARGS(PJRT_Event_OnReady, ready);
  ready.event = event;
  ready.callback = EventEnd::Report;
  auto own = std::make_unique<EventEnd::Pointer>(end);
  ready.user_arg = own.get();
  *status = ToStatus(table_->PJRT_Event_OnReady(&ready), while_doing);
  if (!status->ok()) {
    *status = Await(event, while_doing);
    return true;
  }
  static_cast<void>(own.release());  // the callback's
  if (end->AwaitFor(timeout_ns, status)) {
    Free(event);
    return true;
  }
  KeepForEver(event);
  *status = {base::Code::kUnavailable,
             std::string(while_doing) +
                 ": the accelerator counts as lost, because nothing has ended for " +
                 std::to_string(timeout_ns / 1'000'000) + " ms"};
  return false;
}

base::StatusOr<bool> Api::HasHappened(PJRT_Event* event) const {
  if (event == nullptr) return true;
  MILLPOND_PJRT_ARGS(PJRT_Event_IsReady, ready);
  ready.event = event;
  MILLPOND_RETURN_IF_ERROR(ToStatus(table_->PJRT_Event_IsReady(&ready), "looking at an event"));
  return ready.is_ready;
}

void Api::Free(PJRT_Event* event) const {
  if (event == nullptr) return;
  MILLPOND_PJRT_ARGS(PJRT_Event_Destroy, destroy);
  destroy.event = event;
  static_cast<void>(ToStatus(table_->PJRT_Event_Destroy(&destroy), "freeing an event"));
}

}  // namespace millpond::pjrt
