#include "native/pjrt/driver_pins.h"

#include <atomic>
#include <thread>
#include <utility>

namespace millpond::pjrt {

// A call of the driver, on the thread for such calls.
class DriverPins::Call final : public DriverThread::Task {
 public:
  // 0 bytes: unpins.
  Call(std::shared_ptr<const Client> client, char* start, size_t bytes)
      : client_(std::move(client)), start_(start), bytes_(bytes) {}

  bool is_done() const { return state_.load() == State::kDone; }
  // Leaves a call that is overdue to itself, unless it has just ended. A call that has not begun
  // never does: the thread may have taken it already.
  void Leave() {
    State state = State::kWaiting;
    if (state_.compare_exchange_strong(state, State::kLeft)) return;
    state = State::kBegun;
    client_->CountPinAsOverdue(true);
    if (!state_.compare_exchange_strong(state, State::kLeft)) client_->CountPinAsOverdue(false);
  }

 private:
  enum class State { kWaiting, kBegun, kDone, kFailed, kLeft };

  void Run() override {
    State state = State::kWaiting;
    if (!state_.compare_exchange_strong(state, State::kBegun)) return;
    const bool is_done = (bytes_ == 0 ? client_->Unpin(start_) : client_->Pin(start_, bytes_)).ok();
    state = State::kBegun;
    if (state_.compare_exchange_strong(state, is_done ? State::kDone : State::kFailed)) return;
    if (is_done && bytes_ > 0) static_cast<void>(client_->Unpin(start_));
    client_->CountPinAsOverdue(false);
  }

  const std::shared_ptr<const Client> client_;
  char* const start_;
  const size_t bytes_;
  std::atomic<State> state_{State::kWaiting};
};

DriverPins::~DriverPins() {
  // The driver may never end the call that the thread makes, so another one waits for that.
  if (client_->HasOverduePin()) std::thread([thread = std::move(thread_)] {}).detach();
}

bool DriverPins::Pin(char* start, size_t bytes) { return Make(start, bytes); }

bool DriverPins::Unpin(char* start) { return Make(start, 0); }

bool DriverPins::Make(char* start, size_t bytes) {
  if (client_->HasOverduePin()) return false;
  const auto call = std::make_shared<Call>(client_, start, bytes);
  if (!thread_->PerformFor(call, overdue_ns_)) call->Leave();
  return call->is_done();
}

}  // namespace millpond::pjrt
