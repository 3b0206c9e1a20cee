#include "native/servable/servable_entry.h"

#include <algorithm>
#include <string>
#include <utility>

#include "native/base/clock.h"

namespace millpond::servable {
namespace {

// The pause between two looks at the handles of a version that is to be unloaded, which is not
// urgent.
constexpr int64_t kQuiescePollNs = 1'000'000;

std::string Describe(const ServableId& id) {
  return id.name + " version " + std::to_string(id.version);
}

}  // namespace

ServableEntry::ServableEntry(std::unique_ptr<Servable> servable,
                             std::shared_ptr<RequestReservoir> reservoir,
                             std::shared_ptr<RequestLog> request_log)
    : id_(servable->id()),
      servable_(std::move(servable)),
      reservoir_(std::move(reservoir)),
      request_log_(std::move(request_log)) {}

ServableEntry::~ServableEntry() { requests_->MarkEnded(base::MonotonicNs()); }

// A handle may be taken on one thread and dropped on another, so that a cell may be below 0. While
// cells only fall, the sum of the cells as they are read is no less than the handles at the end.
int64_t ServableEntry::handle_count() const {
  int64_t count = 0;
  for (const Pins& pins : pins_) count += pins.count.load();
  return std::max<int64_t>(count, 0);
}

base::Status ServableEntry::MarkPublished() {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == Phase::kRetired || phase == Phase::kDestroyed) {
    return base::FailedPrecondition(Describe(id_) + " is unloading; load it again to publish it");
  }
  phase_.store(Phase::kPublished, std::memory_order_release);
  return {};
}

void ServableEntry::MarkRetired() { phase_.store(Phase::kRetired); }

// Counts itself before it looks at the phase. So either it sees that the entry is retired, or
// Quiesce sees its pin.
bool ServableEntry::PinUnlessRetired() {
  pins_.Mine().count.fetch_add(1);
  const Phase phase = phase_.load();
  if (phase == Phase::kMade || phase == Phase::kPublished) return true;
  Unpin();
  return false;
}

base::StatusOr<bool> ServableEntry::Quiesce(int64_t timeout_ns) {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == Phase::kPublished) {
    return base::FailedPrecondition(Describe(id_) + " is published; retire it before quiescing it");
  }
  if (phase != Phase::kRetired) return true;
  const int64_t begin_ns = base::MonotonicNs();
  while (handle_count() > 0) {
    if (base::MonotonicNs() - begin_ns >= timeout_ns) return false;
    base::SleepNs(kQuiescePollNs);
  }
  phase_.store(Phase::kQuiesced, std::memory_order_release);
  return true;
}

base::Status ServableEntry::Destroy() {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == Phase::kDestroyed) return {};
  // Once quiesced it has no handle, and gets none. A pin that is being refused counts for a moment.
  const bool may_be_held = phase != Phase::kQuiesced && handle_count() > 0;
  if (phase == Phase::kPublished || phase == Phase::kRetired || may_be_held) {
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
