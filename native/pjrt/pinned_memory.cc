#include "native/pjrt/pinned_memory.h"

#include <iterator>
#include <thread>
#include <utility>

namespace millpond::pjrt {

// A call of the driver for a piece, on the thread for such calls.
class PinnedMemory::Call final : public DriverThread::Task {
 public:
  // 0 bytes: unpins.
  Call(std::shared_ptr<const Client> client, std::byte* start, size_t bytes)
      : client_(std::move(client)), start_(reinterpret_cast<char*>(start)), bytes_(bytes) {}

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
    if (is_done) static_cast<void>(client_->Unpin(start_));
    client_->CountPinAsOverdue(false);
  }

  const std::shared_ptr<const Client> client_;
  char* const start_;
  const size_t bytes_;
  std::atomic<State> state_{State::kWaiting};
};

PinnedMemory::~PinnedMemory() {
  // The driver may never end the call that the thread makes, so another one waits for that.
  if (client_->HasOverduePin()) std::thread([thread = std::move(thread_)] {}).detach();
}

bool PinnedMemory::Pin(std::byte* start, size_t bytes) {
  if (has_failed_.load() || client_->HasOverduePin()) return false;
  if (!budget_.Take(static_cast<int64_t>(bytes))) return false;
  const auto call = std::make_shared<Call>(client_, start, bytes);
  bool has_ended = false;
  client_->pace().Make([&] { has_ended = thread_->PerformFor(call, overdue_ns_); });
  if (!has_ended) call->Leave();
  if (!call->is_done()) {
    budget_.Return(static_cast<int64_t>(bytes));
    return false;
  }
  const std::lock_guard lock(mutex_);
  pieces_[start] = {bytes, 0};
  return true;
}

void PinnedMemory::Unpin(std::byte* start, size_t bytes) {
  {
    std::unique_lock lock(mutex_);
    // No new lease finds the piece, and those that are there keep its address.
    const auto piece = pieces_.extract(start);
    const Piece& left = piece.mapped();
    returned_.wait(lock, [&] { return left.lease_count == left.abandoned_count; });
    if (left.abandoned_count > 0) {
      has_failed_.store(true);
      return;
    }
  }
  Call call(client_, start, 0);
  bool has_ended = false;
  client_->pace().Make([&] { has_ended = thread_->Perform(&call); });
  if (has_ended && call.is_done()) {
    budget_.Return(static_cast<int64_t>(bytes));
  } else {
    has_failed_.store(true);
  }
}

PinnedMemory::Lease PinnedMemory::Take(const std::byte* place) {
  const std::lock_guard lock(mutex_);
  const auto after = pieces_.upper_bound(place);
  if (after == pieces_.begin()) return {};
  auto& [start, piece] = *std::prev(after);
  if (place >= start + piece.bytes) return {};
  ++piece.lease_count;
  return {this, &piece, start + piece.bytes};
}

void PinnedMemory::Abandon(Piece* piece) {
  {
    const std::lock_guard lock(mutex_);
    ++piece->abandoned_count;
  }
  returned_.notify_all();
}

void PinnedMemory::Return(Piece* piece) {
  {
    const std::lock_guard lock(mutex_);
    --piece->lease_count;
  }
  returned_.notify_all();
}

}  // namespace millpond::pjrt
