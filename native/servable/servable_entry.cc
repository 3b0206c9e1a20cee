#include "native/servable/servable_entry.h"

#include <cerrno>
#include <ctime>
#include <string>
#include <utility>

#include "native/base/clock.h"

namespace millpond::servable {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

std::string Describe(const ServableId& id) {
  return id.name + " version " + std::to_string(id.version);
}

// Waits for `semaphore` until `deadline_ns` of the monotonic clock. Returns false if the deadline
// passes first.
bool WaitUntil(sem_t* semaphore, int64_t deadline_ns) {
  const timespec deadline{static_cast<time_t>(deadline_ns / kNsPerSecond),
                          static_cast<long>(deadline_ns % kNsPerSecond)};
  while (sem_clockwait(semaphore, CLOCK_MONOTONIC, &deadline) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

}  // namespace

ServableEntry::ServableEntry(std::unique_ptr<Servable> servable,
                             std::shared_ptr<RequestReservoir> reservoir,
                             std::shared_ptr<RequestLog> request_log)
    : id_(servable->id()),
      servable_(std::move(servable)),
      reservoir_(std::move(reservoir)),
      request_log_(std::move(request_log)) {
  sem_init(&last_handle_gone_, /*pshared=*/0, 0);
}

ServableEntry::~ServableEntry() {
  requests_->MarkEnded(base::MonotonicNs());
  sem_destroy(&last_handle_gone_);
}

int64_t ServableEntry::handle_count() const {
  return pins_.load(std::memory_order_acquire) & (kRetired - 1);
}

base::Status ServableEntry::MarkPublished() {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == Phase::kRetired || phase == Phase::kDestroyed) {
    return base::FailedPrecondition(Describe(id_) + " is unloading; load it again to publish it");
  }
  if (phase == Phase::kQuiesced) {
    pins_.fetch_sub(kRetired, std::memory_order_acq_rel);
    // A handle that the owner took and dropped since has posted, too. The next Quiesce must not
    // take that post for its own.
    while (sem_trywait(&last_handle_gone_) == 0) {
    }
  }
  phase_.store(Phase::kPublished, std::memory_order_release);
  return {};
}

void ServableEntry::MarkRetired() {
  phase_.store(Phase::kRetired, std::memory_order_release);
  if (pins_.fetch_add(kRetired, std::memory_order_acq_rel) == 0) sem_post(&last_handle_gone_);
}

bool ServableEntry::PinUnlessRetired() {
  int64_t pins = pins_.load(std::memory_order_relaxed);
  do {
    if ((pins & kRetired) != 0) return false;
  } while (!pins_.compare_exchange_weak(pins, pins + 1, std::memory_order_acq_rel));
  return true;
}

void ServableEntry::Unpin() {
  if (pins_.fetch_sub(1, std::memory_order_acq_rel) == kRetired + 1) sem_post(&last_handle_gone_);
}

base::StatusOr<bool> ServableEntry::Quiesce(int64_t timeout_ns) {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == Phase::kPublished) {
    return base::FailedPrecondition(Describe(id_) + " is published; retire it before quiescing it");
  }
  if (phase != Phase::kRetired) return true;
  // The count may read 0 before the post. Only after the post does no request thread use this
  // object any more.
  if (!WaitUntil(&last_handle_gone_, base::MonotonicNs() + timeout_ns)) return false;
  phase_.store(Phase::kQuiesced, std::memory_order_release);
  return true;
}

base::Status ServableEntry::Destroy() {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == Phase::kDestroyed) return {};
  if (phase == Phase::kPublished || phase == Phase::kRetired || handle_count() > 0) {
    return base::FailedPrecondition(Describe(id_) + " cannot be destroyed: it is published or " +
                                    std::to_string(handle_count()) +
                                    " requests hold it; retire and quiesce it first");
  }
  phase_.store(Phase::kDestroyed, std::memory_order_release);
  requests_->MarkEnded(base::MonotonicNs());
  servable_.reset();
  return {};
}

ServableHandle& ServableHandle::operator=(ServableHandle&& other) noexcept {
  if (this != &other) {
    Release();
    entry_ = std::exchange(other.entry_, nullptr);
  }
  return *this;
}

void ServableHandle::Release() {
  if (entry_ != nullptr) std::exchange(entry_, nullptr)->Unpin();
}

}  // namespace millpond::servable
