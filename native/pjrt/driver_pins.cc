#include "native/pjrt/driver_pins.h"

#include <atomic>
#include <thread>
#include <utility>

#include "native/pjrt/keep_for_ever.h"

namespace millpond::pjrt {

// A call of the driver, on the thread for such calls. It counts as overdue from Leave to its end.
class DriverPins::Call : public DriverThread::Task {
 public:
  explicit Call(std::shared_ptr<const Client> client) : client_(std::move(client)) {}
  virtual ~Call() = default;

  // Leaves the call to itself. Returns false, and does nothing, if it has just ended.
  [[nodiscard]] bool Leave() {
    client_->CountPinAsOverdue(true);
    if (!is_left_or_over_.exchange(true)) return true;
    client_->CountPinAsOverdue(false);
    return false;
  }

 protected:
  const Client& client() const { return *client_; }
  bool is_left() const { return is_left_or_over_.load(); }
  // Ends the call. Returns false if its caller has left: EndLate is to follow then.
  bool EndInTime() { return !is_left_or_over_.exchange(true); }
  void EndLate() { client_->CountPinAsOverdue(false); }

 private:
  const std::shared_ptr<const Client> client_;
  std::atomic<bool> is_left_or_over_{false};
};

class DriverPins::PinCall final : public Call {
 public:
  PinCall(std::shared_ptr<const Client> client, char* start, size_t bytes,
          std::shared_ptr<const void> kept)
      : Call(std::move(client)), start_(start), bytes_(bytes), kept_(std::move(kept)) {}

  // The result, once the call has ended in time.
  bool TakeResult() {
    kept_ = nullptr;
    return is_pinned_.load();
  }
  // A call that has not begun never does: the thread may have taken it already. Returns false if
  // the call has just ended.
  [[nodiscard]] bool LeaveOrDrop() {
    if (is_begun_or_dropped_.exchange(true)) return Leave();
    kept_ = nullptr;
    return true;
  }

 private:
  void Run() override {
    if (is_begun_or_dropped_.exchange(true)) return;
    const bool is_pinned = client().Pin(start_, bytes_).ok();
    is_pinned_.store(is_pinned);
    if (EndInTime()) return;
    if (is_pinned && !client().Unpin(start_).ok()) KeepForEver(std::move(kept_));
    kept_ = nullptr;
    EndLate();
  }

  char* const start_;
  const size_t bytes_;
  // Used by the thread of the call while it runs or if it is late, and by the caller otherwise.
  std::shared_ptr<const void> kept_;
  std::atomic<bool> is_begun_or_dropped_{false};
  std::atomic<bool> is_pinned_{false};
};

// Whoever waits or not, it is made in the end.
class DriverPins::UnpinCall final : public Call {
 public:
  UnpinCall(std::shared_ptr<const Client> client, char* start, OnUnpinned on_unpinned)
      : Call(std::move(client)), start_(start), on_unpinned_(std::move(on_unpinned)) {}

  bool is_unpinned() const { return is_unpinned_.load(); }

 private:
  void Run() override {
    bool is_unpinned = false;
    const auto unpin = [&] { is_unpinned = client().Unpin(start_).ok(); };
    // After a call that hung there may be many of them, and runs need most of the time.
    if (is_left()) {
      client().pace().Make(unpin);
    } else {
      unpin();
    }
    std::exchange(on_unpinned_, nullptr)(is_unpinned);
    is_unpinned_.store(is_unpinned);
    if (!EndInTime()) EndLate();
  }

  char* const start_;
  OnUnpinned on_unpinned_;
  std::atomic<bool> is_unpinned_{false};
};

DriverPins::~DriverPins() {
  // The driver may never end the call that the thread makes, so another one waits for that.
  if (!client_->HasOverduePin()) return;
  std::thread([thread = std::move(thread_)] { thread->AwaitAll(); }).detach();
}

bool DriverPins::Pin(char* start, size_t bytes, std::shared_ptr<const void> kept) {
  if (client_->HasOverduePin()) return false;
  const auto call = std::make_shared<PinCall>(client_, start, bytes, std::move(kept));
  if (!thread_->PerformFor(call, overdue_ns_) && call->LeaveOrDrop()) return false;
  return call->TakeResult();
}

bool DriverPins::Unpin(char* start, OnUnpinned on_unpinned) {
  const auto call = std::make_shared<UnpinCall>(client_, start, std::move(on_unpinned));
  const bool is_overdue = client_->HasOverduePin();
  if (is_overdue) static_cast<void>(call->Leave());
  const int64_t limit_ns = is_overdue ? 0 : overdue_ns_;
  if (!thread_->PerformFor(call, limit_ns, DriverThread::IfLate::kRunLater) && !is_overdue) {
    static_cast<void>(call->Leave());
  }
  return call->is_unpinned();
}

}  // namespace millpond::pjrt
